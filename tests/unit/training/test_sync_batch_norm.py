"""`SyncBatchNormalization` in one process: before init, and in a world of one, where it is the ordinary layer."""

import pytest

BEFORE = """
import numpy as np, pytest, tfdist
layer = tfdist.SyncBatchNormalization()
x = np.ones((2, 3), "float32")
assert layer(x, training=False).shape == (2, 3)
with pytest.raises(tfdist.errors.NotInitializedError, match=r"tfdist\\.init\\(\\)"):
    layer(x, training=True)
"""
ALONE = """
import keras, numpy as np, tensorflow as tf, tfdist
tfdist.init()
x = tf.constant(np.random.default_rng(1).normal(3.0, 2.0, size=(7, 5, 3)).astype("float32"))
mask = tf.constant(np.random.default_rng(2).uniform(size=(7, 5)) < 0.6)
for given in (None, mask):
    results = []
    for kind in (keras.layers.BatchNormalization, tfdist.SyncBatchNormalization):
        layer = kind(momentum=0.7)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True, mask=given)
            loss = tf.reduce_sum(y ** 3)
        results.append([y, *tape.gradient(loss, [x, layer.gamma.value, layer.beta.value]), *layer.variables])
    for ordinary, synchronized in zip(*results, strict=True):
        assert np.asarray(ordinary).tobytes() == np.asarray(synchronized).tobytes()
assert tfdist.runtime.communication_seconds() == 0.0
"""


@pytest.mark.parametrize("script", [BEFORE, ALONE], ids=["before init", "world of one"])
def test_in_a_fresh_process(run_script, script):
    run_script(script)
