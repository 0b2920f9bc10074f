"""What the callbacks refuse before they change a model."""

import pytest

import tfdist
from tfdist.callbacks.fit.model_hook import ModelHook
from tfdist.errors import ConfigError


class Sequential:
    """As of another Keras."""


def test_a_model_of_another_keras_is_refused(monkeypatch):
    monkeypatch.setattr(tfdist, "rank", lambda: 0)
    with pytest.raises(ConfigError, match=r"models of Keras 3; received .*Sequential.*Unset TF_USE_LEGACY_KERAS"):
        ModelHook.of(Sequential())
