"""Tests of tfdist.world.roster: reports of the launcher as they come through a pipe."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tfdist import errors
from tfdist.native import library
from tfdist.protocol import member
from tfdist.protocol.epoch import Epoch
from tfdist.protocol.member import News
from tfdist.world.roster import Roster

Pipe = tuple[int, Callable[[bytes], None], Callable[[], None]]
FIRST = Epoch("ab", 1, 0, b"k", (("10.0.0.1", 5), ("10.0.0.1", 6)), (0, 0), ("a",), (4, 7))
SECOND = replace(FIRST, number=2, processes=(7, 9))


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ranks that the engine was told of."""
    ranks: list[int] = []
    monkeypatch.setattr(library, "load", lambda: SimpleNamespace(tfdist_note_ended=ranks.append))
    return ranks


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    reader, writer = os.pipe()
    open_ends = {writer}

    def close() -> None:
        open_ends.discard(writer)
        os.close(writer)

    yield reader, lambda line: os.write(writer, line) and None, close
    for end in open_ends:
        os.close(end)


def test_lists_follow_each_other(noted: list[int], pipe: Pipe) -> None:
    reader, tell, _ = pipe
    roster = Roster(News(reader))
    assert roster.number == 0
    tell(FIRST.line())
    assert roster.await_epoch(0, 30, all_must_come=True) == FIRST
    later = threading.Timer(0.05, tell, [SECOND.line()])
    later.start()
    assert roster.await_epoch(1, 30, all_must_come=False) == SECOND
    assert roster.number == 2
    later.join()


def test_a_meeting_is_over_with_the_next_list(noted: list[int], pipe: Pipe, wait_until: Callable[..., None]) -> None:
    reader, tell, _ = pipe
    roster = Roster(News(reader))
    tell(FIRST.line())
    roster.await_epoch(0, 30, all_must_come=True)
    assert not roster.meets
    tell(member.meet(1))
    wait_until(lambda: roster.meets, what="the request")
    tell(SECOND.line())
    roster.await_epoch(1, 30, all_must_come=False)
    assert not roster.meets
    assert not roster.retires
    tell(member.retire())
    wait_until(lambda: roster.retires, what="the request to leave")


def test_processes_that_end_are_ranks_of_the_engine(
    noted: list[int], pipe: Pipe, wait_until: Callable[..., None]
) -> None:
    """Before, while and after there is one; and of another list with other numbers."""
    reader, tell, _ = pipe
    roster = Roster(News(reader))
    tell(member.gone(4))
    wait_until(lambda: roster.gone_of((4, 7)) == [4])
    roster.follow(FIRST.processes)
    assert noted == [0]
    tell(member.gone(3) + member.gone(7))
    wait_until(lambda: noted == [0, 1], what="the end of a rank, and not that of a stranger")
    roster.rest()
    tell(member.gone(9))
    wait_until(lambda: roster.gone_of((9,)) == [9])
    assert noted == [0, 1], "there was no engine"
    roster.follow(SECOND.processes)
    assert noted == [0, 1, 0, 1]


@pytest.mark.parametrize("after", [0, 1])
def test_wait_for_a_list_has_an_end(noted: list[int], pipe: Pipe, after: int) -> None:
    roster = Roster(News(pipe[0]))
    what = (
        "which ranks continue within 0.05 s" if after else "the other ranks within 0.05 s: not all of them have called"
    )
    with pytest.raises(errors.PeerLostError, match=what):
        roster.await_epoch(after, 0.05, all_must_come=False)


def test_first_list_needs_all(noted: list[int], pipe: Pipe) -> None:
    reader, tell, close = pipe
    roster = Roster(News(reader))
    tell(member.gone(3))
    with pytest.raises(errors.PeerLostError, match=r"rank 3 has ended before it called tfdist\.init\(\)"):
        roster.await_epoch(0, 30, all_must_come=True)
    close()
    with pytest.raises(errors.PeerLostError, match="tfdistrun, or the supervisor of this rank, is gone"):
        roster.await_epoch(0, 30, all_must_come=False)


def test_without_a_supervisor() -> None:
    with pytest.raises(errors.PeerLostError, match="is gone"):
        Roster(News(None)).await_epoch(0, 30, all_must_come=True)
