"""Recognises the lines that TensorFlow's C++ prints at startup in every process, whatever its variables say."""

from __future__ import annotations

import re

_CHATTER = re.compile(
    rb"WARNING: All log messages before absl::|I\d{4} [\d:.]+ +\d+ \S+:\d+\] |[\d-]+ [\d:.]+: I \S+:\d+\] "
    rb"|To enable the following instructions: .* rebuild TensorFlow"
)


def is_chatter(line: bytes) -> bool:
    """Whether a line is such a message, and says nothing about this run."""
    return _CHATTER.match(line) is not None
