"""The `tfdist bench` command. TensorFlow is loaded only if a benchmark actually runs."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from tfdist.command.bench import option
from tfdist.command.bench.measure import request

# Imported by name when needed, because importing them imports TensorFlow.
_BENCHMARKS = {
    request.Allreduce: "tfdist.command.bench.allreduce.allreduce",
    request.Train: "tfdist.command.bench.train.train",
    request.Starts: "tfdist.command.bench.train.start",
    request.Record: "tfdist.command.bench.scale_record",
    request.Scale: "tfdist.command.bench.scale",
}
parser = option.parser


def main(words: Sequence[str]) -> int:
    """Runs the benchmark named by the arguments. Raises ConfigError, the same on every rank."""
    options = option.parse(words)
    importlib.import_module(_BENCHMARKS[type(options)]).run(options)
    return 0
