"""The navigation of the site: the questions of docs/README.md, by its headings."""

from __future__ import annotations

import re
from typing import Any

_HEADING = re.compile(r"^## (.+)$")
_ROW = re.compile(r"^\| (?!---|question \|)(.+?) \| (.+) \|$")
_LINK = re.compile(r"\[([^\]]+)\]\(([^)#]+)[^)]*\)")


def navigation(guides: str, uri: Any) -> list[dict[str, Any]]:
    """A section for each heading, an entry for each question; several pages of a question are entries below it.

    Args:
        guides: The text of docs/README.md.
        uri: Gives the name on the site of a link of that page.
    """
    sections: list[dict[str, Any]] = []
    entries: list[dict[str, Any]] = []
    seen: set[str] = set()
    for line in guides.splitlines():
        heading, row = _HEADING.match(line), _ROW.match(line)
        if heading:
            entries = []
            sections.append({heading[1]: entries})
        elif row:
            links = [(title, uri(target)) for title, target in _LINK.findall(row[2])]
            new = [(title, target) for title, target in links if target not in seen]
            seen.update(target for _, target in new)
            question = re.sub(r"`", "", row[1])
            if len(new) == 1:
                entries.append({question: new[0][1]})
            elif new:
                entries.append({question: [{title: target} for title, target in new]})
    return sections
