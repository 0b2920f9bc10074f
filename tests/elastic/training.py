"""The training of the tests of elastic jobs, and what it must reach.

training.py VICTIMS STEPS [xla]  a fit by tfdistrun in a folder of its own, STEPS at once, or compiled; VICTIMS:
                                 "RANK:STEP:HOW,...", see `Killer`
"""

import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tfdist.elastic import keras_state
from tfdist.ops import object as objects
from tfdist.world import runtime

EPOCHS, SAMPLES, BATCH, RATE = 3, 480, 4, 0.003


class Model(keras.Model):
    """Counts how many times its step is traced."""

    traces = 0

    def train_step(self, data):
        self.traces += 1
        return super().train_step(data)


def make_model(steps_at_once=1, compiled=False):
    """Some of its gradients are dense, and some are tf.IndexedSlices."""
    keras.utils.set_random_seed(1)
    x = keras.Input((8,))
    dense = keras.layers.Dense(16, activation="tanh")(x)
    sparse = keras.layers.Flatten()(keras.layers.Embedding(2, 2)(keras.ops.cast(x[:, :3] > 0, "int32")))
    model = Model(x, keras.layers.Dense(1)(keras.layers.concatenate([dense, sparse])))
    how = {"steps_per_execution": steps_at_once, "jit_compile": compiled}
    model.compile(keras.optimizers.SGD(RATE, momentum=0.9), "mse", metrics=["mae"], **how)
    return model


def make_rows():
    random = np.random.default_rng(0)
    samples = random.normal(size=(SAMPLES, 8)).astype("float32")
    rows = (samples, samples.sum(1, keepdims=True) + random.normal(size=(SAMPLES, 1)).astype("float32"))
    return tf.data.Dataset.from_tensor_slices(rows)


def make_data():
    return make_rows().shuffle(SAMPLES, seed=3)


# Functions in which the ranks that are left find each other, compare their commits, and take over the newest one; for
# one that is called elsewhere too, the name of the call.
MOMENTS = {
    "meeting": (runtime, "renew"),
    "count": (objects, "allgather_object", "commits"),
    "sync": (keras_state, "broadcast_variables"),
}


class Killer(keras.callbacks.Callback):
    """Has this rank lost after so many steps, once, also when it is started anew.

    It is killed where `how` says: at the end of a "step" or an "epoch", when a "validation" begins, "after" the
    training, or when it has been started "again". Or something else is done at the end of a step:

    stop          it hangs
    told          it gets SIGTERM; so does the whole job with "job"
    launcher      the launcher is killed
    damage        the newest commit is damaged before it is killed
    later=SECONDS it is killed so much later
    commit        it is killed in the middle of the next commit that it writes
    joins=MOMENT  it is killed when it joins the others, at that moment of MOMENTS
    at=MOMENT     it is killed when it goes on after the loss of another, at that moment of MOMENTS
    fail, exit=N  it ends by an error, or with that status
    wait          it waits until all ranks are to meet others, or it is to leave; so does hosts=NAME/SLOTS, which lists
                  other hosts before; in vain where one that was to join is killed
    """

    def __init__(self, step, how):
        super().__init__()
        self.left, (self.way, _, self.value) = step, how.partition("=")
        self.place = how if how in ("epoch", "validation", "after", "again") else "step"
        if self.way == "joins":
            self.place, self.way = "again", "at"
        self.done = Path(f"victim-{tfdist.rank()}-{step}-{how.replace('/', '-')}")

    def die(self, place):
        if self.left <= 0 and self.place == place and not self.done.exists():
            if place == "again" and not any(Path().glob("victim-*")):
                return
            self.done.touch()
            getattr(self, self.way, kill)()

    def stop(self):
        kill(signal.SIGSTOP)

    def told(self):
        kill(signal.SIGTERM)

    def job(self):
        kill(signal.SIGTERM, launcher())

    def launcher(self):
        kill(pid=launcher())

    def damage(self):
        damage_newest_commit()
        kill()

    def later(self):
        threading.Timer(float(self.value), kill).start()

    def commit(self):
        """By the kernel, which cuts the file there."""
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200, resource.RLIM_INFINITY))

    def at(self):
        module, name, *call = MOMENTS[self.value]
        original = getattr(module, name)

        def act(*args, **kwargs):
            if call in ([], [kwargs.get("name")]):
                kill()
            return original(*args, **kwargs)

        setattr(module, name, act)

    def fail(self):
        raise ValueError("the data is broken")

    def exit(self):
        raise SystemExit(int(self.value))

    def wait(self):
        """Until the launcher has asked the ranks to meet others, or this one to leave."""
        end = time.monotonic() + 90
        while not (runtime.meets() or runtime.retires() or any(Path().glob("victim-*-again"))):
            assert time.monotonic() < end, "nobody asked the ranks to meet or to leave"
            threading.Event().wait(0.05)

    def hosts(self):
        Path("hosts.new").write_text(self.value.replace("/", ":"))
        Path("hosts.new").replace("hosts")  # who looks in between sees some
        self.wait()

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        self.die("step")

    def on_epoch_end(self, epoch, logs=None):
        self.die("epoch")

    def on_test_begin(self, logs=None):
        self.die("validation")


