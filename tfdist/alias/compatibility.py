"""The small functions of `horovod.common.util` and `horovod.tensorflow.util` that scripts import."""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from tfdist.ops.reduction import ReduceOp, reduction_of
from tfdist.world import runtime

__all__ = [
    "ccl_built",
    "check_extension",
    "check_num_rank_power_of_2",
    "ddl_built",
    "env",
    "extension_available",
    "gloo_built",
    "gpu_available",
    "handle_average_backwards_compatibility",
    "is_iterable",
    "is_version_greater_equal_than",
    "mpi_built",
    "nccl_built",
    "num_rank_is_power_2",
    "refs_to_vars",
    "split_list",
    "vars_to_refs",
]
_Item = TypeVar("_Item")
_HERE = ("tensorflow", "keras", "tensorflow.keras", "torch")


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether there is a Horovod for a framework: for TensorFlow, Keras and PyTorch.

    Args:
        ext_base_name: Name of the framework, such as "tensorflow".
        verbose: Whether the reason is logged if there is none.
    """
    found = ext_base_name in _HERE
    if verbose and not found:
        logging.getLogger("tfdist").warning("tfdist is for TensorFlow, Keras and PyTorch, not for %s", ext_base_name)
    return found


def check_extension(ext_name: str, ext_env_var: str = "", pkg_path: str = "", *args: str) -> None:
    """Does nothing for TensorFlow, Keras and PyTorch, which need no extension to be built.

    Args:
        ext_name: Name of the module, such as "horovod.tensorflow".
        ext_env_var: For Horovod's build, of which there is none here; so are the others.
        pkg_path: As `ext_env_var`.
        *args: As `ext_env_var`.

    Raises:
        ImportError: For another framework.
    """
    del ext_env_var, pkg_path, args
    if not extension_available(ext_name.removeprefix("horovod.")):
        raise ImportError(f"{ext_name} is not available: tfdist is for TensorFlow, Keras and PyTorch.")


def gpu_available(ext_base_name: str = "tensorflow", verbose: bool = False) -> bool:
    """Whether a framework sees a GPU.

    Args:
        ext_base_name: Name of the framework; False for others than TensorFlow, Keras and PyTorch.
        verbose: As in `extension_available`.
    """
    if not extension_available(ext_base_name, verbose):
        return False
    if ext_base_name == "torch":
        return bool(importlib.import_module("torch").cuda.is_available())
    return bool(importlib.import_module("tensorflow").config.list_physical_devices("GPU"))


def _with_verbose(built: Callable[[], bool]) -> Callable[..., bool]:
    """The same, with Horovod's argument: whether to print why something is not built, of which there is nothing."""

    @functools.wraps(built)
    def call(verbose: bool = False) -> bool:
        del verbose
        return built()

    return call


mpi_built = _with_verbose(runtime.mpi_built)
gloo_built = _with_verbose(runtime.gloo_built)
nccl_built = _with_verbose(runtime.nccl_built)
ddl_built = _with_verbose(runtime.ddl_built)
ccl_built = _with_verbose(runtime.ccl_built)


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether a number is a power of 2, which Adasum does not need here."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


check_num_rank_power_of_2 = num_rank_is_power_2


def handle_average_backwards_compatibility(op: ReduceOp | None, average: bool | None) -> ReduceOp:
    """The reduction that two arguments of `allreduce` ask for.

    Raises:
        ConfigError: If both are given.
    """
    return reduction_of(average, op)


def is_iterable(x: Any) -> bool:
    """Whether `iter(x)` works."""
    try:
        iter(x)
    except TypeError:
        return False
    return True


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Whether the version `ver` is `target` or newer; "2.16.1" is newer than "2.9.0"."""
    return _numbers(ver) >= _numbers(target)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.split(r"[^\d.]", version, maxsplit=1)[0].strip(".").split("."))


def split_list(l: Sequence[_Item], n: int) -> list[Sequence[_Item]]:  # noqa: E741 -- the name is Horovod's
    """Splits a list into `n` parts in order, whose lengths differ by 1 at most, the longer ones first."""
    begins = [number * (len(l) // n) + min(number, len(l) % n) for number in range(n + 1)]
    return [l[begin:end] for begin, end in itertools.pairwise(begins)]


def vars_to_refs(vars: Any) -> Any:  # noqa: A002 -- the name is Horovod's
    """A variable as a value that can be hashed, or a list of variables as a tuple of such values."""
    return tuple(map(vars_to_refs, vars)) if isinstance(vars, list) else vars.ref()


def refs_to_vars(refs: Any) -> Any:
    """What was given to `vars_to_refs`."""
    return list(map(refs_to_vars, refs)) if isinstance(refs, tuple) else refs.deref()


@contextlib.contextmanager
def env(**kwargs: str | None) -> Iterator[None]:
    """A context in which variables of the environment have other values; None removes one.

    Args:
        **kwargs: The values by name.
    """
    before = {name: value for name, value in os.environ.items() if name in kwargs}
    try:
        _replace(kwargs)
        yield
    finally:
        _replace(dict.fromkeys(kwargs) | before)


def _replace(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is not None:
            os.environ[name] = value
        elif name in dict(os.environ):
            del os.environ[name]
