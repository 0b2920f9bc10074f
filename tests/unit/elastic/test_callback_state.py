"""What callbacks decide by: whose it is, and that of others stays."""

import copy
import pickle

import keras
import numpy as np
import pytest

from tfdist import errors
from tfdist.callbacks import BackupAndRestore
from tfdist.elastic import callback_state


class Counter(keras.callbacks.Callback):
    elastic_attributes = ("count",)

    def __init__(self, count=0):
        super().__init__()
        self.count, self.own = count, count


class Stopping(keras.callbacks.EarlyStopping):
    elastic_attributes = ("count",)
    count = 7


def taken_over(ours, theirs):
    """Those of one rank, with what travels from another in a commit."""
    kept = copy.deepcopy(callback_state.capture(theirs))
    callback_state.restore(ours, pickle.loads(pickle.dumps(kept)))
    return ours


def test_of_keras():
    theirs = keras.callbacks.EarlyStopping(patience=9)
    theirs.wait, theirs.best, theirs.best_weights = 2, 0.5, [np.ones(2)]
    plateau = keras.callbacks.ReduceLROnPlateau(cooldown=3)
    plateau.cooldown_counter = 2
    stopping, reducing = taken_over(
        [keras.callbacks.EarlyStopping(patience=4), keras.callbacks.ReduceLROnPlateau()], [theirs, plateau]
    )
    assert (stopping.wait, stopping.best, stopping.patience) == (2, 0.5, 4), "not what the script gives it"
    np.testing.assert_array_equal(stopping.best_weights[0], [1, 1])
    assert (reducing.cooldown_counter, reducing.cooldown) == (2, 0)


@pytest.mark.parametrize(
    ("kind", "least"), [("EarlyStopping", 4), ("ReduceLROnPlateau", 3), ("ModelCheckpoint", 3), ("SwapEMAWeights", 1)]
)
def test_keras_has_those_names(kind, least):
    """When the training has begun, and not only after the first epoch."""
    given = ("model.keras",) if kind == "ModelCheckpoint" else ()
    callback = getattr(keras.callbacks, kind)(*given)
    callback.on_train_begin()
    names = callback_state.keras_version.decides_by(callback)
    assert len(names) >= least and [name for name in names if not hasattr(callback, name)] == []


def test_of_ours():
    ours, theirs = BackupAndRestore("backup", save_freq=5), BackupAndRestore("backup", save_freq=7)
    theirs._saved_at = 14
    taken_over([ours], [theirs])
    assert (ours._saved_at, ours._save_freq) == (14, 5)


def test_of_the_scripts_own():
    (counter, stopping) = taken_over([Counter(), Stopping()], [Counter(4), Stopping()])
    assert (counter.count, counter.own) == (4, 0)
    assert stopping.count == 7
    counter.elastic_attributes = ("cuont",)
    with pytest.raises(errors.ConfigError, match=r"Counter.elastic_attributes names cuont, which .* does not have"):
        callback_state.capture([counter])


def test_lists_that_differ():
    """Rank 0 has some that others lack, and the same callback may be there twice."""
    first, second, alone = taken_over([Counter(1), Counter(2), Stopping()], [keras.callbacks.History(), Counter(5)])
    assert (first.count, second.count, alone.count) == (5, 2, 7)


JOINS = """
import pytest, tfdist
from tfdist.world import runtime
from tfdist.world.session import session
tfdist.init()
session.apart = 3  # the number that it will have
assert tfdist.broadcast_object("folder", 0, name="folder") == "folder"
session.apart, session.catches_up = -1, True
for call in (lambda: tfdist.allreduce(1.0, name="mean"), lambda: tfdist.barrier(name="mean")):
    with pytest.raises(tfdist.errors.ConfigError, match="'mean' in on_train_begin, on a rank that joins"):
        call()
session.catches_up = False
assert tfdist.allreduce(1.0, name="mean") == 1.0
"""


def test_collectives_of_a_rank_that_joins(run_script):
    """Alone it has the objects of every rank; while it begins what the others have begun, nobody would answer it."""
    run_script(JOINS)
