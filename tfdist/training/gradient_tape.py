"""A `tf.GradientTape` whose gradients are reduced over all ranks. Updates no variable."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import keras
import tensorflow as tf

from tfdist import errors
from tfdist.ops.compression import AnyCompression, Compression
from tfdist.ops.graph import call
from tfdist.ops.reduction import Average, ReduceOp
from tfdist.training import optimizer
from tfdist.training.gradients import GradientReduction, Grouping
from tfdist.training.local_variable import LocalVariables
from tfdist.world import runtime
from tfdist.world.process_sets import ProcessSet, global_process_set

_LABEL = "gradients of the tape"


class _DistributedTape(tf.GradientTape):
    """The wrapped tape with its own `gradient`. `jacobian` and `batch_jacobian` are local to this rank."""

    def __init__(self, tape: tf.GradientTape, reduction: GradientReduction, local: LocalVariables) -> None:
        # Records nothing itself: a tape that has recorded already can be wrapped.
        self._wrapped = tape
        self._reduction = reduction
        self._local = local

    def __getattr__(self, name: str) -> Any:
        """Forwards attributes of custom tape classes."""
        return getattr(object.__getattribute__(self, "_wrapped"), name)

    def __enter__(self) -> _DistributedTape:
        self._wrapped.__enter__()
        return self

    def __exit__(
        self, typ: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._wrapped.__exit__(typ, value, traceback)

    def watch(self, tensor: Any) -> None:
        self._wrapped.watch(tensor)

    def watched_variables(self) -> Any:
        return self._wrapped.watched_variables()

    def stop_recording(self) -> AbstractContextManager[None]:
        return self._wrapped.stop_recording()

    def reset(self) -> None:
        self._wrapped.reset()

    def jacobian(self, *args: Any, **kwargs: Any) -> Any:
        return self._wrapped.jacobian(*args, **kwargs)

    def batch_jacobian(self, *args: Any, **kwargs: Any) -> Any:
        return self._wrapped.batch_jacobian(*args, **kwargs)

    def register_local_source(self, source: Any) -> None:
        """Keeps the gradient of a source local to this rank: it is not reduced.

        You need it if each rank has its own variable. With `scale_local_gradients` its gradient is divided by the
        number of ranks, as for a loss that is the mean of the ranks' losses.

        For a `LossScaleOptimizer`, which refuses such gradients, and for `global_clipnorm`, which would clip by another
        norm on each rank, use `PartialDistributedOptimizer` in place of the tape.

        Args:
            source: A variable or a watched tensor.

        Raises:
            ConfigError: If it is anything else.
        """
        self._local.add(source)

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: tf.UnconnectedGradients = tf.UnconnectedGradients.NONE,
        use_generic_names: bool = False,
    ) -> Any:
        """The gradient of `target` with respect to each of `sources`, reduced over the ranks.

        Args:
            target: As in `tf.GradientTape.gradient`.
            sources: As in `tf.GradientTape.gradient`; the same structure on every rank, except for local sources.
            output_gradients: As in `tf.GradientTape.gradient`.
            unconnected_gradients: As in `tf.GradientTape.gradient`; a None stays None and is None on every rank.
            use_generic_names: Whether sources are compared between ranks by position instead of by name; names may then
                differ.

        Returns:
            Tensor, `tf.IndexedSlices` or None for each source, in the structure of `sources`.

        Raises:
            MismatchError: On every rank, if the gradients differ in number, kind, dtype, shape or name.
        """
        if self._local.partial:
            optimizer._reach_keras()  # where loss scaling is refused for them
        gradients = self._wrapped.gradient(target, sources, output_gradients, unconnected_gradients)
        reduced = self._reduction.reduce(
            tf.nest.flatten(gradients), tf.nest.flatten(sources), _LABEL, self._local, generic_names=use_generic_names
        )
        return tf.nest.pack_sequence_as(sources, reduced)


def DistributedGradientTape(  # noqa: N802, PLR0913 -- name and signature are Horovod's
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompression = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> tf.GradientTape:
    """Wraps a tape so that its gradients are reduced over all ranks.

    You need it in a custom training loop with an ordinary optimizer. Use either it or `DistributedOptimizer`: with
    both, gradients would be reduced twice. The wrapped tape may already have recorded and is not changed.

    Args:
        gradtape: A `tf.GradientTape`.
        device_dense: Must be "".
        device_sparse: Must be "".
        compression: A member of `tfdist.Compression`, its name, or a custom `Compressor`.
        sparse_as_dense: Whether a `tf.IndexedSlices` gradient is made dense and reduced; otherwise it is gathered,
            without compression.
        op: `Average`, `Sum` or `Adasum` (per gradient; dense gradients only).
        gradient_predivide_factor: With Average, divides by this before the sum and by the rest after.
        num_groups: Number of collectives that the gradients are split into, in order; 0 makes buckets of
            `TFDIST_FUSION_THRESHOLD` bytes, last layer first, on GPUs and with a communication thread; otherwise one.
        groups: A number, as `num_groups`, or lists of variables: one collective per list and one for the rest.
        process_set: The ranks that take part; on others the gradients are unchanged.
        scale_local_gradients: Whether gradients of local sources (see `register_local_source` of the returned tape)
            are divided by the number of ranks, with any `op`.

    Raises:
        ConfigError: If an argument is invalid.
        NotInitializedError: Before `tfdist.init()`.

    Example:

    ```python
    with tf.GradientTape() as tape:
        loss = loss_function(y, model(x, training=True))
    tape = tfdist.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    ```
    """
    call.refuse_device(device_dense=device_dense, device_sparse=device_sparse)
    call.number_of(process_set)
    runtime.rank()
    if not isinstance(gradtape, tf.GradientTape):
        raise errors.ConfigError(f"gradtape must be a tf.GradientTape; received {type(gradtape)}.")
    if isinstance(gradtape, _DistributedTape):
        raise errors.ConfigError("the tape is already distributed; wrap it only once.")
    reduction = GradientReduction(
        op,
        Compression.of(compression),
        sparse_as_dense,
        gradient_predivide_factor,
        Grouping.of(num_groups, groups),
        scale_local_gradients,
        process_set,
    )
    return _DistributedTape(gradtape, reduction, LocalVariables())


def PartialDistributedGradientTape(  # noqa: N802, PLR0913 -- name and signature are Horovod's
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompression = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    local_layers: keras.layers.Layer | Collection[keras.layers.Layer] | None = None,
    scale_local_gradients: bool = True,
) -> tf.GradientTape:
    """Returns a `DistributedGradientTape` that keeps the gradients of some layers local to their rank.

    You need it if layers differ by rank, such as the shards of an embedding table.

    Args:
        gradtape: As in `DistributedGradientTape`, like all arguments not described here.
        device_dense: Must be "".
        device_sparse: Must be "".
        compression: Of the gradients that are reduced.
        sparse_as_dense: Of the gradients that are reduced.
        op: Of the gradients that are reduced.
        gradient_predivide_factor: Of the gradients that are reduced.
        num_groups: Of the gradients that are reduced.
        groups: Of the gradients that are reduced.
        process_set: The ranks that take part.
        local_layers: One or more Keras layers, built or not; they may differ by rank, also in number.
        scale_local_gradients: Whether the gradients of these layers are divided by the number of ranks.

    Raises:
        ConfigError: If an argument is invalid.
        NotInitializedError: Before `tfdist.init()`.

    Example:

    ```python
    tape = tfdist.PartialDistributedGradientTape(tape, local_layers=[part_of_table])
    ```
    """
    local = LocalVariables()
    local.add_layers(local_layers)
    tape = DistributedGradientTape(
        gradtape,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
    tape._local = local
    return tape
