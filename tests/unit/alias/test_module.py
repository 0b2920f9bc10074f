"""`import horovod` is tfdist: its modules have Horovod's names, and what is missing says why."""

from __future__ import annotations

import importlib
import importlib.util
import os
import pickle
import subprocess
import sys
from pathlib import Path

import cloudpickle
import pytest

import tfdist
from tfdist import alias, errors
from tfdist.alias import module
from tfdist.launch.supervisor import surrounding
from tfdist.system import program
from tfdist.world import runtime

# Names that Horovod's modules have besides those of the migration guide, which its test compares.
MORE = {
    "horovod": "run __version__",
    "horovod.common.exceptions": "HorovodInternalError HostsUpdatedInterrupt",
    "horovod.common.process_sets": "ProcessSet add_process_set remove_process_set global_process_set",
    "horovod.common.elastic": "State ObjectState HorovodInternalError HostsUpdatedInterrupt",
    "horovod.common.util": (
        "check_extension extension_available gpu_available mpi_built gloo_built nccl_built ddl_built ccl_built env "
        "num_rank_is_power_2 split_list is_iterable is_version_greater_equal_than"
    ),
    "horovod.data": "BaseDataLoader AsyncDataLoaderMixin",
    "horovod.ray": "RayExecutor",
    "horovod.runner": "run",
    "horovod.spark": "run run_elastic",
    "horovod.spark.common.store": "Store LocalStore FilesystemStore DBFSLocalStore",
    "horovod.spark.keras": "KerasEstimator KerasModel",
    "horovod.tensorflow.compression": "Compression Compressor NoneCompressor FP16Compressor",
    "horovod.tensorflow.functions": "broadcast_variables broadcast_object broadcast_object_fn allgather_object",
    "horovod.tensorflow.mpi_ops": "init shutdown size rank allgather broadcast alltoall Average Sum rank_op",
    "horovod.tensorflow.sync_batch_norm": "SyncBatchNormalization",
    "horovod.tensorflow.util": "vars_to_refs refs_to_vars",
    "horovod.torch": "DistributedOptimizer SyncBatchNorm allreduce_async_ mpi_ops",
    "horovod.torch.compression": "Compression Compressor NoneCompressor FP16Compressor",
    "horovod.torch.elastic": "TorchState ElasticSampler run",
    "horovod.torch.elastic.sampler": "ElasticSampler",
    "horovod.torch.elastic.state": "TorchState",
    "horovod.torch.functions": "broadcast_parameters broadcast_optimizer_state broadcast_object allgather_object",
    "horovod.torch.mpi_ops": "init rank size allreduce_async synchronize poll join Average Sum",
    "horovod.torch.optimizer": "DistributedOptimizer",
    "horovod.torch.sync_batch_norm": "SyncBatchNorm",
}
# Modules that need an extra, and its package if that has another name.
EXTRAS = {"horovod.spark.keras": "spark", "horovod.torch": "torch"}
PACKAGES = {"spark": "pyspark"}


