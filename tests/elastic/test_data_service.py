"""A fit on data of a data service goes on with the pass that it reads: at most once, as that promises."""

import json
import re

import pytest
from elastic_job import run

SCRIPT = """
import json, os, signal, sys
import keras, numpy as np, tensorflow as tf, tfdist

STEPS, BATCH, EPOCHS = 12, 4, 3
tfdist.init()
rank, read = tfdist.rank(), []


class Watch(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        print(f"epoch {epoch} of {self.params['steps']} steps on {tfdist.size()} ranks", flush=True)

    def on_train_batch_end(self, batch, logs=None):
        if rank == 1 and int(self.model.optimizer.iterations) == 15 and sys.argv[1] == "killed":
            os.kill(os.getpid(), signal.SIGKILL)


def note(number):
    read.append(int(number))
    return np.int64(number)


data = tf.data.Dataset.range(100_000).repeat()
job = tfdist.broadcast_object(os.urandom(8).hex())
data = tfdist.data_service.distribute(data, job_name=job)
data = data.map(lambda number: tf.numpy_function(note, [number], tf.int64))
data = data.map(lambda number: (tf.fill([8], tf.cast(number, tf.float32) / 1e5), tf.ones([1]))).batch(BATCH)
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.01), "mse")
callbacks = [tfdist.callbacks.DataParallel(elastic=True), Watch()]
history = model.fit(
    tfdist.shard(data), epochs=EPOCHS, steps_per_epoch=int(sys.argv[2]), verbose=0, callbacks=callbacks
)
result = [history.epoch, int(model.optimizer.iterations), np.asarray(model.weights[0])[:, 0].tolist(), read]
with open(f"result-{rank}", "w") as file:
    json.dump(result, file)
"""


def train(folder, size, *words):
    (folder / "train.py").write_text(SCRIPT)
    options = ("-np", str(size), "--elastic", "--data-workers", "1")
    return run(folder, "-m", "tfdist.launch", *options, "python", "train.py", *words)


def test_the_others_go_on_with_the_same_pass(tmp_path):
    done = train(tmp_path, 3, "killed", "12")
    assert done.returncode == 0, done.stdout + done.stderr
    # An epoch has 36 batches. 9 of the second one are trained on when a rank is lost, and 27 make 13 steps of two.
    said = re.findall(r"^\[0\] epoch (\d) of (\d+) steps on (\d) ranks$", done.stdout, re.MULTILINE)
    assert [[int(number) for number in each] for each in said] == [[0, 12, 3], [1, 12, 3], [1, 17, 2], [2, 18, 2]]
    results = [json.loads((tmp_path / f"result-{rank}").read_text()) for rank in (0, 2)]
    assert [each[:2] for each in results] == [[[0, 1, 2], 12 + 3 + 13 + 18]] * 2
    assert results[0][2] == results[1][2]
    numbers = results[0][3] + results[1][3]
    assert len(numbers) == len(set(numbers)), "no element twice"
    assert len(numbers) >= (12 + 3 + 13 + 18) * 2 * 4


REFUSED = """
import keras, numpy as np, tensorflow as tf, tfdist

tfdist.init()
rows = tf.data.Dataset.from_tensor_slices((np.ones((64, 8), "f4"), np.ones((64, 1), "f4")))
cases = {
    "array": (np.ones((64, 8), "f4"), {"y": np.ones((64, 1), "f4")}),
    "steps": (tfdist.shard(rows).batch(4), {"steps_per_epoch": 3}),
    "shuffled": (tfdist.shard(rows).shuffle(9).batch(4), {}),
    "end": (tfdist.data_service.distribute(rows.batch(4), job_name="a"), {"steps_per_epoch": 3}),
    "own": (tfdist.data_service.distribute(rows.batch(4).repeat()), {"steps_per_epoch": 3}),
    "endless": (tfdist.data_service.distribute(rows.batch(4).repeat(), job_name="b"), {}),
}
for name, (data, fitted) in cases.items():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    try:
        model.fit(data, callbacks=[tfdist.callbacks.DataParallel(elastic=True)], verbose=0, **fitted)
    except tfdist.errors.ConfigError as error:
        print(f"{name}: {error}", flush=True)
"""
ANEW = "must reshard the rest of an epoch when a rank is lost, which is impossible here: "
SERVICE = "needs endless data from a data service, with epochs counted in steps. Missing here: "


@pytest.mark.slice("elastic")
def test_what_is_refused(tmp_path):
    (tmp_path / "train.py").write_text(REFUSED)
    done = run(tmp_path, "-m", "tfdist.launch", "-np", "1", "--elastic", "--data-workers", "1", "python", "train.py")
    assert done.returncode == 0, done.stdout + done.stderr
    said = dict(re.findall(r"^\[0\] (\w+): DataParallel\(elastic=True\) (.+)$", done.stdout, re.MULTILINE))
    expected = {
        "array": f"{ANEW}arrays (ndarray) are not a tf.data.Dataset",
        "steps": "does not support steps_per_epoch (received 3)",
        "shuffled": f"{ANEW}.shuffle comes after tfdist.shard",
        "end": f"{SERVICE}.repeat() before distribute.",
        "own": f"{SERVICE}a job_name in distribute.",
        "endless": f"{SERVICE}steps_per_epoch in fit, the steps of an epoch with the initial number of ranks",
    }
    assert said.keys() == expected.keys(), done.stdout
    assert [name for name, text in expected.items() if not said[name].startswith(text)] == []
