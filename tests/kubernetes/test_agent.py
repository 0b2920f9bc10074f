"""docker/agent.sh with a key that is given, beside programs that only tell how they were called.

tests/compose runs it in containers, where it finds key and launcher in the memory that they share.
"""

import os
import signal
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "docker" / "agent.sh"
# It ends when it is told to, some time later.
TFDIST = """\
trap 'sleep 0.3; echo ended; exit 9' TERM
echo "$@" > "$TRACE.new" && mv "$TRACE.new" "$TRACE"
[[ -n ${STAYS:-} ]] || exit 5
while :; do sleep 0.1; done
"""
SLEEP = 'if [[ $1 == infinity ]]; then echo "stays"; else exec /bin/sleep "$@"; fi\n'


@pytest.fixture
def agent(tmp_path):
    """Starts the script with some variables."""
    for name, text in (("tfdist", TFDIST), ("sleep", SLEEP)):
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "key").write_text("k" * 64)
    given = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path), "TRACE": str(tmp_path / "words")}
    given |= {"JOB_KEY": str(tmp_path / "key"), "LAUNCHER": "train-launcher:4000"}
    started = []

    def start(**variables):
        pipe = subprocess.PIPE
        started.append(subprocess.Popen([SCRIPT], env=given | variables, stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=60)


def test_offers_its_slots_and_exits_with_the_status_of_the_job(agent, tmp_path):
    process = agent(SLOTS="3", LAUNCHER_TIMEOUT="7")
    assert process.wait(60) == 5
    words = (tmp_path / "words").read_text()
    assert words == f"agent --launcher train-launcher:4000 --key-file {tmp_path}/key --slots 3 --wait 7\n"
    assert (tmp_path / "tfdist-agent").exists(), "what the health check looks for"


def test_stays_for_its_files(agent):
    said, told = agent(STAY="true").communicate(timeout=60)
    assert said == "stays\n"
    assert "the agent has ended with status 5; this container stays until it is deleted" in told


@pytest.mark.parametrize("stay", ["", "true"], ids=["ends", "stays"])
def test_waits_for_an_agent_that_was_asked_to_end(agent, wait_until, tmp_path, stay):
    process = agent(STAYS="true", STAY=stay)
    wait_until((tmp_path / "words").exists, what="the agent")
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert (process.returncode, said) == (9, "ended\n")
