"""The `tfdist env` command."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence

from tfdist.command.environment import report
from tfdist.system.terminal.command_line import Parser
from tfdist.system.terminal.text_table import aligned


def main(words: Sequence[str]) -> int:
    """Prints the report; returns 0 whatever is missing."""
    options = parser().parse_args(words)
    rows = report.rows(os.environ)
    print(json.dumps(dict(rows), indent=2) if options.json else aligned(rows))
    return 0


def parser() -> argparse.ArgumentParser:
    """The options."""
    parser = Parser(
        prog="tfdist env",
        description="Prints what a bug report needs: versions, the machine, and tfdist's settings that are not the\n"
        "defaults. Imports nothing of that; tfdist doctor examines whether it works.",
    )
    parser.add_argument("--json", action="store_true", help="print an object with the same names and values")
    return parser
