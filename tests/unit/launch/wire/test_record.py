"""Tests of tfdist.launch.wire.record."""

from __future__ import annotations

import contextlib
import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.launch.wire import record
from tfdist.launch.wire.record import (
    FROM_AGENT,
    TO_AGENT,
    TO_LAUNCHER,
    TO_RANK,
    FrameBuffer,
    Opener,
    RefusedFrameError,
    Sealer,
)

KEY = bytes(range(32))


def _frame(data: bytes) -> tuple[bytes, bytes]:
    return data[: record.HEAD_BYTES], data[record.HEAD_BYTES :]


def _opener(direction: str = TO_LAUNCHER, job: str = "job", key: bytes = KEY) -> Opener:
    return Opener(job, key, direction, range(4))


def _sealer(rank: int = 2, direction: str = TO_LAUNCHER) -> Sealer:
    return Sealer("job", KEY, direction, rank)


CREW = {
    "job": "j",
    "key": "00",
    "first": 0,
    "count": 1,
    "size": 2,
    "variables": ["A=b"],
    "elastic": True,
    "folder": "/f",
} | {
    "places": ["1"],
    "port": 5,
    "fingerprint": "00ff",
}
MESSAGES: list[tuple[str, str, dict[str, Any]]] = [
    (TO_LAUNCHER, "hello", {"host": "h", "pid": 3}),
    (TO_LAUNCHER, "started", {"pid": 4}),
    (TO_LAUNCHER, "output", {"stream": "stdout", "text": "é\udc80\n", "end": "line"}),
    (TO_LAUNCHER, "finished", {"code": None, "signal": 9, "told": True, "tail": ["a", "b"]}),
    (TO_LAUNCHER, "listening", {"epoch": 0, "address": "10.0.0.1:5"}),
    (TO_RANK, "epoch", {"number": 1, "members": ["0 0 10.0.0.1:5"], "hosts": ["a"]}),
    (TO_LAUNCHER, "joined", {}),
    (TO_LAUNCHER, "committed", {}),
    (TO_LAUNCHER, "stalled", {}),
    (TO_LAUNCHER, "left", {}),
    (TO_LAUNCHER, "retired", {}),
    (TO_LAUNCHER, "parted", {}),
    (TO_RANK, "gone", {"who": 3}),
    (TO_RANK, "leave", {}),
    (TO_RANK, "meet", {"after": 2}),
    (TO_RANK, "retire", {}),
    (TO_LAUNCHER, "open", {}),
    (TO_LAUNCHER, "closed", {}),
    (TO_LAUNCHER, "alive", {}),
    (
        TO_RANK,
        "run",
        {
            "command": ["a b"],
            "silence_limit": 2.5,
            "elastic": False,
            "commits": "c",
            "window": 9,
            "redrawn": ["stdout"],
        },
    ),
    (TO_RANK, "more", {"size": 7}),
    (TO_LAUNCHER, "ended", {"failed": True}),
    (TO_RANK, "signal", {"number": 15}),
    (TO_RANK, "release", {"forget": True, "backup": "keep"}),
    (TO_LAUNCHER, "kept", {"names": ["0-7.commit"], "error": ""}),
    (TO_RANK, "call", {"size": 9, "digest": "d", "machine": "m", "source": "/proc/1/fd/2", "sink": "/proc/1/fd/3"}),
    (TO_LAUNCHER, "fetch", {"offset": 1 << 19}),
    (TO_RANK, "part", {"data": "eA=="}),
    (TO_LAUNCHER, "result", {"data": "eA=="}),
    (TO_LAUNCHER, "failing", {}),
    (FROM_AGENT, "offer", {"host": "a", "slots": 2, "version": "1", "python": "3.11", "machine": ""}),
    (FROM_AGENT, "remark", {"text": "there is no folder"}),
    (FROM_AGENT, "withdrawn", {"signal": 15}),
    (FROM_AGENT, "crew_ended", {"status": 0}),
    (TO_AGENT, "crew", CREW),
    (TO_AGENT, "over", {"status": 1, "reason": "no"}),
]


@pytest.mark.parametrize(("direction", "kind", "fields"), MESSAGES, ids=[kind for _, kind, _ in MESSAGES])
def test_round_trip(direction: str, kind: str, fields: dict[str, Any]) -> None:
    opener, sealer = _opener(direction), _sealer(direction=direction)
    for _ in range(3):
        rank, message = opener.open(*_frame(sealer.seal(kind, **fields)))
        assert (rank, message.kind, message.fields) == (2, kind, fields)


