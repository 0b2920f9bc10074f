"""A job that is killed and started again ends with the bits of a job that was not killed."""

import re
import sys

import pytest

TRAIN = """
import glob, hashlib, re, threading
import keras, numpy as np, tensorflow as tf, tfdist
from tfdist.callbacks import BackupAndRestore, DataParallel

tfdist.init()
kill = tuple(int(word) for word in sys.argv[2:4])
keras.utils.set_random_seed(tfdist.rank())
generator = np.random.default_rng(tfdist.rank())
x = generator.normal(size=(16, 3)).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((x, x[:, :1] + tfdist.rank()))
dataset = dataset.shuffle(16, seed=1, reshuffle_each_iteration=False).batch(2)
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss="mse")

def backup_of_this_epoch():
    if "://" in sys.argv[1]:
        import fsspec
        system, folder = fsspec.core.url_to_fs(sys.argv[1], use_listings_cache=False)
        names = system.ls(folder) if system.exists(folder) else []
        return any(re.search("epoch-000001-batch-.*[36].snapshot[.].*json", name) for name in names)
    return glob.glob(f"{sys.argv[1]}/epoch-000001-batch-*[36].snapshot")

class Kill(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        print("epoch", epoch, flush=True)
        self.epoch = epoch
    def on_train_batch_end(self, batch, logs=None):
        if (self.epoch, batch) == kill and tfdist.rank() == tfdist.size() - 1:
            end = time.monotonic() + 30
            while not backup_of_this_epoch() and time.monotonic() < end:
                threading.Event().wait(0.02)
            os.kill(os.getpid(), signal.SIGKILL)

model.fit(dataset, epochs=3, verbose=0, callbacks=[DataParallel(), BackupAndRestore(sys.argv[1], save_freq=3), Kill()])
state = b"".join(np.asarray(v).tobytes() for v in [*model.weights, *model.optimizer.variables])
print("state", hashlib.sha256(state).hexdigest(), flush=True)
"""


def run(launch, script, folder, kill=()):
    words = ["-np", "2", sys.executable, script, folder, *(str(number) for number in kill)]
    return launch.run(*words, variables={"TF_CPP_MIN_LOG_LEVEL": "3"})


def states(finished):
    return {line.split()[-1] for line in finished.stdout.splitlines() if "state" in line.split()}


@pytest.mark.slice("launch")
def test_killed_in_the_middle_of_an_epoch(launch):
    kill = (1, 5)
    script = launch.script(TRAIN)
    whole = run(launch, script, "whole")
    assert whole.code == 0, whole.stderr
    assert len(states(whole)) == 1
    killed = run(launch, script, "parts", kill)
    assert killed.code == 137, killed.stderr
    assert not states(killed)
    assert launch.files("parts/*.snapshot")
    resumed = run(launch, script, "parts")
    assert resumed.code == 0, resumed.stderr
    epochs = {int(line.split()[-1]) for line in resumed.stdout.splitlines() if "epoch" in line.split()}
    assert epochs == set(range(kill[0], 3))
    assert states(resumed) == states(whole)
    assert not launch.files("parts")


@pytest.mark.slice("launch")
def test_killed_with_a_backup_in_a_store(launch, s3):
    """Checkpoints and backups; nothing of them is on this machine, but for a model that was being written."""
    kill = (1, 5)
    script = launch.script(TRAIN.replace("callbacks=[", "callbacks=[*checkpoints, ").replace("model.fit", CHECKPOINTS))
    place = s3.folder()
    whole = run(launch, script, "whole")
    assert whole.code == 0, whole.stderr
    killed = run(launch, script, place, kill)
    assert killed.code == 137, killed.stderr
    assert [name for name in s3.objects(place) if re.fullmatch(r"epoch-000001-.*\.json", name)]
    assert "model-01.keras" in s3.objects(place)
    resumed = run(launch, script, place)
    assert resumed.code == 0, resumed.stderr
    epochs = {int(line.split()[-1]) for line in resumed.stdout.splitlines() if "epoch" in line.split()}
    assert epochs == set(range(kill[0], 3))
    assert states(resumed) == states(whole)
    assert sorted(s3.objects(place)) == ["best.keras", *(f"model-{epoch:02d}.keras" for epoch in (1, 2, 3))]
    assert not [path for path in launch.files("**/*") if ":" in path.name]


CHECKPOINTS = """
from tfdist.callbacks import BestModelCheckpoint, ModelCheckpoint
checkpoints = [
    ModelCheckpoint(sys.argv[1] + "/model-{epoch:02d}.keras"),
    BestModelCheckpoint(sys.argv[1] + "/best.keras", monitor="loss"),
]
model.fit"""
