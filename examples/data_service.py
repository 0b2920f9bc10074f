r"""Trains on images that take longer to prepare than to learn from, and tells how long training waited for them.

    python examples/data_service.py                                  # prepared in the trainer
    tfdistrun -np 2 --data-workers 2 python examples/data_service.py --data-service job    # two, and two workers
    CODE=$PWD/examples DATA_COMMAND="python data_service.py --data-service dispatcher:5050 --folder /data/digits" \
        docker compose -f compose/data-service.yaml up --exit-code-from trainer    # a trainer and two workers

    python examples/data_service.py --data-service 2                 # by two processes beside it

With workers that were started in other shells, here or on other machines (then with their --host):

    tfdist data-service dispatcher --port 5050
    tfdist data-service worker --dispatcher localhost:5050
    python examples/data_service.py --data-service localhost:5050

The line marked with <-- is what moving the preparation takes.
"""

import argparse
import contextlib
import uuid
from pathlib import Path

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

import tfdist

PIXELS = 64


def write_images(folder, count):
    """Digits as PNG files, in a folder for each label."""
    images, labels = load_digits(return_X_y=True)
    for number, (image, label) in enumerate(zip(images[:count], labels, strict=False)):
        pixels = tf.image.resize(tf.reshape(image, [8, 8, 1]) * 15.9, [PIXELS, PIXELS], "bicubic", antialias=True)
        path = folder / str(label) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(tf.io.encode_png(tf.saturate_cast(pixels, tf.uint8)).numpy())


def augment(image, label):
    """What a camera might have done to it."""
    image = tf.image.grayscale_to_rgb(image / 255)
    image = tf.image.random_brightness(tf.image.random_contrast(image, 0.6, 1.4), 0.2)
    image = tf.image.random_crop(tf.image.resize(image, [PIXELS + 16, PIXELS + 16], "lanczos5"), [PIXELS, PIXELS, 3])
    for _ in range(4):
        image = tf.image.random_jpeg_quality(tf.clip_by_value(image, 0, 1), 30, 90)
    return tf.image.resize(image, [16, 16], "area"), label


def build_model():
    layers = [keras.Input((16, 16, 3)), keras.layers.Conv2D(64, 3, activation="relu")]
    layers += [keras.layers.Conv2D(128, 3, activation="relu"), keras.layers.MaxPooling2D()]
    layers += [keras.layers.Flatten(), keras.layers.Dense(10, activation="softmax")]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(2e-3), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-service", metavar="WHERE", help="number of workers, HOST:PORT, or job; default: none")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--images", type=int, default=1797)
    parser.add_argument("--folder", type=Path, default=Path("digit-images"), help="where the images are written")
    options = parser.parse_args()

    tfdist.init()
    with contextlib.ExitStack() as stack:
        folder = options.folder.resolve()  # the trainer and all workers find it under this path
        if tfdist.rank() == 0:
            write_images(folder, options.images)
        tfdist.barrier()
        dataset = tfdist.data_service.from_images(
            folder, (PIXELS, PIXELS), batch_size=32, channels=1, shuffle=500, seed=1
        )
        dataset = dataset.repeat().unbatch().map(augment, num_parallel_calls=tf.data.AUTOTUNE).batch(32)
        where = options.data_service
        if where is not None:
            if where.isdigit():
                where = stack.enter_context(tfdist.data_service.Cluster(int(where))).address
            job = tfdist.broadcast_object(uuid.uuid4().hex)  # the same on all ranks, and never used before
            where = None if where == "job" else where
            dataset = tfdist.data_service.distribute(dataset, where, job_name=job)  # <--
        dataset = tfdist.shard(dataset)
        history = (
            build_model()
            .fit(
                tfdist.data_service.measure_wait(dataset.prefetch(2)),
                epochs=options.epochs,
                steps_per_epoch=max(1, options.images // 32 // tfdist.size()),
                callbacks=[tfdist.callbacks.DataParallel(), tfdist.callbacks.DataWait()],
                verbose=2,
            )
            .history
        )
    if tfdist.rank() == 0:
        print(f"accuracy: {history['accuracy'][-1]:.3f}")
        print(f"waited for data: {history['data_wait_share'][-1]:.0%} of the last epoch")


if __name__ == "__main__":
    main()
