"""`fit` with preprocessing layers in the model: what they have learned is equal on all ranks before the first step."""

import keras
import numpy as np
import pytest

import tfdist
from tfdist.callbacks import BackupAndRestore, BroadcastGlobalVariablesCallback, DataParallel
from tfdist.training.model_state import average_statistics

# A callback, and what the script does with its optimizer.
CALLBACKS = {
    "plugin": (DataParallel, lambda optimizer: optimizer),
    "explicit": (lambda: BroadcastGlobalVariablesCallback(0), tfdist.DistributedOptimizer),
}
PROBE = np.ones((1, 3), "float32")


def samples(rank):
    x = np.random.default_rng(rank).normal(5.0 * rank, 1 + rank, size=(16, 3)).astype("float32")
    return x, x.sum(1, keepdims=True)


def new_model(*layers, optimizer=None):
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    model.compile(optimizer or keras.optimizers.SGD(1e-3), "mse")
    return model


def normalizing(rank, adapt=True, wrap=lambda optimizer: optimizer):
    layer = keras.layers.Normalization()
    if adapt:
        layer.adapt(samples(rank)[0])
    optimizer = wrap(keras.optimizers.SGD(1e-3))
    return new_model(keras.Input((3,)), keras.Sequential([layer]), optimizer=optimizer), layer


def fit(model, *callbacks, **kwargs):
    return model.fit(*samples(tfdist.rank()), verbose=0, callbacks=list(callbacks), **kwargs)


def assert_same_predictions(model):
    by_rank = tfdist.allgather_object([np.asarray(model(PROBE)), model.predict(PROBE, verbose=0)])
    for of_rank in by_rank:
        np.testing.assert_allclose(of_rank, by_rank[0], rtol=1e-6)
        np.testing.assert_allclose(of_rank[0], of_rank[1], rtol=1e-6)


@pytest.mark.parametrize("callback", CALLBACKS)
@pytest.mark.parametrize("traced", [False, True], ids=["new", "traced"])
def test_normalization_adapted_to_parts(world, warnings_of_tfdist, callback, traced):
    """Rank 0's statistics are used on all ranks, also in functions that were traced with others; rank 0 warns."""
    make, wrap = CALLBACKS[callback]
    model, layer = normalizing(tfdist.rank(), wrap=wrap)
    if traced:
        last = model.layers[-1]
        last.set_weights(tfdist.broadcast_object(last.get_weights(), 0))
        fit(model, validation_data=samples(5))
        model.predict(PROBE, verbose=0)
    fit(model, make())
    np.testing.assert_allclose(np.ravel(layer.mean), samples(0)[0].mean(0), rtol=1e-5)
    assert_same_predictions(model)
    told = [line for line in warnings_of_tfdist if "was adapted to different data on each rank" in line]
    assert len(told) == int(tfdist.rank() == 0)
    fit(model, make())
    assert len([line for line in warnings_of_tfdist if "adapted" in line]) == len(told)


@pytest.mark.ranks(2)
def test_normalization_adapted_anew_between_two_fits(world):
    """A function that was traced before is made again on every rank, on rank 0 too."""
    model, layer = normalizing(0)
    fit(model, DataParallel())
    layer.adapt(samples(7 + tfdist.rank())[0])
    fit(model, DataParallel())
    reference, expected = normalizing(7)
    reference.set_weights(model.get_weights())
    expected.finalize_state()
    np.testing.assert_allclose(model.predict(PROBE, verbose=0), reference.predict(PROBE, verbose=0), rtol=1e-5)
    assert_same_predictions(model)


@pytest.mark.ranks(2)
def test_normalization_adapted_on_rank_0_only(world, warnings_of_tfdist):
    model, layer = normalizing(0, adapt=tfdist.rank() == 0)
    fit(model, DataParallel())
    np.testing.assert_allclose(np.ravel(layer.mean), samples(0)[0].mean(0), rtol=1e-5)
    assert not [line for line in warnings_of_tfdist if "adapted" in line]


def test_averages_are_followed(world):
    model, layer = normalizing(0)
    layer.adapt_mean.assign([1.0 + tfdist.rank()] * 3)
    average_statistics(model)
    np.testing.assert_allclose(np.ravel(layer.mean), [(world + 1) / 2] * 3)


@pytest.mark.parametrize("callback", CALLBACKS)
def test_other_vocabularies_are_refused_before_the_first_step(world, callback):
    lookup = keras.layers.IntegerLookup(output_mode="one_hot", name="codes")
    lookup.adapt(np.arange(4) + (tfdist.rank() == 1))
    model = new_model(keras.Input((1,), dtype="int64"), lookup)
    with pytest.raises(tfdist.errors.MismatchError, match=r"vocabulary of the layer 'codes' on rank 1"):
        model.fit(np.arange(4), np.zeros((4, 1)), verbose=0, callbacks=[CALLBACKS[callback][0]()])
    assert int(model.optimizer.iterations) == 0


@pytest.mark.ranks(2)
def test_layers_of_a_rank_may_have_their_own_vocabulary(world):
    """A table that is spread over the ranks, with the lookup that belongs to it."""
    lookup = keras.layers.IntegerLookup(vocabulary=[tfdist.rank(), 10], output_mode="one_hot")
    table = keras.Sequential([lookup, keras.layers.Dense(2)])
    optimizer = tfdist.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=[table])
    model = new_model(keras.Input((1,), dtype="int64"), table, optimizer=optimizer)
    model.fit(np.arange(4), np.zeros((4, 1)), verbose=0, callbacks=[DataParallel()])


@pytest.mark.ranks(2)
def test_restored_weights_are_followed(world, shared_tmp_path):
    """The script that resumes has adapted to other data, and nobody has broadcast before."""
    model, layer = normalizing(0)
    fit(model, DataParallel(), BackupAndRestore(shared_tmp_path, delete_checkpoint=False))
    resumed, other = normalizing(3, wrap=tfdist.DistributedOptimizer)
    fit(resumed, BackupAndRestore(shared_tmp_path), epochs=2)
    np.testing.assert_array_equal(other.mean, layer.mean)
    assert_same_predictions(resumed)
