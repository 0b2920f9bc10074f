"""Where each file of the repository is on the site, and its links as they are there. Paths and text only.

A page of docs/ keeps its name. A README of another folder, or a source, that a page links to becomes a page below
`repository/`. The README of the repository is the first page, that of docs/ the list of guides.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable

_FIRST = {"README.md": "index.md", "docs/README.md": "guides.md"}
_REPOSITORY = "repository/"
_FENCE = re.compile(r"^ *(```|~~~).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\]\()(?!\w+:|#)([^)#\s]+)(#[^)\s]*)?(\))")


def uri_of(path: str) -> str:
    """The name on the site of a file of the repository."""
    if path in _FIRST:
        return _FIRST[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return _REPOSITORY + (path if path.endswith(".md") else f"{path}.md")


def path_of(uri: str) -> str:
    """The file of the repository that a page of Markdown on the site is."""
    for path, first in _FIRST.items():
        if uri == first:
            return path
    return uri.removeprefix(_REPOSITORY) if uri.startswith(_REPOSITORY) else f"docs/{uri}"


def joined(path: str, target: str) -> str:
    """The file that a page's link leads to, as a path from the root."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), target))


def targets(path: str, text: str) -> set[str]:
    """The files of the repository that a page links to, as paths from the root."""
    found: set[str] = set()

    def keep(target: str, anchor: str) -> str:
        found.add(joined(path, target))
        return target + anchor

    _replaced(text, keep)
    return found


def moved(path: str, text: str, uri: Callable[[str], str]) -> str:
    """The text of a page with its links as they are on the site.

    Args:
        path: The page's file.
        text: Its Markdown.
        uri: Gives the name on the site of a path that the page links to.
    """
    here = posixpath.dirname(uri(path))
    return _replaced(text, lambda target, anchor: posixpath.relpath(uri(joined(path, target)), here) + anchor)


def _replaced(text: str, change: Callable[[str, str], str]) -> str:
    """With each link outside of blocks of code changed."""
    parts, end = [], 0
    for fence in _FENCE.finditer(text):
        parts += [text[end : fence.start()], fence[0]]
        end = fence.end()
    parts.append(text[end:])
    for index in range(0, len(parts), 2):
        parts[index] = _LINK.sub(lambda link: link[1] + change(link[2], link[3] or "") + link[4], parts[index])
    return "".join(parts)
