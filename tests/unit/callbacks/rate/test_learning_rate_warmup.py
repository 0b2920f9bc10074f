"""The formula of the warm-up."""

import itertools

import keras
import pytest

from tfdist import errors
from tfdist.callbacks.rate.learning_rate_warmup import steps_of_epoch, warmup_rate


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_a_straight_line_without_a_jump(size):
    rates = [warmup_rate(0.8, size, step, 10) for step in range(13)]
    assert rates[0] == pytest.approx(0.8 / size)
    assert rates[10:] == [0.8, 0.8, 0.8]
    steps = [after - before for before, after in itertools.pairwise(rates[:11])]
    assert steps == pytest.approx([steps[0]] * 10)


def test_no_warmup():
    assert warmup_rate(0.8, 4, 0, 0) == 0.8


def test_steps():
    callback = keras.callbacks.Callback()
    callback.set_params({"steps": 7})
    assert steps_of_epoch(5, callback) == 5
    assert steps_of_epoch(None, callback) == 7
    for params in ({"steps": None}, {}, None):
        callback.set_params(params)
        with pytest.raises(errors.ConfigError, match="Pass steps_per_epoch"):
            steps_of_epoch(None, callback)
