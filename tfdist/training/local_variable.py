"""Variables local to a rank, such as its shard of an embedding table. Compared by identity."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from typing import Any

import keras
import tensorflow as tf

from tfdist.errors import ConfigError


def key_of(source: Any) -> Hashable:
    """The identity of a variable or tensor: a `keras.Variable` and the `tf.Variable` inside it have the same."""
    inner = source.value if isinstance(source, keras.Variable) else source
    return inner.ref() if hasattr(inner, "ref") else id(source)


def without(variables: Iterable[Any], left_out: Iterable[Any]) -> list[Any]:
    """Those of some variables that are none of `left_out`."""
    keys = {key_of(source) for source in left_out}
    return [variable for variable in variables if key_of(variable) not in keys]


class LocalVariables:
    """The variables whose gradients are not reduced, and layers all of whose variables are local.

    Attributes:
        partial: Whether any rank may have local variables, so that decisions based on gradients need agreement.
    """

    def __init__(self) -> None:
        self._sources: list[Any] = []
        self._layers: list[keras.layers.Layer] = []
        self.partial = False

    def __contains__(self, source: Any) -> bool:
        return key_of(source) in self.keys()

    def add(self, source: Any) -> None:
        """Adds a variable or tensor, unless it is already there.

        Raises:
            ConfigError: If it is something else.
        """
        if not isinstance(source, (keras.Variable, tf.Variable, tf.Tensor)):
            raise ConfigError(
                f"a local variable must be a keras.Variable or tf.Variable; received {source!r}. Register variables "
                "one by one; for whole layers use local_layers."
            )
        self._sources.append(source)
        self.partial = True

    def add_layers(self, layers: keras.layers.Layer | Collection[keras.layers.Layer] | None) -> None:
        """Adds layers, built or not: their variables are looked up when needed.

        Raises:
            ConfigError: If one is not a layer.
        """
        members: list[Any] = [] if layers is None else list(layers) if isinstance(layers, Collection) else [layers]
        for layer in members:
            if not isinstance(layer, keras.layers.Layer):
                raise ConfigError(f"local_layers must be one or more Keras layers; received {layer!r}.")
        self._layers += members
        self.partial = True

    @property
    def layers(self) -> list[keras.layers.Layer]:
        """The layers that were added."""
        return list(self._layers)

    def variables(self) -> list[Any]:
        """Variables and tensors, without those of layers that are not built yet."""
        return [*self._sources, *(variable for layer in self._layers for variable in layer.weights)]

    def keys(self) -> frozenset[Hashable]:
        """The `key_of` each variable."""
        return frozenset(key_of(source) for source in self.variables())
