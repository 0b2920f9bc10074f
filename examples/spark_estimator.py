"""Trains on a DataFrame of Spark with an Estimator, and adds its predictions to another.

    python examples/spark_estimator.py                                  # two ranks in local mode
    python examples/spark_estimator.py --master spark://host:7077 --store s3://bucket/digits
    spark-submit examples/spark_estimator.py --store /shared/digits

The store is a folder that the driver and all executors reach. See docs/spark.md.
"""

import argparse
import os
import sys
import tempfile

import keras
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.linalg import Vectors
from pyspark.sql import SparkSession, functions
from sklearn.datasets import load_digits

from tfdist.spark.keras import KerasEstimator
from tfdist.spark.store import Store


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--master", help="of Spark, such as spark://host:7077 (default: what spark-submit says, or local)"
    )
    parser.add_argument("--store", help="path or address of the store (default: a temporary folder, for one machine)")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=20)
    return parser.parse_args()


def frame_of_digits(spark):
    """A column of vectors, and one of labels."""
    images, labels = load_digits(return_X_y=True)
    rows = [(Vectors.dense(image / 16), float(label)) for image, label in zip(images, labels, strict=True)]
    return spark.createDataFrame(rows, ["image", "label"])


def main():
    options = parse()
    # Tasks run this interpreter, unless somebody has said otherwise.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("digits")
    if options.master is not None or "PYSPARK_GATEWAY_PORT" not in os.environ:  # which spark-submit sets
        builder = builder.master(options.master or f"local[{options.ranks}]")
    spark = builder.getOrCreate()
    train, test = frame_of_digits(spark).randomSplit([0.8, 0.2], seed=1)
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    with tempfile.TemporaryDirectory() as folder:
        estimator = KerasEstimator(
            model=model,
            optimizer=keras.optimizers.Adam(1e-3),
            loss="sparse_categorical_crossentropy",
            metrics=["accuracy"],
            feature_cols=["image"],
            label_cols=["label"],
            store=Store.create(options.store or folder),
            num_proc=options.ranks,
            batch_size=32,
            epochs=options.epochs,
            validation=0.1,
        )
        fitted = estimator.fit(train).setOutputCols(["probabilities"])
    likeliest = functions.udf(lambda values: float(values.argmax()), "double")
    predicted = fitted.transform(test).withColumn("prediction", likeliest("probabilities"))
    accuracy = MulticlassClassificationEvaluator(metricName="accuracy").evaluate(predicted)
    spark.stop()
    print(f"test accuracy: {accuracy:.4f}")


if __name__ == "__main__":
    main()
