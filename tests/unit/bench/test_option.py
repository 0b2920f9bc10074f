"""Options of both benchmarks: defaults, forms, and errors that come before anything is measured."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tfdist.bench import option
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
    assert [len(group) for group in given.groups] == [3, 3, 3, 3]


def test_every_option_of_train_arrives(tmp_path: Path) -> None:
    given = train(
        *"--model VGG16 --image-size 64 --batch-size 4 --compression fp16 --jit-compile --compare-single".split(),
        *f"--steps 2 --rounds 3 --warmup 4 --threads 5 --csv {tmp_path}/a.csv --json {tmp_path}/a.json".split(),
    )
    assert given == option.Train(
        model="VGG16",
        image_size=64,
        batch_size=4,
        compression="fp16",
        jit_compile=True,
        compare_single=True,
        steps=2,
        rounds=3,
        warmup=4,
        threads=5,
        csv=tmp_path / "a.csv",
        json=tmp_path / "a.json",
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "the following arguments are required: BENCHMARK"),
        ("scale", "invalid choice: 'scale'"),
        ("allreduce --sizes 4XB", "'4XB' is not a size"),
        ("allreduce --sizes 4KB,4096", "names one twice"),
        ("allreduce --sizes 4KB,", "'' is not a size"),
        ("allreduce --sizes 6", "6B is not a whole number of float32 elements"),
        ("allreduce --sizes 4KB --tensors 2000", "too few for 2000 tensors"),
        ("allreduce --tensors 0", "'0' is not a number of 1 or more"),
        ("allreduce --dtypes float8", "'float8' is none of float16"),
        ("allreduce --dtypes int32", "--op sum"),
        ("allreduce --compression fp8", "'fp8' is none of none"),
        ("allreduce --rounds 3 --seconds 2", "not allowed with argument"),
        ("allreduce --seconds 0", "expected more than 0"),
        ("allreduce --seconds soon", "'soon' is not a number of seconds"),
        ("allreduce --csv missing/a.csv", "there is no folder missing"),
        ("allreduce --plot a.svg", "ends in .png"),
        ("allreduce --round 3", "unrecognized arguments: --round"),
        ("train --json missing/a.json", "there is no folder missing"),
        ("train --model Resnet50", "did you mean ResNet50"),
        ("train --model InceptionV3 --image-size 64", "75 pixels or more"),
        ("train --batch-size -1", "batch-size"),
        ("train --compression gzip", "invalid choice: 'gzip'"),
    ],
)
def test_errors(words: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        option.parse(words.split())
