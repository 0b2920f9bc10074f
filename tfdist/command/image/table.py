"""Formats the table in `version` as text or Markdown, and writes it into a file between two markers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from tfdist.command.image import version
from tfdist.errors import ConfigError
from tfdist.system.atomic_file import write_atomically
from tfdist.system.terminal.text_table import aligned

_BEGIN = "<!-- versions: tfdist image versions --markdown FILE writes what follows -->"
_END = "<!-- end of versions -->"
_NOTE = (
    "If the two tables name different NumPy versions, an image gets the older one. `--tensorflow` and `--keras` also "
    "accept the first two numbers of a version."
)
_HEADS = (("TensorFlow", "Python", "CUDA", "cuDNN", "NumPy"), ("Python", "begins with", "Keras", "NumPy"))


def rows() -> tuple[list[list[str]], list[list[str]]]:
    """The rows for TensorFlow releases and for Python versions."""
    releases = [
        [_name(each, version.RELEASES), listed(each.pythons), listed(each.cuda), each.cudnn, each.numpy]
        for each in version.RELEASES
    ]
    pythons = [[_name(each, version.PYTHONS), each.begin, listed(each.keras), each.numpy] for each in version.PYTHONS]
    return releases, pythons


def _name(each: version.Release | version.Python, among: Sequence[version.Release | version.Python]) -> str:
    return each.version + (" (default)" if each is among[0] else "")


def listed(names: Iterable[str]) -> str:
    """As in "12.9, 12.8 or 12.6"."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def text() -> str:
    """The tables for a terminal."""
    parts = [aligned([head, *body]) for head, body in zip(_HEADS, rows(), strict=True)]
    return "\n\n".join([*parts, _NOTE])


def markdown() -> str:
    """The tables as Markdown."""
    parts = []
    for head, body in zip(_HEADS, rows(), strict=True):
        parts.append("\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *body)))
    return "\n\n".join([*parts, _NOTE])


def replaced(page: str) -> str:
    """The page with the current table between its markers; raises ConfigError unless each occurs once."""
    pattern = re.compile(f"{re.escape(_BEGIN)}\n.*?{re.escape(_END)}", re.DOTALL)
    if len(pattern.findall(page)) != 1:
        raise ConfigError(f"no place for the table; add these two lines:\n{_BEGIN}\n{_END}")
    return pattern.sub(lambda _: f"{_BEGIN}\n\n{markdown()}\n\n{_END}", page)


def write(path: Path) -> None:
    """Writes the table into a page. Raises ConfigError if it has no markers, or cannot be read or written."""
    try:
        page = replaced(path.read_text())
        write_atomically(path, lambda file: file.write_text(page))
    except (ConfigError, OSError) as error:
        raise ConfigError(f"--markdown {path}: {error}") from error