def kill(signum=signal.SIGKILL, pid=None):
    os.kill(os.getpid() if pid is None else pid, signum)


def launcher():
    """The process that has started all this on this machine."""
    pid, found = os.getpid(), 0
    while pid > 1:
        if b"\0-m\0tfdist.launch\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
            found = pid
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return found


def damage_newest_commit():
    names = [path for path in Path(os.environ["TFDIST_COMMITS"]).iterdir() if path.suffix == ".commit"]
    newest = max(names, key=lambda path: int(path.stem.split("-")[1]))
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)


class Report(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        print(f"segment {epoch} {tfdist.size()} {int(self.model.optimizer.iterations)}", flush=True)

    def on_train_begin(self, logs=None):
        print("training begins", flush=True)

    def on_train_end(self, logs=None):
        print("training ends", flush=True)


def train(victims, steps_at_once, compiled):
    tfdist.init()
    number = tfdist.rank()
    Path("commits").write_text(os.environ["TFDIST_COMMITS"])
    killers = {int(rank): Killer(int(step), how) for rank, step, how in (one.split(":") for one in victims)}
    if number in killers:
        killers[number].die("again")
    model = make_model(steps_at_once, compiled)
    data = tfdist.shard(make_data()).batch(BATCH).prefetch(2)
    callbacks = [tfdist.callbacks.DataParallel(elastic=True, checkpoint="model.keras"), Report()]
    callbacks += [killers[number]] if number in killers else []
    whole = make_rows().take(SAMPLES - 10)  # as many as no number of ranks divides
    checked = tfdist.shard(whole, remainder="join").batch(32)
    history = model.fit(data, epochs=EPOCHS, callbacks=callbacks, verbose=2, validation_data=checked)
    assert history.epoch == list(range(EPOCHS)), history.epoch
    # The ranks that are left share all of it.
    np.testing.assert_allclose(history.history["val_loss"][-1], model.evaluate(whole.batch(32), verbose=0)[0], 1e-4)
    np.savez(Path(f"rank-{number}.npz"), *variables_of(model))
    print(f"process {os.getpid()} traced {model.traces}", flush=True)
    if number in killers:
        killers[number].die("after")


def reference(segments):
    """The weights and the optimizer's variables that one process has after the same steps.

    Each of `segments`, [epoch, ranks, first iteration], goes up to the iteration at which the next begins, or the end
    of its epoch.
    """
    model = make_model()
    data = make_data()
    ends = [segment[2] for segment in segments[1:]] + [None]
    position, epoch, order = 0, -1, []
    for (of_epoch, ranks, first), end in zip(segments, ends, strict=True):
        if of_epoch != epoch:
            if epoch >= 0:
                iter(data)  # as fit does after each epoch, which moves the order on
            epoch, position, order = of_epoch, 0, list(data)
        assert int(model.optimizer.iterations) == first, (segments, int(model.optimizer.iterations))
        model.optimizer.learning_rate = RATE * ranks
        while position + ranks * BATCH <= SAMPLES and (end is None or int(model.optimizer.iterations) < end):
            rows = order[position : position + ranks * BATCH]
            model.train_on_batch(np.stack([x for x, _ in rows]), np.stack([y for _, y in rows]))
            position += ranks * BATCH
    return variables_of(model)


def variables_of(model):
    return [np.asarray(variable) for variable in (*model.trainable_variables, *model.optimizer.variables)]


if __name__ == "__main__":
    train([victim for victim in sys.argv[1].split(",") if victim], int(sys.argv[2]), sys.argv[3:] == ["xla"])
