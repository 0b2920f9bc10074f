"""What commands read from their command lines."""

from __future__ import annotations

import argparse

import pytest

from tfdist.errors import ConfigError
from tfdist.system.terminal.command_line import USAGE_MARK, Parser, address, amount, whole


def parser() -> Parser:
    made = Parser(prog="tfdist try")
    parts = made.add_subparsers(required=True, metavar="one")
    parts.add_parser("one").add_argument("--seconds", type=amount("seconds"), default=1.0)
    return made


@pytest.mark.parametrize(
    ("words", "problem", "usage"),
    [
        ([], "the following arguments are required: one", "tfdist try [-h] one ...; all options: tfdist try --help"),
        (["one", "--sec", "2"], "unrecognized arguments: --sec 2", "tfdist try [-h] one ..."),
        (["one", "--seconds", "0"], "'0' is not a number of seconds; expected more than 0", "tfdist try one [-h]"),
        (["one", "--seconds", "inf"], "'inf' is not a number of seconds", "tfdist try one [-h]"),
    ],
)
def test_an_error_names_the_problem_and_the_usage(words: list[str], problem: str, usage: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parser().parse_args(words)
    before, mark, after = str(refused.value).partition(USAGE_MARK)
    assert problem in before
    assert mark
    assert after.startswith(usage)
    assert after.endswith(" --help")


def test_amount() -> None:
    assert parser().parse_args(["one", "--seconds", "0.5"]) == argparse.Namespace(seconds=0.5)


@pytest.mark.parametrize("text", ["-1", "0", "5", "1.5", "\u0662", "", "x"])
def test_whole_number_out_of_bounds(text: str) -> None:
    assert [whole("a port", 1, 4)(each) for each in "14"] == [1, 4]
    with pytest.raises(argparse.ArgumentTypeError, match=f"{text!r} is not a port; expected 1 to 4"):
        whole("a port", 1, 4)(text)
    assert whole("a port", 0)("99") == 99


@pytest.mark.parametrize(
    ("text", "expected"),
    [("node1:4000", ("node1", 4000)), ("10.0.0.1:1", ("10.0.0.1", 1)), ("[fd00::1]:65535", ("fd00::1", 65535))],
)
def test_address(text: str, expected: tuple[str, int]) -> None:
    assert address(text) == expected


@pytest.mark.parametrize(
    "text", ["", "node1", "node1:", ":4000", "node1:0", "node1:65536", "fd00::1:4000", "[]:1", "a b:1"]
)
def test_no_address(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not HOST:PORT, such as"):
        address(text)
