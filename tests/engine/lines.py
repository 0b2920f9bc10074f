"""A small DataFrame, and an Estimator for it."""

import keras
from pyspark.sql import functions

from tfdist.spark.keras import KerasEstimator

ROWS = 45


def line(tmp_path, **parameters):
    """An estimator of a small model, with two outputs of one value."""
    keras.utils.set_random_seed(2)
    entry = keras.Input((1,))
    model = keras.Model(entry, [keras.layers.Dense(1)(entry), keras.layers.Dense(1)(entry)])
    model.compile(keras.optimizers.SGD(0.01), ["mse", "mae"], loss_weights=[1.0, 0.5])
    given = {"feature_cols": ["x"], "label_cols": ["y", "z"], "num_proc": 2, "partitions_per_process": 1}
    return KerasEstimator(**{"model": model, "store": str(tmp_path), "verbose": 0, **given, **parameters})


def points(spark, rows=ROWS):
    return (
        spark.range(rows)
        .select(
            functions.col("id").cast("double").alias("x"),
            (2 * functions.col("id")).alias("y"),
            functions.lit(1.0).alias("z"),
            functions.col("id") % 3 == 0,
        )
        .toDF("x", "y", "z", "third")
    )
