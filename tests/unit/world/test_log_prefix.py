"""What a line of the log begins with, and whose level and filters stay."""

import logging
import re
import warnings
from pathlib import Path

import pytest

from tfdist import config
from tfdist.input import shuffle_warning
from tfdist.world import runtime
from tfdist.world.session import session

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (None, "tfdist: said 3"),
        ((0, 1), "tfdist: said 3"),
        ((0, 2), "tfdist rank 0: said 3"),
        ((2, 3), "tfdist rank 2: said 3"),
    ],
)
def test_prefix(monkeypatch, caplog, place, expected):
    monkeypatch.setattr(session, "place", place)
    logging.getLogger("tfdist").warning("said %d", 3)
    assert caplog.messages == [expected]


def test_prefix_before_init_is_the_launchers(monkeypatch, caplog):
    monkeypatch.setattr(session, "place", None)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    logging.getLogger("tfdist").warning("100% said")
    assert caplog.messages == ["tfdist rank 1: 100% said"]


def test_no_message_brings_a_prefix_of_its_own():
    """It would be there twice."""
    call = re.compile(r'(?:_logger|_LOG)\.\w+\(\s*f?"tfdist(?: rank \S+)?: ')
    folders = (ROOT / folder for folder in ("tfdist", "callbacks", "data_service"))
    assert not [path for folder in folders for path in folder.rglob("*.py") if call.search(path.read_text())]


@pytest.mark.parametrize(
    ("own", "variable", "level"),
    [
        (logging.NOTSET, "", logging.NOTSET),
        (logging.NOTSET, "debug", logging.DEBUG),
        (logging.ERROR, "debug", logging.ERROR),
    ],
)
def test_level_is_the_users(monkeypatch, own, variable, level):
    logger = logging.getLogger("tfdist")
    monkeypatch.setattr(logger, "level", own)
    monkeypatch.setenv("TFDIST_LOG_LEVEL", variable)
    runtime._take_level(config.read().log_level)
    assert logger.level == level


def test_filters_are_the_users():
    before = list(warnings.filters)
    text = "`shuffle=True` was passed, but will be ignored since the data is a dataset"
    module = "keras.src.trainers.epoch_iterator"

    def warned():
        with warnings.catch_warnings(record=True) as caught:
            warnings.warn_explicit(text, UserWarning, "a.py", 1, module)
        return len(caught)

    shuffle_warning.hide()
    shuffle_warning.hide()
    assert warned() == 0
    shuffle_warning.show()
    assert warned() == 1
    assert list(warnings.filters) == before
    shuffle_warning.show()
