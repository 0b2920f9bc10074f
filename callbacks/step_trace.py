"""Makes what Keras makes in the first training step, without taking it. Not a callback."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfdist import errors, model_optimizer


def build_optimizers(model: keras.Model, data: Any) -> None:
    """Builds the optimizers of a built model that its first step would build, by tracing the step once more.

    The compiled optimizer alone is built without: Keras gives it all trainable variables.

    Args:
        model: A built and compiled model.
        data: What has an `element_spec` of the batches, such as a `tf.data.Dataset`.

    Raises:
        ConfigError: If the step cannot be traced; names the optimizers.
    """
    model_optimizer.build_compiled(model)
    left = [path for path, each in model_optimizer.named_optimizers(model).items() if not each.built]
    if not left:
        return
    try:
        tf.function(model.train_step, reduce_retracing=True).get_concrete_function(data.element_spec)
    except (AttributeError, TypeError, ValueError, NotImplementedError) as error:
        raise errors.ConfigError(
            f"the optimizers {', '.join(left)} of model {model.name!r} are built in its first step, which could not be "
            f"traced ahead ({type(error).__name__}: {error}). Build each of them before fit, with the variables it "
            "updates: optimizer.build(variables)."
        ) from error
