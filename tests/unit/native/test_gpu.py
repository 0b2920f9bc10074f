"""Which GPU a rank takes, against a fake of `tf.config`, and where libraries are looked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tfdist import config
from tfdist.errors import ConfigError
from tfdist.native import gpu


class FakeDevices:
    """`tf.config` of a process that sees `count` GPUs, and has initialised them or not; it behaves as TensorFlow's."""

    def __init__(self, count: int, used: bool = False) -> None:
        self.gpus = [SimpleNamespace(name=f"/physical_device:GPU:{number}") for number in range(count)]
        self.visible = list(self.gpus)
        self.growing: list[Any] = []
        self.used = used
        self.experimental = self

    def list_physical_devices(self, kind: str) -> list[Any]:
        return list(self.gpus) if kind == "GPU" else []

    def get_visible_devices(self, kind: str) -> list[Any]:
        return list(self.visible) if kind == "GPU" else []

    def set_visible_devices(self, chosen: list[Any], kind: str) -> None:
        if self.used:
            raise RuntimeError("Visible devices cannot be modified after being initialized")
        self.visible = list(chosen) if kind == "GPU" else self.visible

    def set_memory_growth(self, chosen: Any, enable: bool) -> None:
        if enable and chosen in self.growing:
            return
        if self.used:
            raise RuntimeError("Physical devices cannot be modified after being initialized")
        self.growing.append(chosen)


@pytest.mark.parametrize("local_rank", [0, 1, 2])
@pytest.mark.parametrize("environment", [{}, {"CUDA_VISIBLE_DEVICES": "5,6,7"}])
def test_each_rank_takes_its_own(local_rank: int, environment: dict[str, str]) -> None:
    devices = FakeDevices(3)
    assert gpu.pin(devices, local_rank, 3, environment) == f"/physical_device:GPU:{local_rank}"
    assert devices.visible == devices.growing == [devices.gpus[local_rank]]


def test_again_is_no_error() -> None:
    """Also when TensorFlow has initialised what it was left."""
    devices = FakeDevices(2)
    gpu.pin(devices, 1, 2, {})
    for devices.used in (False, True):
        assert gpu.pin(devices, 1, 2, {}) == "/physical_device:GPU:1"
    assert devices.visible == devices.growing == [devices.gpus[1]]


def test_without_a_gpu_nothing_happens() -> None:
    assert gpu.pin(FakeDevices(0), 3, 4, {}) is None
    hidden = FakeDevices(2)
    hidden.visible = []
    assert gpu.pin(hidden, 3, 4, {}) is None
    assert hidden.visible == []


@pytest.mark.parametrize("shown", ["3", " 3 ", "GPU-8932f937-d72c", "MIG-GPU-8932f937/1/0"])
def test_the_one_that_a_cluster_manager_shows_is_kept(shown: str) -> None:
    devices = FakeDevices(1)
    assert gpu.pin(devices, 2, 4, {"CUDA_VISIBLE_DEVICES": shown}) == "/physical_device:GPU:0"
    assert devices.growing == devices.gpus


def test_the_one_that_the_script_chose_is_kept() -> None:
    devices = FakeDevices(4)
    devices.visible = [devices.gpus[3]]
    assert gpu.pin(devices, 0, 4, {}) == "/physical_device:GPU:3"
    assert devices.visible == devices.growing == [devices.gpus[3]]


def test_of_those_that_the_script_left_each_rank_takes_its_own() -> None:
    devices = FakeDevices(4)
    devices.visible = devices.gpus[2:]
    assert gpu.pin(devices, 1, 2, {}) == "/physical_device:GPU:3"


@pytest.mark.parametrize(
    ("count", "environment", "text"),
    [
        (2, {}, "4 ranks run on this host, but it has 2 visible GPUs"),
        (1, {}, "4 ranks run on this host, but it has 1 visible GPU,"),
        (2, {"CUDA_VISIBLE_DEVICES": "0,1"}, "4 ranks run on this host, but it has 2 visible GPUs"),
        (1, {"CUDA_VISIBLE_DEVICES": ""}, "4 ranks run on this host, but it has 1 visible GPU,"),
    ],
)
@pytest.mark.parametrize("local_rank", [0, 3])
def test_more_ranks_than_gpus(count: int, environment: dict[str, str], text: str, local_rank: int) -> None:
    """Every rank of the host says so, also those that would have one."""
    devices = FakeDevices(count)
    with pytest.raises(ConfigError, match=text) as caught:
        gpu.pin(devices, local_rank, 4, environment)
    assert f"at most {count} ranks" in str(caught.value) and "TFDIST_PIN_GPUS=0" in str(caught.value)
    assert devices.visible == devices.gpus


