"""Trains from HDF5 files by a reader of tensorflow-io, which loads into TensorFlow 2.16 only.

    pip install '.[cpu,io]' scikit-learn
    python examples/hdf5.py
    tfdistrun -np 2 python examples/hdf5.py

With a newer TensorFlow, docs/data-service.md says what reads such files instead.
"""

import argparse
import tempfile
from pathlib import Path

import h5py
import keras
import tensorflow as tf
from sklearn.datasets import load_digits

import tfdist


def write_digits(folder):
    """Two files, with the datasets /images of shape [N, 64] and /labels of shape [N]."""
    images, labels = load_digits(return_X_y=True)
    for number in range(2):
        with h5py.File(folder / f"{number}.h5", "w") as file:
            file["images"] = images[number::2].astype("float32") / 16
            file["labels"] = labels[number::2].astype("int64")


def build_model():
    layers = [keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.003), loss, metrics=["accuracy"])
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5, help="default: 5")
    known = parser.parse_args()

    tfdist.init()
    keras.utils.set_random_seed(1)
    with tempfile.TemporaryDirectory() as folder:
        write_digits(Path(folder))
        images = tfdist.data_service.from_io("hdf5", f"{folder}/*.h5", dataset="/images")
        labels = tfdist.data_service.from_io("hdf5", f"{folder}/*.h5", dataset="/labels")
        data = tf.data.Dataset.zip((images, labels))
        data = tfdist.shard(data.shuffle(1000, seed=1)).batch(32)
        verbose = 2 if tfdist.rank() == 0 else 0
        history = build_model().fit(
            data, epochs=known.epochs, callbacks=[tfdist.callbacks.DataParallel()], verbose=verbose
        )
    if tfdist.rank() == 0:
        print(f"accuracy {history.history['accuracy'][-1]:.3f} with {tfdist.size()} processes")


if __name__ == "__main__":
    main()
