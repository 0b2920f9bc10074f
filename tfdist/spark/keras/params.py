"""The parameters of `KerasEstimator`: their names and defaults are Horovod's, and so are their getters and setters."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from pyspark.ml.param import Param, Params

from tfdist.errors import ConfigError

NAME = "KerasEstimator"

_FEWER = "row groups are read by threads of the rank, two at a time; omit it"
_TRANSFORM = "transform the DataFrame before fit, or give the model preprocessing layers"
# Those of Horovod that nothing here corresponds to, with what to do instead.
REFUSED = {
    "backend": "ranks are started by tfdist.spark.run; use num_proc and backend_env",
    "transformation_fn": _TRANSFORM,
    "transformation_edit_fields": _TRANSFORM,
    "transformation_removed_fields": _TRANSFORM,
    "train_reader_num_workers": _FEWER,
    "val_reader_num_workers": _FEWER,
    "reader_pool_type": _FEWER,
    "mp_start_method": "no processes are started for reading; omit it",
    "compress_sparse_cols": "sparse vectors are stored as dense ones, which Parquet compresses; omit it",
}
DEFAULTS: dict[str, Any] = {
    "num_proc": None,
    "model": None,
    "store": None,
    "custom_objects": {},
    "optimizer": None,
    "loss": None,
    "loss_weights": None,
    "sample_weight_col": None,
    "gradient_compression": None,
    "metrics": [],
    "feature_cols": None,
    "label_cols": None,
    "validation": None,
    "callbacks": [],
    "batch_size": 32,
    "val_batch_size": None,
    "epochs": 1,
    "verbose": 1,
    "random_seed": None,
    "shuffle_buffer_size": None,
    "shuffle": True,
    "partitions_per_process": 10,
    "run_id": None,
    "train_steps_per_epoch": None,
    "validation_steps_per_epoch": None,
    "label_shapes": None,
    "checkpoint_callback": None,
    "inmemory_cache_all": False,
    "backend_env": {},
    "use_gpu": True,
    **dict.fromkeys(REFUSED),
}
# Where Horovod's getters and setters have another name than the parameter.
_CALLED = {
    "shuffle_buffer_size": "ShufflingBufferSize",
    "train_reader_num_workers": "TrainReaderNumWorker",
    "val_reader_num_workers": "ValReaderNumWorker",
    "inmemory_cache_all": "InMemoryCacheAll",
}
Kind = TypeVar("Kind", bound=type)


def declared(defaults: Mapping[str, Any]) -> Callable[[Kind], Kind]:
    """Gives a class parameters of Spark, with a getter and a setter each: `getBatchSize`, `setBatchSize`."""

    def declare(kind: Kind) -> Kind:
        for name in defaults:
            called = _CALLED.get(name) or "".join(map(str.capitalize, name.split("_")))
            setattr(kind, name, Param(Params._dummy(), name, f"{name} of {kind.__name__}"))
            for accessor in (_getter(f"get{called}", name), _setter(f"set{called}", name)):
                setattr(kind, accessor.__name__, accessor)
        return kind

    return declare


def values_of(stage: Any, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """All parameters of a stage by name; one that is set to None has its default."""
    found = {name: stage.getOrDefault(name) for name in defaults}
    return {name: defaults[name] if value is None else value for name, value in found.items()}


def _getter(called: str, name: str) -> Callable[[Any], Any]:
    def get(self: Any) -> Any:
        return self.getOrDefault(name)

    get.__name__, get.__doc__ = called, f"The parameter `{name}`."
    return get


def _setter(called: str, name: str) -> Callable[[Any, Any], Any]:
    def set_(self: Any, value: Any) -> Any:
        return self._set(**{name: value})

    set_.__name__, set_.__doc__ = called, f"Sets the parameter `{name}`; returns the stage."
    return set_


class _Rule(NamedTuple):
    """What a value must be if it is given."""

    expected: str
    holds: Callable[[Any], bool]


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _are_names(value: Any) -> bool:
    unique = isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value)
    return unique and 0 < len(value) == len(set(value))


def _is_split(value: Any) -> bool:
    return isinstance(value, str) or (_is_number(value) and 0 <= value < 1)


def _are_losses(value: Any) -> bool:
    import keras

    return _are_known(value, keras.losses.get)


def _are_metrics(value: Any) -> bool:
    import keras

    known = ("accuracy", "acc", "crossentropy", "ce")  # of which Keras chooses one by the loss
    return isinstance(value, (list, dict)) and _are_known(value, lambda each: each in known or keras.metrics.get(each))


def _are_known(value: Any, get: Callable[[str], Any]) -> bool:
    """Whether Keras knows all names in a structure."""
    if isinstance(value, (list, tuple, dict)):
        return all(_are_known(each, get) for each in (value.values() if isinstance(value, dict) else value))
    if isinstance(value, str):
        try:
            get(value)
        except ValueError:
            return False
    return True


_COUNT = _Rule("a whole number, 1 or more", _is_count)
_NAMES = _Rule("a list of one or more names of columns, each once", _are_names)
_TEXT = _Rule("a text", lambda value: isinstance(value, str) and bool(value))
_BOOL = _Rule("True or False", lambda value: isinstance(value, bool))
_WHOLE = _Rule(
    "a whole number, 0 or more", lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 0
)
_RULES = {
    **dict.fromkeys(("num_proc", "batch_size", "val_batch_size", "epochs", "partitions_per_process"), _COUNT),
    **dict.fromkeys(("train_steps_per_epoch", "validation_steps_per_epoch"), _COUNT),
    **dict.fromkeys(("feature_cols", "label_cols"), _NAMES),
    **dict.fromkeys(("sample_weight_col", "run_id"), _TEXT),
    **dict.fromkeys(("shuffle", "inmemory_cache_all", "use_gpu"), _BOOL),
    **dict.fromkeys(("verbose", "shuffle_buffer_size", "random_seed"), _WHOLE),
    "validation": _Rule("a share of the rows, from 0 up to 1, or the name of a column", _is_split),
    "metrics": _Rule("a list of metrics of Keras, as that of compile", _are_metrics),
    "loss": _Rule("a loss of Keras", _are_losses),
    "callbacks": _Rule("a list of callbacks of Keras", lambda value: isinstance(value, (list, tuple))),
    "custom_objects": _Rule("a dict from names to classes or functions", lambda value: isinstance(value, dict)),
    "backend_env": _Rule("a dict of environment variables", lambda value: isinstance(value, dict)),
}
_NEEDED = ("model", "store", "feature_cols", "label_cols")
# What Horovod's own defaults say, so that they may be given.
_SAME_AS_NONE = {"reader_pool_type": "thread", "compress_sparse_cols": False}


def check(values: Mapping[str, Any]) -> None:
    """Raises ConfigError if a parameter is missing, refused, or none that can be."""
    for name, instead in REFUSED.items():
        if values[name] is not None and values[name] != _SAME_AS_NONE.get(name, ...):
            raise ConfigError(f"{NAME}: {name} is not supported: {instead}. Received {values[name]!r}.")
    for name in _NEEDED:
        if values[name] is None:
            raise ConfigError(f"{NAME}: {name} is needed; received None.")
    for name, rule in _RULES.items():
        if values[name] is not None and not rule.holds(values[name]):
            raise ConfigError(f"{NAME}: {name} must be {rule.expected}; received {values[name]!r}.")
    run_id = values["run_id"] or "run"
    if "/" in run_id or run_id in (".", ".."):
        raise ConfigError(f"{NAME}: run_id is the name of a folder, without '/'; received {run_id!r}.")
