"""Tests of tfdist.launch.option.option."""

from __future__ import annotations

import sys

import pytest

from tfdist import config
from tfdist.errors import ConfigError
from tfdist.launch.host.core import Cores
from tfdist.launch.option import horovod_option, option


def test_command_begins_at_the_first_word_that_is_no_option() -> None:
    known, command = option.parse(["-np", "2", "--verbose", "-H=a:2", "python", "t.py", "-np", "9", "--verbose"])
    assert (known.num_proc, known.hosts, known.verbose) == (2, "a:2", True)
    assert command == ["python", "t.py", "-np", "9", "--verbose"]
    assert option.parse(["-np", "2", "--", "-odd"])[1] == ["-odd"]


@pytest.mark.parametrize("words", [["-m", "a.b"], ["-m=a.b"]])
def test_module(words: list[str]) -> None:
    known, command = option.parse(["-n", "2", *words, "-np", "9", "-m", "c"])
    assert known.num_proc == 2
    assert command == [sys.executable, "-m", "a.b", "-np", "9", "-m", "c"]


@pytest.mark.parametrize("words", [["-m"], ["-m", "-x"], ["-m="]])
def test_module_is_missing(words: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"-m expects a module, as in: tfdistrun -np 2 -m package\.train"):
        option.parse(["-np", "2", *words])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["python", "train.py", "-np", "2"], r"-np N is missing.* The one after python is passed to it: write -np N"),
        (["-np", "2", "-m", "a/b.py"], r"-m received the file a/b\.py; expected a module, such as a\.b\."),
        (["-np", "2", "--compression", "fp17", "x"], r"invalid choice: 'fp17' \(choose from .*fp16"),
    ],
)
def test_what_is_mistaken(words: list[str], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        option.parse(words)


def test_value_may_look_like_an_option() -> None:
    known, _ = option.parse(["-np", "1", "--mpi-args", "--mca a 'b c'", "--binding-args=--bind-to none", "x"])
    assert known.mpi_args == ("--mca", "a", "b c")
    assert known.binding_args == ("--bind-to", "none")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-npp", "2"], "did you mean -np"),
        (["--autotun"], "--autotun: no such option; did you mean --autotune"),
        (["--output-filname", "x"], "did you mean --output-filename"),
        (["-np", "1.5", "x"], "'1.5' is not a number of ranks"),
        (["-np", "1", "--start-timeout", "0", "x"], "'0' is not a number of seconds"),
        (["-np", "1", "--start-timeout", "nan", "x"], "'nan' is not a number of seconds"),
        (["-np", "1", "-p", "70000", "x"], "'70000' is not a port"),
        (["-np", "1", "--mpi-args", "'", "x"], "cannot be split"),
        (["-np", "1", "--log-level", "loud", "x"], "LOUD"),
        (["-np", "1", "--verbose=1", "x"], "--verbose"),
        (["-np", "1", "--no-stall-check", "--stall-check-warning-time-seconds", "3", "x"], "cannot be combined"),
        (["-np", "1", "--network-interfaces", "a,,b", "x"], "an empty name"),
        (["-np", "1", "-H", "", "x"], "--hosts received an empty value. Give one, or omit the option"),
        (["-np", "1", "--hostfile=", "x"], "--hostfile received an empty value"),
        (["-np", "1", "--elastic", "--host-discovery-script", "", "x"], "--host-discovery-script received an empty"),
        (["-np", "1", "--elastic", "--backup-dir", "", "x"], "--backup-dir received an empty value"),
        (["-np", "1", "--data-workers", "2", "--autoscale", "2", "x"], "'2' is not MIN:MAX"),
        (["-np", "1", "--data-workers", "2", "--autoscale", "3:2", "x"], "'3:2' is not MIN:MAX"),
        (["-np", "1", "--data-workers", "2", "--autoscale", "0:2", "x"], "'0:2' is not MIN:MAX"),
        (["-np", "1", "--data-workers", "2", "--autoscale", "\u0661:\u0662", "x"], "is not MIN:MAX"),
        (["-np", "1", "--autoscale", "1:2", "x"], "add --data-workers N"),
        (
            ["-np", "1", "--data-workers", "3", "--autoscale", "1:2", "x"],
            "--data-workers 3 is not within --autoscale 1:2",
        ),
        (["-np", "1", "--data-workers", "1", "--autoscale", "2:2", "x"], "--data-workers 1 is not within"),
        (["-np", "2", "--min-np", "3", "x"], "--min-np 3 is more than -np 2; .* expected 1 to 2"),
        (
            ["-np", "2", "--min-np", "0", "x"],
            "--min-np/--min-num-proc: '0' is not a number of ranks; expected 1 or more",
        ),
        (["-np", "2", "--min-np", "-1", "x"], "'-1' is not a number of ranks"),
        (["-np", "2", "--reset-limit", "2", "x"], "--reset-limit is for elastic jobs; add --elastic"),
        (["-np", "2", "--blacklist-cooldown-range", "1", "2", "x"], "--blacklist-cooldown-range is for elastic jobs"),
        (["-np", "2", "--elastic-timeout", "2", "x"], "--elastic-timeout is for elastic jobs"),
        (["-np", "2", "--max-np", "2", "x"], "--max-np is for elastic jobs"),
        (["-np", "2", "--backup-dir", "d", "x"], "--backup-dir is for elastic jobs"),
        (["-np", "2", "--host-discovery-script", "x", "x"], "--host-discovery-script is for elastic jobs"),
        (["-np", "2", "--elastic", "--max-np", "1", "x"], "--max-np 1 is less than -np 2"),
        (["-np", "2", "--elastic", "--slots-per-host", "1", "x"], "--slots-per-host needs --host-discovery-script"),
        (
            ["-np", "2", "--elastic", "--host-discovery-script", "s", "-H", "a:2", "x"],
            "cannot be combined with -H or --hostfile",
        ),
        (
            ["-np", "2", "--elastic", "--host-discovery-script", "s", "--data-workers", "1", "x"],
            "--data-workers .* --host-discovery-script",
        ),
        (["-np", "2", "--elastic", "--reset-limit", "-1", "x"], "'-1' is not a number of times; expected 0 or more"),
        (["-np", "2", "--elastic", "--elastic-timeout", "0", "x"], "'0' is not a number of seconds"),
        (["-np", "2", "--elastic", "--blacklist-cooldown-range", "3", "2", "x"], "range 3 2: MIN is greater than MAX"),
        (["-np", "2", "--elastic", "--blacklist-cooldown-range", "3"], "expected 2 arguments"),
        (["-np", "2", "--elastic", "--blacklist-cooldown-range", "3", "x"], "'x' is not a number of seconds"),
    ],
)
def test_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        option.parse(words)


