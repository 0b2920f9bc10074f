"""Tests of tfdist.launch.option.rank_count."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfdist.errors import ConfigError
from tfdist.launch.host import capacity
from tfdist.launch.host.capacity import Capacity
from tfdist.launch.host.cluster.allocation import Allocation
from tfdist.launch.host.host import Host
from tfdist.launch.option import option

GB = 10**9
AGENTS = ("--agents", "2", "--listen", "a:4000", "--key-file", "k")
NODES = ("--nodes", "2", "--rendezvous", "a:4000", "--key-file", "k")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> list[Capacity]:
    """The last one is this machine."""
    made = [Capacity(0, 4, 64 * GB)]
    monkeypatch.setattr(capacity, "read", lambda environment: made[-1])
    return made


@pytest.mark.parametrize(
    ("has", "ranks", "why"),
    [
        (Capacity(0, 4, 64 * GB), 4, "one per physical core, and 64.0 GB of free memory suffice"),
        (Capacity(0, 4, 8 * GB), 4, "one per physical core"),
        (Capacity(0, 4, 8 * GB - 1), 3, "8.0 GB of free memory at 2 GB per rank, fewer than the 4 physical cores"),
        (Capacity(0, 4, GB), 1, "1.0 GB of free memory"),
        (Capacity(3, 4, GB), 3, "one per GPU"),
    ],
)
def test_auto(machine: list[Capacity], has: Capacity, ranks: int, why: str) -> None:
    machine.append(has)
    known, _ = option.parse(["-np", "auto", "x"])
    assert known.num_proc == ranks
    assert f"-np auto: {ranks} rank{'s' * (ranks > 1)}: {why}" in known.count_note
    effect = f"global batch is {ranks} times the batch in the script, and DataParallel multiplies the learning rate"
    assert (effect in known.count_note) == (ranks > 1)


def test_number_needs_no_look_at_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "read", None)
    for name in ("-n", "-np", "--num-proc"):
        known, command = option.parse([name, "3", "x", "-n", "4"])
        assert (known.num_proc, known.count_note, command) == (3, "", ["x", "-n", "4"])


def test_gpus_without_a_number(machine: list[Capacity]) -> None:
    with pytest.raises(ConfigError, match=r"-np N is missing: .* -np auto chooses it"):
        option.parse(["x"])
    machine.append(Capacity(2, 4, 64 * GB))
    known, _ = option.parse(["x"])
    assert (known.num_proc, "2 ranks: one per GPU" in known.count_note) == (2, True)


def test_slots_of_given_hosts(machine: list[Capacity], tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("a slots=2\nb:3\n")
    for words, ranks, source in (
        (["-H", "a:4,b"], 5, "-H"),
        (["--hostfile", str(tmp_path / "hosts")], 5, "--hostfile"),
    ):
        known, _ = option.parse([*words, "x"])
        assert (known.num_proc, known.count_note) == (ranks, "")
        known, _ = option.parse([*words, "-np", "auto", "x"])
        assert known.num_proc == ranks
        assert f"-np auto: {ranks} ranks: the slots of {source}" in known.count_note
    assert option.parse(["-H", "a:4,b", "-np", "2", "x"])[0].num_proc == 2
    with pytest.raises(ConfigError, match=r"--min-np 6 is more than -np 5"):
        option.parse(["-H", "a:4,b", "--min-np", "6", "x"])


def test_slots_of_an_allocation(machine: list[Capacity]) -> None:
    given = Allocation("Slurm", (Host("n1", 2), Host("n2", 1)), "V")
    known, _ = option.parse(["-np", "auto", "x"], lambda starter: given)
    assert (known.num_proc, "3 ranks: the slots of " in known.count_note) == (3, True)


def test_hosts_that_come_by_themselves(machine: list[Capacity]) -> None:
    assert option.parse([*AGENTS, "-np", "auto", "x"])[0].num_proc is None
    known, _ = option.parse([*NODES, "-np", "auto", "x"])
    assert (known.num_proc, known.slots_per_host) == (None, 4)
    assert "4 ranks on this node: one per physical core" in known.count_note
    known, _ = option.parse([*NODES, "-np", "auto", "--slots-per-host", "3", "x"])
    assert (known.num_proc, known.slots_per_host, known.count_note) == (None, 3, "")
    assert option.parse([*NODES, "x"])[0].slots_per_host is None


@pytest.mark.parametrize("given", [[], ["-np", "auto"]])
def test_discovery_gives_no_number(machine: list[Capacity], given: list[str]) -> None:
    with pytest.raises(ConfigError, match="the number of ranks to start with; --host-discovery-script does not give"):
        option.parse([*given, "--elastic", "--host-discovery-script", "s", "x"])


def test_word_that_is_no_number() -> None:
    with pytest.raises(ConfigError, match="'many' is not a number of ranks; expected 1 or more, or auto"):
        option.parse(["-np", "many", "x"])
