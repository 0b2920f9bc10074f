"""A training that ends in the middle, for tests of what continues from there. No test of its own."""

import keras


class Interrupted(Exception):
    """Stands for whatever ends a job."""


class StopAt(keras.callbacks.Callback):
    """Interrupts after one batch."""

    def __init__(self, epoch, batch):
        super().__init__()
        self.at = (epoch, batch)

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.epoch, batch) == self.at:
            raise Interrupted
