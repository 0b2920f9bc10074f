"""Options of all benchmarks: defaults, forms, and errors that come before anything is measured."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tfdist.command.bench import option
from tfdist.command.bench.allreduce import case
from tfdist.errors import ConfigError


def allreduce(*words: str) -> option.Allreduce:
    parsed = option.parse(["allreduce", *words])
    assert isinstance(parsed, option.Allreduce)
    return parsed


def train(*words: str) -> option.Train:
    parsed = option.parse(["train", *words])
    assert isinstance(parsed, option.Train)
    return parsed


def test_defaults() -> None:
    assert allreduce().sizes == (4096, 1 << 20, 100 << 20)
    assert allreduce().compressions == ("none", "fp16", "bf16")
    assert (allreduce().operation, allreduce().threads, allreduce().rounds) == ("average", 1, None)
    assert (train().model, train().image_size, train().batch_size) == ("ResNet50", 96, 8)
    assert (train().compression, train().jit_compile, train().compare_single) == ("none", False, False)


def test_every_option_of_allreduce_arrives(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    given = allreduce(
        *"--sizes 4KB,8MB --tensors 1,16 --dtypes float32,int8 --compression none,bf16 --op sum --rounds 7".split(),
        *f"--eager --threads 3 --csv {tmp_path}/a.csv --json {tmp_path}/a.json --plot {tmp_path}/a.png".split(),
    )
    assert given == option.Allreduce(
        sizes=(4096, 8 << 20),
        tensors=(1, 16),
        dtypes=("float32", "int8"),
        compressions=("none", "bf16"),
        operation="sum",
        rounds=7,
        seconds=5.0,
        eager=True,
        threads=3,
        csv=tmp_path / "a.csv",
        json=tmp_path / "a.json",
        plot=tmp_path / "a.png",
    )
    assert [len(group) for group in case.groups_of(given)] == [3, 3, 3, 3]


def test_every_option_of_train_arrives(tmp_path: Path) -> None:
    given = train(
        *"--model VGG16 --image-size 64 --batch-size 4 --compression fp16 --jit-compile --compare-single".split(),
        *"--inter-op-threads default".split(),
        *f"--steps 2 --rounds 3 --warmup 4 --threads 5 --csv {tmp_path}/a.csv --json {tmp_path}/a.json".split(),
    )
    assert given == option.Train(
        model="VGG16",
        image_size=64,
        batch_size=4,
        compression="fp16",
        jit_compile=True,
        compare_single=True,
        plain=False,
        steps=2,
        rounds=3,
        warmup=4,
        threads=5,
        inter_op_threads=0,
        csv=tmp_path / "a.csv",
        json=tmp_path / "a.json",
    )


def test_starts_have_the_words_of_one_start(tmp_path: Path) -> None:
    given = option.parse(
        f"train --starts 5 --ranks 3 --model VGG16 --image-size 64 --jit-compile --json {tmp_path}/a.json".split()
    )
    assert isinstance(given, option.Starts)
    assert (given.starts, given.ranks, given.csv, given.json) == (5, 3, None, tmp_path / "a.json")
    assert train(*given.words) == train("--model", "VGG16", "--image-size", "64", "--jit-compile")
    two = option.parse(["train", "--starts", "1"])
    assert isinstance(two, option.Starts) and two.ranks == 2
    threads = option.parse("train --starts 1 --threads default --inter-op-threads 1".split())
    assert isinstance(threads, option.Starts)
    assert train(*threads.words) == train("--threads", "default", "--inter-op-threads", "1")


def test_defaults_of_scale(tmp_path: Path) -> None:
    recording = option.parse(["scale", "--record", "VGG16", "--output", f"{tmp_path}/a.json"])
    assert recording == option.Record("VGG16", 96, 8, None, 20, 3, 1, tmp_path / "a.json")
    scaling = option.parse(["scale", "--step", "a.json", "--cluster", "c.json"])
    assert isinstance(scaling, option.Scale)
    assert (scaling.gpus, scaling.compressions, scaling.schedules) == (None, ("none",), ("hierarchical",))
    assert (scaling.overlap, scaling.threshold, scaling.csv, scaling.json, scaling.plot) == (True, *[None] * 4)


def test_every_option_of_scale_arrives(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    words = "scale --record InceptionV3 --image-size 299 --batch-size 64 --throughput 134.4 --output".split()
    assert option.parse([*words, f"{tmp_path}/a.json"]) == option.Record(
        "InceptionV3", 299, 64, 134.4, 20, 3, 1, tmp_path / "a.json"
    )
    words = "scale --record VGG16 --steps 5 --warmup 2 --threads 4 --output".split()
    measured = option.parse([*words, f"{tmp_path}/a.json"])
    assert isinstance(measured, option.Record)
    assert (measured.steps, measured.warmup, measured.threads) == (5, 2, 4)
    given = option.parse(
        [
            *"scale --step a.json b.json --cluster c.json --gpus 16,512 --compression none,fp16".split(),
            *"--schedule flat,hierarchical --no-overlap --threshold 25MB".split(),
            *f"--csv {tmp_path}/a.csv --json {tmp_path}/a.json --plot {tmp_path}/a.png".split(),
        ]
    )
    assert given == option.Scale(
        step=(Path("a.json"), Path("b.json")),
        cluster=Path("c.json"),
        gpus=(16, 512),
        compressions=("none", "fp16"),
        schedules=("flat", "hierarchical"),
        overlap=False,
        threshold=25 << 20,
        csv=tmp_path / "a.csv",
        json=tmp_path / "a.json",
        plot=tmp_path / "a.png",
    )
    alone = option.parse("scale --step a.json --cluster c.json --threshold 0".split())
    assert isinstance(alone, option.Scale) and alone.threshold == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "the following arguments are required: BENCHMARK"),
        ("scales", "invalid choice: 'scales'"),
        ("allreduce --sizes 4XB", "'4XB' is not a size"),
        ("allreduce --sizes 4KB,4096", "contains an item twice"),
        ("allreduce --sizes 4KB,", "'' is not a size"),
        ("allreduce --sizes 6", "6B is not a whole number of float32 elements"),
        ("allreduce --sizes 4KB --tensors 2000", "too few for 2000 tensors"),
        ("allreduce --tensors 0", "'0' is not a number; expected 1 or more"),
        ("allreduce --dtypes float8", "'float8' is not one of float16"),
        ("allreduce --dtypes int32", "--op sum"),
        ("allreduce --compression fp8", "'fp8' is not one of none"),
        ("allreduce --rounds 3 --seconds 2", "not allowed with argument"),
        ("allreduce --seconds 0", "expected more than 0"),
        ("allreduce --seconds soon", "'soon' is not a number of seconds"),
        ("allreduce --csv missing/a.csv", "folder missing does not exist"),
        ("allreduce --plot a.svg", "ends in .png"),
        ("allreduce --round 3", "unrecognized arguments: --round"),
        ("train --json missing/a.json", "folder missing does not exist"),
        ("train --model Resnet50", "did you mean ResNet50"),
        ("train --model InceptionV3 --image-size 64", "75 pixels or more"),
        ("train --batch-size -1", "batch-size"),
        ("train --compression gzip", "invalid choice: 'gzip'"),
        ("train --threads 0", "'0' is not a number; expected 1 or more"),
        ("train --starts 0", "'0' is not a number; expected 1 or more"),
        ("train --ranks 2", "--ranks needs --starts"),
        ("train --starts 2 --plain", "--plain cannot be combined with --starts"),
        ("train --starts 2 --compare-single", "--compare-single cannot be combined with --starts"),
        ("train --plain --compare-single", "--compare-single has nothing to compare"),
        ("scale", "one of the arguments --record --step is required"),
        ("scale --record VGG16 --step a.json", "not allowed with argument"),
        ("scale --record VGG16", "--record needs --output FILE"),
        ("scale --record VGG16 --output missing/a.json", "folder missing does not exist"),
        ("scale --record VGG --output a.json", "did you mean VGG1"),
        ("scale --record InceptionV3 --image-size 64 --output a.json", "75 pixels or more"),
        ("scale --record VGG16 --output a.json --cluster c.json", "--cluster cannot be combined with --record"),
        ("scale --record VGG16 --output a.json --no-overlap", "--no-overlap cannot be combined with --record"),
        ("scale --record VGG16 --output a.json --csv a.csv", "--csv cannot be combined with --record"),
        ("scale --record VGG16 --output a.json --throughput 0", "'0' is not a number of images per second"),
        ("scale --record VGG16 --output a.json --throughput 9 --steps 3", "with --throughput nothing is measured"),
        ("scale --step a.json", "--step needs --cluster FILE"),
        ("scale --step a.json --cluster c.json --batch-size 8", "--batch-size cannot be combined with --step"),
        ("scale --step a.json --cluster c.json --output b.json", "--output cannot be combined with --step"),
        ("scale --step a.json --cluster c.json --gpus 0", "'0' is not a number; expected 1 or more"),
        ("scale --step a.json --cluster c.json --schedule tree", "'tree' is not one of hierarchical, flat"),
        ("scale --step a.json --cluster c.json --threshold many", "'many' is not a size"),
        ("scale --step a.json --cluster c.json --plot a.svg", "ends in .png"),
    ],
)
def test_errors(words: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        option.parse(words.split())
