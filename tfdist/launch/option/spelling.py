"""Rewrites the launcher's messages to name the arguments of a Python function instead of command-line options."""

from __future__ import annotations

import re
from collections.abc import Mapping

# A word after an option is its value if it is a number, a placeholder in capitals, or hosts. Anything else is prose.
_VALUE = r"(?:[ =](?P<value>\d[\w.]*|[A-Z][A-Z_]*(?![\w-])|[\w.-]+:[\w.:,-]*\w))?"


def in_arguments(text: str, arguments: Mapping[str, str]) -> str:
    """Replaces options by arguments: "-np 3 exceeds" becomes "num_proc=3 exceeds".

    Args:
        text: The message.
        arguments: The argument for each option; ends with "=True" if the option is a flag.
    """
    names = "|".join(sorted(map(re.escape, arguments), key=len, reverse=True))
    found = re.compile(rf"(?<![\w-])(?P<option>{names})(?![\w-]){_VALUE}")
    return found.sub(lambda match: _spell(arguments[match["option"]], match["value"]), text)


def _spell(argument: str, value: str | None) -> str:
    return argument if value is None else f"{argument}={value}"
