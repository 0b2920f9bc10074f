"""Objects that are destroyed in a thread, whoever lets go of them last."""

import gc
import subprocess
import sys
import threading
import time
import weakref

import pytest

from tfdist.system import release


class Slow:
    """Weak references to an object of this class are possible."""

    circle = None


@pytest.fixture
def made():
    """Makes an object, and notes in which thread it is destroyed."""

    def make():
        found = Slow()
        weakref.finalize(found, lambda: ends.append(threading.current_thread().name))
        return found

    ends = []
    make.ends = ends
    return make


def wait_for_ends(made, wait_until, number):
    wait_until(lambda: len(made.ends) == number, seconds=10, what="the ends of the objects")
    assert made.ends == ["tfdist-release"] * number


def test_destroyed_once_nobody_else_has_them(made, wait_until):
    kept, held = made(), [made(), made()]
    held.append(kept)
    release.destroy_later(held)
    assert held == []
    wait_for_ends(made, wait_until, 2)
    del kept
    wait_for_ends(made, wait_until, 3)


def test_given_twice_is_held_once(made, wait_until):
    kept = made()
    for _ in range(2):
        release.destroy_later([kept])
    del kept
    wait_for_ends(made, wait_until, 1)


def test_in_a_circle_that_is_garbage(made, wait_until):
    gc.disable()
    try:
        ring, inner = Slow(), made()
        ring.circle, ring.inner = ring, inner
        release.destroy_later([inner])
        del ring, inner
        assert made.ends == []
        gc.collect()
        wait_for_ends(made, wait_until, 1)
    finally:
        gc.enable()


def test_what_others_keep_is_left_to_them(made, wait_until, monkeypatch):
    monkeypatch.setattr(release, "_LONGEST_S", 0.0)
    kept = made()
    release.destroy_later([kept])
    wait_until(lambda: sys.getrefcount(kept) == 2, seconds=10, what="the thread")
    assert made.ends == []


def _fail(made):
    local = made()
    local.circle = local
    raise KeyError("first")


def _fail_again(made):
    other = made()  # noqa: F841
    try:
        _fail(made)
    except KeyError:
        raise ValueError("second") from None


def test_variables_of_functions_that_an_error_has_ended(made, wait_until):
    mine = made()
    try:
        _fail_again(made)
    except ValueError as error:
        release.forget(error)
    # The one in no circle; garbage collection may come upon the other anywhere.
    wait_for_ends(made, wait_until, 1)
    assert mine is not None, "a function that goes on keeps its variables"


LAST = """
import sys, time
from tfdist.system import release

class Slow:
    def __del__(self):
        print("begins", flush=True)
        time.sleep(float(sys.argv[1]))
        print("ends", flush=True)

class Kept:
    pass

def let_go():
    release.destroy_later([Slow()])

let_go()
kept = Kept() if sys.argv[2] == "kept" else None
release.destroy_later([] if kept is None else [kept])
time.sleep(float(sys.argv[3]))
print("last line", flush=True)
"""


@pytest.mark.parametrize("later", ["0", "0.3"], ids=["at once", "while it is destroyed"])
@pytest.mark.parametrize("kept", ["", "kept"])
def test_a_script_that_ends(later, kept):
    """What nobody has is destroyed before the process ends, and what somebody has does not hold it up."""
    begin = time.monotonic()
    command = [sys.executable, "-c", LAST, "0.5", kept, later]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.splitlines().count("ends") == 1, done.stdout
    assert time.monotonic() - begin < 20


def test_a_script_that_ends_does_not_wait_for_long():
    begin = time.monotonic()
    done = subprocess.run([sys.executable, "-c", LAST, "600", "", "0.3"], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["begins", "last line"] and done.returncode == 0
    assert time.monotonic() - begin < 30