def test_too_late() -> None:
    with pytest.raises(
        ConfigError, match=r"TensorFlow already uses 2 GPUs.* .*Import tfdist .*before creating the first tensor"
    ):
        gpu.pin(FakeDevices(2, used=True), 1, 2, {})


def test_too_late_makes_no_difference_with_one() -> None:
    assert gpu.pin(FakeDevices(1, used=True), 0, 1, {}) == "/physical_device:GPU:0"


def test_devices_that_the_script_has_divided_keep_their_memory() -> None:
    devices = FakeDevices(1)

    def divided(*_: object) -> None:
        raise ValueError("Cannot set memory growth on device when virtual devices configured")

    devices.set_memory_growth = divided  # type: ignore[method-assign]
    assert gpu.pin(devices, 0, 1, {}) == "/physical_device:GPU:0"


def test_the_fake_has_the_names_of_tensorflow() -> None:
    import tensorflow as tf

    for name in ("list_physical_devices", "get_visible_devices", "set_visible_devices"):
        assert callable(getattr(tf.config, name)) and callable(getattr(FakeDevices, name))
    assert callable(tf.config.experimental.set_memory_growth)
    assert gpu.pin(tf.config, 0, 1, {}) is None or gpu.has_driver()


# Where libraries are looked for


def _install(site: Path, package: str, file: str) -> Path:
    record = site / f"{package.replace('-', '_')}-12.9.dist-info"
    record.mkdir(parents=True)
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 12.9\n")
    (record / "RECORD").write_text(f"nvidia/__init__.py,,\n{file},,\n{record.name}/METADATA,,\n")
    path = site / file
    path.parent.mkdir(parents=True)
    path.write_text("")
    return path


def test_the_installed_library_comes_before_that_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nccl = _install(tmp_path, "nvidia-nccl-cu12", "nvidia/nccl/lib/libnccl.so.2")
    nvrtc = _install(tmp_path, "nvidia-cuda-nvrtc-cu12", "nvidia/cuda_nvrtc/lib/libnvrtc.so.12")
    nvtx = _install(tmp_path, "nvidia-nvtx-cu12", "nvidia/nvtx/lib/libnvtx3interop.so.1")
    monkeypatch.syspath_prepend(tmp_path)
    settings = config.read({})
    assert gpu.nccl_libraries(settings) == [str(nccl), "libnccl.so.2"]
    assert gpu.nvtx_libraries() == [str(nvtx), "libnvtx3interop.so.1"]
    assert gpu.nvrtc_libraries(settings) == [str(nvrtc), "libnvrtc.so.12", "libnvrtc.so.13"]


