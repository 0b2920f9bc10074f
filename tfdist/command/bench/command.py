"""The `tfdist bench` command from its words to its exit status. Only a benchmark that really runs loads TensorFlow."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from tfdist.command.bench import option
from tfdist.command.bench.measure import request

# Found by name when it is time: importing them imports TensorFlow.
_BENCHMARKS = {
    request.Allreduce: "tfdist.command.bench.allreduce.allreduce",
    request.Train: "tfdist.command.bench.train.train",
    request.Starts: "tfdist.command.bench.train.start",
    request.Record: "tfdist.command.bench.scale_record",
    request.Scale: "tfdist.command.bench.scale",
}


def main(words: Sequence[str]) -> int:
    """Runs the benchmark that the words name. Raises ConfigError, on every rank alike."""
    options = option.parse(words)
    importlib.import_module(_BENCHMARKS[type(options)]).run(options)
    return 0
