"""An elastic state beside a fit: what it counts, when it is committed, and that a fit goes on from it."""

import keras
import numpy as np
import pytest

import tfdist
from tfdist.callbacks import CommitStateCallback, DataParallel, UpdateBatchStateCallback, UpdateEpochStateCallback
from tfdist.elastic import KerasState, ObjectState

SAMPLES = np.arange(1.0, 41.0, dtype="float32").reshape(20, 2) / 40


def make_model():
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    return model


class Notes(ObjectState):
    """Writes down what is committed."""

    def __init__(self, **values):
        self.commits = []
        super().__init__(**values)

    def commit(self):
        super().commit()
        self.commits.append((self.epoch, self.batch))


def fit(model, state, samples, batches_per_commit, epochs=1, stop_after=None):
    """Trains this rank's samples, one a batch, and ends in mid-epoch if asked to."""

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch + 1 == stop_after:
                raise KeyboardInterrupt

    callbacks = [DataParallel(), UpdateBatchStateCallback(state), UpdateEpochStateCallback(state)]
    callbacks += [CommitStateCallback(state, batches_per_commit), Stop()]
    targets = samples.sum(1, keepdims=True)
    model.fit(samples, targets, batch_size=1, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize(
    ("every", "commits"),
    [
        (1, [(0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3), (2, 0)]),
        (2, [(0, 2), (1, 0), (1, 2), (2, 0)]),
        (9, [(1, 0), (2, 0)]),
    ],
)
def test_what_is_committed_and_when(world, every, commits):
    state = Notes(batch=0, epoch=0)
    fit(make_model(), state, SAMPLES[tfdist.rank() :: world][:3], every, epochs=2)
    assert state.commits == commits


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize(
    ("every", "commits"),
    [(1, [(0, 2), (0, 4), (0, 5), (1, 0)]), (3, [(0, 4), (1, 0)]), (5, [(0, 5), (1, 0)])],
)
def test_batches_of_several_at_once_are_counted(world, every, commits):
    """The last execution of an epoch has fewer."""
    state, model = Notes(batch=0, epoch=0), make_model()
    model.compile("sgd", "mse", steps_per_execution=2)
    fit(model, state, SAMPLES[tfdist.rank() :: world][:5], every)
    assert state.commits == commits


@pytest.mark.ranks(1, 2)
def test_a_fit_goes_on_in_the_middle_of_an_epoch(world):
    mine = SAMPLES[tfdist.rank() :: world][:6]
    whole = make_model()
    fit(whole, ObjectState(batch=0, epoch=0), mine, 1)
    model = make_model()
    state = KerasState(model, batch=0, epoch=0)
    with pytest.raises(KeyboardInterrupt):
        fit(model, state, mine, 2, stop_after=5)
    state.restore()
    assert (state.epoch, state.batch) == (0, 4)
    fit(model, state, mine[state.batch :], 2)
    assert (state.epoch, state.batch) == (1, 0)
    for one, other in zip(model.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_what_cannot_be_kept_is_refused(world):
    with pytest.raises(tfdist.errors.ConfigError, match=r"no attribute 'batch'.* KerasState\(model, batch=0\)"):
        UpdateBatchStateCallback(ObjectState(epoch=0))
    with pytest.raises(tfdist.errors.ConfigError, match="no attribute 'epoch'"):
        UpdateEpochStateCallback(ObjectState(batch=0))
    with pytest.raises(tfdist.errors.ConfigError, match="batches_per_commit must be 1 or more; received 0"):
        CommitStateCallback(ObjectState(), 0)
