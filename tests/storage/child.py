"""A server in a process of its own. No test of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def serving(script: str, variables: Mapping[str, str] | None = None) -> Iterator[int]:
    """Runs a script that prints its port and serves until it is killed; returns the port."""
    with subprocess.Popen(
        [sys.executable, "-c", script], env={**os.environ, **(variables or {})}, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as server:  # fmt: skip
        try:
            assert server.stdout is not None
            yield int(server.stdout.readline())
        finally:
            server.kill()
