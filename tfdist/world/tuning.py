"""How collectives run, if that may change during a job: as configured, or as set by autotuning.

Applies changes, which others decide. A step that was traced before a change keeps its buckets and its thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tfdist import config
from tfdist.native import library
from tfdist.native.knobs import SHARED_CHUNKS
from tfdist.world.session import session

_CACHE_LINE = 64


# The settings that make one, in the order of `_tuning_of`.
_FIELDS = ("fusion_threshold", "shared_memory", "hierarchical_allreduce", "communication_thread")


@dataclass(frozen=True)
class Tuning:
    """How collectives run.

    Attributes:
        fusion_threshold: Bytes of gradients that are reduced together; 0 reduces each separately.
        chunk: Bytes that a rank shares on its host at a time; 0 for as many as fit.
        hierarchy: How GPUs of several hosts reduce: "off", "nccl" or "mpi".
        thread: Whether gradients are reduced on the CPU in a thread parallel to the rest of the step.
    """

    fusion_threshold: int
    chunk: int
    hierarchy: str
    thread: bool


def current() -> Tuning:
    """The tuning in use.

    Raises:
        ConfigError: If a setting has a value that cannot be used.
    """
    return session.tuning or _tuning_of([config.value(field) for field in _FIELDS], None)


def of_settings(settings: config.Config, most_chunk: int | None = None) -> Tuning:
    """The tuning that the settings specify.

    Args:
        settings: The settings.
        most_chunk: The largest chunk that fits, in bytes; None if not known yet.
    """
    return _tuning_of([getattr(settings, field) for field in _FIELDS], most_chunk)


def _tuning_of(values: Sequence[Any], most_chunk: int | None) -> Tuning:
    fusion_threshold, shared_memory, hierarchy, thread = values
    chunk = shared_memory // SHARED_CHUNKS // _CACHE_LINE * _CACHE_LINE
    return Tuning(fusion_threshold, chunk if most_chunk is None else min(chunk, most_chunk), hierarchy, thread)


def apply(tuning: Tuning) -> None:
    """Applies a tuning on all ranks together: every rank calls it with the same one.

    Raises:
        MismatchError: If the ranks differ.
        ConfigError: If the engine does not support it.
        NotInitializedError: Before `tfdist.init()`.
    """
    library.ask("rank")
    library.call("tfdist_tune", tuning.fusion_threshold, tuning.chunk, tuning.hierarchy.encode())
    session.tuning = tuning


def most_chunk_bytes() -> int:
    """The largest chunk in bytes; 0 if the ranks of a host share no memory.

    Raises:
        NotInitializedError: Before `tfdist.init()`.
    """
    return library.ask("most_chunk_bytes")
