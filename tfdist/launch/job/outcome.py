"""How ranks and hosts end."""

from __future__ import annotations

from dataclasses import dataclass

# How a supervisor is lost if it or its host was killed.
CLOSED = "closed its connection without a record"


def silence(limit_s: float) -> str:
    """How it is lost if it does not answer."""
    return f"has not answered for {limit_s:g} s (TFDIST_HOST_TIMEOUT)"


@dataclass(frozen=True)
class Outcome:
    """How one rank ended. `code` and `signum` are both None if its supervisor vanished without a record.

    `lost` then says how, as in "has not answered for 30 s". `told` is set if the rank was sent a signal, `retired` if a
    signal made it leave at a commit.
    """

    rank: int
    host: str
    code: int | None = None
    signum: int | None = None
    told: bool = False
    tail: tuple[str, ...] = ()
    lost: str = ""
    retired: bool = False

    @property
    def recorded(self) -> bool:
        return self.code is not None or self.signum is not None

    @property
    def failed(self) -> bool:
        return self.code != 0

    @property
    def status(self) -> int:
        """The exit status a shell would show."""
        if self.signum is not None:
            return 128 + self.signum
        return 1 if self.code is None else self.code


@dataclass(frozen=True)
class LostHost:
    """Another machine whose ranks vanished together. `how` continues a sentence that starts with its name."""

    name: str
    ranks: tuple[int, ...]
    how: str
