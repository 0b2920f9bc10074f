"""How many multiplications each layer of a Keras model takes, and which gradients it makes. It runs no layer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from tfdist.command.bench.scale.scale_step import Layer, share
from tfdist.errors import ConfigError


def backward(model: Any) -> list[Any]:
    """The layers that have variables to train, last one first; layers of models inside models, too."""
    return [layer for layer in reversed(list(_flat(model))) if layer.trainable_variables]


def operations(layer: Any) -> int:
    """Multiplications of one image's forward step.

    A weight of two or more dimensions (the kernel of a convolution, depthwise or not, or of a dense layer) is applied
    once at every place of the layer's output; vectors (bias, scale) count for nothing. Backpropagation takes
    twice as many: the same for the gradient of the input and for that of the weight (Goodfellow, Bengio, Courville
    (2016), "Deep Learning", section 6.5.6).
    """
    shape = tuple(layer.output.shape)[1:]
    first = getattr(layer, "data_format", "channels_last") == "channels_first"
    places = math.prod(shape[1:] if first else shape[:-1])
    return sum(places * math.prod(v.shape) for v in layer.trainable_variables if len(v.shape) > 1)


def gradient_sizes(layer: Any) -> tuple[int, ...]:
    """Bytes of the gradient of each float32 variable, the last variable first."""
    return tuple(4 * math.prod(variable.shape) for variable in reversed(layer.trainable_variables))


def share_out(model: Any, backward_s: float) -> tuple[Layer, ...]:
    """The layers in backward order, the time of all shared out by their operations.

    Raises:
        ConfigError: If there is a variable that is not float32.
    """
    check(model)
    layers = backward(model)
    seconds = share(backward_s, [operations(layer) for layer in layers])
    return tuple(Layer(layer.name, part, gradient_sizes(layer)) for layer, part in zip(layers, seconds, strict=True))


def check(model: Any) -> None:
    """Raises ConfigError if there is a variable that is not float32."""
    for variable in model.trainable_variables:
        if str(variable.dtype) != "float32":
            raise ConfigError(
                f"variable {variable.path} is {variable.dtype}; a step is recorded for float32 variables. "
                "Record it under the default of keras.config.set_floatx"
            )


def _flat(model: Any) -> Iterator[Any]:
    for layer in model.layers:
        if getattr(layer, "layers", None):
            yield from _flat(layer)
        else:
            yield layer
