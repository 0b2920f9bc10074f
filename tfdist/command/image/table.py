"""The table of `version` for people: as text, as Markdown, and put into a file between two marks."""

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
    "Of the two numbers for NumPy an image gets the smaller one. `--tensorflow` and `--keras` take the first two "
    "numbers of a version too."
)
_HEADS = (("TensorFlow", "Python", "CUDA", "cuDNN", "NumPy"), ("Python", "begins with", "Keras", "NumPy"))


def rows() -> tuple[list[list[str]], list[list[str]]]:
    """Of TensorFlow's releases, and of the Pythons."""
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
    """For a terminal."""
    parts = [aligned([head, *body]) for head, body in zip(_HEADS, rows(), strict=True)]
    return "\n\n".join([*parts, _NOTE])


def markdown() -> str:
    """For a page."""
    parts = []
    for head, body in zip(_HEADS, rows(), strict=True):
        parts.append("\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *body)))
    return "\n\n".join([*parts, _NOTE])


def replaced(page: str) -> str:
    """The page with today's table between its marks; raises ConfigError if it has not both, once."""
    pattern = re.compile(f"{re.escape(_BEGIN)}\n.*?{re.escape(_END)}", re.DOTALL)
    if len(pattern.findall(page)) != 1:
        raise ConfigError(f"it has no place for the table; give it these two lines:\n{_BEGIN}\n{_END}")
    return pattern.sub(lambda _: f"{_BEGIN}\n\n{markdown()}\n\n{_END}", page)


def write(path: Path) -> None:
    """Puts the table into a page. Raises ConfigError if the page has no place for it, or cannot be read or written."""
    try:
        page = replaced(path.read_text())
        write_atomically(path, lambda file: file.write_text(page))
    except (ConfigError, OSError) as error:
        raise ConfigError(f"--markdown {path}: {error}") from error
