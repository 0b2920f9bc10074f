"""The C interface of the core."""

import ctypes
import subprocess
import sys
import threading

import pytest

from tfdist import config
from tfdist.errors import BuildError, ConfigError
from tfdist.native import library
from tfdist.native.knobs import SHARED_BYTES


def test_the_core_needs_neither_tensorflow_nor_mpi(tmp_path):
    script = """
import sys
from tfdist.native import library
assert library.plan_buckets(["float32"], [4], 8) == [[0]]
import tfdist
tfdist.init()
assert (tfdist.rank(), tfdist.size()) == (0, 1)
maps = open("/proc/self/maps").read()
print("tensorflow" in sys.modules, "libmpi" in maps, "libtfdist_mpi" in maps, "libtfdist_core" in maps)
"""
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout.split() == ["False", "False", "False", "True"]


def test_threads_that_come_first_together_get_one_library():
    """What one of them declares must hold for the others."""
    library.load.cache_clear()
    together = threading.Barrier(4)
    found = []

    def load():
        together.wait(30)
        found.append(library.load())

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 4 and len({id(library) for library in found}) == 1
    assert library.load() is found[0]


def test_library_of_other_sources_is_refused(monkeypatch):
    """Its compressions differ from those of the Python files."""
    monkeypatch.setattr(config, "COMPRESSIONS", {**config.COMPRESSIONS, "later": "int8"})
    library.load.cache_clear()
    with pytest.raises(BuildError, match=r"later=int8: they are from different builds. Install tfdist again: "):
        library.load()
    monkeypatch.undo()
    assert library.load() is library.load()


def test_plan_of_the_library():
    """What a fused collective does: in order, of one dtype, up to the threshold; larger tensors alone."""
    plan = library.plan_buckets(["float32", "float16", "float32", "float32", "float16"], [60, 10, 101, 40, 90], 100)
    assert plan == [[2], [0, 3], [1, 4]]
    assert library.plan_buckets(["float32"] * 3, [40, 61, 39], 100) == [[0], [1, 2]]
    assert library.plan_buckets(["float32"] * 2, [1, 1], 0) == [[0], [1]]
    assert library.plan_buckets([], [], 100) == []


def test_what_cannot_be_planned_is_refused():
    with pytest.raises(ConfigError, match="dtype is 'float8'"):
        library.plan_buckets(["float8"], [4], 100)
    with pytest.raises(ConfigError, match="a threshold of -1 bytes"):
        library.plan_buckets(["float32"], [4], -1)
    with pytest.raises(ValueError, match=r"zip\(\) argument 2 is longer"):
        library.plan_buckets(["float32"], [4, 8], 100)


def given(environment: dict[str, str], process: int = 0) -> dict[str, str]:
    lines = library.engine_settings(config.read(environment), process).decode().splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_the_engine_gets_its_settings_by_name():
    settings = given({"TFDIST_FUSION_THRESHOLD": "5", "TFDIST_NCCL_LIBRARY": "/a.so", "TFDIST_KERNEL_CACHE": "/k"}, 7)
    named = ("fusion_threshold_bytes", "window_bytes", "hierarchy", "process", "kernel_cache", "nccl_libraries")
    assert [settings[name] for name in named] == ["5", str(1 << 20), "off", "7", "/k", "/a.so"]
    assert float(settings["stall_warning_seconds"]) == 60


def test_autotuning_has_room_for_what_it_tries():
    tuned = given({"TFDIST_AUTOTUNE": "1"})
    assert (tuned["window_bytes"], tuned["hierarchy"]) == (str(SHARED_BYTES), "nccl")
    tuned = given({"TFDIST_AUTOTUNE": "1", "TFDIST_SHARED_MEMORY": "0", "TFDIST_HIERARCHICAL_ALLREDUCE": "mpi"})
    assert (tuned["window_bytes"], tuned["hierarchy"]) == ("0", "mpi")


def test_a_setting_that_only_one_side_knows_is_named():
    right = library.engine_settings(config.read({}))
    report = ctypes.create_string_buffer(1 << 20)
    for wrong, why in (
        (right + b"speed=1\n", "no setting speed"),
        (right.replace(b"process=0\n", b""), "setting process is missing"),
    ):
        with pytest.raises(ConfigError, match=why):
            library.call("tfdist_describe_gpus", wrong, report, len(report))


def test_names_are_loaded_on_first_use(tmp_path):
    """The launcher must start without TensorFlow, and so must `import tfdist`."""
    script = (
        "import sys, tfdist, tfdist.config, tfdist.errors; print('tensorflow' in sys.modules, 'keras' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout.split() == ["False", "False"]


def test_every_public_name_exists():
    import tfdist

    for name in tfdist.__all__:
        assert getattr(tfdist, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tfdist.nothing


def test_nothing_is_read_under_a_new_name():
    reading = library.read_watch("never used")
    assert (reading.elements, reading.newest.number, reading.newest_ended.number) == (0, 0, 0)


def test_draining_is_told_to_the_library_and_taken_back():
    assert library.read_serving().draining == 0
    library.set_draining(True)
    try:
        assert library.read_serving().draining == 1
    finally:
        library.set_draining(False)
    assert library.read_serving().draining == 0
