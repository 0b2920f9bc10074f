r"""Trains in an elastic job: ranks may be lost, and others may join, and it takes the steps of a job that lost nobody.

    python examples/jobs/elastic.py                              # one process
    tfdistrun -np 2 --elastic python examples/jobs/elastic.py    # two, of which one may be lost
    CODE=$PWD/examples ELASTIC_COMMAND="python jobs/elastic.py" \
        docker compose -f compose/elastic.yaml run --rm launcher    # two containers, which may come and go

    sbatch examples/jobs/elastic.sbatch                          # on the nodes of a job of Slurm
    tfdist chaos --kill-rank-every 20s --most 1 -- tfdistrun -np 2 --elastic python examples/jobs/elastic.py

The last command kills a rank, to watch the other one continue. However many ranks are lost, the script ends with 230
steps, and with the accuracy on 360 digits, 0.9 or more, of a job that lost none.
The lines marked with <-- are what elastic training on several processes takes.
"""

import argparse

import keras
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import tfdist


class RankCount(keras.callbacks.Callback):
    """Prints how many ranks train, at the beginning of each epoch; and again when an epoch goes on after a loss."""

    def on_epoch_begin(self, epoch, logs=None):
        if tfdist.rank() == 0:
            print(f"epoch {epoch + 1}: ranks {tfdist.size()}", flush=True)


def load_data(batch_size):
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype("float32")
    x, x_val, y, y_val = train_test_split(images, labels, test_size=360, random_state=0, stratify=labels)
    samples = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed=1)
    # `batch_size` images are those of all ranks together, so the steps are the same on any number of ranks.
    return tfdist.shard(samples, global_batch=batch_size), (x_val, y_val)  # <-- 1: this process's part


def build_model():
    layers = [keras.Input((64,)), keras.layers.Dense(128, activation="relu")]
    model = keras.Sequential([*layers, keras.layers.Dense(10, activation="softmax")])
    model.compile(keras.optimizers.Adam(1e-3), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=60, help="images per step of all ranks together")
    options = parser.parse_args()

    tfdist.init()
    keras.utils.set_random_seed(1)
    train, validation = load_data(options.batch_size)
    model = build_model()
    callbacks = [
        tfdist.callbacks.DataParallel(elastic=True),  # <-- 2: train together, without those that are lost
        RankCount(),
    ]
    model.fit(train, epochs=options.epochs, callbacks=callbacks, verbose=0)
    accuracy = model.evaluate(*validation, batch_size=360, verbose=0, return_dict=True)["accuracy"]
    if tfdist.rank() == 0:
        print(f"steps: {int(model.optimizer.iterations)}, validation accuracy: {accuracy:.3f}")


if __name__ == "__main__":
    main()
