"""Trains a small network on scikit-learn's handwritten digits, on the nodes of a Ray cluster.

    python examples/ray_digits.py                    # two ranks on this machine
    python examples/ray_digits.py --address auto     # or on the cluster that this machine belongs to

Each rank is a process below an actor of Ray. See docs/ray.md.
"""

import argparse

import ray

import tfdist.ray


def train(epochs):
    """What each rank runs; what it returns goes to the driver."""
    # Imported where it runs: each rank is a process of its own.
    import keras
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    import tfdist

    class Log(keras.callbacks.Callback):
        """Tells the driver how it goes."""

        def on_epoch_end(self, epoch, logs=None):
            tfdist.ray.log({"epoch": epoch, **{name: float(value) for name, value in (logs or {}).items()}})

    tfdist.init()
    keras.utils.set_random_seed(1)
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype("float32")
    x, x_val, y, y_val = train_test_split(images, labels, test_size=360, random_state=0, stratify=labels)
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(keras.optimizers.Adam(1e-3), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    x, y = tfdist.shard((x, y))
    history = model.fit(
        x,
        y,
        validation_data=(x_val, y_val),
        epochs=epochs,
        batch_size=32,
        verbose=0,
        callbacks=[tfdist.callbacks.DataParallel(), Log()],
    )
    weights = model.get_weights() if tfdist.rank() == 0 else None
    return max(history.history["val_accuracy"]), weights


def show(values):
    print(f"epoch {values['epoch']}: validation accuracy {values['val_accuracy']:.4f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", help="of a cluster, or auto (default: Ray starts on this machine)")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()

    if options.address is None:
        ray.init(address="local", num_cpus=options.ranks, include_dashboard=False)
    else:
        ray.init(address=options.address)
    executor = tfdist.ray.RayExecutor(num_workers=options.ranks)
    executor.start()
    results = executor.run(train, args=(options.epochs,), callbacks=[show])
    executor.shutdown()
    ray.shutdown()
    accuracy, weights = results[0]
    print(f"validation accuracy: {accuracy:.4f}, by a model of {sum(each.size for each in weights)} parameters")


if __name__ == "__main__":
    main()
