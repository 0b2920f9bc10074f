"""Autotuning in `fit`: training stays what it is, all ranks change together, and what is fastest is kept.

Where it matters which setting is the fastest, the clock is made up: a step takes what the test says.
"""

import csv
import json

import keras
import numpy as np
import pytest

import tfdist
from tfdist import config
from tfdist.autotune.drift import WINDOW
from tfdist.autotune.search import FINALISTS, ROUNDS
from tfdist.callbacks import DataParallel, autotune
from tfdist.errors import ConfigError
from tfdist.ops.compression import Compression, Compressor
from tfdist.testing import assert_close, assert_identical_on_ranks
from tfdist.world import tuning
from tfdist.world.session import session

SIZES = pytest.mark.ranks(1, 2, 3, 4)
SAMPLES = 5
BATCH = 4
STEPS = 25  # an epoch
EPOCHS = 5
LEAST_BYTES = 64  # less than any kernel, so that the fusion threshold makes a difference


@pytest.fixture(autouse=True)
def log(monkeypatch, shared_tmp_path):
    """Turns autotuning on, for samples of a step; the log. Afterwards collectives run as before."""
    before = tuning.of_settings(config.read(), tuning.most_chunk_bytes())
    path = shared_tmp_path / "log.csv"
    monkeypatch.setenv("TFDIST_AUTOTUNE", "1")
    monkeypatch.setenv("TFDIST_AUTOTUNE_SAMPLES", str(SAMPLES))
    monkeypatch.setenv("TFDIST_AUTOTUNE_STEPS", "1")
    monkeypatch.setenv("TFDIST_AUTOTUNE_LOG", str(path))
    monkeypatch.setenv("TFDIST_FUSION_THRESHOLD", str(LEAST_BYTES))
    yield path
    tuning.apply(before)
    session.tuning = None


@pytest.fixture
def takes(monkeypatch):
    """`takes(function)`: from now on a step takes as many seconds as the function says."""

    def set_clock(seconds):
        now = 0.0

        def perf_counter():
            nonlocal now
            now += seconds()
            return now

        monkeypatch.setattr(autotune, "perf_counter", perf_counter)

    return set_clock


def with_thread():
    return 0.8 if tuning.current().thread else 1.0


def data(rank=None):
    generator = np.random.default_rng(7 if rank is None else rank)
    x = generator.normal(size=(STEPS * BATCH, 6)).astype("float32")
    return x, np.sin(x[:, :2])


def new_model(seed=0, **arguments):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(7), keras.layers.Dense(2)]
    )
    model.compile(arguments.pop("optimizer", None) or keras.optimizers.SGD(0.005, momentum=0.5), "mse", **arguments)
    return model


def fit(model, callback=None, epochs=EPOCHS):
    callback = callback or DataParallel(scale_learning_rate=False)
    x, y = data(tfdist.rank())
    model.fit(x, y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0, callbacks=[callback])
    return model


def rows(path):
    tfdist.barrier(name="log")
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def phases(path):
    found = [row["phase"] for row in rows(path)]
    return [phase for index, phase in enumerate(found) if index == 0 or phase != found[index - 1]]


def reference(world, epochs=EPOCHS):
    """One process on the batches of all ranks put together."""
    model = new_model()
    parts = [data(rank) for rank in range(world)]
    x, y = (
        np.concatenate([part[k].reshape(STEPS, BATCH, -1) for part in parts], axis=1).reshape(STEPS * BATCH * world, -1)
        for k in (0, 1)
    )
    model.fit(x, y, batch_size=BATCH * world, epochs=epochs, shuffle=False, verbose=0)
    return model.get_weights()


@SIZES
def test_training_equals_one_process(world, log):
    """Through all settings of a search, with real times."""
    model = fit(new_model(seed=tfdist.rank()))
    assert_identical_on_ranks([*model.get_weights(), *map(np.asarray, model.optimizer.variables)])
    if tfdist.rank() == 0:
        assert_close(model.get_weights(), reference(world))
    assert len(set(tfdist.allgather_object(tuning.current(), name="tuning"))) == 1
    if world > 1:
        check_log(rows(log))


