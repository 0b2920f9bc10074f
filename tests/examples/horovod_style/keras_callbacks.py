"""Handwritten digits with `fit` and all callbacks of hvd; rank 0 keeps the checkpoints."""

import argparse
import hashlib
import json

import keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import horovod.tensorflow.keras as hvd

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--warmup-epochs", type=int, default=3)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--base-lr", type=float, default=0.05)
parser.add_argument("--fp16-allreduce", action="store_true")
parser.add_argument("--checkpoints", default="checkpoint-{epoch}.keras")
args = parser.parse_args()

hvd.init()

images, labels = load_digits(return_X_y=True)
images = (images / 16).astype("float32").reshape(-1, 8, 8, 1)
x_train, x_test, y_train, y_test = train_test_split(images, labels, test_size=360, random_state=3)
# Every rank trains on its own images, equally many, and tests on its own share.
whole = len(x_train) // hvd.size() * hvd.size()
x_train, y_train = x_train[hvd.rank() : whole : hvd.size()], y_train[hvd.rank() : whole : hvd.size()]
x_test, y_test = x_test[hvd.rank() :: hvd.size()], y_test[hvd.rank() :: hvd.size()]

# No common seed: the broadcast makes the weights equal.
model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(16, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(48, activation="relu"),
        keras.layers.Dense(10, activation="softmax"),
    ]
)

# More ranks make larger batches, so the rate grows with them.
scaled_lr = args.base_lr * hvd.size()
compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(scaled_lr, momentum=0.9), compression=compression)
model.compile(optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])


class Rates(keras.callbacks.Callback):
    """The learning rate at the first step, and at the last step of each epoch."""

    def __init__(self):
        super().__init__()
        self.first, self.last = None, []

    def on_train_batch_end(self, batch, logs=None):
        if self.first is None:
            self.first = float(self.model.optimizer.learning_rate)

    def on_epoch_end(self, epoch, logs=None):
        self.last.append(float(self.model.optimizer.learning_rate))


rates = Rates()
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(scaled_lr, args.warmup_epochs, verbose=1),
    hvd.callbacks.LearningRateScheduleCallback(scaled_lr, 1.0, args.warmup_epochs, args.epochs - 2),
    hvd.callbacks.LearningRateScheduleCallback(scaled_lr, 0.1, args.epochs - 2),
    rates,
]
if hvd.rank() == 0:
    callbacks.append(keras.callbacks.ModelCheckpoint(args.checkpoints))

history = model.fit(
    x_train,
    y_train,
    batch_size=args.batch_size,
    epochs=args.epochs,
    validation_data=(x_test, y_test),
    callbacks=callbacks,
    verbose=2 if hvd.rank() == 0 else 0,
)

bits = b"".join(weight.tobytes() for weight in model.get_weights())
result = {name: values[-1] for name, values in history.history.items()}
result |= {"weights": hashlib.sha256(bits).hexdigest(), "first_rate": rates.first, "rates": rates.last}
print("result", json.dumps(result), flush=True)
