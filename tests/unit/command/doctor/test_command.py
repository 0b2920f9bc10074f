"""The doctor from its words to its exit status."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tfdist import config
from tfdist.command.doctor import child, command, host
from tfdist.command.doctor.finding import BROKEN, NOTE, OK
from tfdist.command.doctor.host import Host
from tfdist.errors import ConfigError


def two_ranks(gpus: int) -> dict[str, Any]:
    return {"ranks": 2, "bytes": 1 << 20, "seconds": 0.001 * gpus, "device": "GPU:0", "said": ""}


def no_ranks(gpus: int) -> Any:
    pytest.fail("a job was started where the engine does not work")


@pytest.fixture
def settings(tmp_path: Path) -> config.Config:
    return config.read({"TFDIST_KERNEL_CACHE": str(tmp_path / "kernels")})


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, probe: dict[str, Any], server: Host) -> dict[str, Any]:
    """A machine with two GPUs; what is changed in it is what the doctor finds."""
    matrix = Path(__file__).with_name("sample").joinpath("topology_nvlink.txt").read_text()
    monkeypatch.setattr(child, "probe", lambda: probe)
    monkeypatch.setattr(child, "two_ranks", two_ranks)
    monkeypatch.setattr(child, "nvidia_smi", lambda *words: matrix)
    monkeypatch.setattr(host, "read", lambda: server)
    for name in ("CUDA_VISIBLE_DEVICES", "NCCL_SOCKET_IFNAME", "NCCL_IB_DISABLE"):
        monkeypatch.delenv(name, raising=False)
    return probe


def test_what_works(machine: dict[str, Any], capsys: Any) -> None:
    assert command.main([]) == 0
    shown = capsys.readouterr().out
    for text in (
        "TensorFlow",
        "on GPU:0 took 2.00 ms",
        "NVLink between all GPUs",
        "mlx5_0",
        "kernel cache",
        "everything found works",
    ):
        assert text in shown


def test_what_is_broken(machine: dict[str, Any], capsys: Any) -> None:
    machine["gpus"]["nccl"] = {"error": "NCCL was not found."}
    assert command.main(["--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["state"] == BROKEN
    assert [one["name"] for one in report["findings"] if one["state"] == BROKEN] == ["NCCL"]


def test_a_library_that_does_not_load_says_nothing_of_gpus(
    machine: dict[str, Any], server: Host, settings: config.Config
) -> None:
    machine["library"] = machine["gpus"] = {"error": "built for another"}
    findings = command.examine(machine, no_ranks, server, settings, {"PATH": ""})
    assert [one.name for one in findings if one.state == BROKEN] == ["library"]
    assert "GPU" not in {one.group for one in findings}


def test_what_nccl_lacks_matters_to_tensorflow_with_cuda_only(
    machine: dict[str, Any], server: Host, settings: config.Config
) -> None:
    for cuda, state in ((True, BROKEN), (False, OK)):
        machine["tensorflow"]["cuda"] = cuda
        findings = command.examine(machine, two_ranks, server, settings, {"NCCL_SOCKET_IFNAME": "none"})
        assert next(one for one in findings if one.name == "interfaces").state == state


def test_two_ranks_that_cannot_sum_are_broken(
    machine: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(child, "two_ranks", lambda gpus: "a job with two ranks ended with exit status 1")
    assert command.main([]) == 1
    assert capsys.readouterr().out.endswith("broken: two ranks\n")


def test_a_crash_is_a_finding(server: Host, settings: config.Config) -> None:
    findings = command.examine("it ended with SIGSEGV", no_ranks, server, settings, {"PATH": ""})
    assert (findings[0].state, findings[0].text) == (BROKEN, "it ended with SIGSEGV")
    assert "interfaces" in {one.name for one in findings}


def test_missing_mpirun(
    machine: dict[str, Any], server: Host, settings: config.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    broken = [one for one in command.examine(machine, no_ranks, server, settings, {"PATH": ""}) if one.state == BROKEN]
    assert [one.name for one in broken] == ["mpirun"]


def test_without_mpi_mpirun_is_not_missed(
    machine: dict[str, Any], server: Host, settings: config.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    found = command.examine(machine | {"mpi": {"missing": True}}, two_ranks, server, settings, {"PATH": ""})
    assert [one.name for one in found if one.state == BROKEN] == []
    assert "mpirun" not in {one.name for one in found}


def test_a_cache_that_cannot_be_made(machine: dict[str, Any], server: Host) -> None:
    settings = config.read({"TFDIST_KERNEL_CACHE": "/dev/null/kernels"})
    one = next(one for one in command.examine(machine, two_ranks, server, settings, {}) if one.name == "kernel cache")
    assert one.state == NOTE


def test_environment(capsys: Any) -> None:
    assert command.main(["--env"]) == 0
    assert "TFDIST_KERNEL_CACHE" in capsys.readouterr().out


def test_a_setting_that_cannot_be_used(machine: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFDIST_PIN_GPUS", "some")
    with pytest.raises(ConfigError, match="TFDIST_PIN_GPUS='some'"):
        command.main([])
