"""Writes in a thread: one after the other, the newest always, and nobody waits for ever."""

import threading
import weakref

import pytest

from tfdist.callbacks.store import writer as writer_module
from tfdist.callbacks.store.writer import Writer, wait_for_all

SECONDS = 30


class Disk:
    """Writes that take until they are let go, in the order in which they begin."""

    def __init__(self):
        self.begun, self.ended, self.threads = [], [], set()
        self.lets_go = threading.Event()

    def write(self, name):
        def call():
            self.begun.append(name)
            self.threads.add(threading.current_thread())
            assert self.lets_go.wait(SECONDS)
            self.ended.append(name)

        return call


@pytest.fixture
def disk():
    made = Disk()
    yield made
    made.lets_go.set()
    wait_for_all()


def test_the_caller_does_not_wait(disk, wait_until):
    writer = Writer("files")
    assert writer.put(disk.write("a")) is False
    wait_until(lambda: disk.begun == ["a"])
    assert disk.ended == []
    disk.lets_go.set()
    assert writer.wait()
    assert disk.ended == ["a"]
    assert threading.current_thread() not in disk.threads


def test_one_at_a_time_and_the_newest_always(disk, wait_until):
    """What waits for its turn is replaced; what has begun is not."""
    writer = Writer("files")
    assert not writer.put(disk.write("a"))
    wait_until(lambda: disk.begun == ["a"])
    assert [writer.put(disk.write(name)) for name in "bcd"] == [False, True, True]
    assert disk.begun == ["a"]
    disk.lets_go.set()
    assert writer.wait()
    assert disk.ended == ["a", "d"]


def test_what_has_not_begun_is_dropped(disk, wait_until):
    writer = Writer("files")
    writer.put(disk.write("a"))
    wait_until(lambda: disk.begun)
    writer.put(disk.write("b"))
    writer.drop()
    disk.lets_go.set()
    assert writer.wait()
    assert disk.ended == ["a"]
    writer.put(disk.write("c"))
    assert writer.wait()
    assert disk.ended == ["a", "c"]


def test_room_for_another(disk, wait_until, monkeypatch):
    monkeypatch.setenv("TFDIST_STALL_CHECK_SHUTDOWN_TIME", "20")
    writer, vain = Writer("files"), []
    writer.put(disk.write("a"))
    wait_until(lambda: disk.begun)
    assert writer.wait_for_room(lambda: False)
    writer.put(disk.write("b"))
    assert not writer.wait_for_room(lambda: vain.append(None) or len(vain) > 2)
    assert len(vain) == 3
    threading.Timer(0.2, disk.lets_go.set).start()
    assert writer.wait_for_room(lambda: False)
    assert writer.wait()
    assert disk.ended == ["a", "b"]


def test_what_was_written_is_let_go(disk):
    """A copy of a model's state is not kept until the next one comes."""

    class State:
        """Weakly referable."""

    state = State()
    gone = threading.Event()
    weakref.finalize(state, gone.set)
    writer = Writer("files")
    disk.lets_go.set()
    writer.put(lambda held=state: disk.write("a")())
    del state
    assert writer.wait()
    assert gone.wait(SECONDS)


def test_nothing_to_wait_for(caplog):
    assert Writer("files").wait()
    wait_for_all()
    assert not caplog.messages


def test_a_long_wait_is_told_and_ends(disk, caplog, monkeypatch, wait_until):
    monkeypatch.setattr(writer_module, "PATIENCE_S", 0.01)
    monkeypatch.setenv("TFDIST_STALL_CHECK_SHUTDOWN_TIME", "0.05")
    writer = Writer("backups to FOLDER")
    writer.put(disk.write("a"))
    assert writer.wait() is False
    waiting, given_up = caplog.messages
    assert waiting == (
        "tfdist: waiting for backups to FOLDER to be written, at most 0.05 s (TFDIST_STALL_CHECK_SHUTDOWN_TIME)"
    )
    assert given_up.startswith("tfdist: backups to FOLDER are still being written after 0.05 s")
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR"]


def test_a_wait_that_is_long_enough_is_told_once(disk, caplog, monkeypatch, wait_until):
    monkeypatch.setattr(writer_module, "PATIENCE_S", 0.01)
    writer = Writer("files")
    writer.put(disk.write("a"))
    waiting = threading.Thread(target=wait_for_all)
    waiting.start()
    wait_until(lambda: caplog.messages)
    disk.lets_go.set()
    waiting.join(SECONDS)
    assert disk.ended == ["a"] and len(caplog.messages) == 1


def test_a_write_that_raises_leaves_nobody_waiting(disk, monkeypatch, wait_until):
    told = []
    monkeypatch.setattr(threading, "excepthook", lambda raised: told.append(raised.exc_type))

    def fails():
        raise ValueError("a bug")

    writer = Writer("files")
    writer.put(fails)
    assert writer.wait()
    wait_until(lambda: told == [ValueError])
    disk.lets_go.set()
    writer.put(disk.write("a"))
    assert writer.wait()
    assert disk.ended == ["a"]


def test_where_no_thread_can_be_started(disk, monkeypatch):
    def start(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    disk.lets_go.set()
    Writer("files").put(disk.write("a"))
    assert disk.ended == ["a"]


AT_EXIT = """
import atexit, pathlib, sys, threading
from tfdist.callbacks.store.writer import Writer
leaves = threading.Event()

def write():
    assert leaves.wait(60)  # the interpreter is on its way out
    pathlib.Path("written").write_text("whole")

Writer("files").put(write)
atexit.register(leaves.set)
"""


def test_the_interpreter_waits_when_it_exits(run_script, tmp_path):
    run_script(AT_EXIT)
    assert (tmp_path / "written").read_text() == "whole"


def test_the_interpreter_waits_after_an_exception(run_script, tmp_path):
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        run_script(f"{AT_EXIT}\n1 / 0")
    assert (tmp_path / "written").read_text() == "whole"
