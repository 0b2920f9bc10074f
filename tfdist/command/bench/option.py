"""The options of `tfdist bench`: names, help texts, and all checks that need no measurement."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tfdist.command.bench.allreduce import case, plot
from tfdist.command.bench.measure import size
from tfdist.command.bench.measure.request import SCHEDULES, Allreduce, Record, Scale, Starts, Train
from tfdist.command.bench.train import network
from tfdist.config import COMPRESSIONS
from tfdist.errors import ConfigError
from tfdist.system.terminal import command_line
from tfdist.system.terminal.command_line import Parser, whole

_ALLREDUCE = """\
Times tfdist.grouped_allreduce inside a tf.function, and checks its results, on the ranks it runs on.

examples:
  tfdistrun -np 2 tfdist bench allreduce
  tfdistrun -np 2 tfdist bench allreduce --sizes 4KB,1MB,100MB --tensors 1,160 --compression none,fp16
  tfdistrun -np 4 tfdist bench allreduce --sizes 1KB,32KB,1MB,32MB --csv out.csv --plot out.png
"""

_TRAIN = """\
Times the steps of model.fit on synthetic images with DataParallel, on the ranks it runs on.

examples:
  tfdistrun -np 2 tfdist bench train --model ResNet50 --image-size 96 --batch-size 8 --compare-single
  tfdistrun -np 2 tfdist bench train --model VGG16 --image-size 64 --batch-size 8 --compression fp16
  tfdist bench train --starts 5 --ranks 2 --model VGG16 --image-size 64 --batch-size 8
"""

_SCALE = """\
Predicts the efficiency of a recorded training step on clusters you do not have access to. Starts no ranks.

examples:
  tfdist bench scale --record ResNet50 --image-size 96 --batch-size 8 --output resnet50.json
  tfdist bench scale --record VGG16 --image-size 224 --batch-size 64 --throughput 130.9 --output vgg16.json
  tfdist bench scale --step resnet50.json vgg16.json --cluster cluster.json --plot scale.png
