"""Pipes whose numbers are small, and greater than what `select.select` takes."""

import fcntl
import os
import resource

import pytest

from tfdist.system.terminal.readiness import readable, writable

ABOVE_SELECT = 1100


@pytest.fixture(params=[0, ABOVE_SELECT])
def pipe(request):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], ABOVE_SELECT + 10), limits[1]))
    low = os.pipe()
    ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, request.param) for end in low]
    for end in low:
        os.close(end)
    yield ends
    for end in ends:
        os.close(end)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_readable(pipe):
    assert not readable(pipe[0])
    assert not readable(pipe[0], 0.01)
    os.write(pipe[1], b"x")
    assert readable(pipe[0])
    assert readable(pipe[0], None)


def test_writable(pipe):
    os.set_blocking(pipe[1], False)
    assert writable(pipe[1])
    os.write(pipe[1], bytes(fcntl.fcntl(pipe[1], fcntl.F_GETPIPE_SZ)))
    assert not writable(pipe[1])
    assert not writable(pipe[1], 0.01)
    os.read(pipe[0], 1 << 20)
    assert writable(pipe[1], None)


def test_the_other_end_is_closed():
    (reader, writer), (other_reader, other_writer) = os.pipe(), os.pipe()
    os.close(writer)
    os.close(other_reader)
    assert readable(reader)
    assert writable(other_writer)
    os.close(reader)
    os.close(other_writer)
