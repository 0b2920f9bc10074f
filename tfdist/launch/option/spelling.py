"""What the launcher says in the arguments of a Python function instead of the options of its command. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

# A number, the name of a value in capitals, or hosts: what may be meant by a word after an option. Others are prose.
_VALUE = r"(?:[ =](?P<value>\d[\w.]*|[A-Z][A-Z_]*(?![\w-])|[\w.-]+:[\w.:,-]*\w))?"


def in_arguments(text: str, arguments: Mapping[str, str]) -> str:
    """A text with arguments in the place of options: "-np 3 asks for" becomes "num_proc=3 asks for".

    Args:
        text: What is said.
        arguments: The argument of each option; with "=True" where the option has no value but is to be set.
    """
    names = "|".join(sorted(map(re.escape, arguments), key=len, reverse=True))
    found = re.compile(rf"(?<![\w-])(?P<option>{names})(?![\w-]){_VALUE}")
    return found.sub(lambda match: _spell(arguments[match["option"]], match["value"]), text)


def _spell(argument: str, value: str | None) -> str:
    return argument if value is None else f"{argument}={value}"