def test_every_kind_is_tried_above() -> None:
    assert {kind for _, kind, _ in MESSAGES} == set(record.SCHEMAS)


@pytest.mark.parametrize("opener", [_opener(key=bytes(32)), _opener(job="other"), _opener(direction=TO_RANK)])
def test_other_key_job_or_direction(opener: Opener) -> None:
    with pytest.raises(RefusedFrameError, match="not authenticated"):
        opener.open(*_frame(_sealer().seal("started", pid=1)))


def test_replay_gap_and_foreign_rank() -> None:
    opener, sealer = _opener(), _sealer()
    first, second, third = (_frame(sealer.seal("started", pid=number)) for number in range(3))
    opener.open(*first)
    for refused in (first, third):
        with pytest.raises(RefusedFrameError, match="a replay or a gap"):
            opener.open(*refused)
    opener.open(*second)
    with pytest.raises(RefusedFrameError, match="rank 4 is not in this job"):
        opener.open(*_frame(_sealer(rank=4).seal("started", pid=1)))


@pytest.mark.parametrize("position", [0, 3, 4, 20, 35, 36, 39, 40, 47, 48, 60])
def test_any_changed_byte_is_refused(position: int) -> None:
    data = bytearray(_sealer().seal("hello", host="host", pid=1))
    data[position] ^= 1
    with pytest.raises(RefusedFrameError):
        _opener().open(*_frame(bytes(data)))


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("nonsense", {}),
        ("signal", {"number": 9}),
        ("started", {}),
        ("started", {"pid": "1"}),
        ("started", {"pid": True}),
        ("started", {"pid": 1, "more": 2}),
        ("finished", {"code": 0, "signal": None, "told": False, "tail": [1]}),
        ("call", {"size": 9, "digest": "d", "machine": "m", "source": "s", "sink": "s"}),
        ("part", {"data": "eA=="}),
        ("fetch", {"offset": "0"}),
        ("result", {"data": None}),
        ("result", {"data": "eA==", "rank": 1}),
    ],
)
def test_schema(kind: str, fields: dict[str, Any]) -> None:
    with pytest.raises(RefusedFrameError):
        _opener().open(*_frame(_sealer().seal(kind, **fields)))


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b'{"kind": []}'])
def test_authenticated_nonsense(body: bytes) -> None:
    digest = record._digest(KEY, "job", TO_LAUNCHER, 1, 1, body)
    with pytest.raises(RefusedFrameError):
        _opener().open(struct.pack("!I32sIQ", len(body), digest, 1, 1), body)


def test_oversize_is_refused_by_its_head() -> None:
    buffer = FrameBuffer()
    buffer.feed(struct.pack("!I", record.BODY_LIMIT_BYTES + 1) + bytes(record.HEAD_BYTES - 4))
    with pytest.raises(RefusedFrameError, match="announces"):
        buffer.take()
    with pytest.raises(ValueError, match="at most"):
        _sealer().seal("finished", code=1, signal=None, told=False, tail=["x" * record.BODY_LIMIT_BYTES])


@given(st.lists(st.text(), max_size=5), st.data())
def test_stream_is_cut_anywhere(texts: list[str], data: st.DataObject) -> None:
    sealer, opener, buffer = _sealer(), _opener(), FrameBuffer()
    stream = b"".join(sealer.seal("output", stream="stdout", text=text, end="line") for text in texts)
    got = []
    while stream:
        count = data.draw(st.integers(1, len(stream)))
        buffer.feed(stream[:count])
        stream = stream[count:]
        while (frame := buffer.take()) is not None:
            got.append(opener.open(*frame)[1].fields["text"])
    assert got == texts


@given(st.binary(max_size=300))
def test_garbage_is_refused_or_incomplete(garbage: bytes) -> None:
    buffer, opener = FrameBuffer(), _opener()
    buffer.feed(garbage)
    with contextlib.suppress(RefusedFrameError):
        while (frame := buffer.take()) is not None:
            opener.open(*frame)
            pytest.fail("garbage was accepted")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_json_is_a_message_or_refused(value: Any) -> None:
    body = json.dumps(value).encode()
    digest = record._digest(KEY, "job", TO_LAUNCHER, 1, 1, body)
    with pytest.raises(RefusedFrameError):
        _opener().open(struct.pack("!I32sIQ", len(body), digest, 1, 1), body)
