"""The two dataset ops of the library as `tf.data` transformations, and the list of what this process watches.

Contacts no server.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist.errors import ConfigError
from tfdist.native import adapter

# An element that carries its ids has this structure on its way. tf.data lays the keys of a dict out in their order, so
# the ids are the first component.
_IDS = "_tfdist_id"
_VALUE = "_tfdist_value"
_MARK = "_tfdist_watch"
# An element travels in one message of protobuf, which holds less than 2 GiB; a worker that makes a larger one aborts.
LARGEST_ELEMENT_BYTES = 2_000_000_000

# By what is watched, so that the names of what ranks share are the same on all of them.
_numbers: defaultdict[str, Iterator[int]] = defaultdict(lambda: itertools.count(1))
_watches: list[Watch] = []


@dataclass(frozen=True)
class Watch:
    """What this process counts of one dataset.

    Attributes:
        name: The name under which the library counts, unique in the process.
        service: "HOST:PORT" of the data service that the elements come from directly; empty if there is none.
        expected: Elements of one pass (of all trainers that share it), or ids if the elements have ids; None: unknown.
        shared: Whether other trainers may read parts of the same pass.
        by_id: Whether each element carries its ids.
        repeats: Whether an element may legitimately come more than once in a pass.
        endless: Whether a pass has no end.
        gathered: Whether each worker may have made, or dropped, a short last batch of its own.
        made_of: The services whose elements these are made from, if `service` is empty.
    """

    name: str
    service: str
    expected: int | None = None
    shared: bool = False
    by_id: bool = False
    repeats: bool = False
    endless: bool = False
    gathered: bool = False
    made_of: tuple[str, ...] = ()


def add_ids(dataset: Any, element_id: Any) -> Any:
    """Puts the ids before each element; `element_id` gets an element as a function passed to `map` does."""
    is_tuple = type(dataset.element_spec) is tuple  # `map` hands over its parts one by one

    def join(*element: Any) -> dict[str, Any]:
        ids = tf.cast(tf.convert_to_tensor(element_id(*element)), tf.int64)
        return {_IDS: ids, _VALUE: element if is_tuple else element[0]}

    return dataset.map(join)


def has_ids(element_spec: Any) -> bool:
    """Whether elements of this structure come from `add_ids`."""
    return isinstance(element_spec, dict) and set(element_spec) == {_IDS, _VALUE}


def has_one_id(element_spec: Any) -> bool:
    """Whether each element has exactly one id, so that the ids are as many as the elements."""
    return has_ids(element_spec) and element_spec[_IDS].shape.rank == 0


def check_size(element_spec: Any) -> None:
    """Rejects elements too large for a message, as far as their type shows; the worker checks the others.

    Raises:
        ConfigError: If they are too large.
    """
    bytes_known = 0
    for spec in tf.nest.flatten(element_spec):
        for leaf in _components(spec):
            if leaf.shape.is_fully_defined() and leaf.dtype not in (tf.string, tf.variant, tf.resource):
                bytes_known += leaf.shape.num_elements() * leaf.dtype.size
    if bytes_known > LARGEST_ELEMENT_BYTES:
        raise ConfigError(
            f"dataset has elements of {bytes_known} bytes; the data service supports at most {LARGEST_ELEMENT_BYTES} "
            "bytes per element. Make them smaller: `batch` fewer rows, or `batch` after `distribute`, where it runs "
            "in the trainer."
        )


def serve(dataset: Any) -> Any:
    """What a worker runs for a dataset: the same elements, counted, and no new split once it drains."""
    spec = dataset.element_spec
    variant = adapter.ops().tfdist_served_dataset(
        tf.data.experimental.to_variant(dataset), largest_bytes=LARGEST_ELEMENT_BYTES, **_types(spec)
    )
    return _restore(variant, spec, dataset)


def watch(dataset: Any, watched: Watch, wait_seconds: float = 0) -> Any:
    """The same elements without their ids, counted.

    Args:
        dataset: A `tf.data.Dataset`.
        watched: The watch to count for.
        wait_seconds: Seconds that one element may take; 0: no limit.
    """
    spec = dataset.element_spec
    if watched.by_id:
        spec = spec[_VALUE]
    variant = adapter.ops().tfdist_watched_dataset(
        tf.data.experimental.to_variant(dataset),
        service=watched.service,
        watch=watched.name,
        wait_ms=round(wait_seconds * 1000),
        with_ids=watched.by_id,
        **_types(spec),
    )
    result = _restore(variant, spec, dataset)
    setattr(result, _MARK, watched)
    _watches.append(watched)
    return result


def new_name(origin: str) -> str:
    """A unique name for a watch of this process."""
    return f"{origin}#{next(_numbers[origin])}"


def watches() -> tuple[Watch, ...]:
    """All watches of this process, in the order of creation."""
    return tuple(_watches)


def watches_of(dataset: Any) -> Iterator[Watch]:
    """The watches that a dataset reads through, the one nearest to its end first."""
    found = getattr(dataset, _MARK, None)
    if found is not None:
        yield found
    for part in dataset._inputs():
        yield from watches_of(part)


def _types(element_spec: Any) -> dict[str, Any]:
    specs = [leaf for spec in tf.nest.flatten(element_spec) for leaf in _components(spec)]
    return {"output_types": [leaf.dtype for leaf in specs], "output_shapes": [leaf.shape for leaf in specs]}


def _components(spec: Any) -> list[Any]:
    """The components by which tf.data represents part of an element: a sparse or ragged tensor is one variant."""
    return [spec] if isinstance(spec, tf.TensorSpec) else list(spec._flat_tensor_specs)


def _restore(variant: Any, element_spec: Any, dataset: Any) -> Any:
    result = tf.data.experimental.from_variant(variant, element_spec)
    # So that who looks through a pipeline goes on from here, as from a step of TensorFlow's own. What the functions of
    # the dataset have captured, such as a lookup table, lives as long as its Python object.
    result._inputs = lambda: [dataset]
    return result
