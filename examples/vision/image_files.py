r"""Trains on image files with augmentation: each rank decodes only the images that it trains on.

    python examples/vision/image_files.py                        # one process
    tfdistrun -np 2 python examples/vision/image_files.py        # two
    CODE=$PWD/examples COMMAND="python vision/image_files.py --folder /tmp/images" \
        docker compose -f compose/train.yaml up --exit-code-from launcher    # two containers

The script writes handwritten digits as PNG files first, in a folder for each class. It ends with the accuracy on 360
images that it has not trained on: 0.9 or more, on any number of ranks.
The lines marked with <-- are what training on several processes takes.
"""

import argparse
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import tfdist

PIXELS = 16


def write_images(folder):
    """Every fifth image is for validation."""
    images, labels = load_digits(return_X_y=True)
    for number, (image, label) in enumerate(zip(images.reshape(-1, 8, 8, 1) * 15.9, labels, strict=True)):
        path = folder / ("validation" if number % 5 == 0 else "train") / str(label) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.kron(image, np.ones((2, 2, 1))).astype("uint8")  # from 8x8 to 16x16
        path.write_bytes(tf.io.encode_png(pixels).numpy())


def decode(path, label):
    image = tf.io.decode_png(tf.io.read_file(path), channels=1)
    return tf.ensure_shape(image, [PIXELS, PIXELS, 1]), label


def files(folder):
    """A dataset of paths and labels: to shuffle paths is cheaper than to shuffle images."""
    paths = sorted(folder.glob("*/*.png"))  # in the same order on all ranks
    return tf.data.Dataset.from_tensor_slices(
        ([str(path) for path in paths], [int(path.parent.name) for path in paths])
    )


def build_model():
    layers = [keras.Input((PIXELS, PIXELS, 1)), keras.layers.Rescaling(1 / 255)]
    # In the model, so that every rank draws its own random numbers, and none in validation.
    layers += [keras.layers.RandomTranslation(0.1, 0.1, "constant"), keras.layers.RandomZoom(0.1, fill_mode="constant")]
    layers += [keras.layers.RandomContrast(0.2, value_range=(0, 1))]
    layers += [keras.layers.Conv2D(16, 3, activation="relu"), keras.layers.MaxPooling2D()]
    layers += [keras.layers.Conv2D(32, 3, activation="relu"), keras.layers.Flatten()]
    layers += [keras.layers.Dense(10, activation="softmax")]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(2e-3), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("digit-images"), help="where the images are written")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=64, help="images per step of all ranks together")
    options = parser.parse_args()

    tfdist.init()
    keras.utils.set_random_seed(1)
    if tfdist.local_rank() == 0:  # the first rank of each host
        write_images(options.folder)
    tfdist.barrier()
    train = files(options.folder / "train").shuffle(10_000, seed=1).map(decode, num_parallel_calls=tf.data.AUTOTUNE)
    # The map is the last step before shard, so that a rank decodes its own images only.
    train = tfdist.shard(train, global_batch=options.batch_size).prefetch(2)  # <-- 1: this process's part
    validation = files(options.folder / "validation").map(decode).batch(120)  # whole on every rank
    model = build_model()
    history = model.fit(
        train,
        validation_data=validation,
        epochs=options.epochs,
        verbose=2,
        callbacks=[tfdist.callbacks.DataParallel()],  # <-- 2: train together
    ).history
    if tfdist.rank() == 0:
        print(f"validation accuracy: {history['val_accuracy'][-1]:.3f}")


if __name__ == "__main__":
    main()
