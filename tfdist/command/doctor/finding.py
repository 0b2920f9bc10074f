"""One line of the doctor's report, and the whole report as text or JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

OK = "ok"
# Works, but could be better or may be surprising.
NOTE = "note"
BROKEN = "broken"
_WIDTH = 100


@dataclass(frozen=True)
class Finding:
    """The finding for one component.

    Attributes:
        group: The heading it is listed under.
        name: The component, such as "NCCL".
        text: What was found.
        state: OK, NOTE or BROKEN.
        remedy: What to do if the state is not OK.
    """

    group: str
    name: str
    text: str
    state: str = OK
    remedy: str = ""


def as_text(findings: Sequence[Finding]) -> str:
    """One heading per group, one line per finding with its remedy below, and a verdict."""
    width = max(len(finding.name) for finding in findings)
    lines: list[str] = []
    group = ""
    for finding in findings:
        if finding.group != group:
            lines += ["", finding.group] if lines else [finding.group]
            group = finding.group
        first, *rest = finding.text.splitlines() or [""]
        lines.append(f"  {finding.state:<6}  {finding.name:<{width}}  {first}".rstrip())
        indent = " " * (width + 12)
        lines += [indent + line.strip() for line in rest]
        if finding.remedy:
            lines += textwrap.wrap(
                f"-> {finding.remedy}",
                _WIDTH,
                initial_indent=indent,
                subsequent_indent=f"{indent}   ",
                break_long_words=False,
                break_on_hyphens=False,
            )
    return "\n".join([*lines, "", _verdict(findings)])


def as_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """The "state" of the whole, and "findings" with the fields of `Finding`."""
    return {
        "state": BROKEN if any_broken(findings) else OK,
        "findings": [asdict(finding) for finding in findings],
    }


def any_broken(findings: Sequence[Finding]) -> bool:
    """Whether any finding is BROKEN."""
    return any(finding.state == BROKEN for finding in findings)


def _verdict(findings: Sequence[Finding]) -> str:
    broken = [finding.name for finding in findings if finding.state == BROKEN]
    if broken:
        return f"broken: {', '.join(broken)}"
    return "everything found works"
