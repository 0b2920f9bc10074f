"""Speed and time of communication, in the logs of every rank."""

import keras
import numpy as np
import pytest

import tfdist
from tfdist.callbacks import DataParallel, Throughput


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("steps_per_execution", [1, 4])
def test_logs(world, steps_per_execution):
    batch = 4 * (1 + tfdist.rank())
    x = np.random.default_rng(tfdist.rank()).normal(size=(8 * batch, 2)).astype("float32")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", loss="mse", steps_per_execution=steps_per_execution)
    logs = model.fit(
        x, x[:, :1], batch_size=batch, epochs=2, verbose=0, callbacks=[Throughput(), DataParallel()]
    ).history
    for epoch in (0, 1):
        rate, total, seconds = (
            logs[name][epoch] for name in ("images_per_second", "images_per_second_total", "epoch_seconds")
        )
        np.testing.assert_allclose(total, rate * world, rtol=1e-6)
        # The sum over ranks of samples by the time of each, which is alike because they wait for each other.
        samples = sum(8 * 4 * (1 + rank) for rank in range(world))
        np.testing.assert_allclose(total, samples / seconds, rtol=0.5)
        assert 0 <= logs["communication_seconds"][epoch] <= seconds
        assert world == 1 or logs["communication_seconds"][epoch] > 0
    assert len(set(tfdist.allgather_object(str(logs), name="logs"))) == 1
