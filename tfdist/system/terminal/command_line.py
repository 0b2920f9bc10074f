"""What commands read from their command lines. It knows no option."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NoReturn

from tfdist.errors import ConfigError

# What an error has behind it: how the command is called.
USAGE_MARK = "\nusage: "


class Parser(argparse.ArgumentParser):
    """Raises ConfigError where argparse would end the process, takes no abbreviations, and shows texts as they are.

    An option that is added later must not change what a shorter word means.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        settings.setdefault("allow_abbrev", False)
        settings.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*arguments, **settings)

    def error(self, message: str) -> NoReturn:
        usage = self.format_usage().removeprefix("usage: ").strip()
        raise ConfigError(f"{message}{USAGE_MARK}{usage}; all options: {self.prog} --help")


def amount(unit: str) -> Callable[[str], float]:
    """Parser of a finite number of more than 0; `unit` names it in the error."""

    def parse_amount(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"{text!r} is not a number of {unit}; expected more than 0")
        return value

    return parse_amount


def whole(kind: str, least: int, most: int | None = None) -> Callable[[str], int]:
    """Parser of a whole number in these bounds; `kind` says in the error what it is, as in "a port"."""
    expected = f"{least} or more" if most is None else f"{least} to {most}"

    def parse_whole(text: str) -> int:
        value = int(text) if text.isascii() and text.isdigit() else -1
        if value < least or (most is not None and value > most):
            raise argparse.ArgumentTypeError(f"{text!r} is not {kind}; expected {expected}")
        return value

    return parse_whole
