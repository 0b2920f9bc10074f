r"""Trains a Transformer on text, with mixed precision and a large vocabulary whose gradients are sparse.

    python examples/text/transformer.py                          # one process
    tfdistrun -np 2 python examples/text/transformer.py          # two
    CODE=$PWD/examples COMMAND="python text/transformer.py" \
        docker compose -f compose/train.yaml up --exit-code-from launcher    # two containers

The text is made up: reviews in which "not" turns the verdict of the next word around. The script ends with the accuracy
on other reviews, 0.9 or more on any number of ranks, and with the bytes of gradients that a rank has reduced per step:
far less than the embedding has, whose gradient, a tf.IndexedSlices, only has the rows of the words in a batch.
The lines marked with <-- are what training on several processes takes.
"""

import argparse

import keras
import numpy as np
import tensorflow as tf

import tfdist

WORDS = 12  # of a review


def make_reviews(count, vocabulary, random):
    """Many neutral words, a verdict, and in half of the reviews "not" before it."""
    words = random.choice([f"word{number}" for number in range(vocabulary)], (count, WORDS))
    good, negated = random.integers(0, 2, (2, count))
    place = random.integers(1, WORDS, count)
    words[np.arange(count), place] = np.where(good, "good", "bad")
    words[np.arange(count), place - 1] = np.where(negated, "not", words[np.arange(count), place - 1])
    return np.array([" ".join(review) for review in words]), good ^ negated


class Block(keras.layers.Layer):
    """Self-attention and a dense layer, each around a shortcut."""

    def __init__(self, width, heads):
        super().__init__()
        self.attention = keras.layers.MultiHeadAttention(heads, width // heads)
        self.dense = keras.Sequential([keras.layers.Dense(2 * width, activation="gelu"), keras.layers.Dense(width)])
        self.norms = [keras.layers.LayerNormalization(), keras.layers.LayerNormalization()]

    def call(self, x):
        y = self.norms[0](x)
        x += self.attention(y, y)
        return x + self.dense(self.norms[1](x))


def build_model(vocabulary, width):
    inputs = keras.Input((WORDS,), dtype="int64")
    places = keras.layers.Embedding(WORDS, width)(keras.ops.arange(WORDS))
    x = keras.layers.Embedding(vocabulary, width)(inputs) + places
    x = keras.layers.GlobalMaxPooling1D()(Block(width, heads=2)(x))
    outputs = keras.layers.Dense(1, activation="sigmoid", dtype="float32")(x)  # probabilities need all their digits
    return keras.Model(inputs, outputs)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default="mixed_float16", help="or mixed_bfloat16, for which no loss is scaled")
    parser.add_argument("--vocabulary", type=int, default=10_000)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()

    tfdist.init()
    keras.utils.set_random_seed(1)
    keras.mixed_precision.set_global_policy(options.policy)
    texts, labels = make_reviews(3000, options.vocabulary, np.random.default_rng(1))
    lookup = keras.layers.TextVectorization(output_sequence_length=WORDS)
    lookup.adapt(texts)  # to all texts on every rank, before tfdist.shard, so that the ranks number words alike
    rows = lookup(texts)
    model = build_model(lookup.vocabulary_size(), options.width)
    model.compile(keras.optimizers.Adam(2e-3), "binary_crossentropy", metrics=["accuracy"], jit_compile=False)
    samples = tf.data.Dataset.from_tensor_slices((rows[:2500], labels[:2500])).shuffle(2500, seed=1)
    samples = tfdist.shard(samples, global_batch=50).prefetch(2)  # <-- 1: this process's part
    history = model.fit(
        samples,
        validation_data=(rows[2500:], labels[2500:]),
        epochs=options.epochs,
        verbose=2,
        callbacks=[tfdist.callbacks.DataParallel()],  # <-- 2: train together
    ).history
    reduced = sum(each["bytes"] for name, each in tfdist.metrics()["collectives"].items() if name != "broadcast")
    if tfdist.rank() == 0:
        table = lookup.vocabulary_size() * options.width * 4
        print(f"validation accuracy: {history['val_accuracy'][-1]:.3f}")
        print(f"reduced per step: {reduced // int(model.optimizer.iterations)} bytes; the embedding has {table}")


if __name__ == "__main__":
    main()
