"""The messages of the launcher with ranks and agents: framed, authenticated, bounded JSON.

A frame is: body length (4 bytes), HMAC-SHA256 (32), rank (4), sequence number (8), JSON body; integers are big-endian.
The HMAC covers job, direction, rank, sequence number and body, so a frame is valid once, in one job, for one rank.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from dataclasses import dataclass
from typing import Any

BODY_LIMIT_BYTES = 1 << 20
_HEAD = struct.Struct("!I32sIQ")
HEAD_BYTES = _HEAD.size

TO_LAUNCHER = "to-launcher"
TO_RANK = "to-rank"
FROM_AGENT = "from-agent"
TO_AGENT = "to-agent"

# kind -> its required fields, with their JSON types; nothing else is accepted.
_NUMBER = (int,)
_SECONDS = (int, float)
_TEXT = (str,)
_MAYBE_NUMBER = (int, type(None))
SCHEMAS: dict[str, dict[str, tuple[type, ...]]] = {
    "hello": {"host": _TEXT, "pid": _NUMBER},
    # `commits` names the folder for commits in this host's memory; empty for a job that is not elastic.
    # `window`: how much output may be sent before `more` arrives. `redrawn`: the streams shown on a terminal.
    "run": {
        "command": (list,),
        "silence_limit": _SECONDS,
        "elastic": (bool,),
        "commits": _TEXT,
        "window": _NUMBER,
        "redrawn": (list,),
    },
    "started": {"pid": _NUMBER},
    # A rank of a job without MPI listens there for the others; `epoch` is the last one that it knows, 0 for none.
    "listening": {"epoch": _NUMBER, "address": _TEXT},
    # All of them listen: `members` has "PROCESS HOST ADDRESS:PORT" by rank, with an index into the names of `hosts`.
    "epoch": {"number": _NUMBER, "members": (list,), "hosts": (list,)},
    "joined": {},
    "committed": {},
    "stalled": {},
    "left": {},
    "retired": {},
    "parted": {},
    # A training that new processes may join at a commit, and the end of that.
    "open": {},
    "closed": {},
    "leave": {},
    # All ranks meet new ones at their next commit, after the list with that number; this rank leaves at its next one.
    "meet": {"after": _NUMBER},
    "retire": {},
    # A process that has exited although others may wait for it.
    "gone": {"who": _NUMBER},
    "alive": {},
    "output": {"stream": _TEXT, "text": _TEXT, "end": _TEXT},
    "more": {"size": _NUMBER},
    # The rank has exited. `finished` comes after its output, which may wait for room.
    "ended": {"failed": (bool,)},
    "finished": {"code": _MAYBE_NUMBER, "signal": _MAYBE_NUMBER, "told": (bool,), "tail": (list,)},
    "signal": {"number": _NUMBER},
    # `forget`: nobody will continue from the commits. `backup`: "keep" saves the newest one, "drop" removes it, or "".
    "release": {"forget": (bool,), "backup": _TEXT},
    "kept": {"names": (list,), "error": _TEXT},
    # The bytes of `tfdist.run`, in base64; `call` says how to get them.
    "call": {"size": _NUMBER, "digest": _TEXT, "machine": _TEXT, "source": _TEXT, "sink": _TEXT},
    "fetch": {"offset": _NUMBER},
    "part": {"data": _TEXT},
    "result": {"data": _TEXT},
    "failing": {},
    # An agent offers its host for so many ranks; `version` is tfdist's.
    # Agents with the same `machine` share it, so that their ranks count as those of one host; empty if they do not say.
    "offer": {"host": _TEXT, "slots": _NUMBER, "version": _TEXT, "python": _TEXT, "machine": _TEXT},
    # It starts the supervisors of ranks, `count` of `size` from `first` on. `variables` are NAME=VALUE. Of newcomers,
    # `places` has their numbers within the host. They dial `port` and expect `fingerprint`; 0 and "" mean its own.
    # The agent of an elastic job stays when they have ended, and gives them time to leave at a commit.
    "crew": {
        "job": _TEXT,
        "key": _TEXT,
        "first": _NUMBER,
        "count": _NUMBER,
        "size": _NUMBER,
        "places": (list,),
        "port": _NUMBER,
        "fingerprint": _TEXT,
        "variables": (list,),
        "folder": _TEXT,
        "elastic": (bool,),
    },
    # What the user should know about that host; `text` continues its name.
    "remark": {"text": _TEXT},
    # Somebody has sent the agent a signal: it ends its ranks, or waits until they have left.
    "withdrawn": {"signal": _NUMBER},
    "crew_ended": {"status": _NUMBER},
    # The job has ended with this status, or there is none and `reason` says why.
    "over": {"status": _NUMBER, "reason": _TEXT},
}
_FROM_RANK = frozenset(
    {"hello", "started", "joined", "committed", "stalled", "left", "alive", "output", "finished", "fetch", "result"}
    | {"retired", "parted", "failing", "kept", "ended", "listening", "open", "closed"}
)
_OF_AGENTS = dict.fromkeys(("offer", "remark", "withdrawn", "crew_ended"), FROM_AGENT) | {
    "crew": TO_AGENT,
    "over": TO_AGENT,
}
_DIRECTIONS = {kind: TO_LAUNCHER if kind in _FROM_RANK else TO_RANK for kind in SCHEMAS} | _OF_AGENTS


class RefusedFrameError(Exception):
    """Bytes that are not a valid message of this job: garbage, another key, a replay, too large, wrong schema."""


@dataclass(frozen=True)
class Message:
    """One message; `fields` holds what `SCHEMAS` lists for its kind."""

    kind: str
    fields: dict[str, Any]


def _digest(key: bytes, job: str, direction: str, rank: int, sequence: int, body: bytes) -> bytes:
    head = json.dumps(["tfdist-launch-1", job, direction, rank, sequence]).encode()
    return hmac.new(key, struct.pack("!I", len(head)) + head + body, hashlib.sha256).digest()


def _check(data: Any, direction: str) -> Message:
    if not isinstance(data, dict):
        raise RefusedFrameError("the body is not an object")
    kind = data.pop("kind", None)
    schema = SCHEMAS.get(kind) if isinstance(kind, str) else None
    if schema is None or _DIRECTIONS.get(kind) != direction:
        raise RefusedFrameError("an unexpected kind of message")
    if data.keys() != schema.keys():
        raise RefusedFrameError(f"the fields of {kind!r} are not {sorted(schema)}")
    for name, types in schema.items():
        value = data[name]
        # isinstance treats bool as int, but it is never valid as a number.
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise RefusedFrameError(f"field {name!r} of {kind!r} has the wrong type")
        if isinstance(value, list) and not all(isinstance(item, str) for item in value):
            raise RefusedFrameError(f"field {name!r} of {kind!r} is not a list of text")
    return Message(kind, data)


class Sealer:
    """Turns messages into frames of one rank in one direction, numbering them."""

    def __init__(self, job: str, key: bytes, direction: str, rank: int) -> None:
        self._job, self._key, self._direction, self._rank = job, key, direction, rank
        self._sequence = 0

    def seal(self, kind: str, **fields: Any) -> bytes:
        body = json.dumps({"kind": kind, **fields}).encode("ascii")
        if len(body) > BODY_LIMIT_BYTES:
            raise ValueError(f"a {kind!r} message has {len(body)} bytes; at most {BODY_LIMIT_BYTES} can be sent")
        self._sequence += 1
        digest = _digest(self._key, self._job, self._direction, self._rank, self._sequence, body)
        return _HEAD.pack(len(body), digest, self._rank, self._sequence) + body


class Opener:
    """Turns frames of one direction back into messages, or refuses them; remembers each rank's last sequence number.

    One instance serves all connections of a job, so a replay on a second connection is refused too.
    """

    def __init__(self, job: str, key: bytes, direction: str, ranks: range) -> None:
        self._job, self._key, self._direction = job, key, direction
        self._last = dict.fromkeys(ranks, 0)

    def admit(self, ranks: range) -> None:
        """From now on these too may speak."""
        self._last |= dict.fromkeys(ranks, 0)

    def open(self, head: bytes, body: bytes) -> tuple[int, Message]:
        length, digest, rank, sequence = _HEAD.unpack(head)
        if length != len(body):
            raise RefusedFrameError("truncated")
        if not hmac.compare_digest(digest, _digest(self._key, self._job, self._direction, rank, sequence, body)):
            raise RefusedFrameError("not authenticated with this job's key")
        if rank not in self._last:
            raise RefusedFrameError(f"rank {rank} is not in this job")
        if sequence != self._last[rank] + 1:
            raise RefusedFrameError(f"number {sequence} of rank {rank} after {self._last[rank]}: a replay or a gap")
        try:
            message = _check(json.loads(body), self._direction)
        except (ValueError, RecursionError):
            raise RefusedFrameError("the body is not JSON") from None
        self._last[rank] = sequence
        return rank, message


class FrameBuffer:
    """Splits a byte stream into frames; refuses an oversized one by its head, before allocating memory for its body."""

    def __init__(self, limit_bytes: int = BODY_LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._bytes = bytearray()

    def feed(self, data: bytes) -> None:
        self._bytes += data

    def take(self) -> tuple[bytes, bytes] | None:
        """The next complete (head, body); None if there is none yet. Raises RefusedFrameError on an oversized one."""
        if len(self._bytes) < HEAD_BYTES:
            return None
        length: int = _HEAD.unpack_from(self._bytes)[0]
        if length > self.limit_bytes:
            raise RefusedFrameError(f"announces {length} bytes; at most {self.limit_bytes} are accepted")
        end = HEAD_BYTES + length
        if len(self._bytes) < end:
            return None
        frame = bytes(self._bytes[:HEAD_BYTES]), bytes(self._bytes[HEAD_BYTES:end])
        del self._bytes[:end]
        return frame