@pytest.mark.parametrize(("workers", "text", "bounds"), [("2", "1:4", (1, 4)), ("3", "3:3", (3, 3))])
def test_bounds_of_the_data_workers(workers: str, text: str, bounds: tuple[int, int]) -> None:
    known, _ = option.parse(["-np", "1", "--data-workers", workers, "--autoscale", text, "x"])
    assert (known.data_workers, known.autoscale) == (int(workers), bounds)
    assert option.parse(["-np", "1", "--data-workers", workers, "x"])[0].autoscale is None


@pytest.mark.parametrize(
    ("words", "least"),
    [("", None), ("--elastic", 1), ("--min-np 3", 3), ("--elastic --min-num-proc=2", 2), ("--min-np 1", 1)],
)
def test_fewest_ranks_of_an_elastic_job(words: str, least: int | None) -> None:
    known, _ = option.parse(["-np", "3", *words.split(), "x"])
    assert option.least(known) == least


def test_new_starts_of_an_elastic_job() -> None:
    words = "-np 3 --elastic --reset-limit 0 --blacklist-cooldown-range 2 30 --elastic-timeout 9 python x.py"
    known, command = option.parse(words.split())
    assert (known.reset_limit, known.blacklist_cooldown_range, known.elastic_timeout) == (0, [2, 30], 9)
    assert command == ["python", "x.py"]


def test_variables() -> None:
    words = "-np 1 --fusion-threshold-mb 32 --log-level trace --compression fp16 --stall-check-warning-time-seconds 5"
    more = "--stall-check-shutdown-time-seconds 9 --host-timeout 12.5 --autotune --autotune-log-file a.csv"
    timeline = "--timeline-filename t.json --timeline-mark-cycles x"
    known, _ = option.parse([*words.split(), *more.split(), *timeline.split()])
    assert option.variables(known) == {
        "TFDIST_FUSION_THRESHOLD": str(32 << 20),
        "TFDIST_COMPRESSION": "fp16",
        "TFDIST_AUTOTUNE": "1",
        "TFDIST_AUTOTUNE_LOG": "a.csv",
        "TFDIST_STALL_CHECK_WARNING_TIME": "5",
        "TFDIST_STALL_CHECK_SHUTDOWN_TIME": "9",
        "TFDIST_HOST_TIMEOUT": "12.5",
        "TFDIST_TIMELINE": "t.json",
        "TFDIST_TIMELINE_MARK_CYCLES": "1",
        "TFDIST_LOG_LEVEL": "debug",
    }
    assert option.variables(option.parse(["-np", "1", "x"])[0]) == {}


def test_switches_that_are_variables() -> None:
    known, _ = option.parse("-np 1 --no-stall-check --hierarchical-allreduce x".split())
    assert option.variables(known) == {
        "TFDIST_STALL_CHECK_WARNING_TIME": "0",
        "TFDIST_HIERARCHICAL_ALLREDUCE": "mpi",
    }
    settings = config.read(option.variables(known))
    assert (settings.stall_warning_seconds, settings.hierarchical_allreduce) == (0, "mpi")


