"""Reduces the gradients of one training step over all ranks, in few collectives. Independent of the optimizer."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import importlib
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfdist import errors
from tfdist.native import library
from tfdist.ops import allreduce
from tfdist.ops.compression import Compression, Compressor
from tfdist.ops.graph import call, ranks, sequence
from tfdist.ops.reduction import Adasum, Average, ReduceOp, Sum
from tfdist.training.local_variable import LocalVariables, key_of
from tfdist.world import fit_hook, tuning
from tfdist.world.process_sets import ProcessSet, global_process_set
from tfdist.world.session import session

# What gradients may be reduced by.
GRADIENT_OPS = (Average, Sum, Adasum)

_weight: contextvars.ContextVar[tf.Tensor | None] = contextvars.ContextVar("weight", default=None)
# Where a variable has its `GradientRecord`.
_RECORD = "_tfdist_gradient"


@contextlib.contextmanager
def weighted_by(weight: tf.Tensor | None) -> Iterator[None]:
    """Inside, averages of gradients weight each rank, for example by its number of samples.

    Args:
        weight: int64 scalar, 0 to 2^32 - 1; None gives all ranks equal weight.
    """
    token = _weight.set(weight)
    try:
        yield
    finally:
        _weight.reset(token)


def weight() -> tf.Tensor | None:
    """The weight set by the enclosing `weighted_by`."""
    return _weight.get()


@dataclass(frozen=True)
class GradientRecord:
    """What happened to the gradient of a variable in the latest step, for a `tf.function` the latest that was traced.

    Attributes:
        process_set: The ranks whose gradients were reduced; None if each rank keeps its own.
    """

    process_set: ProcessSet | None


def record_of(source: Any) -> GradientRecord | None:
    """The latest record of a variable; None if no gradient of it was ever reduced or kept local."""
    record: GradientRecord | None = getattr(_inner(source), _RECORD, None)
    return record


def _note(source: Any, process_set: ProcessSet | None) -> None:
    """Writes it for a variable; a tensor, which is gone after the step, has no record."""
    variable = _inner(source)
    if isinstance(variable, tf.Variable):
        setattr(variable, _RECORD, GradientRecord(process_set))


def _inner(source: Any) -> Any:
    return source.value if isinstance(source, keras.Variable) else source


@dataclass(frozen=True, eq=False)
class Grouping:
    """Which gradients are reduced together: what suits the device, a number of parts, or given lists and the rest.

    If collectives overlap with the computation, buckets are filled starting from the last layer, so that their
    gradients are reduced while those of earlier layers are computed. Otherwise all gradients are one collective:
    several blocking ones would make the ranks wait for each other in between (`ops/graph/sequence.py`).

    Attributes:
        parts: Number of collectives, without `groups`; None makes buckets of `TFDIST_FUSION_THRESHOLD` bytes if they
            overlap with the computation, and otherwise one collective.
        groups: Lists of variables: one collective per list, and one for all other variables.
    """

    parts: int | None = None
    groups: tuple[tuple[Any, ...], ...] = ()

    @classmethod
    def of(cls, num_groups: int = 0, groups: int | Sequence[Sequence[Any]] | None = None) -> Grouping:
        """Checks Horovod's two arguments.

        Raises:
            ConfigError: If both are given, a number is not positive, or `groups` is not a list of lists of variables.
        """
        if num_groups and groups is not None:
            raise errors.ConfigError(f"give num_groups or groups, not both; received num_groups={num_groups}.")
        if groups is None:
            return cls() if num_groups == 0 else cls(parts=_positive("num_groups", num_groups, ""))
        if isinstance(groups, (list, tuple)):
            return cls(groups=_disjoint(groups))
        return cls(parts=_positive("groups", groups, ", or a list of lists of variables"))

    @property
    def by_threshold(self) -> bool:
        """Whether the fusion threshold decides, if it matters."""
        return self.parts is None and not self.groups

    def split(self, sources: Sequence[Any], gradients: Sequence[tf.Tensor]) -> list[list[int]]:
        """Positions in `sources`, each once, grouped by collective.

        Args:
            sources: The variable or tensor of each gradient.
            gradients: The gradients.

        Raises:
            ConfigError: If `groups` names none of `sources`.
        """
        if self.groups:
            split = self._by_list(sources)
        elif self.parts is not None:
            split = _in_parts(len(sources), self.parts)
        elif call.overlaps():
            split = in_buckets(gradients, tuning.current().fusion_threshold)
        else:
            split = [list(range(len(sources)))]
        return [part for part in split if part]

    def _by_list(self, sources: Sequence[Any]) -> list[list[int]]:
        left = {key_of(source): index for index, source in enumerate(sources)}
        split = [[left.pop(key_of(v)) for v in group if key_of(v) in left] for group in self.groups]
        if sources and not any(split):
            raise errors.ConfigError(
                f"groups contains none of the variables that have gradients: {', '.join(map(name_of, sources))}. "
                "Pass lists of this model's variables."
            )
        grouped = {index for group in split for index in group}
        return [*split, [index for index in range(len(sources)) if index not in grouped]]


@dataclass(frozen=True, eq=False)
class GradientReduction:
    """How gradients are reduced.

    Attributes:
        op: One of `GRADIENT_OPS`.
        compression: Wire type of float32 and float64 gradients, or a custom compression.
        sparse_as_dense: Whether a `tf.IndexedSlices` is made dense and reduced; otherwise its rows are gathered.
        predivide_factor: With Average, gradients are divided by this before the sum and by `size() / factor` after.
        grouping: Which gradients are reduced together.
        scale_local: Whether gradients of local variables are divided by the number of ranks, for any `op`.
        process_set: The ranks that take part. Others keep their gradients.
    """

    op: ReduceOp = Average
    compression: Compressor | type[Compressor] = Compression.none
    sparse_as_dense: bool = False
    predivide_factor: float = 1.0
    grouping: Grouping = Grouping()
    scale_local: bool = True
    process_set: ProcessSet = global_process_set

    def __post_init__(self) -> None:
        if self.op not in GRADIENT_OPS:
            names = " or ".join(f"op={op.name.title()}" for op in GRADIENT_OPS)
            raise errors.ConfigError(f"gradients are reduced by {names}; received {self.op!r}.")
        if not 0 < self.predivide_factor < float("inf"):
            raise errors.ConfigError(
                f"gradient_predivide_factor must be a number greater than 0; received {self.predivide_factor}."
            )
        if self.predivide_factor != 1.0 and self.op is not Average:
            raise errors.ConfigError(f"gradient_predivide_factor needs op=Average; received op={self.op.name.title()}.")

    def reduce(
        self,
        gradients: Sequence[Any],
        sources: Sequence[Any],
        label: str,
        local: LocalVariables | None = None,
        factor: float = 1.0,
        generic_names: bool = False,
    ) -> list[Any]:
        """Reduces the gradient of each variable that is not local.

        Args:
            gradients: Tensor, `tf.IndexedSlices` or None each; order and kinds are the same on every rank.
            sources: The variable or tensor of each gradient.
            label: Name of the collective in errors.
            local: Variables whose gradients stay local to this rank.
            factor: Multiplies every gradient, including local ones.
            generic_names: Whether errors name gradients by position only, for variables whose names differ by rank.

        Returns:
            List in the order of `gradients`; None stays None.

        Raises:
            ConfigError: If a gradient is of another kind.
        """
        kept = local.keys() if local is not None else frozenset()
        places = [index for index, source in enumerate(sources) if key_of(source) not in kept]
        shared = [gradients[index] for index in places]
        names = _names([sources[index] for index in places], generic_names)
        self._record(gradients, sources, set(places))
        if self.process_set.included():
            shared = self._reduce_shared(shared, [sources[index] for index in places], names, label, factor)
        else:
            shared = [scaled(gradient, factor) for gradient in shared]
        result = list(gradients)
        for index, gradient in zip(places, shared, strict=True):
            result[index] = gradient
        scale = factor * self._local_share(local) if self.scale_local else factor
        for index in set(range(len(result))) - set(places):
            result[index] = scaled(result[index], scale)
        return result

    def _record(self, gradients: Sequence[Any], sources: Sequence[Any], shared: set[int]) -> None:
        for index, (gradient, source) in enumerate(zip(gradients, sources, strict=True)):
            if gradient is not None:
                _note(source, self.process_set if index in shared else None)
        if any(gradients[index] is not None for index in shared):
            session.gradients_reduced = True
            session.reductions += 1
            if not session.optimizer_reduced:
                session.optimizer_reduced = True
                fit_hook.after_steps(lambda: importlib.import_module("tfdist.training.equality").compare_after_step)

    def _local_share(self, local: LocalVariables | None) -> Any:
        """The factor for local gradients, so that they belong to the same mean as the averaged shared ones."""
        if local is None or not local.partial or self.op is not Average or _weight.get() is None:
            return 1.0 / ranks.divisor_of(self.process_set)
        return self._share("local gradients")

    def _share(self, label: str) -> tf.Tensor:
        """This rank's share of all weights, as a float64 scalar; 0 if no rank has any."""
        own = tf.cast(_weight.get(), tf.float64)
        total = allreduce.allreduce(own, op=Sum, name=f"{label}/weights", process_set=self.process_set)
        return tf.math.divide_no_nan(own, total)

    def agree(self, finite: tf.Tensor) -> tf.Tensor:
        """Whether a bool scalar is true on every rank."""
        if not self.process_set.included():
            return finite
        # A sum, because a rank that has joined contributes zeros.
        wrong = tf.cast(tf.logical_not(finite), tf.int32)
        return tf.equal(
            allreduce.allreduce(wrong, op=Sum, name="gradients not finite", process_set=self.process_set), 0
        )

    def global_norm(self, gradients: Sequence[Any], sources: Sequence[Any], local: LocalVariables) -> tf.Tensor:
        """The norm of the shared gradients and the local ones of all ranks, as if they belonged to one model.

        norm^2 = sum of squares of shared gradients + sum over ranks of the sums of squares of local ones. Each rank
        contributes its share of the first sum, so that the result has the same bits on every rank.

        Args:
            gradients: Reduced gradients: tensor, `tf.IndexedSlices` or None each.
            sources: The variable of each gradient.
            local: Variables whose gradients are this rank's own.

        Returns:
            float64 scalar.
        """
        kept = local.keys()
        size = ranks.divisor_of(self.process_set) if self.process_set.included() else 1
        total = tf.zeros((), tf.float64)
        for gradient, source in zip(gradients, sources, strict=True):
            if gradient is not None:
                square = _squared_norm(gradient)
                total += square if key_of(source) in kept else square / size
        if self.process_set.included():
            label = "squared norm of gradients"
            total = allreduce.allreduce(total, op=Sum, name=label, process_set=self.process_set)
        return tf.sqrt(total)

    def _reduce_shared(
        self, gradients: list[Any], sources: list[Any], names: list[str], label: str, factor: float
    ) -> list[Any]:
        _refuse_layouts(gradients, names)
        dense = [i for i, gradient in enumerate(gradients) if gradient is not None and not self._gathered(gradient)]
        tensors = [tf.convert_to_tensor(gradients[i]) for i in dense]  # an IndexedSlices becomes dense
        parts = self.grouping.split([sources[index] for index in dense], tensors)
        gathered = [index for index, gradient in enumerate(gradients) if self._gathered(gradient)]

        def run() -> list[Any]:
            result, started = list(gradients), []
            for number, part in enumerate(parts):
                places = [dense[index] for index in part]
                part_label = label if len(parts) == 1 else f"{label}, group {number}"
                how = self._allreduce([names[i] for i in places], part_label, factor)
                started.append((places, how.start([tensors[index] for index in part])))
            for index in gathered:
                result[index] = self._gather(gradients[index], f"{label}/{names[index]}", factor)
            for places, finish in started:
                for index, gradient in zip(places, finish(), strict=True):
                    result[index] = gradient
            return result

        if len(parts) + len(gathered) <= 1:
            return run()
        with sequence.after(gradients):
            return sequence.together(run())

    def _gather(self, slices: tf.IndexedSlices, label: str, factor: float) -> tf.IndexedSlices:
        op = self.op
        if _weight.get() is not None and op is Average:
            # Without a weight not even a NaN counts.
            values = tf.math.multiply_no_nan(slices.values, tf.cast(self._share(label), slices.values.dtype))
            slices, op = tf.IndexedSlices(values, slices.indices, slices.dense_shape), Sum
        return allreduce.allreduce(slices, op=op, postscale_factor=factor, name=label, process_set=self.process_set)

    def _gathered(self, gradient: Any) -> bool:
        return isinstance(gradient, tf.IndexedSlices) and not self.sparse_as_dense

    def _allreduce(self, names: list[str], label: str, factor: float) -> allreduce.FusedAllreduce:
        predivide = self.predivide_factor
        before, after, op = 1.0, factor, self.op
        weight = _weight.get() if op is Average else None
        if predivide != 1.0 and weight is None:
            before, after, op = 1.0 / predivide, factor * predivide / ranks.divisor_of(self.process_set), Sum
        return allreduce.FusedAllreduce(
            op=op,
            compression=self.compression,
            before=call.factor_of(before),
            after=call.factor_of(after),
            label=label,
            tensor_names=tuple(names),
            weight=weight,
            process_set=self.process_set,
        )


