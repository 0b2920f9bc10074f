"""How a number is folded into the states of seed generators; in one process and by arithmetic alone."""

import random

import keras
import numpy as np
import pytest
from keras.src.backend.common import global_state

from tfdist.native import keras_version
from tfdist.training import random_state
from tfdist.training.random_state import folded
from tfdist.world import runtime
from tfdist.world.session import session

PROCESSES = 4096
GLOBAL = keras_version._GLOBAL_SEED_GENERATOR


def state(seed, count=0):
    return np.array([seed, count], "int64")


@pytest.mark.parametrize("seed", [1, 42, 10**9, 2**31 - 2, 2**40, -5, 0])
def test_all_processes_differ(seed):
    found = [folded(state(seed, 7), process) for process in range(PROCESSES)]
    assert len({int(array[0]) for array in found}) == PROCESSES
    # What Keras takes a seed by that is nobody's own.
    assert len({int(array[0]) % 933199 for array in found}) == PROCESSES
    assert {int(array[1]) for array in found} == {7}
    assert {array.dtype for array in found} == {np.dtype("int64")}
    np.testing.assert_array_equal(found[0], state(seed, 7))


def test_small_seeds_do_not_meet_those_of_another_process():
    found = {int(folded(state(seed), process)[0]) for seed in range(100) for process in range(256)}
    assert len(found) == 100 * 256


def test_what_was_resumed_differs_and_is_reproducible():
    found = [int(folded(state(42), process, at)[0]) for process in range(4) for at in range(50)]
    assert len(set(found)) == 200
    assert found == [int(folded(state(42), process, at)[0]) for process in range(4) for at in range(50)]


class Custom(keras.Model):
    def __init__(self, shared):
        super().__init__()
        self.layers_of_mine = [keras.layers.Dropout(0.5, seed=1), keras.layers.LSTM(2, dropout=0.5, seed=2)]
        self.one, self.other = keras.layers.Layer(), keras.layers.Layer()
        self.one.generator = self.other.generator = shared
        self.generators = {"noise": keras.random.SeedGenerator(3)}
        self.augment = keras.Sequential([keras.layers.RandomFlip(seed=4), keras.layers.RandomCrop(2, 2, seed=5)])


@pytest.fixture
def process(monkeypatch):
    """This process takes itself for another rank of its start."""
    monkeypatch.setattr(session, "resumed_at", 0)
    before = global_state.get_global_attribute(GLOBAL)
    global_state.set_global_attribute(GLOBAL, None)
    yield lambda number: monkeypatch.setattr(runtime, "first_rank", lambda: number)
    global_state.set_global_attribute(GLOBAL, before)


def seeds_of(model):
    return sorted(int(np.asarray(generator.state)[0]) for generator in keras_version.seed_generators_of(model))


def test_a_model_is_folded_once_and_shared_generators_too(process):
    model, expected = Custom(keras.random.SeedGenerator(6)), [1, 2, 3, 4, 5, 6]
    assert seeds_of(model) == expected
    process(3)
    for _ in range(2):
        random_state.fold(model)
        assert seeds_of(model) == sorted(int(folded(state(seed), 3)[0]) for seed in expected)
    model.late = keras.layers.Dropout(0.5, seed=9)
    random_state.fold(model)
    assert int(folded(state(9), 3)[0]) in seeds_of(model)


def test_the_first_process_is_left_alone_until_it_resumes(process):
    process(0)
    model = Custom(keras.random.SeedGenerator(6))
    before = random.getstate()
    random_state.fold(model)
    assert keras_version.global_seed_generator(make=False) is None
    assert random.getstate() == before
    assert seeds_of(model) == [1, 2, 3, 4, 5, 6]
    session.resumed_at = 8
    random_state.fold(model)
    assert seeds_of(model) == [1, 2, 3, 4, 5, 6]  # it was folded
    other = keras.layers.Dropout(0.5, seed=1)
    random_state.fold(other)
    assert seeds_of(other) == [int(folded(state(1), 0, 8)[0])]


def test_the_global_generator(process):
    process(2)
    keras.utils.set_random_seed(42)
    before = random.getstate()
    random_state.fold(keras.layers.Layer())
    assert random.getstate() == before
    drawn = random.randint(1, 10**9)  # as Keras draws its seed
    generator = keras_version.global_seed_generator(make=False)
    np.testing.assert_array_equal(np.asarray(generator.state), folded(state(drawn), 2))
    kept = random_state.state_of_process()
    keras.random.normal((2,))
    random_state.restored(keras.layers.Layer(), kept)
    random_state.fold(keras.layers.Layer())
    np.testing.assert_array_equal(np.asarray(generator.state), folded(state(drawn), 2))


def test_what_was_restored_is_not_folded(process):
    process(1)
    model = keras.Sequential([keras.layers.Dropout(0.5, seed=1)])
    random_state.restored(model, {})
    random_state.fold(model)
    assert seeds_of(model) == [1]
    random_state.fold_again(model, 4)
    assert seeds_of(model) == [int(folded(state(1), 0, 4)[0])]
