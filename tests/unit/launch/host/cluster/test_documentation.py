"""docs/clusters.md is true: its commands are parsed, its file is read, and its messages are those of the code."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tfdist.launch.host.cluster import allocation
from tfdist.launch.host.cluster.allocation import Allocation
from tfdist.launch.host.host import Host
from tfdist.launch.option import horovod_option, option

PAGE = Path(__file__).resolve().parents[5] / "docs" / "clusters.md"
TEXT = PAGE.read_text()
HOSTS = (Host("n1", 6), Host("n2", 6))
COMMANDS = [
    line
    for block in re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL)
    for line in block.splitlines()
    if "tfdistrun" in line
]


def _find(wanted: str | None) -> Allocation:
    return Allocation("a manager", HOSTS, "its variables")


def test_there_is_a_command_for_each_manager() -> None:
    assert len(COMMANDS) == 9
    assert {line.split()[0] for line in COMMANDS} == {"salloc", "tfdistrun", "bsub", "qsub"}


@pytest.mark.parametrize("line", COMMANDS)
def test_command(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (yaml,) = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "job.yaml").write_text(yaml)
    monkeypatch.chdir(tmp_path)
    words = shlex.split(line)
    begin = next(place for place, word in enumerate(words) if word.endswith("tfdistrun"))
    known, command = option.parse(words[begin + 1 :], _find)
    assert command == ["python", "train.py"]
    ranks = 8 if "10.0.0.11" in line or "--config-file" in line else 12
    assert known.num_proc == ranks
    assert horovod_option.notes(known) == []


def test_options_and_variables_are_those_of_the_code() -> None:
    options = set(re.findall(r"`(--[a-z-]+)", TEXT))
    assert {"--verbose", "--srun", "--jsrun", "--mpi", "--tcp"} <= options
    assert options - {"--bind", "--smpiargs"} <= set(option.parser()._option_string_actions)
    sources = "".join(path.read_text() for path in Path(allocation.__file__).parent.glob("*.py"))
    variables = set(re.findall(r"`((?:SLURM|LSB|PBS|SM|OMPI)_\w+)`", TEXT))
    assert {"SM_HOSTS", "SM_NUM_GPUS", "OMPI_MCA_orte_default_hostfile"} <= variables
    assert not [name for name in variables if name not in sources]


def test_batch_script_runs_what_the_test_of_slurm_does() -> None:
    (script,) = re.findall(r"```bash\n(#!/bin/bash\n.*?)```", TEXT, re.DOTALL)
    assert script.splitlines()[-1] == "tfdistrun --verbose python train.py"
    assert all(line.startswith("#SBATCH --") for line in script.splitlines()[1:-1])
