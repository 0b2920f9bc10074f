"""The ops are loaded for the installed TensorFlow, or it is said why not."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tensorflow as tf

from tfdist.errors import BuildError
from tfdist.native import adapter, build


@pytest.fixture
def fresh() -> Iterator[None]:
    adapter._load.cache_clear()
    yield
    adapter._load.cache_clear()


def test_tensorflow_of_another_minor_is_refused(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf, "__version__", "9.9.9")
    with pytest.raises(BuildError, match=r"TensorFlow 9\.9\.9 is installed, but tfdist has libraries for"):
        adapter.ops()
    with pytest.raises(BuildError, match=r"TensorFlow 9\.9\.9 is installed, but tfdist has libraries for"):
        adapter.record()


def test_an_unknown_patch_is_used_with_one_warning(
    fresh: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    minor = ".".join(tf.__version__.split(".")[:2])
    monkeypatch.setattr(tf, "__version__", f"{minor}.99")
    with caplog.at_level(logging.WARNING, logger="tfdist"):
        assert adapter.ops() is adapter.ops()
    assert [f"TensorFlow {minor}.99 is installed" in line.message for line in caplog.records] == [True]
    assert build.reinstall() in caplog.text


def test_the_known_release_is_used_without_a_word(fresh: None, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="tfdist"):
        assert hasattr(adapter.ops(), "tfdist_grouped_allreduce")
    assert caplog.records == []


def test_an_adapter_that_does_not_load_is_named(fresh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a wrong adapter would do: a name that it needs is not there."""
    there = build.adapter(tf.__version__)
    shutil.copy(build.core(), tmp_path)
    broken = there.read_bytes().replace(b"libtfdist_core.so\0", b"libtfdist_c0re.so\0")
    assert broken != there.read_bytes()
    (tmp_path / there.name).write_bytes(broken)
    monkeypatch.setattr(build, "FOLDER", tmp_path)
    with pytest.raises(BuildError, match=r"could not be loaded: .*libtfdist_c0re.so") as caught:
        adapter.ops()
    assert tf.__version__ in str(caught.value) and build.reinstall() in str(caught.value)


AFTER_INIT = """
import sys, tfdist
tfdist.init()
assert "tensorflow" not in sys.modules
"""
REGISTERED = """
import tensorflow
from tensorflow.python.framework import op_def_registry
assert op_def_registry.get("TfdistBarrier") is not None
"""
# The lock of one and the import of the other must not wait for each other.
FROM_TWO_THREADS = """
import threading
from tfdist.native import adapter
other = threading.Thread(target=adapter.ops)
other.start()
import tensorflow
other.join(60)
assert not other.is_alive()
"""
REFUSED = """
try:
    import tensorflow
except ImportError as error:
    assert "TensorFlow 9.9.9 is installed, but tfdist has libraries for" in str(error)
else:
    raise AssertionError("taken")
"""


@pytest.mark.parametrize("script", [REGISTERED, FROM_TWO_THREADS + REGISTERED], ids=["import", "threads"])
def test_tensorflow_after_init_gets_the_ops(run_script: Callable[..., str], script: str) -> None:
    """A model that is loaded may hold them."""
    run_script(AFTER_INIT + script)


def test_another_tensorflow_after_init_is_refused(run_script: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text("__version__ = '9.9.9'")
    run_script(AFTER_INIT + REFUSED)
