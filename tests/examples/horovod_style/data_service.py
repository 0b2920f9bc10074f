"""Handwritten digits, prepared by a compute job that a file tells of; its dispatchers run on either side."""

import argparse
import hashlib
import json

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

import horovod.tensorflow.keras as hvd
from horovod.tensorflow.data.compute_service import TfDataServiceConfig, tf_data_service

parser = argparse.ArgumentParser()
parser.add_argument("compute_service_config_file")
parser.add_argument("--reuse-dataset", action="store_true")
parser.add_argument("--round-robin", action="store_true")
args = parser.parse_args()

hvd.init()
compute_config = TfDataServiceConfig.read(args.compute_service_config_file, wait_for_file_creation=True)

images, labels = load_digits(return_X_y=True)
dataset = tf.data.Dataset.from_tensor_slices((tf.cast(images / 16, tf.float32), tf.cast(labels, tf.int64)))
dataset = dataset.repeat().shuffle(2000).batch(32)


def train(dataset):
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10, activation="softmax")]
    )
    # The learning rate grows with the number of ranks.
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.002 * hvd.size()))
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    verbose = 2 if hvd.rank() == 0 else 0
    return model, model.fit(
        dataset, steps_per_epoch=112 // hvd.size(), epochs=4, callbacks=callbacks, verbose=verbose
    ).history


if compute_config.dispatcher_side == "compute":
    dataset = dataset.send_to_data_service(
        compute_config, hvd.rank(), hvd.size(), reuse_dataset=args.reuse_dataset, round_robin=args.round_robin
    ).prefetch(tf.data.AUTOTUNE)
    model, history = train(dataset)
else:
    with tf_data_service(compute_config, hvd.rank()) as dispatcher_address:
        dataset = dataset.apply(
            tf.data.experimental.service.distribute(
                service=dispatcher_address,
                processing_mode="distributed_epoch",
                job_name="job" if args.reuse_dataset else None,
                consumer_index=hvd.rank() if args.round_robin else None,
                num_consumers=hvd.size() if args.round_robin else None,
            )
        ).prefetch(tf.data.AUTOTUNE)
        model, history = train(dataset)

weights = hashlib.sha256(b"".join(weight.tobytes() for weight in model.get_weights())).hexdigest()
print("result", json.dumps({"weights": weights, "accuracy": history["accuracy"]}))
hvd.allreduce(0.0)  # nobody needs the compute job any more
if hvd.rank() == 0:
    compute_config.compute_client(verbose=2).shutdown()
