"""A training that ends in the middle, for tests of what continues from there. No test of its own."""

import keras


class Interrupted(Exception):
    """Stands for whatever ends a job."""


class AtBatch(keras.callbacks.Callback):
    """Knows when a training has come to one batch."""

    def __init__(self, epoch, batch):
        super().__init__()
        self.at = (epoch, batch)

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def is_there(self, batch):
        return (self.epoch, batch) == self.at


class StopAt(AtBatch):
    """Interrupts after one batch."""

    def on_train_batch_end(self, batch, logs=None):
        if self.is_there(batch):
            raise Interrupted