def _refuse_layouts(gradients: Sequence[Any], names: Sequence[str]) -> None:
    for gradient, name in zip(gradients, names, strict=True):
        if isinstance(gradient, (tf.RaggedTensor, tf.SparseTensor)):
            raise errors.ConfigError(
                f"the gradient of {name} is a {type(gradient).__name__}, whose layout differs by rank; only a dense "
                "tensor or tf.IndexedSlices can be reduced."
            )


def _in_parts(total: int, parts: int) -> list[list[int]]:
    """Parts of equal size, the last positions first."""
    count, longer = divmod(total, parts)
    ends = [count * part + min(part, longer) for part in range(parts + 1)]
    return [list(range(begin, end)) for begin, end in itertools.pairwise(ends)][::-1]


def in_buckets(gradients: Sequence[tf.Tensor | tf.Variable], threshold: int) -> list[list[int]]:
    """Buckets of positions, starting from the last gradient; a single bucket if any size is unknown before the graph
    runs.

    Args:
        gradients: The gradients, or their variables.
        threshold: Maximum bytes of a bucket; a larger gradient is reduced alone.
    """
    backwards = range(len(gradients) - 1, -1, -1)
    counts = [gradients[position].shape.num_elements() for position in backwards]
    if None in counts:
        return [list(range(len(gradients)))]
    dtypes = [gradients[position].dtype for position in backwards]
    sizes = tuple(count * dtype.size for count, dtype in zip(counts, dtypes, strict=True))
    plan = _planned(tuple(dtype.name for dtype in dtypes), sizes, threshold)
    return [sorted(backwards[index] for index in bucket) for bucket in plan]


