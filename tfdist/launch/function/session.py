"""Runs the launcher of `tfdist.run` as a child process: its input, its output, and its end when this process ends."""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from tfdist.launch.function import runner
from tfdist.launch.wire.call import anonymous_file, write_all
from tfdist.system.process import end_child

# In isolated mode, so that no user file shadows its modules.
PROGRAM = (sys.executable, "-I", "-S", str(Path(runner.__file__).resolve()))
# The launcher gives ranks up to 20 s to exit after SIGTERM, and then some time to kill the rest.
END_PATIENCE_S = 30.0
_OUTPUT_PATIENCE_S = 10.0
_READ_BYTES = 1 << 15
_LOOK_S = 0.2


@dataclass(frozen=True)
class Setting:
    """Where a job runs, besides its words.

    Attributes:
        door: Where agents come; None if there are none.
        key: Descriptor of the key file for them, which the words name as `/proc/self/fd/N`; None if there are none.
        variables: What the launcher has in its environment besides that of this process.
        out: Takes the ranks' output; None for this process's own.
        err: Takes their error output.
        is_wanted: Asked again and again; once it says no, the job is ended.
    """

    door: socket.socket | None = None
    key: int | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    out: TextIO | None = None
    err: TextIO | None = None
    is_wanted: Callable[[], bool] | None = None


@contextlib.contextmanager
def files(count: int) -> Iterator[list[int]]:
    """Descriptors of `count` empty, unnamed files."""
    with contextlib.ExitStack() as stack:
        made = []
        for _ in range(count):
            made.append(anonymous_file())
            stack.callback(os.close, made[-1])
        yield made


@contextlib.contextmanager
def key_file(key: str) -> Iterator[int]:
    """A descriptor of a file without a name that only this user may read: nothing is left if this process is killed."""
    descriptor = anonymous_file()
    try:
        os.fchmod(descriptor, 0o600)
        write_all(descriptor, key.encode())
        yield descriptor
    finally:
        os.close(descriptor)


def read_all(descriptor: int) -> bytes:
    """The whole file, regardless of the current read position."""
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def launch(
    words: Sequence[str],
    arguments: Mapping[str, str],
    function: int,
    setting: Setting = Setting(),
) -> tuple[int, dict[str, Any] | None, dict[int, bytes]]:
    """Runs a job and waits for it.

    Args:
        words: The arguments of tfdistrun.
        arguments: The caller's name for each tfdistrun option, for messages.
        function: Descriptor of the file with the function.
        setting: Where it runs.

    Returns:
        The launcher's exit status; its report, None if it was killed before it could report; and what each rank has
        answered, by number.
    """
    with files(3) as (order, report, results):
        doors = [] if setting.door is None else [setting.door.fileno()]
        descriptors = {"function": function, "results": results, "report": report, "doors": doors}
        text = {"words": list(words), "arguments": dict(arguments), "parent": os.getpid()}
        write_all(order, json.dumps(text | descriptors).encode())
        os.lseek(order, 0, os.SEEK_SET)
        keys = [] if setting.key is None else [setting.key]
        status = _run(order, (function, report, results, *doors, *keys), setting)
        reported = read_all(report)
        found = json.loads(reported) if reported else None
        return status, found, dict(_answers(results, (found or {}).get("answers", [])))


def _answers(results: int, sizes: Sequence[tuple[int, int]]) -> Iterator[tuple[int, bytes]]:
    offset = 0
    for rank, size in sizes:
        yield rank, os.pread(results, size, offset)
        offset += size


def _run(order: int, given: Sequence[int], setting: Setting) -> int:
    streams = setting.out or sys.stdout, setting.err or sys.stderr
    with output(streams[0]) as out, output(streams[1]) as err:
        # In a session of its own, so that Ctrl-C reaches the ranks through us, once.
        process = subprocess.Popen(
            PROGRAM,
            stdin=order,
            stdout=out,
            stderr=err,
            pass_fds=given,
            start_new_session=True,
            env={**os.environ, **setting.variables},
        )
        try:
            return _wait(process, setting.is_wanted)
        except KeyboardInterrupt:
            end_child(process, END_PATIENCE_S, signal.SIGINT)
            raise
        finally:
            end_child(process, END_PATIENCE_S)


def _wait(process: subprocess.Popen[bytes], is_wanted: Callable[[], bool] | None) -> int:
    if is_wanted is None:
        return process.wait()
    while is_wanted():
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(_LOOK_S)
    end_child(process, END_PATIENCE_S)
    return process.wait()


@contextlib.contextmanager
def output(stream: TextIO | None) -> Iterator[int]:
    """A descriptor for output to a stream of this interpreter, even one without a file, as in a notebook."""
    if stream is None:
        yield subprocess.DEVNULL
    elif any(stream is own for own in (sys.__stdout__, sys.__stderr__)):
        stream.flush()
        yield stream.fileno()
    else:
        reader, writer = os.pipe()
        relay = threading.Thread(target=_relay, args=(reader, stream), name="tfdist-run-output", daemon=True)
        relay.start()
        try:
            yield writer
        finally:
            os.close(writer)
            relay.join(_OUTPUT_PATIENCE_S)


def _relay(reader: int, stream: TextIO) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    with open(reader, "rb", buffering=0) as pipe:
        while data := pipe.read(_READ_BYTES):
            # A closed stream accepts nothing more; the ranks must not wait for it.
            with contextlib.suppress(OSError, ValueError):
                stream.write(decoder.decode(data))
                stream.flush()
