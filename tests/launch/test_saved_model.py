"""A model saved by a distributed training continues in a Python where tfdist is not installed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slice("launch")
BIN = Path(sys.executable).parent

TRAIN = """
import keras, numpy as np, sys, tfdist
tfdist.init()
keras.utils.set_random_seed(tfdist.rank())
x = np.random.default_rng(tfdist.rank()).normal(size=(32, 4)).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.01), loss="mse")
callbacks = [tfdist.callbacks.DataParallel(), tfdist.callbacks.ModelCheckpoint(sys.argv[1])]
model.fit(x, x[:, :1], batch_size=8, epochs=2, verbose=0, callbacks=callbacks)
if tfdist.rank() == 0:
    np.savez(sys.argv[2], *model.get_weights(), *[v.numpy() for v in model.optimizer.variables])
"""

CONTINUE = """
import json, sys
sys.modules["tfdist"] = None  # importing it fails from here on
import keras, numpy as np
model = keras.models.load_model(sys.argv[1])
state = [*model.get_weights(), *[v.numpy() for v in model.optimizer.variables]]
saved = list(np.load(sys.argv[2]).values())
rate = model.optimizer.variables.index(model.optimizer._learning_rate) + len(model.get_weights())
same = [bool(np.array_equal(a, b)) for i, (a, b) in enumerate(zip(state, saved, strict=True)) if i != rate]
x = np.random.default_rng(9).normal(size=(32, 4)).astype("float32")
before = model.evaluate(x, x[:, :1], verbose=0)
model.fit(x, x[:, :1], batch_size=8, epochs=5, verbose=0)
print(json.dumps({
    "class": f"{type(model.optimizer).__module__}.{type(model.optimizer).__name__}",
    "same": all(same),
    "iterations": int(state[len(model.get_weights())]),
    "rate": float(state[rate]),
    "improved": model.evaluate(x, x[:, :1], verbose=0) < before,
}))
"""


def test_continues_without_tfdist(tmp_path):
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    train, resume = tmp_path / "train.py", tmp_path / "continue.py"
    train.write_text(TRAIN)
    resume.write_text(CONTINUE)
    files = [str(tmp_path / "model.keras"), str(tmp_path / "state.npz")]
    command = [str(BIN / "tfdistrun"), "-np", "2", sys.executable, str(train), *files]
    trained = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180, check=False
    )
    assert trained.returncode == 0, trained.stdout + trained.stderr
    continued = subprocess.run(
        [sys.executable, str(resume), *files],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert continued.returncode == 0, continued.stderr
    result = json.loads(continued.stdout.splitlines()[-1])
    assert result == {
        "class": "keras.src.optimizers.adam.Adam",
        "same": True,
        "iterations": 8,
        "rate": result["rate"],
        "improved": True,
    }
    assert abs(result["rate"] - 0.01) < 1e-8, "the file must hold the rate of one process"
