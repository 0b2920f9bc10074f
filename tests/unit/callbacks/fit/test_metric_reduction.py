"""Which metrics are known to be sums."""

import keras
import pytest

from tfdist import errors
from tfdist.callbacks.fit.metric_reduction import is_additive, leaves


class Own(keras.metrics.Metric):
    def update_state(self, y_true, y_pred, sample_weight=None):
        """Counts nothing."""

    def result(self):
        return 0.0


class OtherResult(keras.metrics.MeanAbsoluteError):
    def result(self):
        return 2 * super().result()


class OtherUpdate(keras.metrics.MeanAbsoluteError):
    def update_state(self, *args, **kwargs):
        return super().update_state(*args, **kwargs)


class Declared(Own):
    tfdist_reduction = "sum"


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        (keras.metrics.Mean(), True),
        (keras.metrics.AUC(), True),
        (keras.metrics.BinaryAccuracy(), True),
        (keras.metrics.MeanIoU(num_classes=2), True),
        (keras.metrics.R2Score(), True),
        (OtherResult(), True),
        (OtherUpdate(), False),
        (Own(), False),
        (Declared(), True),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, keras.metrics.Metric) else str(value),
)
def test_is_additive(metric, expected):
    assert is_additive(metric) is expected


def test_another_declaration_is_refused():
    metric = Own()
    metric.tfdist_reduction = "mean"
    with pytest.raises(errors.ConfigError, match="received 'mean'"):
        is_additive(metric)


def test_leaves_are_the_metrics_without_their_groups():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", loss="mse", metrics=["mae", Own(name="own")])
    model.train_on_batch(keras.ops.ones((2, 2)), keras.ops.ones((2, 1)))
    assert [metric.name for metric in leaves(model.metrics)][:3] == ["loss", "mae", "own"]