def check_log(found):
    """What a search has tried that keeps the bits."""
    tried = found[:SAMPLES]
    assert [row["phase"] for row in found[: SAMPLES + 1]] == ["explore"] * SAMPLES + ["compare"]
    assert tried[0]["fusion_threshold"] == str(LEAST_BYTES)
    assert len({row["fusion_threshold"] for row in tried}) == 2
    assert len({row["chunk"] for row in tried}) > 1
    assert {row["thread"] for row in tried} == {"True", "False"}
    assert {row["compression"] for row in found} == {"none"}
    assert all(float(row["step_ms"]) > 0 for row in found)


@SIZES
def test_lossy_tries_16_bits_and_ranks_stay_equal(world, log, monkeypatch):
    monkeypatch.setenv("TFDIST_AUTOTUNE", "lossy")
    model = fit(new_model(seed=tfdist.rank()))
    assert_identical_on_ranks(model.get_weights())
    if world > 1:
        assert {row["compression"] for row in rows(log)} == {"none", "fp16"}
    if tfdist.rank() == 0:
        for mine, expected in zip(model.get_weights(), reference(world), strict=True):
            np.testing.assert_allclose(mine, expected, atol=2e-3)


@pytest.mark.ranks(2, 3)
def test_the_fastest_is_kept(log, takes, capfd):
    takes(with_thread)
    fit(new_model())
    assert tuning.current().thread
    assert phases(log) == ["explore", "compare", "watch"][: len(phases(log))]
    told = capfd.readouterr().err
    assert ("saves" in told and "TFDIST_COMMUNICATION_THREAD=1" in told) == (tfdist.rank() == 0)
    assert len(rows(log)) >= SAMPLES + (1 + FINALISTS) * ROUNDS


@pytest.mark.ranks(2, 3)
def test_the_slowest_rank_counts(takes):
    """The thread is fast for all ranks but one."""
    takes(lambda: 2.0 if tuning.current().thread and tfdist.rank() == tfdist.size() - 1 else with_thread())
    fit(new_model())
    assert not tuning.current().thread


@pytest.mark.ranks(2)
def test_the_default_stays_where_nothing_is_faster(takes, capfd):
    takes(lambda: 1.0)
    before = tuning.current()
    fit(new_model())
    assert tuning.current() == before
    assert ("no setting beats the default" in capfd.readouterr().err) == (tfdist.rank() == 0)


@pytest.mark.ranks(2, 3)
def test_a_result_is_kept_and_begun_with(log, takes, monkeypatch, shared_tmp_path, capfd):
    path = shared_tmp_path / "result.json"
    monkeypatch.setenv("TFDIST_AUTOTUNE_RESULT", str(path))
    takes(with_thread)
    fit(new_model())
    tfdist.barrier(name="result")
    assert json.loads(path.read_text())["setting"]["thread"] is True
    tuning.apply(tuning.of_settings(config.read(), tuning.most_chunk_bytes()))
    fit(new_model(seed=1))
    assert tuning.current().thread
    assert "explore" not in phases(log)
    assert ("without a search" in capfd.readouterr().err) == (tfdist.rank() == 0)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    fit(model)
    assert phases(log)[0] == "explore"
    assert ("does not match this job" in capfd.readouterr().err) == (tfdist.rank() == 0)


