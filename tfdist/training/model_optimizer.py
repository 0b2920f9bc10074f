"""The optimizers of a model: the compiled one, and those used by a custom `train_step`. Changes no gradient.

They are found among the attributes of the model and of the layers and models in it, including lists, tuples, sets and
dicts. An optimizer held only by a closure or a global variable is not found.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import keras

from tfdist import errors
from tfdist.native import keras_version
from tfdist.training import optimizer
from tfdist.training.local_variable import key_of, without

# For each optimizer, which of the model's weights it updates; None where it has not been built.
Layout = list[list[int] | None]
_STRANGE = -1


def named_optimizers(model: keras.Model) -> dict[str, keras.optimizers.Optimizer]:
    """The optimizers of a model by path, such as "optimizer" or "critic.optimizers[0]".

    The order is the same on all ranks that make the model with the same code. The compiled one comes first.
    """
    found = [("optimizer", getattr(model, "optimizer", None))]
    for layer in keras_version.layers_of(model):
        prefix = "" if layer is model else f"{layer.name}."
        # TensorFlow keeps what it tracks a second time, under names of its own.
        for attribute in (name for name in vars(layer) if not name.startswith("_self_")):
            found += [(prefix + path, each) for path, each in _inside(attribute, vars(layer)[attribute])]
    found = [(path, each) for path, each in found if isinstance(each, keras.optimizers.Optimizer)]
    seen = {id(each.inner_optimizer) for _, each in found if isinstance(each, keras.optimizers.LossScaleOptimizer)}
    named: dict[str, Any] = {}
    for path, each in found:
        if id(each) not in seen:
            seen.add(id(each))
            named[path if path not in named else f"{path} ({len(named)})"] = each
    return named


def optimizers_of(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """The optimizers of a model, the compiled one first."""
    return list(named_optimizers(model).values())


def local_variables(model: keras.Model) -> list[Any]:
    """The variables whose gradients the optimizers of a model keep local to this rank."""
    return [variable for each in optimizers_of(model) for variable in optimizer.local_variables(each)]


def updated_beside(model: keras.Model, optimizers: Iterable[Any] | None = None) -> list[Any]:
    """What its built optimizers, or others, update that is no weight of the model, such as a `tf.Variable` that is an
    attribute of it; each once.
    """
    found = optimizers_of(model) if optimizers is None else optimizers
    updated = [variable for each in found for variable in keras_version.variables_in(each)]
    return list({key_of(variable): variable for variable in without(updated, model.weights)}.values())


def local_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """The layers that the optimizers of a model keep local to this rank."""
    return [layer for each in optimizers_of(model) for layer in optimizer.local_layers(each)]


def has_local_variables(model: keras.Model) -> bool:
    """Whether ranks may have local variables; the same on every rank, even on one that has none."""
    return any(optimizer.has_local_variables(each) for each in optimizers_of(model))


def accumulates(model: keras.Model) -> bool:
    """Whether an optimizer of a model accumulates the gradients of several steps for one update."""
    return any(keras_version.inner_optimizer(each).gradient_accumulation_steps for each in optimizers_of(model))


def state_of_rank(model: keras.Model, local: Collection[Any] = ()) -> list[Any]:
    """The state that differs by rank: gradients being accumulated, local variables, and the optimizers' slots for them.

    Args:
        model: A built model.
        local: Further local variables.
    """
    local = [*local, *local_variables(model)]
    parts = [*local, *(part for each in optimizers_of(model) for part in optimizer.state_of_rank(each, local))]
    return list({id(part): part for part in parts}.values())


def iterations_of(model: keras.Model) -> list[Any]:
    """How many updates each optimizer of a model has made."""
    return [each.iterations for each in optimizers_of(model)]


def build_compiled(model: keras.Model) -> None:
    """Creates the variables of the compiled optimizer, as the first step would."""
    compiled = getattr(model, "optimizer", None)
    if compiled is not None and not compiled.built:
        compiled.build(model.trainable_variables)


def layout_of(model: keras.Model) -> Layout:
    """Which weights each optimizer of a model updates, so that another process can build the same with `build_as`."""
    places = {key_of(variable): place for place, variable in enumerate(model.weights)}
    return [
        [places.get(key_of(v), _STRANGE) for v in keras_version.inner_optimizer(each)._trainable_variables]
        if each.built
        else None
        for each in optimizers_of(model)
    ]


def build_as(model: keras.Model, layout: Layout) -> None:
    """Builds the optimizers that are not yet built, so that they have the same variables as those of another process.

    Raises:
        ConfigError: If the model has other optimizers or weights, or an optimizer updates variables that are not its
            weights.
    """
    named, weights = named_optimizers(model), model.weights
    if len(layout) != len(named):
        raise errors.ConfigError(
            f"model {model.name!r} has {len(named)} optimizers ({', '.join(named)}), but the state to restore has "
            f"{len(layout)}. Make and compile the model as before."
        )
    for (path, each), places in zip(named.items(), layout, strict=True):
        if places is None or each.built:
            continue
        if not all(0 <= place < len(weights) for place in places):
            raise errors.ConfigError(
                f"{path} of model {model.name!r} updates variables that are not among the model's {len(weights)} "
                "weights, so its state cannot be transferred between processes. Make them weights of a layer in the "
                "model."
            )
        each.build([weights[place] for place in places])


def _inside(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The optimizers in an attribute. Layers are visited separately."""
    if isinstance(value, keras.optimizers.Optimizer):
        yield path, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _inside(f"{path}[{key!r}]", each)
    elif isinstance(value, (list, tuple, set, frozenset)):
        # The order of a set differs by process.
        members = (
            sorted(value, key=lambda each: str(getattr(each, "name", "")))
            if isinstance(value, (set, frozenset))
            else value
        )
        for place, each in enumerate(members):
            yield from _inside(f"{path}[{place}]", each)
