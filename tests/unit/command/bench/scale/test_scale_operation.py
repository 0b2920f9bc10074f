"""Multiplications and gradients of layers, against numbers that can be computed by hand, and of networks of Keras."""

from __future__ import annotations

from typing import Any

import keras
import pytest

from tfdist.command.bench.scale import scale_operation
from tfdist.errors import ConfigError


def built(*layers: Any, shape: tuple[int, ...] = (8, 6, 3)) -> keras.Model:
    return keras.Sequential([keras.layers.Input(shape), *layers])


@pytest.mark.parametrize(
    ("layer", "operations", "gradients"),
    [
        # 5 x 5 filters of 3 channels at 8 x 6 places, 7 of them.
        (keras.layers.Conv2D(7, 5, padding="same"), 48 * 5 * 5 * 3 * 7, (28, 4 * 525)),
        # Every second place in both directions.
        (keras.layers.Conv2D(7, 5, strides=2, padding="same", use_bias=False), 12 * 5 * 5 * 3 * 7, (4 * 525,)),
        # One filter for each of the 3 channels.
        (keras.layers.DepthwiseConv2D(3, padding="same", use_bias=False), 48 * 3 * 3 * 3, (4 * 27,)),
        # Scale and shift of 3 channels; its moving statistics have no gradients.
        (keras.layers.BatchNormalization(), 0, (12, 12)),
        # At each of the 8 x 6 places.
        (keras.layers.Dense(5), 48 * 3 * 5, (20, 60)),
    ],
)
def test_layers_by_hand(layer: Any, operations: int, gradients: tuple[int, ...]) -> None:
    (found,) = scale_operation.backward(built(layer))
    assert scale_operation.operations(found) == operations
    assert scale_operation.gradient_sizes(found) == gradients


def test_channels_first() -> None:
    layer = keras.layers.Conv2D(7, 5, padding="same", use_bias=False, data_format="channels_first")
    (found,) = scale_operation.backward(built(layer, shape=(3, 8, 6)))
    assert scale_operation.operations(found) == 48 * 5 * 5 * 3 * 7


def test_backward_order_goes_through_models_inside_models() -> None:
    inner = built(keras.layers.Dense(4, name="b"), keras.layers.Dense(4, name="c"))
    model = built(keras.layers.Dense(3, name="a"), inner, keras.layers.ReLU(), keras.layers.Dense(2, name="d"))
    assert [layer.name for layer in scale_operation.backward(model)] == ["d", "c", "b", "a"]


def test_time_is_shared_out() -> None:
    """90 multiplications in the first layer, 60 in the second, which comes first."""
    model = built(keras.layers.Dense(30, name="a"), keras.layers.Dense(2, name="b"), shape=(3,))
    b, a = scale_operation.share_out(model, 5.0)
    assert (b.name, b.backward_s, b.gradients) == ("b", 2.0, (8, 240))
    assert (a.name, a.backward_s, a.gradients) == ("a", 3.0, (120, 360))


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(ConfigError, match="kernel is bfloat16; a step is recorded for float32 variables"):
        scale_operation.share_out(built(keras.layers.Dense(3, dtype="bfloat16"), shape=(3,)), 1.0)


# Multiplications in 10^9 at the usual image size: He et al. (2016), table 1 (ResNet-50: 3.8 without the shortcuts'
# convolutions, in the variant that halves in the first one); Howard et al. (2017), table 8 (MobileNet: 0.569).
@pytest.mark.parametrize(("name", "billions", "parameters"), [("ResNet50", 3.86, 25.6e6), ("MobileNet", 0.569, 4.25e6)])
def test_networks_of_keras(name: str, billions: float, parameters: float) -> None:
    model = getattr(keras.applications, name)(weights=None)
    layers = scale_operation.backward(model)
    assert sum(map(scale_operation.operations, layers)) == pytest.approx(billions * 1e9, rel=0.02)
    sizes = [size for layer in layers for size in scale_operation.gradient_sizes(layer)]
    trained = sum(variable.numpy().size for variable in model.trainable_variables)
    assert sum(sizes) == 4 * trained == pytest.approx(4 * parameters, rel=0.01)
    assert len(sizes) == len(model.trainable_variables)
