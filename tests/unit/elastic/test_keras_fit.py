"""`keras.Model.fit` of an elastic job where importing tfdist was not to change it: in time, or an error."""

import pytest

PRELUDE = """
import keras, numpy as np, pytest, tensorflow as tf
import tfdist
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
data = tf.data.Dataset.from_tensor_slices((np.ones((8, 2)), np.ones((8, 1))))
original = keras.Model.fit
"""
LATE = """
with pytest.raises(tfdist.errors.ConfigError, match="TFDIST_EARLY=0, also create it on a line before"):
    model.fit(tfdist.shard(data).batch(4), callbacks=[tfdist.callbacks.DataParallel(elastic=True)])
assert keras.Model.fit is not original
"""
IN_TIME = """
for _ in range(2):
    plugin = tfdist.callbacks.DataParallel(elastic=True)
    assert len(model.fit(tfdist.shard(data).batch(4), epochs=2, verbose=0, callbacks=[plugin]).epoch) == 2
assert keras.Model.fit is not original
assert keras.Model.fit.__wrapped__ is original, "once"
"""
NOT_ELASTIC = """
model.fit(tfdist.shard(data).batch(4), verbose=0, callbacks=[tfdist.callbacks.DataParallel()])
assert keras.Model.fit is original
"""


@pytest.mark.parametrize("script", [LATE, IN_TIME, NOT_ELASTIC], ids=["late", "in time", "not elastic"])
def test_where_the_import_changes_nothing(run_script, script):
    run_script(PRELUDE + script, TFDIST_ELASTIC="1", TFDIST_EARLY="0")


def test_callback_made_in_the_call_of_fit_is_in_time(run_script):
    call = (
        "model.fit(tfdist.shard(data).batch(4), verbose=0, callbacks=[tfdist.callbacks.DataParallel(elastic=True)])\n"
    )
    run_script(f"{PRELUDE}{call}assert keras.Model.fit is original", TFDIST_ELASTIC="1")


HIDDEN = """
hidden = keras.callbacks.CallbackList([tfdist.callbacks.DataParallel(elastic=True)], model=model)
with pytest.raises(tfdist.errors.ConfigError, match="fit did not find this DataParallel"):
    model.fit(tfdist.shard(data).batch(4), verbose=0, callbacks=hidden)
"""


BACKED_UP = """
callbacks = [tfdist.callbacks.DataParallel(elastic=True), keras.callbacks.BackupAndRestore("backup")]
with pytest.raises(tfdist.errors.ConfigError, match="sets weights and epoch of its own .* tfdist.callbacks.BackupAnd"):
    model.fit(tfdist.shard(data).batch(4), verbose=0, callbacks=callbacks)
"""


def test_another_way_to_resume_is_refused(run_script):
    run_script(PRELUDE + BACKED_UP, TFDIST_ELASTIC="1")


def test_callback_that_fit_does_not_find_is_refused(run_script):
    run_script(PRELUDE + HIDDEN, TFDIST_ELASTIC="1")
