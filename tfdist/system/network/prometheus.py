"""Formats numbers as text for Prometheus."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class Family:
    """The samples of one metric.

    Attributes:
        prefix: Prefix of the name, such as "tfdist_".
        name: In lowercase letters, digits and "_"; one that ends in "_total" is a counter, any other a gauge.
        meaning: The help line; empty: none.
        samples: Labels and value of each.
    """

    prefix: str
    name: str
    meaning: str
    samples: tuple[tuple[Mapping[str, str], float], ...]

    def lines(self) -> list[str]:
        """The lines of the text.

        Raises:
            ValueError: If Prometheus would refuse the name.
        """
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"the name of a metric must consist of lowercase letters, digits and _; received {self.name!r}"
            )
        told = [f"# HELP {self.prefix}{self.name} {self.meaning}"] if self.meaning else []
        kind = "counter" if self.name.endswith("_total") else "gauge"
        return [*told, f"# TYPE {self.prefix}{self.name} {kind}", *(self._sample(*sample) for sample in self.samples)]

    def _sample(self, labels: Mapping[str, str], value: float) -> str:
        text = ",".join(f'{label}="{_escape(word)}"' for label, word in labels.items())
        return f"{self.prefix}{self.name}{{{text}}} {value}"


def render(families: Iterable[Family]) -> str:
    """The text of all samples, for `CONTENT_TYPE`.

    Raises:
        ValueError: As `Family.lines`.
    """
    return "\n".join(line for family in families for line in family.lines()) + "\n"


def _escape(word: str) -> str:
    return word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
