"""The `tfdist bench` command from its words to its exit status. Only a benchmark that really runs loads TensorFlow."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from tfdist.bench import option

# Found by name when it is time: importing them imports TensorFlow.
_BENCHMARKS = {
    option.Allreduce: "tfdist.bench.allreduce",
    option.Train: "tfdist.bench.train",
    option.Starts: "tfdist.bench.start",
    option.Record: "tfdist.bench.scale_record",
    option.Scale: "tfdist.bench.scale",
}


def main(words: Sequence[str]) -> int:
    """Runs the benchmark that the words name. Raises ConfigError, on every rank alike."""
    options = option.parse(words)
    importlib.import_module(_BENCHMARKS[type(options)]).run(options)
    return 0
