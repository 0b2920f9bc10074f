"""More about the plugin: arguments and models that need care, and settings that change between two fits."""

import re

import keras
import numpy as np
import pytest

import tfdist
from tfdist import elastic
from tfdist.callbacks import DataParallel, ModelCheckpoint
from tfdist.ops.graph import xla
from tfdist.testing.parity import assert_identical_on_ranks
from tfdist.world import fit_hook

FEATURES, BATCH, STEPS = 3, 4, 4


def new_model(optimizer, dropout=0.0, **kwargs):
    keras.utils.set_random_seed(tfdist.rank())
    model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dropout(dropout), keras.layers.Dense(2)])
    model.compile(optimizer, loss="mse", **kwargs)
    return model


def fit(model, *callbacks, **kwargs):
    x = np.random.default_rng(70 + tfdist.rank()).normal(size=(BATCH * STEPS, FEATURES)).astype("float32")
    options = {"batch_size": BATCH, "shuffle": False, "verbose": 0, **kwargs}
    return model.fit(x, x[:, :2] * (1 + tfdist.rank()), callbacks=list(callbacks), **options)


def test_a_model_for_xla_is_trained_without_where_it_has_no_form(world, warnings_of_tfdist, monkeypatch):
    monkeypatch.setattr(xla, "obstacle", lambda: "for a reason of this test.")
    model = new_model("sgd", jit_compile=True)
    fit(model, DataParallel())
    assert not model.jit_compile
    assert_identical_on_ranks(model.get_weights())
    warned = [line for line in warnings_of_tfdist if "not compiled by XLA: for a reason of this test." in line]
    assert len(warned) == (1 if tfdist.rank() == 0 else 0)


def test_another_compression_in_the_second_fit(world):
    """The step is traced again, so the wire type is in force: sixteen bits leave a trace in the weights."""
    ends = []
    for compression in ("none", "bf16"):
        model = new_model(keras.optimizers.SGD(0.05))
        fit(model, DataParallel(compression="none", scale_learning_rate=False))
        fit(model, DataParallel(compression=compression, scale_learning_rate=False))
        assert_identical_on_ranks(model.get_weights())
        ends.append(model.get_weights()[0])
    assert 0 < np.abs(ends[0] - ends[1]).max() < 0.05


def test_a_file_has_the_schedule_of_one_process(world, shared_tmp_path):
    """Through a callback that runs inside the plugin; the rate in force is that of all ranks."""
    path = shared_tmp_path / "model.keras"
    model = new_model(keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)))
    fit(model, DataParallel(checkpoint=ModelCheckpoint(str(path))))
    loaded = keras.models.load_model(path).optimizer
    assert type(loaded._learning_rate) is keras.optimizers.schedules.ExponentialDecay
    assert loaded._learning_rate.initial_learning_rate == 0.1
    np.testing.assert_allclose(float(model.optimizer.learning_rate), world * float(loaded.learning_rate), rtol=1e-6)


def test_masks_differ_by_rank(world):
    """Each rank keeps its own seeds, so that the ranks do not drop the same units."""
    model = new_model("sgd", dropout=0.5)
    fit(model, DataParallel())
    seeds = tfdist.allgather_object(model.layers[0].seed_generator.state.numpy().tolist(), name="seeds")
    assert len({str(seed) for seed in seeds}) == world
    assert_identical_on_ranks(model.get_weights())


def test_plateau_after_the_warmup_has_the_last_word(world):
    """The rate of the plateau stays, although the warm-up ends with the same epoch."""
    seen = []
    plateau = keras.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.5, patience=1, min_delta=1e6)
    watch = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(float(model.optimizer.learning_rate))
    )
    model = new_model(keras.optimizers.SGD(0.01))
    fit(model, DataParallel(warmup_epochs=2), plateau, watch, epochs=4)
    np.testing.assert_allclose(seen[2 * STEPS : 3 * STEPS], 0.01 * world / 2, rtol=1e-6)
    np.testing.assert_allclose(seen[3 * STEPS :], 0.01 * world / 4, rtol=1e-6)


def test_what_cannot_be_scaled_is_refused(world):
    model = new_model(keras.optimizers.SGD(lambda: 0.1))
    with pytest.raises(tfdist.errors.ConfigError, match="scale_learning_rate=False"):
        fit(model, DataParallel())


