"""What reads bytes of a network or a file: takes any bytes, and ends with a value or the error that it should raise.

`test_target.py` gives them random bytes, `campaign.py` those that atheris finds by coverage. No test of its own.
"""

import contextlib
import hashlib
import json
import queue
import socket
import struct
import zlib

from tfdist import __version__
from tfdist.callbacks.store import snapshot
from tfdist.elastic import commit_store
from tfdist.errors import ConfigError
from tfdist.launch.agent.station import Orders
from tfdist.launch.host import host
from tfdist.launch.run import force
from tfdist.launch.wire import channel, introduction, record
from tfdist.launch.wire.link import Link
from tfdist.launch.wire.muster import Recruit
from tfdist.launch.wire.ticket import Ticket
from tfdist.protocol.commit_file import COMMIT
from tfdist.protocol.handshake import RefusedError
from tfdist.system.terminal import line
from tfdist.system.whole_file import DamagedFileError

KEY = bytes(range(32))
SIZE = 4


def frames(data):
    """A stranger's bytes, as they come from a connection in two pieces."""
    buffer, opener = record.FrameBuffer(4096), record.Opener("job", KEY, record.TO_LAUNCHER, range(SIZE))
    with contextlib.suppress(record.RefusedFrameError):
        for piece in (data[: len(data) // 2], data[len(data) // 2 :]):
            buffer.feed(piece)
            while (frame := buffer.take()) is not None:
                opener.open(*frame)
                raise AssertionError("a frame without the key was accepted")


def messages(data):
    """The body of a frame that has the job's key, taken in by the channel."""
    listener = socket.socket()
    written = []
    made = channel.Channel(
        listener, Ticket("job", KEY, "h", 1), SIZE, queue.SimpleQueue(), lambda *words: written.append(words), print
    )
    connection = channel._Connection(Link(socket.socket()), ("h", 1))
    connection.rank = 1
    digest = record._digest(KEY, "job", record.TO_LAUNCHER, 1, 1, data)
    head = struct.pack("!I32sIQ", len(data), digest, 1, 1)
    try:
        with contextlib.suppress(record.RefusedFrameError):
            rank, message = record.Opener("job", KEY, record.TO_LAUNCHER, range(SIZE)).open(head, data)
            assert rank == 1 and set(message.fields) == set(record.SCHEMAS[message.kind])
            made._deliver(connection, rank, message)
            for _, stream, piece in written:
                line.PrefixWriter().render((1, stream), piece)
    finally:
        connection.link.close()
        made.close()
        for end in (made._selector, made._wake, made._waker):
            end.close()


def strangers(data):
    """What somebody without the key says to the port for agents, under TLS, in the portions that are read."""
    handshake = introduction.acceptor(KEY, bytes(32))
    with contextlib.suppress(RefusedError):
        while data and not handshake.done:
            wanted = handshake.wanted
            handshake.feed(data[:wanted])
            data = data[wanted:]
    assert not handshake.done


def agents(data):
    """The body of a frame between a launcher and an agent, which have the key: an offer, or orders."""
    for direction in (record.FROM_AGENT, record.TO_AGENT):
        digest = record._digest(KEY, "job", direction, 1, 1, data)
        head = struct.pack("!I32sIQ", len(data), digest, 1, 1)
        with contextlib.suppress(record.RefusedFrameError, ConfigError):
            _, message = record.Opener("job", KEY, direction, range(1, 2)).open(head, data)
            if message.kind == "offer":
                recruit = Recruit(None, "10.0.0.1", **message.fields)
                assert force.judged(recruit, lambda _: None) or host.is_name(recruit.host)
            elif message.kind == "crew":
                Orders.read(message.fields, ("h", 1), b"").environment({})


def output(data):
    """What a rank prints, in two pieces; nothing but carriage returns and states of a bar is lost."""
    splitter, writer, out = line.LineSplitter(), line.PrefixWriter(), b""
    pieces = splitter.feed(data[: len(data) // 2], 0) + splitter.feed(data[len(data) // 2 :], 1) + splitter.flush(2)
    for piece in pieces:
        out += writer.render((0, "stdout"), piece)
    if b"\r" not in data:
        assert out.replace(b"[0] ", b"").strip(b"\n") == data.replace(b"[0] ", b"").strip(b"\n")


def hosts(data):
    """What a discovery script prints, a host file, and `-H`."""
    text = data.decode(errors="surrogateescape")
    for parse in (lambda: host.parse_found(text, 2), lambda: host.parse_file(text, "f"), lambda: host.parse_list(text)):
        with contextlib.suppress(ConfigError):
            assert all(isinstance(item, host.Host) and item.slots > 0 for item in parse())


def commits(data):
    """A file of a commit, and parts of one whose checksum fits. No pickle: it may run code, and is this user's own."""
    with contextlib.suppress(DamagedFileError):
        commit_store._decode(COMMIT.contents(data))
    with contextlib.suppress(DamagedFileError):
        assert sum(part.nbytes for part in commit_store._parts_of(memoryview(data))) <= len(data)


def snapshots(data):
    """A file of a snapshot, and contents whose checksum fits."""
    signed = b"tfdist snapshot 1 %s %d\n" % (hashlib.sha256(data).hexdigest().encode(), len(data)) + data
    for file in (data, signed):
        with contextlib.suppress(DamagedFileError):
            assert isinstance(snapshot.decode(file), dict)


def _commit(payload):
    return b"tfdist commit 1 %08x %d\n" % (zlib.crc32(payload), len(payload)) + payload


def _body(kind, **fields):
    return json.dumps({"kind": kind, **fields}).encode()


# With inputs to begin from, which come near to what is accepted.
TARGETS = {
    frames: [record.Sealer("job", bytes(32), record.TO_LAUNCHER, 1).seal("started", pid=3), b"\0\0\0\1" + bytes(45)],
    messages: [
        _body("started", pid=3),
        _body("finished", code=None, signal=9, told=True, tail=["a", "b"]),
        _body("output", stream="stdout", text="a\udc80", end="line"),
        _body("output", stream="stderr", text="\ud800", end="partial"),
    ],
    strangers: [b"tfdist-1" + bytes([0, 0, 0, 1, 0, 0, 0, 0]) + bytes(64), b"tfdist-1" * 9],
    agents: [
        _body("offer", host="a", slots=2, version=__version__, python="3.11", machine="m"),
        _body("crew", job="j", key="00", first=0, count=1, size=2, variables=["A=b=c", "D"], folder="/"),
        _body("over", status=1, reason="no"),
    ],
    output: [b"a\nb", b"10%\r20%\r\n", b"\r\n\r\n"],
    hosts: [b"a:4\nb", b"a slots=2 # c\n\nb:3", b"a:4,b:4", b"a:" + b"9" * 5000, b"\x85a\xff:1"],
    commits: [_commit(struct.pack("!2Q2s", 1, 2, b"no")), struct.pack("!3Q", 2, 0, 0), b"\xff" * 24],
    snapshots: [b"PK\x05\x06" + bytes(18), b"\x93NUMPY\x01\0\x16\0{'descr':'<f4','shape':1", b"tfdist snapshot 1 "],
}