def test_packages_of_cuda_13_come_after_those_of_cuda_12(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nccl = _install(tmp_path, "nvidia-nccl-cu13", "nvidia/nccl/lib/libnccl.so.2")
    nvrtc = _install(tmp_path, "nvidia-cuda-nvrtc", "nvidia/cu13/lib/libnvrtc.so.13")
    nvtx = _install(tmp_path, "nvidia-nvtx", "nvidia/cu13/nvtx/libnvtx3interop.so.1")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert gpu.nccl_libraries(config.read({})) == [str(nccl), "libnccl.so.2"]
    assert gpu.nvtx_libraries() == [str(nvtx), "libnvtx3interop.so.1"]
    assert gpu.nvrtc_libraries(config.read({})) == [str(nvrtc), "libnvrtc.so.12", "libnvrtc.so.13"]
    older = _install(tmp_path, "nvidia-cuda-nvrtc-cu12", "nvidia/cuda_nvrtc/lib/libnvrtc.so.12")
    assert gpu.nvrtc_libraries(config.read({}))[:2] == [str(older), str(nvrtc)]


def test_a_profiler_that_will_see_nothing_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    attached = {"NVTX_INJECTION64_PATH": "/opt/profiler.so"}
    assert gpu.unseen_by_profiler(attached) == ""
    monkeypatch.setattr(gpu, "nvtx_libraries", lambda: ["/nowhere/libnvtx3interop.so.1"])
    assert gpu.unseen_by_profiler(attached).endswith("Install it: pip install -U nvidia-nvtx-cu12")
    assert gpu.unseen_by_profiler({}) == ""


def test_what_is_set_is_looked_for_nowhere_else() -> None:
    settings = config.read({"TFDIST_NCCL_LIBRARY": "/opt/a.so", "TFDIST_NVRTC_LIBRARY": "/opt/b.so"})
    assert gpu.nccl_libraries(settings) == ["/opt/a.so"]
    assert gpu.nvrtc_libraries(settings) == ["/opt/b.so"]


# In init


PINNED = """
import os
import tensorflow as tf
from tfdist.native import gpu
from tfdist.world import runtime
gpu.has_driver = lambda: True
seen = []
gpu.pin = lambda devices, *place: seen.append((devices is tf.config, *place))
runtime.init()
runtime.init()
assert repr(seen) == os.environ["EXPECTED"], seen
"""
REFUSED = """
import pytest
from tfdist.native import gpu
from tfdist.world import runtime
from tfdist.errors import ConfigError
gpu.has_driver = lambda: True
def refuse(*_):
    raise ConfigError("more ranks than GPUs")
gpu.pin = refuse
with pytest.raises(ConfigError, match="more ranks than GPUs"):
    runtime.init()
assert not runtime.is_initialized()
runtime.init()
"""


def _one_rank(script: str, tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Of a job: the process stands alone in it, and was started by mpirun."""
    mpirun = str(Path(sys.executable).with_name("mpirun"))
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.run(
        [mpirun, "-np", "1", "--host", "localhost:1", sys.executable, "-c", script],
        cwd=tmp_path,
        env=os.environ | root | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(("setting", "expected"), [("1", "[(True, 0, 1)]"), ("0", "[]")])
def test_init_pins_what_a_launcher_started_unless_told_not_to(tmp_path: Path, setting: str, expected: str) -> None:
    done = _one_rank(PINNED, tmp_path, EXPECTED=expected, TFDIST_PIN_GPUS=setting)
    assert done.returncode == 0, done.stderr


def test_init_leaves_devices_alone_without_a_launcher(run_script: Any) -> None:
    run_script(PINNED, EXPECTED="[]")


def test_a_rank_without_a_gpu_is_not_left_half_started(tmp_path: Path) -> None:
    done = _one_rank(REFUSED, tmp_path)
    assert done.returncode != 0
    assert "ConfigError: more ranks than GPUs" in done.stderr
    assert "AssertionError" not in done.stderr


def early(monkeypatch: pytest.MonkeyPatch, devices: FakeDevices, **variables: str) -> list[str]:
    """What the import of tfdist says that it has changed."""
    for name in ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(gpu, "has_driver", lambda: True)
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(config=devices))
    changes: list[str] = []
    gpu.take_early(changes)
    return changes


RANK_1_OF_3 = {"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}


def test_a_rank_takes_its_gpu_when_tfdist_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = FakeDevices(3)
    assert early(monkeypatch, devices, **RANK_1_OF_3) == [f"TensorFlow sees only {devices.gpus[1].name}"]
    assert devices.visible == devices.growing == [devices.gpus[1]]


@pytest.mark.parametrize("variables", [{}, RANK_1_OF_3 | {"TFDIST_PIN_GPUS": "0"}])
def test_no_gpu_is_pinned_without_launcher_or_against_setting(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    devices = FakeDevices(3)
    assert early(monkeypatch, devices, **variables) == []
    assert devices.visible == devices.gpus


@pytest.mark.parametrize(("count", "used"), [(2, False), (3, True)])
def test_what_cannot_be_taken_is_left_for_init_to_tell(monkeypatch: pytest.MonkeyPatch, count: int, used: bool) -> None:
    devices = FakeDevices(count, used)
    assert early(monkeypatch, devices, **RANK_1_OF_3) == []
    assert devices.visible == devices.gpus
    with pytest.raises(ConfigError):
        gpu.pin(devices, 1, 3, {})


IMPORTED = """
import ctypes, sys
def load(name, *_, load=ctypes.CDLL, **settings):
    if name == "libcuda.so.1" and sys.argv[1] == "none":
        raise OSError
    return None if name == "libcuda.so.1" else load(name, *_, **settings)
ctypes.CDLL = load
import tfdist
"""


@pytest.mark.parametrize(
    ("driver", "setting", "said"),
    [("none", "", ""), ("there", "", "loads TensorFlow"), ("there", "1", "loads TensorFlow"), ("there", "0", "")],
)
def test_importing_tfdist_looks_at_gpus_where_there_is_a_driver(
    driver: str, setting: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "tensorflow.py").write_text("print('loads TensorFlow')\nraise ImportError\n")
    words = [sys.executable, "-c", IMPORTED, driver]
    environment = os.environ | RANK_1_OF_3 | {"TFDIST_EARLY": setting}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == said
