"""Tests of tfdist.command.chaos.command: what is refused. What it does to jobs is in tests/chaos."""

import pytest

from tfdist.command.chaos import command
from tfdist.errors import ConfigError


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("-- true", "no fault given; try --kill-rank-every 30s"),
        ("--kill-rank-every 1s", "no job given; write it after --"),
        ("--kill-rank-every 1s --", "no job given; write it after --"),
        ("--kill-rank-every soon -- true", "'soon' is not a time"),
        ("--kill-rank-every 1s --most 0 -- true", "'0' is not a number of faults; expected 1 or more"),
        ("--kill-every 1s -- true", "unrecognized arguments|no fault given"),
        ("--kill-rank-every 1s -- /nowhere/program", "/nowhere/program cannot be run: No such file"),
    ],
)
def test_refused(words, reason):
    with pytest.raises(ConfigError, match=reason):
        command.main(words.split())


@pytest.mark.parametrize(("words", "status"), [("true", 0), ("false", 1), ("sh -c 'kill -9 $$'", 137)])
def test_the_exit_status_is_that_of_the_job(words, status, capfd):
    import shlex

    assert command.main(["--kill-rank-every", "100s", "--seed", "5", "--", *shlex.split(words)]) == status
    assert capfd.readouterr().err == "tfdist chaos: --seed 5\n"