# A loop that is not traced asks in every step.
_planned = functools.lru_cache(maxsize=64)(library.plan_buckets)


def _positive(name: str, value: Any, otherwise: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise errors.ConfigError(f"{name} must be a number, 1 or more{otherwise}; received {value!r}.")
    return value


def _disjoint(groups: Sequence[Any]) -> tuple[tuple[Any, ...], ...]:
    seen = set()
    for group in groups:
        if not isinstance(group, (list, tuple)):
            raise errors.ConfigError(f"groups must be a list of lists of variables; received {group!r} in it.")
        for variable in group:
            if not isinstance(variable, (keras.Variable, tf.Variable)):
                raise errors.ConfigError(f"groups must be a list of lists of variables; received {variable!r} in one.")
            if key_of(variable) in seen:
                raise errors.ConfigError(f"groups names {name_of(variable)} twice; a gradient is reduced only once.")
            seen.add(key_of(variable))
    return tuple(tuple(group) for group in groups)


def name_of(source: Any) -> str:
    """A name for errors, such as "dense/kernel".

    Keras numbers layers by how many a process has built ("sequential_3/dense_7/kernel"), which may differ by rank.
    """
    if not isinstance(source, (keras.Variable, tf.Variable)):
        return "tensor"
    path = getattr(source, "path", None) or source.name
    return "/".join(re.sub(r"(_\d+)?(:0)?$", "", part) for part in path.split("/")[-2:])


def _names(sources: Sequence[Any], generic: bool) -> list[str]:
    """Names such as "2:dense/kernel"; the position replaces the numbers assigned by Keras."""
    return [f"{index}:{'gradient' if generic else name_of(source)}" for index, source in enumerate(sources)]


def scaled(gradient: Any, factor: float | tf.Tensor) -> Any:
    """A gradient multiplied by a factor: tensor, `tf.IndexedSlices` or None."""
    if gradient is None or (isinstance(factor, float) and factor == 1.0):
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(scaled(gradient.values, factor), gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(factor, gradient.dtype)


def _squared_norm(gradient: Any) -> tf.Tensor:
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    return tf.cast(tf.reduce_sum(tf.square(values)), tf.float64)
