"""A fit whose callbacks decide by what they have seen, by tfdistrun in a folder of its own; VICTIMS as in training.py.

deciding.py VICTIMS
"""

import sys
import zlib

import keras
import numpy as np
import training

import tfdist

# Nothing is an improvement after the first epoch: the rate is halved after epoch 2, and epoch 3 is the last.
NEVER = {"monitor": "loss", "min_delta": 1e9}


class Counter(keras.callbacks.Callback):
    """Of the script's own, which says what ranks that join take over. Notes the weights at the end of each epoch."""

    elastic_attributes = ("epochs", "digest")
    epochs = digest = 0

    def on_epoch_end(self, epoch, logs=None):
        self.epochs += 1
        self.digest = digest_of(self.model, self.digest)


def digest_of(model, before=0):
    return zlib.crc32(b"".join(np.asarray(variable).tobytes() for variable in model.trainable_variables), before)


def train(victims):
    tfdist.init()
    number = tfdist.rank()
    killers = {int(rank): training.Killer(int(step), how) for rank, step, how in (one.split(":") for one in victims)}
    model = training.make_model()
    model.compile(keras.optimizers.SGD(training.RATE, momentum=0.9, use_ema=True), "mse")
    data = tfdist.shard(training.make_data()).batch(training.BATCH)
    counter, stopping = Counter(), keras.callbacks.EarlyStopping(patience=3, restore_best_weights=True, **NEVER)
    callbacks = [
        tfdist.callbacks.DataParallel(elastic=True, batches_per_commit=25),
        tfdist.callbacks.BackupAndRestore("backup", save_freq=25),
        tfdist.callbacks.ModelCheckpoint("model-{epoch}-{batch}.keras", save_freq=25),
        keras.callbacks.ReduceLROnPlateau(patience=2, factor=0.5, **NEVER),
        stopping,
        counter,
        keras.callbacks.SwapEMAWeights(swap_on_epoch=True),
    ]
    callbacks += [killers[number]] if number in killers else []
    history = model.fit(data, epochs=8, callbacks=callbacks, verbose=0)
    weights = f"{digest_of(model)} {counter.digest}"
    rate = float(model.optimizer.learning_rate) / training.RATE
    epochs = f"{len(history.epoch)} {counter.epochs} {stopping.stopped_epoch}"
    print(f"ends after {epochs} with {weights} at {rate:g}", flush=True)


if __name__ == "__main__":
    train([victim for victim in sys.argv[1].split(",") if victim])
