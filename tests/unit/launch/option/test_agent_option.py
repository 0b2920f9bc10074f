"""Tests of tfdist.launch.option.agent_option, through the parser of all options."""

from __future__ import annotations

import pytest

from tfdist.errors import ConfigError
from tfdist.launch.option import option

AGENTS = ["--agents", "2", "--listen", "h:1", "--key-file", "k"]
NODES = ["--nodes", "2", "--rendezvous", "[fd00::1]:4000", "--key-file", "k"]


def test_agents_bring_the_hosts() -> None:
    known, command = option.parse([*AGENTS, "python", "train.py"])
    assert (known.agents, known.listen, known.starter, known.num_proc) == (2, ("h", 1), "direct", None)
    assert (known.agents_timeout, known.start_timeout) == (600.0, 30.0)
    assert command == ["python", "train.py"]
    known, _ = option.parse([*AGENTS, "--start-timeout", "7", "-np", "3", "--no-mpi", "x"])
    assert (known.agents_timeout, known.start_timeout, known.num_proc) == (7.0, 7.0, 3)


@pytest.mark.parametrize(
    ("words", "slots"),
    [([], None), (["-np", "4"], 2), (["--slots-per-host", "3"], 3), (["-np", "5", "--slots-per-host", "3"], 3)],
)
def test_slots_of_a_node(words: list[str], slots: int | None) -> None:
    known, _ = option.parse([*NODES, *words, "x"])
    assert (known.rendezvous, known.slots_per_host) == (("fd00::1", 4000), slots)


def test_names_to_export() -> None:
    known, _ = option.parse(["-np", "1", "--export", "A,B", "--export=C", "x"])
    assert known.export == [("A", "B"), ("C",)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*AGENTS, *NODES[:4]], "--agents and --nodes cannot be combined"),
        (AGENTS[:2], r"--agents needs --listen HOST:PORT"),
        (NODES[:2], r"--nodes needs --rendezvous HOST:PORT"),
        (AGENTS[:4], r"--agents needs --key-file FILE. Make one with \(umask 077; .*token_hex"),
        (["-np", "2", "--listen", "h:1"], "--listen is for --agents N"),
        (["-np", "2", "--rendezvous", "h:1"], "--rendezvous is for --nodes N"),
        (["-np", "2", "--key-file", "k"], "--key-file is for --agents N and --nodes N"),
        ([*AGENTS, "-H", "a:2"], "--agents and -H cannot be combined: the hosts are those that come"),
        ([*AGENTS, "--hostfile", "f"], "--agents and --hostfile cannot be combined"),
        ([*AGENTS, "--mpi"], "--agents starts the ranks without mpirun; omit the option"),
        ([*NODES, "--srun"], "--nodes starts the ranks without srun"),
        ([*NODES, "-np", "5"], "-np 5 cannot be shared by --nodes 2 equally; choose a multiple of it, or give"),
        ([*AGENTS, "--slots-per-host", "2"], "--slots-per-host needs --host-discovery-script or --nodes"),
        (["--agents", "0", *AGENTS[2:]], "'0' is not a number of agents"),
        (["--agents", "1", "--listen", "::1:4000", "--key-file", "k"], "'::1:4000' is not HOST:PORT"),
        (["--agents", "1", "--listen", "h:70000", "--key-file", "k"], "'h:70000' is not HOST:PORT"),
    ],
)
def test_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        option.parse([*words, "x"])
