"""What a wish stands for, and what is refused, always with the reason, what fits, and the table."""

from __future__ import annotations

import itertools

import pytest

from tfdist.command.image import table, version
from tfdist.command.image.combination import TARGETS, Combination, choose
from tfdist.errors import ConfigError


@pytest.mark.parametrize(
    ("wish", "arguments"),
    [
        (
            {"tensorflow": "2.16", "python": "3.10"},
            {
                "BASE_IMAGE": "python:3.10-slim-bookworm",
                "TENSORFLOW_VERSION": "2.16.2",
                "KERAS_VERSION": "3.12.4",
                "NUMPY_VERSION": "1.26.4",
            },
        ),
        ({"tensorflow": "2.20.0", "python": "3.10"}, {"KERAS_VERSION": "3.12.4", "NUMPY_VERSION": "2.2.6"}),
        ({"tensorflow": "2.19", "keras": "3.13"}, {"KERAS_VERSION": "3.13.2", "NUMPY_VERSION": "2.1.3"}),
        ({"python": "3.13"}, {"BASE_IMAGE": "debian:trixie-slim", "CUDA_TOOLKIT_VERSION": "", "EXPECTED_PYTHON": ""}),
        ({"target": "cuda"}, {"CUDA_TOOLKIT_VERSION": "12.9.1"}),
        ({"target": "cuda", "tensorflow": "2.20", "cuda": "12.6"}, {"CUDA_TOOLKIT_VERSION": "12.6.3"}),
        # TensorFlow names it itself.
        ({"target": "cuda", "tensorflow": "2.18", "cuda": "12.5"}, {"CUDA_TOOLKIT_VERSION": ""}),
        ({"base_image": "debian:12", "python": "3.12"}, {"BASE_IMAGE": "debian:12", "EXPECTED_PYTHON": "3.12"}),
        ({"base_image": f"debian:12@sha256:{'5a' * 32}"}, {"BASE_IMAGE": f"debian:12@sha256:{'5a' * 32}"}),
    ],
)
def test_build_arguments(wish: dict[str, str], arguments: dict[str, str]) -> None:
    given = choose(**{"target": "cpu"} | wish).arguments()
    assert {name: given[name] for name in arguments} == arguments


@pytest.mark.parametrize(
    ("wish", "reason"),
    [
        (
            {"tensorflow": "2.19", "python": "3.13"},
            "--python is '3.13', which has no build of TensorFlow 2.19; expected 3.11, 3.10 or 3.12.",
        ),
        (
            {"target": "cuda", "tensorflow": "2.18", "cuda": "12.9"},
            "--cuda is '12.9', which is not what TensorFlow 2.18 brings; expected 12.5.",
        ),
        ({"target": "cuda", "cuda": "13.0"}, "TensorFlow 2.21 brings; expected 12.9, 12.8 or 12.6."),
        ({"cuda": "12.9"}, "--cuda is '12.9', which is not for --target cpu; expected none: omit it."),
        ({"target": "dev", "cuda": "12.9"}, "which is not for --target dev"),
        ({"tensorflow": "2.15"}, "--tensorflow is '2.15', which is not in the table; expected 2.21, 2.20, 2.19"),
        ({"tensorflow": "2.19.0"}, "--tensorflow is '2.19.0'"),
        ({"python": "3.14"}, "--python is '3.14', which has no build of TensorFlow 2.21; expected 3.11, 3.10, 3.12 or"),
        ({"python": "3"}, "--python is '3'"),
        ({"python": "3.10", "keras": "3.15"}, "--keras is '3.15', which has no build for Python 3.10; expected 3.12."),
        ({"keras": "2.15"}, "--keras is '2.15', which has no build for Python 3.11; expected 3.15, 3.14, 3.13 or 3.12"),
    ],
)
def test_refused_with_the_reason_and_the_table(wish: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        choose(**{"target": "cpu"} | wish)
    assert reason in str(refused.value)
    assert str(refused.value).endswith(table.text())


def every() -> list[Combination]:
    chosen = []
    for target, release, python in itertools.product(TARGETS, version.RELEASES, version.PYTHONS):
        if python.version in release.pythons:
            for keras, cuda in itertools.product(python.keras, release.cuda if target == "cuda" else (None,)):
                chosen.append(choose(target, release.minor, python.version, cuda, keras))
    return chosen


def test_each_combination_has_a_name_of_its_own() -> None:
    named = [(chosen.target, chosen.suffix()) for chosen in every()]
    assert len(set(named)) == len(named)
    assert {target for target, suffix in named if not suffix} == set(TARGETS)


@pytest.mark.parametrize(
    ("wish", "suffix"),
    [
        ({"tensorflow": "2.19", "python": "3.12"}, "-tf2.19-py3.12"),
        ({"target": "cuda", "cuda": "12.8"}, "-cuda12.8"),
        ({"target": "cuda", "tensorflow": "2.18"}, "-tf2.18"),
        ({"keras": "3.14"}, "-keras3.14"),
        ({"python": "3.10"}, "-py3.10"),
    ],
)
def test_names_tell_what_is_not_the_default(wish: dict[str, str], suffix: str) -> None:
    assert choose(**{"target": "cpu"} | wish).suffix() == suffix


def test_the_summary_names_all_of_it() -> None:
    told = choose("cuda", "2.20", "3.12", "12.8", base_image="mine:1").summary()
    assert told == "TensorFlow 2.20.0, CUDA 12.8, Keras 3.15.1, NumPy 2.4.6, Python 3.12 of mine:1"
