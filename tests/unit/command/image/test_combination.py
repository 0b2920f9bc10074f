"""What a wish stands for, and what is refused, always with the reason and the table."""

from __future__ import annotations

import itertools

import pytest

from tfdist.command.image import table, version
from tfdist.command.image.combination import TARGETS, Combination, Wish, choose
from tfdist.errors import ConfigError


def test_the_default() -> None:
    chosen = choose(Wish())
    assert (chosen.target, chosen.tensorflow.version, chosen.keras, chosen.numpy) == (
        "cpu",
        "2.21.0",
        "3.15.1",
        "2.4.6",
    )
    assert (chosen.begin, chosen.cuda, chosen.suffix()) == ("debian:bookworm-slim", "", "")


@pytest.mark.parametrize(
    ("wish", "arguments"),
    [
        (
            Wish(tensorflow="2.16", python="3.10"),
            {
                "BASE_IMAGE": "python:3.10-slim-bookworm",
                "TENSORFLOW_VERSION": "2.16.2",
                "KERAS_VERSION": "3.12.4",
                "NUMPY_VERSION": "1.26.4",
            },
        ),
        (Wish(tensorflow="2.20.0", python="3.10"), {"KERAS_VERSION": "3.12.4", "NUMPY_VERSION": "2.2.6"}),
        (Wish(tensorflow="2.19", keras="3.13"), {"KERAS_VERSION": "3.13.2", "NUMPY_VERSION": "2.1.3"}),
        (Wish(python="3.13"), {"BASE_IMAGE": "debian:trixie-slim"}),
        (Wish(target="cuda"), {"CUDA_TOOLKIT_VERSION": "12.9.1"}),
        (Wish(target="cuda", tensorflow="2.20", cuda="12.6"), {"CUDA_TOOLKIT_VERSION": "12.6.3"}),
        (Wish(base_image="debian:12", python="3.12"), {"BASE_IMAGE": "debian:12", "EXPECTED_PYTHON": "3.12"}),
    ],
)
def test_build_arguments(wish: Wish, arguments: dict[str, str]) -> None:
    given = choose(wish).arguments()
    assert {name: given[name] for name in arguments} == arguments


def test_what_tensorflow_names_itself_is_no_argument() -> None:
    chosen = choose(Wish(target="cuda", tensorflow="2.18", cuda="12.5"))
    assert chosen.cuda == "12.5"
    assert set(chosen.arguments()) == {"BASE_IMAGE", "TENSORFLOW_VERSION", "KERAS_VERSION", "NUMPY_VERSION"}


@pytest.mark.parametrize(
    ("wish", "reason"),
    [
        (
            Wish(tensorflow="2.19", python="3.13"),
            "TensorFlow 2.19 has no build for Python 3.13; it has those for 3.10, ",
        ),
        (Wish(target="cuda", tensorflow="2.18", cuda="12.9"), "TensorFlow 2.18's packages bring CUDA 12.5, not 12.9."),
        (Wish(target="cuda", cuda="12.5"), "TensorFlow 2.21's packages bring CUDA 12.9, 12.8 or 12.6, not 12.5."),
        (Wish(target="cuda", cuda="13.0"), "CUDA 12.9, 12.8 or 12.6, not 13.0."),
        (Wish(cuda="12.9"), "--cuda is '12.9', but --target is 'cpu', and that image has no CUDA; leave --cuda out"),
        (Wish(target="dev", cuda="12.9"), "but --target is 'dev'"),
        (Wish(tensorflow="2.15"), "--tensorflow is '2.15', which is not in the table; expected one of 2.21, 2.20"),
        (Wish(tensorflow="2.19.0"), "--tensorflow is '2.19.0'"),
        (Wish(python="3.14"), "--python is '3.14', which is not in the table; expected one of 3.10, 3.11, 3.12, 3.13."),
        (Wish(python="3"), "--python is '3'"),
        (Wish(python="3.10", keras="3.15"), "Keras 3.15 has no build for Python 3.10; it has those of 3.12."),
        (Wish(keras="2.15"), "--keras is '2.15', which is not in the table; expected one of 3.15, 3.14, 3.13, 3.12."),
    ],
)
def test_refused_with_the_reason_and_the_table(wish: Wish, reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        choose(wish)
    assert reason in str(refused.value)
    assert str(refused.value).endswith(table.text())


def every() -> list[Combination]:
    chosen = []
    for target, release, python in itertools.product(TARGETS, version.RELEASES, version.PYTHONS):
        if python.version in release.pythons:
            for keras, cuda in itertools.product(python.keras, release.cuda if target == "cuda" else (None,)):
                chosen.append(choose(Wish(target, release.minor, python.version, cuda, keras)))
    return chosen


def test_each_combination_has_a_name_of_its_own() -> None:
    named = [(chosen.target, chosen.suffix()) for chosen in every()]
    assert len(set(named)) == len(named)
    assert {target for target, suffix in named if not suffix} == set(TARGETS)


@pytest.mark.parametrize(
    ("wish", "suffix"),
    [
        (Wish(tensorflow="2.19", python="3.12"), "-tf2.19-py3.12"),
        (Wish(target="cuda", cuda="12.8"), "-cuda12.8"),
        (Wish(target="cuda", tensorflow="2.18"), "-tf2.18"),
        (Wish(keras="3.14"), "-keras3.14"),
        (Wish(python="3.10"), "-py3.10"),
    ],
)
def test_names_tell_what_is_not_the_default(wish: Wish, suffix: str) -> None:
    assert choose(wish).suffix() == suffix


def test_the_summary_names_all_of_it() -> None:
    told = choose(Wish(target="cuda", tensorflow="2.20", cuda="12.8", python="3.12", base_image="mine:1")).summary()
    assert told == "TensorFlow 2.20.0, CUDA 12.8, Keras 3.15.1, NumPy 2.4.6, Python 3.12 of mine:1"
