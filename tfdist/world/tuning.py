"""How collectives run where that may change during a job: what the settings say, or what autotuning has put in place.

Carries changes out and decides none. A step that was traced before a change keeps its buckets and its thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from tfdist import config
from tfdist.native import library
from tfdist.native.knobs import SHARED_CHUNKS
from tfdist.world.session import session

_CACHE_LINE = 64


@dataclass(frozen=True)
class Tuning:
    """How collectives run.

    Attributes:
        fusion_threshold: Bytes of gradients that are reduced in one piece; 0 reduces each by itself.
        chunk: Bytes that a rank shows its host at a time; 0 for all that there is room for.
        hierarchy: How GPUs of several hosts reduce: "off", "nccl" or "mpi".
        thread: Whether gradients are reduced in a thread beside the rest of the step, on the CPU.
    """

    fusion_threshold: int
    chunk: int
    hierarchy: str
    thread: bool


def current() -> Tuning:
    """What is in force.

    Raises:
        ConfigError: If a setting has a value that cannot be used.
    """
    return session.tuning or of_settings(config.read())


def of_settings(settings: config.Config, most_chunk: int | None = None) -> Tuning:
    """What the settings say.

    Args:
        settings: The settings.
        most_chunk: The largest chunk that there is room for, in bytes; None where that is not known yet.
    """
    chunk = settings.shared_memory // SHARED_CHUNKS // _CACHE_LINE * _CACHE_LINE
    return Tuning(
        settings.fusion_threshold,
        chunk if most_chunk is None else min(chunk, most_chunk),
        settings.hierarchical_allreduce,
        settings.communication_thread,
    )


def apply(tuning: Tuning) -> None:
    """Puts something in place, on all ranks together: every rank calls it, with the same.

    Raises:
        MismatchError: If the ranks differ.
        ConfigError: If the engine cannot run so.
        NotInitializedError: Before `tfdist.init()`.
    """
    library.ask("rank")
    library.call("tfdist_tune", tuning.fusion_threshold, tuning.chunk, tuning.hierarchy.encode())
    session.tuning = tuning


def most_chunk_bytes() -> int:
    """The largest chunk in bytes; 0 where the ranks of a host share no memory.

    Raises:
        NotInitializedError: Before `tfdist.init()`.
    """
    return library.ask("most_chunk_bytes")
