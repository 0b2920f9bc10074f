r"""Trains a variational autoencoder: a model with a `train_step`, and without a `call`.

    python examples/custom_training/vae.py                       # one process
    tfdistrun -np 2 python examples/custom_training/vae.py       # two
    CODE=$PWD/examples COMMAND="python custom_training/vae.py" \
        docker compose -f compose/train.yaml up --exit-code-from launcher    # two containers

The script ends with the mean squared error of digits that went through encoder and decoder: less than half of the error
of the mean image, on any number of ranks.
The lines marked with <-- are what training on several processes takes.
"""

import argparse

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

import tfdist

PIXELS, LATENT = 64, 8


def build_network(outputs):
    return keras.Sequential([keras.layers.Dense(128, activation="relu"), keras.layers.Dense(outputs)])


class Vae(keras.Model):
    """Keras builds its layers in the first step; DataParallel sees to it that all ranks begin with equal weights."""

    def __init__(self):
        super().__init__()
        self.encoder = build_network(2 * LATENT)  # mean and logarithm of the variance
        self.decoder = build_network(PIXELS)
        self.seeds = keras.random.SeedGenerator(1)  # DataParallel makes it differ by rank

    def train_step(self, images):
        with tf.GradientTape() as tape:
            mean, log_variance = tf.split(self.encoder(images), 2, axis=1)
            noise = keras.random.normal(tf.shape(mean), seed=self.seeds)
            drawn = self.decoder(mean + tf.exp(log_variance / 2) * noise)
            error = tf.reduce_mean(tf.reduce_sum(tf.square(images - drawn), axis=1))
            divergence = tf.reduce_sum(tf.exp(log_variance) + tf.square(mean) - 1 - log_variance, axis=1)
            loss = error + 0.05 * tf.reduce_mean(divergence)
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"loss": loss, "error": error}

    def reconstruct(self, images):
        mean, _ = tf.split(self.encoder(images), 2, axis=1)
        return self.decoder(mean)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()

    tfdist.init()
    keras.utils.set_random_seed(1)
    images = (load_digits().data / 16).astype("float32")
    train, validation = images[:1500], images[1500:]
    samples = tf.data.Dataset.from_tensor_slices(train).shuffle(1500, seed=1)
    samples = tfdist.shard(samples, global_batch=50)  # <-- 1: this process's part
    model = Vae()
    model.compile(keras.optimizers.Adam(2e-3))
    callbacks = [tfdist.callbacks.DataParallel()]  # <-- 2: train together
    model.fit(samples, epochs=options.epochs, verbose=2, callbacks=callbacks)
    if tfdist.rank() == 0:
        error = tf.reduce_mean(tf.square(validation - model.reconstruct(validation)))
        of_mean = tf.reduce_mean(tf.square(validation - train.mean(axis=0)))
        print(f"mean squared error: {float(error):.4f}; of the mean image: {float(of_mean):.4f}")


if __name__ == "__main__":
    main()