@pytest.mark.slice("ranks")
@pytest.mark.ranks(2)
def test_a_result_with_16_bits_needs_lossy(log, takes, monkeypatch, shared_tmp_path):
    monkeypatch.setenv("TFDIST_AUTOTUNE_RESULT", str(shared_tmp_path / "result.json"))
    monkeypatch.setenv("TFDIST_AUTOTUNE", "lossy")
    model = new_model()
    takes(lambda: 0.5 if model.optimizer._tfdist.reduction.compression is Compression.fp16 else 1.0)
    fit(model)
    assert model.optimizer._tfdist.reduction.compression is Compression.fp16
    monkeypatch.setenv("TFDIST_AUTOTUNE", "1")
    fit(new_model())
    assert phases(log)[0] == "explore"


@pytest.mark.ranks(2)
def test_times_that_drift_begin_the_search_again(log, takes, monkeypatch):
    monkeypatch.setattr(autotune, "WATCHED_SAMPLES", 1)
    watched = 0

    def seconds():
        nonlocal watched
        watched += len(rows_on_rank_0(log, "watch")) > WINDOW
        return with_thread() * (2 if watched else 1)

    takes(seconds)
    fit(new_model(), epochs=8)
    assert phases(log)[:4] == ["explore", "compare", "watch", "explore"]


def rows_on_rank_0(path, phase):
    """What has been written by now; both ranks look between the same two samples."""
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["phase"] == phase]


@pytest.mark.slice("ranks")
@pytest.mark.ranks(2, 3)
def test_short_fit_keeps_the_default_and_the_next_continues(log, takes, capfd):
    takes(with_thread)
    before = tuning.current()
    callback, model = DataParallel(scale_learning_rate=False), new_model()
    fit(model, callback, epochs=1)
    assert tuning.current() == before
    assert ("before the search" in capfd.readouterr().err) == (tfdist.rank() == 0)
    fit(model, callback)
    assert tuning.current().thread
    assert [row["phase"] for row in rows(log)].count("explore") == SAMPLES
    fit(model, callback, epochs=1)
    assert tuning.current().thread


@pytest.mark.ranks(2, 3)
def test_every_sample_is_of_the_setting_that_its_row_names(log, takes):
    """Also the first one of a second fit, which goes on with a search."""

    def seconds(thread, chunk):
        return 1.0 + 0.5 * thread + chunk / (1 << 20)

    takes(lambda: seconds(tuning.current().thread, tuning.current().chunk))
    callback, model = DataParallel(scale_learning_rate=False), new_model()
    x, y = data(tfdist.rank())
    for steps in (8, 11, STEPS):  # the first two end within the search
        model.fit(
            x, y, batch_size=BATCH, epochs=1, steps_per_epoch=steps, shuffle=False, verbose=0, callbacks=[callback]
        )
    found = rows(log)
    assert len(found) > SAMPLES
    for row in found:
        expected = seconds(row["thread"] == "True", int(row["chunk"]))
        assert float(row["step_ms"]) == pytest.approx(1e3 * expected), row


@pytest.mark.ranks(2)
def test_steps_without_an_update_count_with_those_that_have_one(log, takes):
    """Two steps an update, of 1 and 3 seconds."""
    calls = 0

    def seconds():
        nonlocal calls
        calls += 1
        return 1.0 if calls % 2 else 3.0

    takes(seconds)
    fit(new_model(optimizer=keras.optimizers.SGD(0.01, gradient_accumulation_steps=2)), epochs=2)
    assert {float(row["step_ms"]) for row in rows(log)} == {2000.0}


@pytest.mark.ranks(2)
def test_steps_of_one_execution_share_its_time(log, takes):
    takes(lambda: 1.0)
    fit(new_model(steps_per_execution=5), epochs=4)
    assert {float(row["step_ms"]) for row in rows(log)} == {200.0}


@pytest.mark.ranks(2)
def test_xla_has_no_thread_to_choose(log):
    model = new_model(jit_compile=True)
    fit(model, epochs=2)
    if model.jit_compile:
        assert {row["thread"] for row in rows(log)} == {"False"}
    assert_identical_on_ranks(model.get_weights())


class Halved(Compressor):
    def compress(self, tensor):
        return tensor / 2, None

    def decompress(self, tensor, ctx):
        return tensor * 2


