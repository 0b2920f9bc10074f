"""Keeps `torch.compile` out of tfdist: what a compiled function calls runs as it is, between two compiled parts."""

from __future__ import annotations

import importlib

from tfdist.system.after_import import after_import


def keep_out() -> None:
    """Tells the compiler, once it is imported, which takes seconds."""
    after_import("torch._dynamo", _tell)


def _tell() -> None:
    importlib.import_module("torch._dynamo.trace_rules").add("tfdist")