def test_a_model_that_is_not_compiled_is_refused(world):
    model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(2)])
    with pytest.raises(ValueError, match="compile"):
        fit(model, DataParallel())


def test_evaluate_prints_on_rank_zero_only(world, capfd):
    model = new_model("sgd")
    x = np.full((8, FEATURES), float(tfdist.rank()), "float32")
    for verbose in (1, 2, "auto"):
        model.evaluate(x, x[:, :2], verbose=verbose, callbacks=[DataParallel()])
        printed = capfd.readouterr()
        assert ("loss" in printed.out) == (tfdist.rank() == 0)
        assert tfdist.rank() == 0 or printed.out + printed.err == ""


@pytest.mark.ranks(1, 2)
def test_arguments_of_a_second_fit_replace_those_of_the_first(world):
    model = new_model(keras.optimizers.SGD(0.01))
    fit(model, DataParallel(compression="fp16"))
    assert float(model.optimizer.learning_rate) == pytest.approx(0.01 * world)
    assert model.optimizer._tfdist.reduction.compression is tfdist.Compression.fp16
    fit(model, DataParallel(scale_learning_rate=False))
    assert float(model.optimizer.learning_rate) == pytest.approx(0.01)
    assert model.optimizer._tfdist.reduction.compression is tfdist.Compression.none


@pytest.mark.ranks(2)
def test_optimizer_wrapped_by_script_keeps_its_compression(world):
    model = new_model(tfdist.DistributedOptimizer(keras.optimizers.SGD(0.01), compression="bf16"))
    fit(model, DataParallel())
    assert model.optimizer._tfdist.reduction.compression is tfdist.Compression.bf16


def test_commits_without_elastic_are_refused(world):
    for given in (1, 5, 0):
        with pytest.raises(tfdist.errors.ConfigError, match=f"batches_per_commit={given} needs elastic=True"):
            DataParallel(batches_per_commit=given)
    with pytest.raises(tfdist.errors.ConfigError, match="batches_per_commit must be 1 or more; received 0"):
        DataParallel(elastic=True, batches_per_commit=0)
    made = [DataParallel(), DataParallel(elastic=True), DataParallel(elastic=True, batches_per_commit=5)]
    assert [callback.batches_per_commit for callback in made] == [1, 1, 5]


@pytest.mark.ranks(1, 2)
def test_elastic_callback_in_other_jobs_warns_once(world, warnings_of_tfdist):
    for _ in range(2):
        fit(new_model("sgd"), DataParallel(elastic=True))
    expected = rf"script uses DataParallel\(elastic=True\), but the job is not elastic.* -np {world} --elastic "
    assert _matching(expected, warnings_of_tfdist) == (tfdist.rank() == 0)


@pytest.mark.ranks(1, 2)
def test_elastic_job_whose_callback_is_not_is_warned_about_once(world, warnings_of_tfdist, monkeypatch):
    monkeypatch.setenv("TFDIST_ELASTIC", "1")
    monkeypatch.setattr(fit_hook, "install", lambda load: None)  # this process serves other tests too
    found = DataParallel(elastic=True)
    found.is_followed = True
    fit(new_model("sgd"), found)
    elastic.run(lambda _: fit(new_model("sgd"), DataParallel()))(elastic.ObjectState())
    assert _matching("elastic", warnings_of_tfdist) == 0
    for _ in range(2):
        plugin = DataParallel(scale_learning_rate=False)
        fit(new_model("sgd"), plugin)
    expected = (
        rf"Write DataParallel\(elastic=True\) in {__file__}, line \d+: plugin = DataParallel\(scale_learning_rate=F"
    )
    assert _matching(expected, warnings_of_tfdist) == (tfdist.rank() == 0)


@pytest.mark.ranks(1, 2)
def test_elastic_loop_in_a_job_that_is_not_is_warned_about_once(world, warnings_of_tfdist):
    for _ in range(2):
        elastic.run(lambda _: None)(elastic.ObjectState())
    expected = "the script uses tfdist.elastic.run, but the job is not elastic"
    assert _matching(expected, warnings_of_tfdist) == (tfdist.rank() == 0)


def _matching(pattern, lines):
    return len([line for line in lines if re.search(pattern, line)])
