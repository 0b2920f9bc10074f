"""What commands read from their command lines. It knows no option."""

from __future__ import annotations

import argparse
from collections.abc import Callable


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
