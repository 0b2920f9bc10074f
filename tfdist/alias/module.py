"""Horovod's modules as names for modules of tfdist."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import CodeType, ModuleType
from typing import Any

_COMPATIBILITY = "tfdist.alias.compatibility"
_TENSORFLOW = ("tfdist.tensorflow", _COMPATIBILITY)
_TORCH = ("tfdist.torch",)
_TORCH_ELASTIC = ("tfdist.torch.elastic",)
_LOADER = "tfdist.input.data_loader"
# Each module of Horovod -> where its names are, the first one that has a name counts.
MODULES: dict[str, tuple[str, ...]] = {
    "horovod": ("tfdist.alias.top",),
    "horovod.common": (),
    "horovod.common.basics": ("tfdist.world.runtime",),
    "horovod.common.elastic": ("tfdist.elastic", "tfdist.errors"),
    "horovod.common.exceptions": ("tfdist.errors",),
    "horovod.common.process_sets": ("tfdist.world.process_sets",),
    "horovod.common.util": (_COMPATIBILITY,),
    "horovod.data": (_LOADER,),
    "horovod.data.data_loader_base": (_LOADER,),
    "horovod.keras": ("tfdist.keras", _COMPATIBILITY),
    "horovod.keras.callbacks": ("tfdist.keras.callbacks",),
    "horovod.keras.elastic": ("tfdist.keras.elastic",),
    "horovod.ray": ("tfdist.ray",),
    "horovod.ray.runner": ("tfdist.ray",),
    "horovod.runner": ("tfdist.alias.top",),
    "horovod.spark": ("tfdist.spark",),
    "horovod.spark.common": (),
    "horovod.spark.common.store": ("tfdist.spark.store",),
    "horovod.spark.keras": ("tfdist.spark.keras",),
    "horovod.tensorflow": _TENSORFLOW,
    "horovod.tensorflow.compression": ("tfdist.alias.compression", "tfdist.tensorflow"),
    "horovod.tensorflow.data": (),
    "horovod.tensorflow.data.compute_service": ("tfdist.tensorflow.data.compute_service",),
    "horovod.tensorflow.data.compute_worker": ("tfdist.tensorflow.data.compute_worker",),
    "horovod.tensorflow.elastic": ("tfdist.tensorflow.elastic", "tfdist.errors"),
    "horovod.tensorflow.functions": ("tfdist.tensorflow",),
    "horovod.tensorflow.keras": ("tfdist.keras", _COMPATIBILITY),
    "horovod.tensorflow.keras.callbacks": ("tfdist.keras.callbacks",),
    "horovod.tensorflow.keras.elastic": ("tfdist.keras.elastic",),
    "horovod.tensorflow.mpi_ops": _TENSORFLOW,
    "horovod.tensorflow.sync_batch_norm": ("tfdist.tensorflow",),
    "horovod.tensorflow.util": (_COMPATIBILITY,),
    "horovod.torch": _TORCH,
    "horovod.torch.compression": ("tfdist.alias.torch_compression", *_TORCH),
    "horovod.torch.elastic": _TORCH_ELASTIC,
    "horovod.torch.elastic.sampler": _TORCH_ELASTIC,
    "horovod.torch.elastic.state": _TORCH_ELASTIC,
    "horovod.torch.functions": _TORCH,
    "horovod.torch.mpi_ops": _TORCH,
    "horovod.torch.optimizer": _TORCH,
    "horovod.torch.sync_batch_norm": _TORCH,
}
_ESTIMATOR = "estimators are for Keras: call horovod.spark.run with a function that uses horovod.torch"
# Modules that have no counterpart -> why, or what to use.
ABSENT = {
    "horovod._keras": "it is internal to Horovod: import horovod.keras or horovod.tensorflow.keras",
    "horovod.mxnet": "MXNet is archived, and cannot be installed beside NumPy 2",
    "horovod.ray.elastic": "use horovod.ray.RayExecutor with min_workers",
    "horovod.ray.elastic_v2": "use horovod.ray.RayExecutor with min_workers",
    "horovod.spark.common.backend": "give KerasEstimator num_proc instead of a backend",
    "horovod.spark.lightning": _ESTIMATOR,
    "horovod.spark.tensorflow": "compute_worker is a call here: see docs/spark.md, A data service on executors",
    "horovod.spark.torch": _ESTIMATOR,
    "horovod.tensorflow.gradient_aggregation": "it is internal to Horovod: use backward_passes_per_step",
    "horovod.tensorflow.gradient_aggregation_eager": "it is internal to Horovod: use backward_passes_per_step",
}


class _Alias(ModuleType):
    """A module whose names are those of others."""

    def __getattr__(self, name: str) -> Any:
        homes = [sys.modules[home] for home in MODULES[self.__name__] if home in sys.modules]  # none during the import
        if name == "__all__":
            return sorted({each for home in homes for each in _public(home)})
        if name == "__version__" or not name.startswith("__"):
            for home in homes:
                if name in vars(home):
                    return vars(home)[name]
            inside = f"{self.__name__}.{name}"
            if inside in ABSENT:
                raise AttributeError(_why(inside))
            if homes and inside in MODULES:
                return importlib.import_module(inside)
            if homes:
                return getattr(homes[0], name)  # one that it loads on first use, or its explanation
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.__all__]

    def __reduce__(self) -> tuple[Any, ...]:
        """By its name, as part of a function that ranks are to run."""
        return importlib.import_module, (self.__name__,)


def _why(absent: str) -> str:
    return f"{absent} has no counterpart in tfdist: {ABSENT[absent]}."


def _public(home: ModuleType) -> list[str]:
    return list(getattr(home, "__all__", [name for name in vars(home) if not name.startswith("_")]))


class _Loader(importlib.abc.InspectLoader):
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Alias(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        for home in MODULES[module.__name__]:
            importlib.import_module(home)

    def get_source(self, fullname: str) -> str | None:
        return None

    def get_code(self, fullname: str) -> CodeType | None:
        """For `python -m`, which runs the module of tfdist."""
        spec = importlib.util.find_spec(MODULES[fullname][0])
        loader: Any = spec.loader if spec is not None else None
        return loader.get_code(MODULES[fullname][0])


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname in ABSENT:
            raise ImportError(_why(fullname), name=fullname)
        return _spec(fullname) if fullname in MODULES else None


def _spec(name: str) -> importlib.machinery.ModuleSpec | None:
    is_package = any(each.startswith(f"{name}.") for each in MODULES)
    return importlib.util.spec_from_loader(name, _Loader(), is_package=is_package)


def install() -> None:
    """From now on, imports of Horovod's modules are found here, before any that are installed."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def is_alias(loaded: ModuleType) -> bool:
    """Whether a module is one of those here."""
    return isinstance(loaded, _Alias)


def make(name: str) -> ModuleType:
    """A module of Horovod, for who replaces one in `sys.modules`."""
    spec = _spec(name)
    assert spec is not None
    loader = _Loader()
    made = importlib.util.module_from_spec(spec)
    loader.exec_module(made)
    return made
