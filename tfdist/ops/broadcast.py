"""Broadcast: every rank gets the tensors, or the values of the variables, of one rank."""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdist import errors
from tfdist.native import keras_version
from tfdist.ops import allreduce, topology
from tfdist.ops.graph import call, gradient_factor, order, ranks, replica
from tfdist.ops.reduction import Sum
from tfdist.world import process_sets, runtime
from tfdist.world.process_sets import ProcessSet, global_process_set
from tfdist.world.session import session

_logger = logging.getLogger("tfdist")


def broadcast(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> tf.Tensor:
    """Returns the tensor of rank `root_rank` on every rank.

    Args:
        tensor: Tensor of any supported dtype; dtype and shape are the same on every rank.
        root_rank: The rank whose tensor is wanted, by its number among all ranks.
        name: Same on every rank; errors name the tensor by it.
        process_set: The ranks that take part.

    Raises:
        MismatchError: On every rank, if dtype, shape or root differs.

    Example:

    ```python
    seed = tfdist.broadcast(tf.constant(tfdist.rank()), root_rank=0, name="seed")
    ```
    """
    return grouped_broadcast([tensor], root_rank, name=name or "broadcast", process_set=process_set)[0]


def grouped_broadcast(
    tensors: Sequence[Any], root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[tf.Tensor]:
    """Returns the tensors of rank `root_rank` on every rank, in one collective.

    Args:
        tensors: Tensors as in `broadcast`; may differ in dtype and shape from each other.
        root_rank: The rank whose tensors are wanted, by its number among all ranks.
        name: Name of the collective in errors.
        process_set: The ranks that take part.

    Raises:
        MismatchError: On every rank, if a dtype, a shape or the root differs.

    Example:

    ```python
    mean, deviation = tfdist.grouped_broadcast([mean, deviation], root_rank=0, name="statistics")
    ```
    """
    if not tensors:
        return []
    label = name or "grouped_broadcast"
    return _grouped_broadcast(tensors, call.names_of(tensors, label), root_rank, label, process_set)


def broadcast_variables(
    variables: Sequence[Any], root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> None:
    """Overwrites variables with the values they have on rank `root_rank`.

    You need it when training starts or resumes, so that all ranks have the same weights. Constants that a
    `keras.layers.Normalization` computed from its variables are not updated: call its `finalize_state()` afterwards.
    The callbacks and the states of elastic training do that for you.

    Args:
        variables: `tf.Variable` or `keras.Variable`, the same list on every rank; names may differ, dtypes and
            shapes may not. For a Keras model pass `weights`: its `variables` include the states of seed generators, so
            all ranks would draw the same random numbers from then on; rank 0 warns about it once.
        root_rank: The rank whose values are wanted, by its number among all ranks.
        name: Name of the collective in errors.
        process_set: The ranks that take part.

    Raises:
        MismatchError: On every rank, if the number of variables, a dtype, a shape or the root differs; each rank names
            the variable by its path on that rank.

    Example:

    ```python
    tfdist.broadcast_variables(model.weights, root_rank=0)
    ```
    """
    label = name or "broadcast_variables"
    session.weights_alike = True
    _warn_of_seeds(variables)
    resources = [replica.own(variable) for variable in variables]
    here = [_lies_with_collectives(resource) for resource in resources]
    # Only positions travel: Keras numbers names by what a process built before, which may differ by rank.
    names = [f"variable {index}" for index in range(len(variables))]
    with _paths_in_errors(variables):
        if any(here):
            call.run(
                "tfdist_broadcast_variables",
                [resource.handle for resource in itertools.compress(resources, here)],
                root_rank=root_rank,
                process_set=call.number_of(process_set),
                label=label,
                tensor_names=list(itertools.compress(names, here)),
            )
        # An op cannot have variables on several devices.
        elsewhere = [resource for resource, lies_here in zip(resources, here, strict=True) if not lies_here]
        values = [resource.read_value() for resource in elsewhere]
        away = [name for name, lies_here in zip(names, here, strict=True) if not lies_here]
        received = _grouped_broadcast(values, away, root_rank, f"{label} elsewhere", process_set) if values else []
    for resource, value in zip(elsewhere, received, strict=True):
        resource.assign(value)


def _warn_of_seeds(variables: Sequence[Any]) -> None:
    if runtime.rank() or runtime.size() == 1 or session.warned_of_seeds:
        return
    if any(map(keras_version.is_seed_state, variables)):
        session.warned_of_seeds = True
        _logger.warning(
            "broadcast_variables received the states of seed generators, so from now on all ranks draw the same "
            "random numbers, for example for Dropout. Pass model.weights instead of model.variables."
        )


def broadcast_(
    variables: Sequence[Any], root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> None:
    """Horovod's name for `broadcast_variables`."""
    broadcast_variables(variables, root_rank, name=name or "broadcast_", process_set=process_set)


def _grouped_broadcast(
    tensors: Sequence[Any], names: Sequence[str], root_rank: int, label: str, process_set: ProcessSet
) -> list[tf.Tensor]:
    session.weights_alike = True
    received = call.run(
        "tfdist_grouped_broadcast",
        call.tensors_of(tensors, names),
        root_rank=root_rank,
        process_set=call.number_of(process_set),
        label=label,
        tensor_names=names,
    )
    return list(received)


@contextlib.contextmanager
def _paths_in_errors(variables: Sequence[Any]) -> Iterator[None]:
    """Adds to the number of a variable in errors its path on this rank."""
    try:
        yield
    except errors.MismatchError as error:
        paths = [getattr(variable, "path", None) or variable.name for variable in variables]
        text = re.sub(r"'variable (\d+)'", lambda found: f"{found[0]} (here {paths[int(found[1])]})", str(error))
        raise errors.MismatchError(text) from None


def _lies_with_collectives(variable: tf.Variable) -> bool:
    place = tf.DeviceSpec.from_string(variable.device)
    return place.device_type is None or f"{place.device_type}:{place.device_index or 0}" == order.collective_device()


@tf.RegisterGradient("TfdistGroupedBroadcast")
def _gradient(op: tf.Operation, *gradients: tf.Tensor) -> list[tf.Tensor | None]:
    """The root's tensor fed every rank; the others' fed none."""
    process_set = process_sets.of_number(op.get_attr("process_set"))
    label = f"gradient of {op.get_attr('label').decode()}"

    factor = gradient_factor.of_average("broadcast", process_set, ranks.divisor_of(process_set))

    def to_root(_: list[int], dense: list[tf.Tensor]) -> list[tf.Tensor]:
        summed = allreduce.grouped_allreduce(
            dense, op=Sum, postscale_factor=factor, name=label, process_set=process_set
        )
        is_root = tf.equal(topology.rank_op(), op.get_attr("root_rank"))
        return [tf.where(is_root, gradient, tf.zeros_like(gradient)) for gradient in summed]

    return [*call.differentiate(gradients, to_root), None]
