"""Command-line parsing for all commands."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NoReturn

from tfdist.errors import ConfigError
from tfdist.system.network import endpoint

# Separates an error from the usage that follows it.
USAGE_MARK = "\nusage: "


class Parser(argparse.ArgumentParser):
    """Raises ConfigError instead of exiting, accepts no abbreviations, and prints texts unwrapped.

    Without abbreviations, adding an option cannot change the meaning of a shorter one.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        settings.setdefault("allow_abbrev", False)
        settings.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*arguments, **settings)

    def error(self, message: str) -> NoReturn:
        usage = self.format_usage().removeprefix("usage: ").strip()
        raise ConfigError(f"{message}{USAGE_MARK}{usage}; all options: {self.prog} --help")


def amount(unit: str) -> Callable[[str], float]:
    """A parser of a finite number greater than 0; `unit` is for the error."""

    def parse_amount(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"{text!r} is not a number of {unit}; expected more than 0")
        return value

    return parse_amount


def address(text: str) -> endpoint.Address:
    """A parser of HOST:PORT, where an IPv6 address stands in brackets."""
    try:
        return endpoint.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def whole(kind: str, least: int, most: int | None = None) -> Callable[[str], int]:
    """A parser of a whole number in these bounds; `kind` is for the error, as in "a port"."""
    expected = f"{least} or more" if most is None else f"{least} to {most}"

    def parse_whole(text: str) -> int:
        value = int(text) if text.isascii() and text.isdigit() else -1
        if value < least or (most is not None and value > most):
            raise argparse.ArgumentTypeError(f"{text!r} is not {kind}; expected {expected}")
        return value

    return parse_whole
