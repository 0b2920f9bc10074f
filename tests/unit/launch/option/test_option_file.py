"""Tests of tfdist.launch.option.option_file, by way of the options of tfdistrun."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from tfdist.errors import ConfigError
from tfdist.launch.option import horovod_option, option


def _parse(tmp_path: Path, text: str, *words: str) -> argparse.Namespace:
    (tmp_path / "job.yaml").write_text(text)
    known, command = option.parse(["--config-file", str(tmp_path / "job.yaml"), *words, "python", "x.py"])
    assert command == ["python", "x.py"]
    return known


def test_options_by_their_long_names(tmp_path: Path) -> None:
    known = _parse(
        tmp_path,
        """\
num-proc: 3              # a comment
hosts: [one:2, 'two:1']
ssh_port: 2222
start-timeout: 7.5
verbose: true
prefix_output_with_timestamp: false
mpi-args: --mca x 'a b'
binding_args: [--bind-to, none]
elastic: true
blacklist_cooldown_range: [2, 30.5]
data-workers: 0x2
autoscale: "1:4"
""",
        "--data-workers=3",
    )
    assert (known.num_proc, known.hosts, known.ssh_port, known.start_timeout) == (3, "one:2,two:1", 2222, 7.5)
    assert (known.verbose, known.prefix_output_with_timestamp, known.elastic) == (True, False, True)
    assert (known.mpi_args, known.binding_args) == (("--mca", "x", "a b"), ("--bind-to", "none"))
    assert (known.blacklist_cooldown_range, known.data_workers, known.autoscale) == ([2, 30.5], 3, (1, 4))


def test_sections_of_horovod(tmp_path: Path) -> None:
    known = _parse(
        tmp_path,
        """\
num_proc: 1
params: {fusion_threshold_mb: 32, cycle_time_ms: 5}
stall-check:
  warning_time_seconds: 12
  shutdown_time_seconds: 60
library_options: {mpi_args: --mca a b}
logging: {level: debug}
timeline: {filename: run.json, mark_cycles: true}
autotune: {enabled: true, log_file: tuning.csv}
verbose: false
""",
    )
    assert (known.fusion_threshold_mb, known.mpi_args) == (32, ("--mca", "a", "b"))
    assert option.variables(known) == {
        "TFDIST_FUSION_THRESHOLD": str(32 << 20),
        "TFDIST_STALL_CHECK_WARNING_TIME": "12",
        "TFDIST_STALL_CHECK_SHUTDOWN_TIME": "60",
        "TFDIST_LOG_LEVEL": "debug",
        "TFDIST_TIMELINE": "run.json",
        "TFDIST_TIMELINE_MARK_CYCLES": "1",
        "TFDIST_AUTOTUNE": "1",
        "TFDIST_AUTOTUNE_LOG": "tuning.csv",
    }
    assert [note.partition(" ")[0] for note in horovod_option.notes(known)] == ["--cycle-time-ms"]


def test_command_line_wins(tmp_path: Path) -> None:
    text = "num-proc: 2\nhosts: one:2\ncompression: none\nlog-level: info\n"
    known = _parse(tmp_path, text, "-np", "1", "--log-level", "error")
    assert (known.num_proc, known.hosts, known.compression, known.log_level) == (1, "one:2", "none", "ERROR")
    known = _parse(tmp_path, text, "--hostfile", "list")
    assert (known.num_proc, known.hosts, known.hostfile) == (2, None, "list")


def test_check_for_stalls_can_be_switched_off(tmp_path: Path) -> None:
    text = "num-proc: 1\nstall_check: {enabled: false}\n"
    assert option.variables(_parse(tmp_path, text)) == {"TFDIST_STALL_CHECK_WARNING_TIME": "0"}
    on = _parse(tmp_path, text.replace("false", "true"))
    assert option.variables(on) == {"TFDIST_STALL_CHECK_WARNING_TIME": option.STALL_WARNING_S}
    given = _parse(tmp_path, text, "--stall-check-warning-time-seconds", "4")
    assert option.variables(given) == {"TFDIST_STALL_CHECK_WARNING_TIME": "4"}


def test_empty_file(tmp_path: Path) -> None:
    assert _parse(tmp_path, "# nothing yet\n", "-np", "4").num_proc == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("num-prc: 2", "num-prc: no such option; did you mean num-proc?"),
        ("np: 2", "np: no such option; did you mean num-proc?"),
        (
            "params: {fusion_treshold_mb: 2}",
            "params: fusion_treshold_mb: no such option; did you mean fusion-threshold",
        ),
        ("zzz: 2", "zzz: no such option; all options: tfdistrun --help"),
        ("help: true", "help: no such option"),
        ("config-file: other.yaml", "config-file: no such option"),
        ("num-proc: {a: 1}", "num-proc: found {'a': 1}; expected text or a number"),
        ("num-proc: two", "'two' is not a number of ranks; expected 1 or more, or auto$"),
        ("num-proc: true", "num-proc: found True; expected text or a number"),
        ("num-proc:", "num-proc: found nothing"),
        ("num-proc: 2021-01-01", r"num-proc: found datetime.date\(2021, 1, 1\)"),
        ("num-proc: 2\nnum_proc: 3", "num_proc and num-proc are the same option"),
        ("log-level: info\nlogging: {level: info}", "logging: level and log-level are the same option"),
        ("min-np: 1\nmin-num-proc: 1", "min-num-proc and min-np are the same option"),
        ("verbose: 1", "verbose: found 1; expected true or false"),
        ("autoscale: 1:4", "autoscale: found 64; expected MIN:MAX in quotes"),
        ("blacklist-cooldown-range: 3", "found 3; expected a list of 2"),
        ("blacklist-cooldown-range: [3]", "expected a list of 2"),
        ("log-level: loud", "LOUD"),
        ("- num-proc", "found list; expected options, such as the line `num-proc: 4`"),
        ("a: b: c", "is not YAML: mapping values are not allowed here"),
        ("num-proc: 2021-13-13", "is not YAML: month must be in"),
        ("x: !!python/object/apply:os.getcwd []", "is not YAML: could not determine a constructor"),
    ],
)
def test_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^--config-file {re.escape(str(tmp_path))}/job.yaml.*{message}"):
        _parse(tmp_path, text)


def test_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--config-file none\.yaml cannot be read: .*No such file"):
        option.parse(["--config-file", "none.yaml", "x"])


def test_text_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ConfigError, match="cannot be read"):
        option.parse(["--config-file", str(tmp_path / "bytes"), "x"])
