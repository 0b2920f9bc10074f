"""Which process is a rank, and which one a rank has started, by the mark that the rank leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tfdist import config
from tfdist.system.rank import ancestry, job_place

LAUNCHED = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "PMIX_RANK": "1",
    "PMIX_NAMESPACE": "prterun-node-17@1",
    "TFDIST_LAUNCHED": "1",
    "TFDIST_ELASTIC": "1",
    "TFDIST_METRICS_PORT": "9000",
    "TFDIST_TIMELINE": "/run.json",
    "TFDIST_LOG_LEVEL": "info",
}
ASK = """
import json, os, sys
from tfdist import config
from tfdist.system.rank import ancestry, job_place
settings = config.read()
print(json.dumps([ancestry.origin(), ancestry.is_again(), job_place.is_rank(), job_place.rank(),
    settings.elastic, settings.metrics_port, settings.timeline, settings.log_level]))
sys.stdout.flush()
"""
IS_RANK = ["", False, True, "1", True, 9000, "/run.json", "info"]
IS_CHILD = ["1", False, False, "?", False, None, "", "info"]


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process plays rank 1 of a job, before init."""
    monkeypatch.delenv(ancestry.MARK_VARIABLE, raising=False)
    for name, value in LAUNCHED.items():
        monkeypatch.setenv(name, value)


def _ask(**variables: str) -> list[object]:
    asked = subprocess.run(
        [sys.executable, "-c", ASK], env=os.environ | variables, capture_output=True, text=True, timeout=60, check=True
    )
    answer: list[object] = json.loads(asked.stdout)
    return answer


@pytest.mark.usefixtures("rank")
def test_only_what_was_started_after_init_is_no_rank() -> None:
    assert _ask() == IS_RANK, "a wrapper has started it"
    ancestry.mark("1")
    assert _ask() == IS_CHILD
    assert (ancestry.origin(), ancestry.is_again(), job_place.is_rank()) == ("", True, True)
    assert config.read().metrics_port == 9000


@pytest.mark.usefixtures("rank")
def test_job_that_a_rank_starts_has_ranks_of_its_own() -> None:
    ancestry.mark("1")
    # By a launcher that hands on the variables, and by tfdistrun, which starts without them.
    assert _ask(PMIX_NAMESPACE="prterun-node-99@1")[:4] == ["", False, True, "1"]
    clean = ancestry.without_rank(os.environ)
    assert not {*LAUNCHED, ancestry.MARK_VARIABLE} & clean.keys() - {"TFDIST_LOG_LEVEL"}
    assert clean["PATH"] == os.environ["PATH"]


@pytest.mark.usefixtures("rank")
def test_process_that_replaces_its_program_stays_the_same() -> None:
    script = (
        "import os, sys\nfrom tfdist.system.rank import ancestry\nancestry.mark('1')\n"
        f"os.execv(sys.executable, [sys.executable, '-c', {ASK!r}])"
    )
    asked = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(asked.stdout)[:3] == ["", True, True]


@pytest.mark.usefixtures("rank")
def test_forked_process_is_no_rank() -> None:
    ancestry.mark("1")
    pid = os.fork()
    if pid == 0:
        os._exit(0 if ancestry.origin() == "1" and not job_place.is_rank() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.parametrize("text", ["", "1", "1:2:3", "1:2:3:another", "::::"])
def test_mark_that_is_none_of_this_job_is_ignored(text: str) -> None:
    assert ancestry.origin({ancestry.MARK_VARIABLE: text, "PMIX_NAMESPACE": "here"}) == ""
