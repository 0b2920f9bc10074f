"""What is said at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfdist.command.image import report
from tfdist.command.image.combination import Wish, choose


def test_names_where_none_were_given() -> None:
    assert report.tags("0.1.0", choose(Wish())) == ("tfdist:0.1.0-cpu", "tfdist:cpu")
    chosen = choose(Wish("cuda", "2.20", "3.12", "12.8"))
    assert report.tags("1.2", chosen) == ("tfdist:1.2-cuda-tf2.20-py3.12-cuda12.8", "tfdist:cuda")


def test_the_table_and_what_to_type() -> None:
    told = report.text(("tfdist:0.1.0-cpu", "tfdist:cpu"), 1749 << 20, choose(Wish()), {}, None)
    head, first, second, empty, last = told.splitlines()
    assert head.split() == ["tag", "size", "made", "of"]
    made = "1,749 MiB  TensorFlow 2.21.0, Keras 3.15.1, NumPy 2.4.6, Python 3.11 of debian:bookworm-slim"
    assert (first, second) == (f"tfdist:0.1.0-cpu  {made}", f"tfdist:cpu        {made}")
    assert (empty, last) == ("", "try it: docker run --rm tfdist:0.1.0-cpu")


@pytest.mark.parametrize(
    ("target", "line"),
    [
        ("cuda", "docker run --rm --gpus all --shm-size 8g --ulimit memlock=-1 a:b"),
        ("data-service", "docker run --rm a:b dispatcher --help"),
        ("dev", 'docker run --rm -it --volume "$PWD:/job" a:b'),
    ],
)
def test_each_target_has_its_command(target: str, line: str) -> None:
    assert report.text(("a:b",), 1, choose(Wish(target)), {}, None).splitlines()[-1] == f"try it: {line}"


def test_where_it_went() -> None:
    lines = report.text(("a/b:c",), 1, choose(Wish()), {"a/b:c": "sha256:1"}, Path("out/image.tar")).splitlines()
    assert lines[3:5] == [
        "pushed a/b:c as sha256:1",
        "saved a/b:c as out/image.tar; on another machine: docker load --input image.tar",
    ]