"""


_positive = whole("a number", 1)

# The options of the two forms of `tfdist bench scale`, and their defaults.
_RECORDING: dict[str, Any] = {
    "image_size": 96,
    "batch_size": 8,
    "throughput": None,
    "steps": 20,
    "warmup": 3,
    "threads": 1,
}
_SCALING: dict[str, Any] = {
    "gpus": None,
    "compression": ("none",),
    "schedule": ("hierarchical",),
    "no_overlap": False,
    "threshold": None,
    **dict.fromkeys(("csv", "json", "plot")),
}


def parser() -> argparse.ArgumentParser:
    """The options, one group for each benchmark."""
    top = Parser(prog="tfdist bench", description="Times collectives and training steps, and predicts scaling.")
    benchmarks = top.add_subparsers(dest="benchmark", metavar="BENCHMARK", required=True)
    add = benchmarks.add_parser
    _add_allreduce(add("allreduce", help="time the grouped allreduce", description=_ALLREDUCE))
    _add_train(add("train", help="time the steps of model.fit", description=_TRAIN))
    _add_scale(add("scale", help="predict the scaling efficiency on many GPUs", description=_SCALE))
    return top


def parse(words: Sequence[str]) -> Allreduce | Train | Starts | Record | Scale:
    """The options of the benchmark named by the first argument. Raises ConfigError."""
    known = parser().parse_args(words)
    for path in (known.csv, known.json, getattr(known, "plot", None), getattr(known, "output", None)):
        if path is not None:
            _check_folder(path)
    if known.benchmark == "scale":
        return _scale(known)
    return _allreduce(known) if known.benchmark == "allreduce" else _train(known)


def _add_allreduce(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--sizes",
        type=_list(size.parse),
        default=(4 << 10, 1 << 20, 100 << 20),
        metavar="LIST",
        help="bytes per collective, such as 4096,4KB,1MB,2GB; powers of 1,024 (default: 4KB,1MB,100MB)",
    )
    add(
        "--tensors",
        type=_list(_positive),
        default=(1,),
        metavar="LIST",
        help="numbers of tensors into which each size is divided (default: 1)",
    )
    add(
        "--dtypes",
        type=_list(_choice(tuple(case.ELEMENT_BYTES))),
        default=("float32",),
        metavar="LIST",
        help=f"any of {', '.join(case.ELEMENT_BYTES)} (default: float32)",
    )
    add(
        "--compression",
        type=_list(_choice(tuple(COMPRESSIONS))),
        default=tuple(COMPRESSIONS),
        metavar="LIST",
        help=f"any of {', '.join(COMPRESSIONS)} (default: all)",
    )
    add("--op", choices=case.OPERATIONS, default="average", help="the reduction (default: %(default)s)")
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument(
        "--rounds", type=_positive, metavar="N", help="rounds; each measures every row once (default: by --seconds)"
    )
    budget.add_argument(
        "--seconds",
        type=command_line.amount("seconds"),
        default=5.0,
        metavar="S",
        help="time per size: as many rounds as fit, 5 to 1,000 (default: %(default)g)",
    )
    add("--eager", action="store_true", help="call the collective eagerly, not inside a tf.function")
    _add_threads(parser)
    _add_files(parser)
    add("--plot", type=Path, metavar="PATH.png", help="plot bandwidth over size; needs: pip install matplotlib")


def _add_train(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--model",
        default="ResNet50",
        metavar="NAME",
        help=f"a network of keras.applications, or {network.DIGITS} to try the command (default: ResNet50)",
    )
    add("--image-size", type=_positive, default=96, metavar="PIXELS", help="height and width (default: %(default)s)")
    add("--batch-size", type=_positive, default=8, metavar="N", help="images per rank and step (default: %(default)s)")
    add("--compression", choices=COMPRESSIONS, default="none", help="gradient compression (default: %(default)s)")
    add("--jit-compile", action="store_true", help="compile the step with XLA (default: Keras decides)")
    add(
        "--compare-single",
        action="store_true",
        help="also time a single process, in turn with the ranks, and print the efficiency",
    )
    add("--plain", action="store_true", help="train without tfdist; for one process without a launcher")
    add("--steps", type=_positive, default=5, metavar="N", help="timed steps per round (default: %(default)s)")
    add("--rounds", type=_positive, default=6, metavar="N", help="rounds (default: %(default)s)")
    add("--warmup", type=_positive, default=3, metavar="N", help="steps before the first round (default: %(default)s)")
    add(
        "--starts",
        type=_positive,
        metavar="N",
        help="without a launcher: start the ranks this many times, in turn with as many independent processes",
    )
    add("--ranks", type=_positive, metavar="N", help="ranks of each of the --starts (default: 2)")
    add(
        "--threads",
        type=_threads,
        default=1,
        metavar="N",
        help="TensorFlow's intra-op threads per rank, or `default` for its own choice (default: %(default)s)",
    )
    add(
        "--inter-op-threads",
        type=_threads,
        default=1,
        metavar="N",
        help="TensorFlow's inter-op threads per rank, or `default` (default: %(default)s)",
    )
    _add_files(parser)


def _add_scale(parser: argparse.ArgumentParser) -> None:
    """Without defaults, so that an option of the other form is detected."""
    form = parser.add_mutually_exclusive_group(required=True)
    form.add_argument("--record", metavar="MODEL", help="record the step of a network of keras.applications")
    form.add_argument("--step", type=Path, nargs="+", metavar="FILE", help="predict from recorded steps")
    add = parser.add_argument_group("recording (--record)").add_argument
    add("--image-size", type=_positive, metavar="PIXELS", help="height and width (default: 96)")
    add("--batch-size", type=_positive, metavar="N", help="images per step (default: 8)")
    add(
        "--throughput",
        type=command_line.amount("images per second"),
        metavar="IMAGES/S",
        help="throughput of one GPU; its time is divided by operations (default: measure on this processor)",
    )
    add("--steps", type=_positive, metavar="N", help="timed steps (default: 20)")
    add("--warmup", type=_positive, metavar="N", help="warm-up steps (default: 3)")
    add("--threads", type=_positive, metavar="N", help="TensorFlow's intra-op threads (default: 1)")
    add("--output", type=Path, metavar="FILE", help="the file to write; required")
    add = parser.add_argument_group("predicting (--step)").add_argument
    add("--cluster", type=Path, metavar="FILE", help="describes hosts, GPUs and network; required")
    add(
        "--gpus",
        type=_list(_positive),
        metavar="LIST",
        help="numbers of GPUs (default: 1 to 4096, doubling)",
    )
    add(
        "--compression",
        type=_list(_choice(tuple(COMPRESSIONS))),
        metavar="LIST",
        help=f"any of {', '.join(COMPRESSIONS)} (default: none)",
    )
    add(
        "--schedule",
        type=_list(_choice(SCHEDULES)),
        metavar="LIST",
        help="hierarchical, as tfdist does it, or flat, one ring through all GPUs (default: hierarchical)",
    )
    add("--no-overlap", action="store_true", default=None, help="send gradients only after the last one is computed")
    add("--threshold", type=_threshold, metavar="SIZE", help="bytes per bucket (default: TFDIST_FUSION_THRESHOLD)")
    add("--csv", type=Path, metavar="PATH", help="write the rows as CSV")
    add("--json", type=Path, metavar="PATH", help="write rows, options, steps and cluster as JSON")
    add("--plot", type=Path, metavar="PATH.png", help="plot efficiency over GPUs; needs: pip install matplotlib")


def _add_threads(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--threads",
        type=_positive,
        default=1,
        metavar="N",
        help="TensorFlow's intra-op threads per rank; inter-op threads are always 1 (default: %(default)s)",
    )


def _add_files(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--csv", type=Path, metavar="PATH", help="write the rows as CSV")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write rows, options and machine as JSON")


def _allreduce(known: argparse.Namespace) -> Allreduce:
    made = Allreduce(
        sizes=known.sizes,
        tensors=known.tensors,
        dtypes=known.dtypes,
        compressions=known.compression,
        operation=known.op,
        rounds=known.rounds,
        seconds=known.seconds,
        eager=known.eager,
        threads=known.threads,
        csv=known.csv,
        json=known.json,
        plot=known.plot,
    )
    case.check_operation(made.operation, made.dtypes)
    case.groups_of(made)  # raises if options cannot be combined
    if made.plot is not None:
        plot.check(made.plot)
    return made


def _train(known: argparse.Namespace) -> Train | Starts:
    network.check(known.model, known.image_size)
    values = {name: value for name, value in vars(known).items() if name not in ("benchmark", "starts", "ranks")}
    if known.plain and known.compare_single:
        raise ConfigError("--plain trains without tfdist, so --compare-single has nothing to compare; give only one")
    if known.starts is None:
        if known.ranks is not None:
            raise ConfigError(
                "--ranks needs --starts; otherwise set the number of ranks in the launcher: tfdistrun -np N ..."
            )
        return Train(**values)
    for name in ("plain", "compare_single"):
        if values.pop(name):
            raise ConfigError(
                f"--{name.replace('_', '-')} cannot be combined with --starts: that measures independent processes"
            )
    csv, json = values.pop("csv"), values.pop("json")
    return Starts(tuple(_words(values)), known.starts, known.ranks or 2, csv, json)


def _words(values: dict[str, Any]) -> Iterator[str]:
    """The same options as arguments."""
    for name, value in values.items():
        option_name = f"--{name.replace('_', '-')}"
        if value is True:
            yield option_name
        elif value is not False:
            yield from (
                option_name,
                "default" if name in ("threads", "inter_op_threads") and value == 0 else str(value),
            )


def _scale(known: argparse.Namespace) -> Record | Scale:
    recording = known.record is not None
    form, own, others = (
        ("--record", _RECORDING, [*_SCALING, "cluster"]) if recording else ("--step", _SCALING, [*_RECORDING, "output"])
    )
    for name in others:
        if getattr(known, name) is not None:
            raise ConfigError(
                f"--{name.replace('_', '-')} cannot be combined with {form}; see tfdist bench scale --help"
            )
    given = {name: default if getattr(known, name) is None else getattr(known, name) for name, default in own.items()}
    for name in ("output",) if recording else ("cluster",):
        if getattr(known, name) is None:
            raise ConfigError(f"{form} needs --{name} FILE; see tfdist bench scale --help")
    if recording:
        network.check(known.record, given["image_size"])
        if given["throughput"] is not None and (known.steps, known.warmup, known.threads) != (None, None, None):
            raise ConfigError("with --throughput nothing is measured; omit --steps, --warmup and --threads")
        return Record(model=known.record, output=known.output, **given)
    if given["plot"] is not None:
        plot.check(given["plot"])
    compressions, schedules, no_overlap = (given.pop(name) for name in ("compression", "schedule", "no_overlap"))
    return Scale(
        step=tuple(known.step),
        cluster=known.cluster,
        compressions=compressions,
        schedules=schedules,
        overlap=not no_overlap,
        **given,
    )


def _check_folder(path: Path) -> None:
    if not path.parent.is_dir():
        raise ConfigError(f"{path} cannot be written: folder {path.parent} does not exist")


def _list(parse_item: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    """A parser of distinct items separated by commas."""

    def parse_all(text: str) -> tuple[Any, ...]:
        items = tuple(_item(parse_item, word.strip()) for word in text.split(","))
        if len(set(items)) < len(items):
            raise argparse.ArgumentTypeError(f"{text!r} contains an item twice")
        return items

    return parse_all


def _item(parse_item: Callable[[str], Any], word: str) -> Any:
    try:
        return parse_item(word)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _threads(text: str) -> int:
    return 0 if text == "default" else _positive(text)


def _threshold(text: str) -> int:
    return 0 if text == "0" else int(_item(size.parse, text))


def _choice(choices: tuple[str, ...]) -> Callable[[str], str]:
    def parse_choice(text: str) -> str:
        if text not in choices:
            raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(choices)}")
        return text

    return parse_choice
