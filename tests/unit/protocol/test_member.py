"""Tests of tfdist.protocol.member; that a supervisor passes it on is tested by the jobs of tests/launch."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from tfdist.protocol import member
from tfdist.protocol.epoch import Epoch
from tfdist.protocol.member import Gone, Meet, Pipe, Retire

EPOCH = Epoch("ab", 1, 0, b"k", (("10.0.0.1", 5),), (0,), ("a",), (0,))


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe2(os.O_NONBLOCK)
    yield reader, writer
    os.close(reader)
    os.close(writer)


def test_report(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    with pytest.raises(BlockingIOError):
        os.read(reader, 1)
    variables = member.variables(Pipe(writer, reader), Pipe(reader, writer), None, None)
    for event in (member.JOINED, member.COMMITTED, member.STALLED, member.LEFT, member.RETIRED, member.PARTED):
        assert member.report(event, variables)
        assert os.read(reader, 9) == event


def test_folder_for_commits(pipe: tuple[int, int], tmp_path: Path) -> None:
    assert member.commits(member.variables(Pipe(pipe[1], pipe[0]), Pipe(*pipe), tmp_path, None)) == tmp_path
    assert member.commits(member.variables(Pipe(pipe[1], pipe[0]), Pipe(*pipe), None, None)) is None


def test_folder_on_a_disk() -> None:
    assert member.backup({member.BACKUP_VARIABLE: "/a"}) == "/a"
    assert member.backup({}) is None


def test_a_rank_is_to_leave_when_the_file_appears(pipe: tuple[int, int], tmp_path: Path) -> None:
    variables = member.variables(Pipe(pipe[1], pipe[0]), Pipe(*pipe), tmp_path, tmp_path / "leave")
    assert not member.must_leave(variables)
    (tmp_path / "leave").touch()
    assert member.must_leave(variables)
    assert not member.must_leave({})


@pytest.mark.parametrize("text", ["", "x:1", "7", "7:", "1:2:3", "1:2:3:4:5"])
def test_without_a_supervisor_there_is_nobody_to_tell(text: str) -> None:
    assert member.report(member.JOINED, {member.PIPE_VARIABLE: text})
    assert member.report(member.JOINED, {})


def test_descriptor_that_a_program_closed_is_found_again(pipe: tuple[int, int]) -> None:
    """As every subprocess of Python closes those that it does not know; their numbers may mean other pipes then."""
    reader, writer = pipe
    variables = member.variables(Pipe(writer, reader), Pipe(reader, writer), None, None)
    other_reader, other_writer = os.pipe2(os.O_NONBLOCK)
    kept = os.dup(writer)
    os.dup2(other_writer, writer)
    assert member.report(member.JOINED, variables)
    assert os.read(reader, 9) == member.JOINED
    with pytest.raises(BlockingIOError):
        os.read(other_reader, 1)
    os.dup2(kept, writer)
    for descriptor in (kept, other_reader, other_writer):
        os.close(descriptor)


def test_supervisor_that_is_gone() -> None:
    reader, writer = os.pipe()
    variables = member.variables(Pipe(writer, reader), Pipe(reader, writer), None, None)
    os.close(reader)
    assert not member.report(member.JOINED, variables), "it no longer reads"
    os.close(writer)
    assert not member.report(member.JOINED, variables)
    assert not member.report(member.JOINED, {member.PIPE_VARIABLE: "987654:1:987654:1"})


@pytest.fixture(params=[0, 1100], ids=["low", "above those of select"])
def news(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[int]:
    """Where a supervisor writes what its rank, this process, reads; with as many descriptors open before."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], request.param + 100), limits[1]))
    others = [os.dup(pipe[0]) for _ in range(request.param)]
    reader, writer = os.pipe()
    for name, value in member.variables(Pipe(pipe[1], pipe[0]), Pipe(reader, writer), None, None, "10.0.0.1").items():
        monkeypatch.setenv(name, value)
    yield writer
    os.close(reader)
    with contextlib.suppress(OSError):  # the test may have closed it
        os.close(writer)
    for other in others:
        os.close(other)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_token_is_for_the_first_program(news: int) -> None:
    os.write(news, member.TOKEN)
    assert member.is_first()
    assert not member.is_first(), "another program has taken the token"


def test_reports_of_the_launcher_in_order(news: int) -> None:
    reports = member.open_news()
    assert reports.wait(0) is None
    os.write(news, member.gone(2) + EPOCH.line() + member.gone(0)[:1])
    assert reports.wait(9) == Gone(2)
    assert reports.wait(9) == EPOCH
    assert reports.wait(0.01) is None, "a part of a line is none"
    os.write(news, member.gone(0)[1:] + member.gone(11))
    os.close(news)
    assert [reports.wait(), reports.wait(), reports.wait()] == [Gone(0), Gone(11), None]


def test_ranks_are_asked_to_meet_and_to_leave(news: int) -> None:
    told = member.open_news()
    os.write(news, member.meet(12) + member.retire())
    assert told.wait(30) == Meet(12)
    assert told.wait(30) == Retire()


def test_newcomer_is_told_by_a_variable() -> None:
    assert member.is_newcomer({member.NEWCOMER_VARIABLE: "1"})
    assert not member.is_newcomer({})


def test_without_a_supervisor_there_is_no_news() -> None:
    assert member.is_first()
    assert member.open_news().wait() is None
    assert member.listen_address() == ""


def test_address_of_the_rank_is_reported(pipe: tuple[int, int], news: int) -> None:
    assert member.listen_address() == "10.0.0.1"
    assert member.listens(3, ("fd00::1", 77))
    line = os.read(pipe[0], 99)
    assert line == member.LISTENING + b"3 [fd00::1]:77\n"
    assert member.listening(line[:-1]) == (3, "[fd00::1]:77")
    for wrong in (b"", b" 1.2.3.4:5", b"\xff 1.2.3.4:5"):
        with pytest.raises(ValueError, match=r".+"):
            member.listening(member.LISTENING + wrong)
