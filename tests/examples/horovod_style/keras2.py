"""Handwritten digits as scripts for Keras 2 have it: changed images, old names of arguments and methods."""

import argparse
import hashlib
import json

import keras
import numpy as np
import tensorflow as tf
from keras import backend as K
from keras.preprocessing.image import ImageDataGenerator
from sklearn.datasets import load_digits

import horovod
import horovod.keras as hvd
from horovod.common.util import is_version_greater_equal_than

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--batch-size", type=int, default=32)
args = parser.parse_args()

assert is_version_greater_equal_than(horovod.__version__, "0.19.0")
hvd.init()

config = tf.compat.v1.ConfigProto()
config.gpu_options.allow_growth = True
config.gpu_options.visible_device_list = str(hvd.local_rank())
K.set_session(tf.compat.v1.Session(config=config))

images, labels = load_digits(return_X_y=True)
images = (images / 16).astype("float32").reshape(-1, 8, 8, 1)
generator = ImageDataGenerator(width_shift_range=1.0, height_shift_range=1.0)
train = generator.flow(images[360:], labels[360:], batch_size=args.batch_size, seed=hvd.rank())
test = ImageDataGenerator().flow(images[:360], labels[:360], batch_size=args.batch_size, shuffle=False)

model = keras.Sequential(
    [
        keras.layers.Conv2D(16, 3, activation="relu", input_shape=(8, 8, 1)),
        keras.layers.Flatten(),
        keras.layers.Dense(48, activation="relu"),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(lr=0.05 * hvd.size(), momentum=0.9))
model.compile(
    loss="sparse_categorical_crossentropy",
    optimizer=optimizer,
    metrics=["accuracy"],
    experimental_run_tf_function=False,
)

callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.05 * hvd.size(), warmup_epochs=2, verbose=1),
]
if hvd.rank() == 0:
    callbacks.append(keras.callbacks.ModelCheckpoint("checkpoint-{epoch}.h5"))

history = model.fit_generator(
    train,
    steps_per_epoch=len(train) // hvd.size(),
    callbacks=callbacks,
    epochs=args.epochs,
    verbose=0,
    workers=2,
    validation_data=test,
    validation_steps=4 * len(test) // hvd.size(),
)
score = hvd.allreduce(model.evaluate_generator(test, len(test), workers=2, verbose=0)[1])
answer = {
    "weights": hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest(),
    "score": float(score),
    "rate": float(np.asarray(optimizer.lr)),
    "variables": len(optimizer.variables()),
    "val_accuracy": history.history["val_accuracy"][-1],
}
print("result", json.dumps(answer))
