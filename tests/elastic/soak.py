"""A fit that goes on until there is a file `enough`; each process notes in PID-START.log, at each epoch, what it has.

soak.py  by tfdistrun in a folder of its own
"""

import ctypes
import gc
import os
import threading
import time
import weakref
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tfdist.callbacks.fit.step_function import StepFunction

SAMPLES, BATCH = 96, 4
# The numbers of processes come again.
NAME = f"{os.getpid()}-{time.time_ns()}"


class Counted(keras.Sequential):
    """Counts how often its step is traced."""

    traces = 0

    def train_step(self, data):
        self.traces += 1
        return super().train_step(data)


class Iterators:
    """Counts the iterators whose end the main thread has waited for, which may take long."""

    def __init__(self):
        self.waits = 0
        self._known = weakref.WeakSet()
        call = StepFunction.__call__

        def noting(steps, iterator):
            if iterator not in self._known:
                self._known.add(iterator)
                weakref.finalize(iterator, self._end).atexit = False
            return call(steps, iterator)

        StepFunction.__call__ = noting

    def _end(self):
        self.waits += threading.current_thread() is threading.main_thread()


iterators = Iterators()


class MallocInfo(ctypes.Structure):
    """What `mallinfo2` of glibc returns."""

    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")] + [
        (name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    ]


mallinfo2 = ctypes.CDLL(None).mallinfo2
mallinfo2.restype = MallocInfo


def kilobytes_in_use():
    """What has been allocated and not freed, also by Python with PYTHONMALLOC=malloc. The heap itself keeps more."""
    info = mallinfo2()
    return (info.uordblks + info.hblkhd) // 1024


class Notes(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        gc.collect()
        seed = self.model.layers[1].seed_generator.state.numpy().tolist()
        notes = (tfdist.rank(), tfdist.size(), kilobytes_in_use(), len(os.listdir("/proc/self/fd")), self.model.traces)
        with open(f"{NAME}.log", "a") as file:
            print(*notes, iterators.waits, *seed, file=file)

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = any(tfdist.allgather_object(Path("enough").exists()))


def train():
    tfdist.init()
    keras.utils.set_random_seed(5)
    layers = [keras.layers.Dense(16, activation="tanh"), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
    model = Counted([keras.Input((8,)), *layers])
    model.compile(keras.optimizers.SGD(0.001, momentum=0.9), "mse")
    x = np.random.default_rng(0).normal(size=(SAMPLES, 8)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True)))
    callbacks = [tfdist.callbacks.DataParallel(elastic=True), Notes()]
    model.fit(tfdist.shard(data).batch(BATCH), epochs=10**9, callbacks=callbacks, verbose=0)
    np.savez(f"{NAME}.npz", *model.get_weights())


if __name__ == "__main__":
    train()
