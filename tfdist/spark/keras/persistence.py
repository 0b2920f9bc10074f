"""Stages of a pipeline on a file system of Spark: metadata as its own stages have them, and one row with the rest."""

from __future__ import annotations

from typing import Any

import cloudpickle
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReader, MLWriter

_STATE = "state"


class Writer(MLWriter):
    """Writes a stage that has `_state`."""

    def __init__(self, stage: Any) -> None:
        super().__init__()
        self._stage = stage

    def saveImpl(self, path: str) -> None:  # noqa: N802  (Spark's name)
        """Called by `save`."""
        DefaultParamsWriter.saveMetadata(self._stage, path, self.sparkSession.sparkContext, paramMap={})
        row = (bytearray(cloudpickle.dumps(self._stage._state())),)
        self.sparkSession.createDataFrame([row], f"{_STATE} binary").coalesce(1).write.parquet(f"{path}/{_STATE}")


class Reader(MLReader):
    """Reads a stage that has `_restored`. Runs code that its author has put there, as pickle does."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self._kind = kind

    def load(self, path: str) -> Any:
        """The stage at a path."""
        metadata = DefaultParamsReader.loadMetadata(path, self.sparkSession.sparkContext)
        row = self.sparkSession.read.parquet(f"{path}/{_STATE}").first()
        stage = self._kind._restored(cloudpickle.loads(bytes(row[_STATE])))
        stage._resetUid(metadata["uid"])
        return stage
