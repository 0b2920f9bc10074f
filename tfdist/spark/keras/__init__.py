"""Estimators of Spark ML that train models of Keras: Horovod's `horovod.spark.keras`."""

from __future__ import annotations

from tfdist.errors import BuildError

try:
    import pandas as _pandas  # noqa: F401
    import pyarrow as _pyarrow  # noqa: F401
    import pyspark.ml as _ml  # noqa: F401
except ImportError as error:
    raise BuildError(
        f"tfdist.spark.keras needs more packages: {error}. Install them: pip install 'tfdist[spark]'"
    ) from None

from tfdist.spark.keras.estimator import KerasEstimator
from tfdist.spark.keras.model import KerasModel
from tfdist.spark.store import LocalStore, Store

__all__ = ["KerasEstimator", "KerasModel", "LocalStore", "Store"]
