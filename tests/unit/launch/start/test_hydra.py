"""Tests of tfdist.launch.start.hydra."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tfdist.errors import ConfigError
from tfdist.launch.host.core import Cores
from tfdist.launch.host.host import Host
from tfdist.launch.start import hydra
from tfdist.launch.start.hydra import Hydra
from tfdist.launch.start.starter import Ssh

LOCAL = Hydra("/m/mpirun", (Host("localhost", 2),), local=True, cores=Cores(8, bindable=True))
REMOTE = dataclasses.replace(LOCAL, hosts=(Host("a", 2), Host("b", 4)), local=False)


def _words(call: Hydra, **variables: str) -> str:
    return " ".join(call.command(["task"], variables))


@pytest.mark.parametrize(
    ("ranks", "cores", "bindable", "placement"),
    [
        (1, 8, True, ""),
        (2, 8, True, "-bind-to core:4 "),
        (3, 8, True, "-bind-to core:2 "),
        (2, 8, False, ""),
        (9, 8, True, ""),
    ],
)
def test_local_placement(ranks: int, cores: int, bindable: bool, placement: str) -> None:
    call = dataclasses.replace(LOCAL, hosts=(Host("x", ranks),), cores=Cores(cores, bindable))
    assert _words(call, TFDIST_X="1") == f"/m/mpirun -n {ranks} -hosts localhost -launcher fork {placement}task"


def test_remote_gets_names_and_no_values() -> None:
    words = _words(REMOTE, TFDIST_RUN_KEY="secret", PATH="/p", HOME="/h", AWS_SECRET="s")
    assert words == "/m/mpirun -n 6 -hosts a:2,b:4 -launcher ssh -genvlist PATH,TFDIST_RUN_KEY task"


def test_user_words_win() -> None:
    call = dataclasses.replace(LOCAL, binding=("-bind-to", "socket"), extra=("-prepend-rank",))
    assert _words(call) == "/m/mpirun -n 2 -hosts localhost -launcher fork -bind-to socket -prepend-rank task"


def test_settings() -> None:
    assert LOCAL.settings({}, root=True) == {}
    remote = dataclasses.replace(REMOTE, ssh=Ssh(2222, "/k/my key"), tcp=True, interfaces=("eth1", "eth2"))
    assert remote.settings({"FI_PROVIDER": "mine"}, root=False) == {
        "HYDRA_LAUNCHER_EXTRA_ARGS": "-o BatchMode=yes -p 2222 -i '/k/my key'",
        "UCX_TLS": "self,sm,tcp",
        "NCCL_NET": "Socket",
        "UCX_NET_DEVICES": "eth1,eth2",
        "FI_TCP_IFACE": "eth1",
        "NCCL_SOCKET_IFNAME": "eth1,eth2",
    }
    assert "-iface eth1 " in _words(remote)


def test_settings_reach_all_hosts() -> None:
    remote = dataclasses.replace(REMOTE, tcp=True, interfaces=("eth1",))
    words, settings = remote.call(["task"], {"MPIR_CVAR_X": "1", "HOME": "/h"}, root=False)
    names = words[words.index("-genvlist") + 1].split(",")
    assert set(names) == {"MPIR_CVAR_X", *settings} - {"HYDRA_LAUNCHER_EXTRA_ARGS"}


@pytest.mark.parametrize(("told", "found"), [("HYDRA build details:", True), ("mpirun (Open MPI) 5.0.11", False)])
def test_program_is_told_by_its_version(tmp_path: Path, told: str, found: bool) -> None:
    program = tmp_path / "mpirun"
    program.write_text(f"#!/bin/sh\n[ $1 = --version ] && echo '{told}'\n")
    program.chmod(0o755)
    assert hydra.is_hydra(str(program)) is found


def test_program_that_cannot_be_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"mpirun cannot be run: .* Set TFDIST_MPI_HOME"):
        hydra.is_hydra(str(tmp_path / "mpirun"))
