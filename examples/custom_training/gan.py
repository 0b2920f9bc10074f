r"""Trains a GAN: two networks with an optimizer each, in a `train_step`.

    python examples/custom_training/gan.py                       # one process
    tfdistrun -np 2 python examples/custom_training/gan.py       # two
    CODE=$PWD/examples COMMAND="python custom_training/gan.py" \
        docker compose -f compose/train.yaml up --exit-code-from launcher    # two containers

The generator learns points on a circle of radius 1. The script ends with how many of 1,000 generated points are less
than 0.3 away from the circle, 80 % or more, and with how many of its 8 parts there are points in: 6 or more.
The lines marked with <-- are what training on several processes takes.
"""

import argparse

import keras
import numpy as np
import tensorflow as tf

import tfdist

NOISE = 4


def draw_points(count):
    random = np.random.default_rng(1)
    angles = random.uniform(0, 2 * np.pi, count)
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return (circle + random.normal(0, 0.03, circle.shape)).astype("float32")


def build_network(inputs, outputs):
    hidden = [keras.layers.Dense(64, activation="leaky_relu") for _ in range(2)]
    return keras.Sequential([keras.Input((inputs,)), *hidden, keras.layers.Dense(outputs)])


class Gan(keras.Model):
    """DataParallel finds every optimizer that is an attribute of the model."""

    def __init__(self):
        super().__init__()
        self.generator = build_network(NOISE, 2)
        self.critic = build_network(2, 1)
        self.loss_of = keras.losses.BinaryCrossentropy(from_logits=True)
        self.seeds = keras.random.SeedGenerator(1)  # DataParallel makes it differ by rank

    def compile(self, generator_optimizer, critic_optimizer):
        super().compile()
        self.generator_optimizer, self.critic_optimizer = generator_optimizer, critic_optimizer

    def draw(self, count):
        return self.generator(keras.random.normal((count, NOISE), seed=self.seeds))

    def train_step(self, real):
        count = tf.shape(real)[0]
        with tf.GradientTape(persistent=True) as tape:
            fake = self.draw(count)
            on_real, on_fake = self.critic(real), self.critic(fake)
            critic_loss = self.loss_of(tf.ones_like(on_real), on_real) + self.loss_of(tf.zeros_like(on_fake), on_fake)
            generator_loss = self.loss_of(tf.ones_like(on_fake), on_fake)
        for network, optimizer, loss in (
            (self.critic, self.critic_optimizer, critic_loss),
            (self.generator, self.generator_optimizer, generator_loss),
        ):
            variables = network.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"critic_loss": critic_loss, "generator_loss": generator_loss}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=24)
    options = parser.parse_args()

    tfdist.init()
    keras.utils.set_random_seed(1)
    points = tf.data.Dataset.from_tensor_slices(draw_points(6400)).shuffle(6400, seed=1)
    points = tfdist.shard(points, global_batch=256)  # <-- 1: this process's part
    model = Gan()
    model.compile(keras.optimizers.Adam(1e-3, beta_1=0.5), keras.optimizers.Adam(2e-3, beta_1=0.5))
    callbacks = [tfdist.callbacks.DataParallel()]  # <-- 2: train together
    model.fit(points, epochs=options.epochs, verbose=2, callbacks=callbacks)
    if tfdist.rank() == 0:
        drawn = model.draw(1000).numpy()
        near = np.abs(np.linalg.norm(drawn, axis=1) - 1) < 0.3
        parts = np.unique(np.floor(np.arctan2(drawn[near, 1], drawn[near, 0]) / (np.pi / 4)))
        print(f"generated points near the circle: {near.mean():.0%}, in {len(parts)} of 8 parts")


if __name__ == "__main__":
    main()