@pytest.mark.ranks(2)
@pytest.mark.parametrize(("compression", "name"), [("bf16", "bf16"), (Halved(), "own")])
def test_a_compression_of_the_script_stays(log, monkeypatch, compression, name):
    monkeypatch.setenv("TFDIST_AUTOTUNE", "lossy")
    fit(new_model(), DataParallel(compression=compression), epochs=2)
    assert {row["compression"] for row in rows(log)} == {name}


@pytest.mark.ranks(2)
def test_groups_of_the_script_stay(log):
    optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(0.01), num_groups=2)
    fit(new_model(optimizer=optimizer), epochs=2)
    assert {row["fusion_threshold"] for row in rows(log)} == {str(LEAST_BYTES)}


@pytest.mark.ranks(1)
def test_one_rank_has_nothing_to_tune(log, capfd):
    fit(new_model(), epochs=1)
    assert "nothing to tune" in capfd.readouterr().err
    assert not log.exists()


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("TFDIST_AUTOTUNE", "0", "TFDIST_AUTOTUNE is 1 on rank 0 and 0 on rank {last}"),
        ("TFDIST_AUTOTUNE", "lossy", "TFDIST_AUTOTUNE is 1 on rank 0 and lossy on rank {last}"),
        ("TFDIST_AUTOTUNE_SAMPLES", "9", "TFDIST_AUTOTUNE_SAMPLES is 5 on rank 0 and 9 on rank {last}"),
        ("TFDIST_AUTOTUNE_STEPS", "2", "TFDIST_AUTOTUNE_STEPS is 1 on rank 0 and 2 on rank {last}"),
    ],
)
def test_ranks_that_are_set_differently_all_say_so(monkeypatch, name, value, message):
    last = tfdist.size() - 1
    if tfdist.rank() == last:
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=message.format(last=last)):
        fit(new_model())


@pytest.mark.ranks(2)
def test_an_error_of_rank_0_is_that_of_every_rank(monkeypatch, shared_tmp_path):
    monkeypatch.setenv("TFDIST_AUTOTUNE_LOG", str(shared_tmp_path / "no" / "log.csv"))
    with pytest.raises(ConfigError, match=r"TFDIST_AUTOTUNE_LOG=.*cannot be written"):
        fit(new_model())


@pytest.mark.ranks(2)
def test_files_that_cannot_be_written_any_more_end_no_training(takes, monkeypatch, shared_tmp_path, capfd):
    (shared_tmp_path / "file").write_text("")
    monkeypatch.setenv("TFDIST_AUTOTUNE_RESULT", str(shared_tmp_path / "file" / "result.json"))
    monkeypatch.setattr(autotune.record, "load", lambda path, job: (None, ""))

    def fail(self, *sample):
        raise ConfigError("TFDIST_AUTOTUNE_LOG=log.csv cannot be written: disk full.")

    monkeypatch.setattr(autotune.record.Log, "add", fail)
    takes(with_thread)
    fit(new_model())
    assert tuning.current().thread
    told = capfd.readouterr().err
    for name in ("TFDIST_AUTOTUNE_LOG", "TFDIST_AUTOTUNE_RESULT"):
        assert told.count(f"training continues without the file: {name}=") == (tfdist.rank() == 0)


@pytest.mark.ranks(2)
def test_unequal_numbers_of_batches_are_refused():
    x, y = tfdist.shard(data(0), remainder="join")
    with pytest.raises(ConfigError, match="TFDIST_AUTOTUNE=1 needs the same number of batches on every rank"):
        new_model().fit(x, y, verbose=0, callbacks=[DataParallel()])


@pytest.mark.ranks(1)
def test_an_elastic_training_is_refused():
    with pytest.raises(ConfigError, match="TFDIST_AUTOTUNE=1 needs the same ranks from start to end"):
        DataParallel(elastic=True)
