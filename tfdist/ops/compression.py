"""The wire types of gradients, and how a custom compression is wrapped around a collective."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import tensorflow as tf

from tfdist import config
from tfdist.errors import ConfigError


class Compressor:
    """Interface of a custom compression: derive from it, or define these two methods.

    You need it if neither `Compression.fp16` nor `.bf16` is what you want on the wire. The tensors are compressed in
    TensorFlow before the collective and decompressed after it; the collective adds compressed tensors, so the sum of
    compressed tensors must be the compressed sum, as with a cast, a scaling or a projection.

    Example:

    ```python
    class Halved(tfdist.compression.Compressor):
        def compress(self, tensor):
            return tf.cast(tensor / 2, tf.float16), tensor.dtype

        def decompress(self, tensor, ctx):
            return tf.cast(tensor, ctx) * 2

    optimizer = tfdist.DistributedOptimizer(optimizer, compression=Halved())
    ```
    """

    def compress(self, tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Returns the tensor to send, and what `decompress` needs to know."""
        raise NotImplementedError(f"{type(self).__name__} must define compress(tensor)")

    def decompress(self, tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """Returns a tensor of the dtype and shape that `compress` received."""
        raise NotImplementedError(f"{type(self).__name__} must define decompress(tensor, ctx)")


class Compression(Compressor, enum.Enum):
    """Wire type of float32 and float64 tensors; other dtypes are sent unchanged.

    A cast has a relative error of at most 2^-11 (fp16) or 2^-8 (bf16) for values in range; tfdist's own additions are
    in float32. Values beyond 65,504 overflow to infinity in fp16; averages are scaled before they are rounded, so a sum
    does not overflow when its average fits.

    Given to a collective, the cast happens in the engine. The methods `compress` and `decompress` do the same cast in
    TensorFlow, for code that calls them directly.

    Example:

    ```python
    optimizer = tfdist.DistributedOptimizer(optimizer, compression=tfdist.Compression.fp16)
    ```
    """

    none = "none"
    fp16 = "fp16"
    bf16 = "bf16"

    @classmethod
    def of(cls, value: AnyCompression) -> Compressor | type[Compressor]:
        """Accepts a member, its name, or anything that has `compress` and `decompress`.

        Raises:
            ConfigError: If it is none of these.
        """
        if isinstance(value, cls):
            return value
        names = [member.value for member in cls]
        if isinstance(value, str) and value in names:
            return cls(value)
        if isinstance(value, str) or not all(callable(getattr(value, name, None)) for name in _PARAMETERS):
            raise ConfigError(
                f"compression must be one of {', '.join(names)}, or have compress(tensor) and decompress(tensor, ctx); "
                f"received {value!r}."
            )
        for name, parameters in _PARAMETERS.items():
            try:
                inspect.signature(getattr(value, name)).bind(*parameters)
            except TypeError as error:
                raise ConfigError(
                    f"{name} of the compression {value!r} must take ({', '.join(parameters)}): {error}. If the "
                    "methods take self, pass an instance of the class, not the class."
                ) from None
        return value

    def compress(self, tensor: tf.Tensor) -> tuple[tf.Tensor, tf.DType]:
        """Returns the tensor cast to the wire type, and its dtype."""
        tensor = tf.convert_to_tensor(tensor)
        wire = _WIRE_TYPES.get(self.value)
        compressed = wire is not None and tensor.dtype in (tf.float32, tf.float64)
        return (tf.cast(tensor, wire) if compressed else tensor), tensor.dtype

    def decompress(self, tensor: tf.Tensor, ctx: tf.DType) -> tf.Tensor:
        """Returns the tensor cast back to the dtype `ctx`."""
        return tf.cast(tensor, ctx)


AnyCompression: TypeAlias = Compressor | type[Compressor] | str
_PARAMETERS = {"compress": ("tensor",), "decompress": ("tensor", "ctx")}
_WIRE_TYPES = {name: tf.as_dtype(wire) for name, wire in config.COMPRESSIONS.items() if wire}


def pack(
    compression: AnyCompression, tensors: Sequence[tf.Tensor]
) -> tuple[list[tf.Tensor], Compression, Callable[[Sequence[tf.Tensor]], list[tf.Tensor]]]:
    """Applies a custom compression to tensors; leaves built-in ones to the engine.

    Args:
        compression: What `Compression.of` accepts.
        tensors: Tensors of any dtype and shape.

    Returns:
        The tensors to send, the compression that the engine applies to them, and a function that converts the reduced
        tensors, in the same order, to results with the dtypes of `tensors`.

    Raises:
        ConfigError: If `compress` does not return a pair, or `decompress` returns another dtype than `compress` got.
    """
    compressor = Compression.of(compression)
    if isinstance(compressor, Compression):
        return list(tensors), compressor, list
    own = cast(Any, compressor)  # without an annotation, which AutoGraph does not understand in a closure
    pairs = [own.compress(tensor) for tensor in tensors]
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise ConfigError(f"{compressor!r}.compress must return (tensor, ctx); received {pair!r}.")

    def unpack(reduced: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        results = []
        for given, (_, context), tensor in zip(tensors, pairs, reduced, strict=True):
            result = tf.convert_to_tensor(own.decompress(tensor, context))
            if result.dtype != given.dtype or not result.shape.is_compatible_with(given.shape):
                raise ConfigError(
                    f"{compressor!r}.decompress returned {result.dtype.name} of shape {result.shape}; compress "
                    f"received {given.dtype.name} of shape {given.shape}. Restore both from ctx."
                )
            results.append(result)
        return results

    return [tf.convert_to_tensor(tensor) for tensor, _ in pairs], Compression.none, unpack