def test_options_without_effect_say_so() -> None:
    idle = [word for name, (valued, _) in horovod_option.IDLE.items() for word in (name, "3")[: 1 + valued]]
    known, command = option.parse(["-np", "1", *idle, "--mpi", "x"])
    assert command == ["x"]
    notes = horovod_option.notes(known)
    assert "--cycle-time-ms has no effect: there is no negotiation cycle" in notes
    assert [note.partition(" ")[0] for note in notes] == list(horovod_option.IDLE)
    assert horovod_option.notes(option.parse(["-np", "1", "--mpi", "x"])[0]) == []


# Those of horovodrun 0.28.1.
HOROVODRUN = """
-v --version -np --num-proc -cb --check-build --disable-cache --start-timeout --network-interfaces --network-interface
--output-filename --verbose --config-file -p --ssh-port -i --ssh-identity-file --fusion-threshold-mb --cycle-time-ms
--cache-capacity --hierarchical-allreduce --no-hierarchical-allreduce --hierarchical-allgather
--no-hierarchical-allgather
--torus-allreduce --no-torus-allreduce --autotune --no-autotune --autotune-log-file --autotune-warmup-samples
--autotune-steps-per-sample --autotune-bayes-opt-max-samples --autotune-gaussian-process-noise --min-np --min-num-proc
--max-np --max-num-proc --slots-per-host --elastic-timeout --reset-limit --blacklist-cooldown-range --timeline-filename
--timeline-mark-cycles --no-timeline-mark-cycles --no-stall-check --stall-check --stall-check-warning-time-seconds
--stall-check-shutdown-time-seconds --mpi-threads-disable --no-mpi-threads-disable --mpi-args --tcp --binding-args
--num-nccl-streams --thread-affinity --gloo-timeout-seconds --log-level --log-with-timestamp --log-without-timestamp
-prefix-timestamp --prefix-output-with-timestamp --log-hide-timestamp --no-log-hide-timestamp -H --hosts -hostfile
--hostfile --host-discovery-script --gloo --mpi --jsrun
"""


def test_every_option_of_horovodrun_is_known() -> None:
    assert [name for name in HOROVODRUN.split() if name not in option.parser()._option_string_actions] == []


def test_options_that_undo_others() -> None:
    """They win over the environment, too."""
    words = "-np 1 --no-autotune --no-hierarchical-allreduce --no-timeline-mark-cycles --stall-check x"
    assert option.variables(option.parse(words.split())[0]) == {
        "TFDIST_AUTOTUNE": "0",
        "TFDIST_HIERARCHICAL_ALLREDUCE": "off",
        "TFDIST_TIMELINE_MARK_CYCLES": "0",
        "TFDIST_STALL_CHECK_WARNING_TIME": "60",
    }
    known = option.parse(words.replace("--stall-check", "--stall-check-warning-time-seconds 7").split())[0]
    assert option.variables(known)["TFDIST_STALL_CHECK_WARNING_TIME"] == "7"
    assert option.variables(option.parse(["-np", "1", "x"])[0]) == {}


def test_old_spellings_of_horovodrun() -> None:
    words = "-np 1 -hostfile h -prefix-timestamp --network-interface eth0 --network-interface eth1,eth2 "
    known = option.parse((words + "--network-interfaces lo --as-horovod x").split())[0]
    assert (known.hostfile, known.prefix_output_with_timestamp) == ("h", True)
    assert known.network_interfaces == ("lo", "eth0", "eth1", "eth2")
    assert option.variables(known) == {"TFDIST_AS_HOROVOD": "1"}
    tuned = "-np 1 --autotune --autotune-steps-per-sample 4 --autotune-bayes-opt-max-samples 9 x"
    settings = config.read(option.variables(option.parse(tuned.split())[0]))
    assert (settings.autotune, settings.autotune_steps, settings.autotune_samples) == ("1", 4, 9)


@pytest.mark.parametrize("name", ["--no-mpi", "--gloo"])
def test_jobs_without_mpi(name: str) -> None:
    assert option.parse([name, "-np", "1", "x"])[0].starter == "direct"
    with pytest.raises(ConfigError, match="not allowed with"):
        option.parse([name, "--mpi", "-np", "1", "x"])


def test_help_begins_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        option.parse(["--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0
    assert text.index("examples:") < text.index("--num-proc")
    assert "TF_NUM_INTRAOP_THREADS" in text
    assert "(default: 30)" in text


def test_crowding() -> None:
    assert option.crowding(2, Cores(2, bindable=True)) is None
    assert option.crowding(2, Cores(1, bindable=True)) == "note: 2 ranks share 1 core, so they compete for CPU time"