@pytest.fixture
def names(monkeypatch):
    """The names are there, and gone afterwards."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setenv("TFDIST_AS_HOROVOD", "")
    before = set(sys.modules)
    module.install()
    yield
    for each in [name for name in set(sys.modules) - before if name.partition(".")[0] == "horovod"]:
        del sys.modules[each]


def missing(name: str) -> str:
    """What the error of an import says if the extra that the module needs is not installed, else nothing."""
    extra = next((extra for home, extra in EXTRAS.items() if name.startswith(home)), None)
    is_there = extra is None or importlib.util.find_spec(PACKAGES.get(extra, extra)) is not None
    return "" if is_there else rf"pip install 'tfdist\[{extra}\]'"


@pytest.mark.parametrize("name", module.MODULES)
def test_every_module_has_names(names, name):
    if remedy := missing(name):
        with pytest.raises(ImportError, match=remedy):
            importlib.import_module(name)
        return
    loaded = importlib.import_module(name)
    assert module.is_alias(loaded)
    for each in [*loaded.__all__, *MORE.get(name, "").split()]:
        assert hasattr(loaded, each), each
    assert set(loaded.__all__) <= set(dir(loaded))
    assert not hasattr(loaded, "__path__") or loaded.__path__ == []


@pytest.mark.parametrize("name", module.ABSENT)
def test_a_module_without_counterpart_says_why(names, name):
    with pytest.raises(ImportError, match=missing(name) or f"^{name} has no counterpart in tfdist: "):
        importlib.import_module(name)


def test_names_are_those_of_tfdist(names):
    hvd = importlib.import_module("horovod.tensorflow.keras")
    assert hvd.callbacks.MetricAverageCallback is tfdist.callbacks.MetricAverageCallback
    assert importlib.import_module("horovod.tensorflow").allreduce.__module__ == "tfdist.tensorflow.collective"
    assert importlib.import_module("horovod").run is not tfdist.run  # loaded when it is called
    everything: dict[str, object] = {}
    exec("from horovod.tensorflow import *", everything)
    assert {"allreduce", "DistributedGradientTape", "check_extension"} <= set(everything)


def test_classes_of_compressions(names):
    module = importlib.import_module("horovod.tensorflow.compression")
    assert module.Compression.none is module.NoneCompressor and module.Compression.fp16 is module.FP16Compressor

    class Mine(module.Compressor):
        def compress(self, tensor):
            return tensor, None

    assert Mine().compress(3) == (3, None)
    with pytest.raises(NotImplementedError, match="Mine must define decompress"):
        Mine().decompress(3, None)


def test_a_name_that_horovod_has_and_tfdist_lacks_says_why(names):
    hvd = importlib.import_module("horovod.tensorflow")
    with pytest.raises(AttributeError, match="use backward_passes_per_step"):
        hvd.LocalGradientAggregationHelper  # noqa: B018
    with pytest.raises(AttributeError, match=r"^module 'horovod.common' has no attribute 'utils'$"):
        importlib.import_module("horovod.common").utils  # noqa: B018
    with pytest.raises(AttributeError, match=r"horovod\.ray\.elastic has no counterpart in tfdist: use"):
        importlib.import_module("horovod.ray").elastic  # noqa: B018
    with pytest.raises(ModuleNotFoundError, match=r"horovod\.tensorflow\.mpi_opps"):
        importlib.import_module("horovod.tensorflow.mpi_opps")


def test_as_horovod_is_for_this_process_and_its_ranks(names, monkeypatch):
    monkeypatch.setattr(runtime, "is_initialized", lambda: False)
    tfdist.as_horovod()
    monkeypatch.setattr(runtime, "is_initialized", lambda: True)
    tfdist.as_horovod()
    assert sum(isinstance(finder, module._Finder) for finder in sys.meta_path) == 1
    assert os.environ["TFDIST_AS_HOROVOD"] == "1"
    assert importlib.import_module("horovod").__version__ == "0.28.1"


def test_names_come_before_an_installed_horovod(names, tmp_path, monkeypatch):
    (tmp_path / "horovod.py").write_text("raise SystemExit('the installed one')")
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.import_module("horovod").__version__ == "0.28.1"


def test_as_horovod_after_horovod_itself_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "horovod", type(sys)("horovod"))
    with pytest.raises(errors.ConfigError, match=r"horovod has been imported already.*in the first lines"):
        alias.as_horovod()


def test_as_horovod_after_init_is_refused(names, monkeypatch):
    """The gradients would stay as they are, without a word."""
    monkeypatch.setattr(runtime, "is_initialized", lambda: True)
    with pytest.raises(errors.ConfigError, match=r"called after init\(\).*expected it before"):
        alias.as_horovod()
    assert os.environ["TFDIST_AS_HOROVOD"] == ""


def test_a_rank_finds_the_names_before_an_installed_horovod(tmp_path):
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "__init__.py").write_text("raise SystemExit('the installed one')")
    environment = surrounding.of_rank({**os.environ, "TFDIST_AS_HOROVOD": "1", "PYTHONPATH": str(tmp_path)})
    assert environment["PYTHONPATH"].split(os.pathsep)[1] == str(tmp_path)
    script = "import horovod, horovod.runner; print(horovod.__version__, horovod.runner.run)"
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.stdout.startswith("0.28.1 <function run"), done.stderr
    assert os.listdir(program.HOROVODS_NAMES).count("horovod.py") == 1
    assert Path(program.HOROVODS_NAMES).parent == Path(alias.__file__).parent


def test_keras_is_translated_before_horovod_is_imported(tmp_path):
    """And another sitecustomize, which comes behind, runs too."""
    (tmp_path / "sitecustomize.py").write_text("print('the other one')")
    environment = surrounding.of_rank({**os.environ, "TFDIST_AS_HOROVOD": "1", "PYTHONPATH": str(tmp_path)})
    early = "import sys; print('tfdist' in sys.modules); from keras.preprocessing.image import ImageDataGenerator"
    script = f"{early}; import keras; print(keras.optimizers.SGD(lr=0.5).lr.numpy())"
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.stdout.split("\n")[:3] == ["the other one", "False", "0.5"], done.stderr
    assert "Write SGD(learning_rate=0.5)." in done.stderr


def test_without_the_variable_the_search_path_stays():
    assert "PYTHONPATH" not in surrounding.of_rank({"PATH": os.defpath})


def test_a_function_that_uses_a_module_can_be_sent(names):
    hvd = importlib.import_module("horovod.tensorflow")
    sent = cloudpickle.dumps(lambda: hvd)
    assert pickle.loads(sent)() is hvd


def test_module_that_is_run(names):
    spec = importlib.util.find_spec("horovod.tensorflow.data.compute_worker")
    code = spec.loader.get_code("horovod.tensorflow.data.compute_worker")
    assert code.co_filename == importlib.import_module("tfdist.tensorflow.data.compute_worker").__file__
