"""Stages of a pipeline on a file system of Spark: metadata as its own stages have them, and rows with the rest."""

from __future__ import annotations

from typing import Any

import cloudpickle
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReader, MLWriter

_STATE, _PLACE = "state", "place"
# Of a row. Each is in a task of its own, which spark.rpc.message.maxSize limits to 128 MiB.
_CHUNK_BYTES = 16 << 20


class Writer(MLWriter):
    """Writes a stage that has `_state`."""

    def __init__(self, stage: Any) -> None:
        super().__init__()
        self._stage = stage

    def saveImpl(self, path: str) -> None:  # noqa: N802  (Spark's name)
        """Called by `save`."""
        DefaultParamsWriter.saveMetadata(self._stage, path, self.sparkSession.sparkContext, paramMap={})
        state = cloudpickle.dumps(self._stage._state())
        rows = [(at, bytearray(state[at : at + _CHUNK_BYTES])) for at in range(0, len(state), _CHUNK_BYTES)]
        parts = self.sparkSession.sparkContext.parallelize(rows, len(rows))
        frame = self.sparkSession.createDataFrame(parts, f"{_PLACE} bigint, {_STATE} binary")
        frame.write.parquet(f"{path}/{_STATE}")


class Reader(MLReader):
    """Reads a stage that has `_restored`. Runs code that its author has put there, as pickle does."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self._kind = kind

    def load(self, path: str) -> Any:
        """The stage at a path."""
        metadata = DefaultParamsReader.loadMetadata(path, self.sparkSession.sparkContext)
        # One partition after the other, because spark.driver.maxResultSize limits all together.
        rows = list(self.sparkSession.read.parquet(f"{path}/{_STATE}").toLocalIterator())
        if _PLACE in rows[0]:  # unlike the single row of older ones
            rows.sort(key=lambda row: row[_PLACE])
        stage = self._kind._restored(cloudpickle.loads(b"".join(row[_STATE] for row in rows)))
        stage._resetUid(metadata["uid"])
        return stage
