"""Trains a small network on scikit-learn's handwritten digits, on the executors of a Spark application.

    python examples/spark_digits.py                                  # two ranks in local mode
    python examples/spark_digits.py --master spark://host:7077       # or on a cluster
    spark-submit examples/spark_digits.py                            # or where spark-submit says

Each rank is a process of a task of Spark. See docs/spark.md.
"""

import argparse
import os
import sys

from pyspark.sql import SparkSession

import tfdist.spark


def train(epochs):
    """What each rank runs; what it returns goes to the driver."""
    # Imported where it runs: each rank is a process of its own.
    import keras
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    import tfdist

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
        verbose=2,
        callbacks=[tfdist.callbacks.DataParallel()],
    )
    weights = model.get_weights() if tfdist.rank() == 0 else None
    return max(history.history["val_accuracy"]), weights


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--master", help="of Spark, such as spark://host:7077 (default: what spark-submit says, or local)"
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()

    # Tasks run this interpreter, unless somebody has said otherwise.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("digits")
    if options.master is not None or "PYSPARK_GATEWAY_PORT" not in os.environ:  # which spark-submit sets
        builder = builder.master(options.master or f"local[{options.ranks}]")
    spark = builder.getOrCreate()
    results = tfdist.spark.run(train, args=(options.epochs,), num_proc=options.ranks)
    spark.stop()
    accuracy, weights = results[0]
    print(f"validation accuracy: {accuracy:.4f}, by a model of {sum(each.size for each in weights)} parameters")


if __name__ == "__main__":
    main()
