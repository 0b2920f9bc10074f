"""The name of the thread that calls a collective eagerly, which the ranks compare. Independent of the collective.

Two threads of a process call in no order that the ranks agree on: on rank 0 one may come first, on rank 1 the other,
and if both make the same call, each would get the other's sum. So a call carries the name of its thread, unless it is
the main one. Threads numbered by Python may have other numbers on other ranks, so a number counts only if it is needed
to distinguish two threads. In graphs TensorFlow chooses the thread, so no name is sent.
"""

from __future__ import annotations

import contextlib
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from tfdist.native import library

_NUMBERED = re.compile(r"Thread-\d+( \(.*\))?")
_lock = threading.Lock()
_inside: Counter[tuple[int, str]] = Counter()
_crowded: set[tuple[int, str]] = set()  # several threads of one title were inside at a time


def named(process_set: int) -> AbstractContextManager[Any]:
    """Collectives that run eagerly inside carry the name of the calling thread."""
    thread = threading.current_thread()
    # TensorFlow's own threads, in tf.py_function, are dummies to Python.
    if thread is threading.main_thread() or isinstance(thread, threading._DummyThread):
        return contextlib.nullcontext()
    return _naming(process_set, thread)


@contextlib.contextmanager
def _naming(process_set: int, thread: threading.Thread) -> Iterator[None]:
    key = (process_set, title(thread))
    with _lock:
        _inside[key] += 1
        if _inside[key] > 1 or _has_twin(process_set, thread):
            _crowded.add(key)
        name = thread.name if key in _crowded else key[1]
    loaded = library.load()
    loaded.tfdist_set_calling_thread(name.encode())
    try:
        yield
    finally:
        loaded.tfdist_set_calling_thread(b"")
        with _lock:
            _inside[key] -= 1


def title(thread: threading.Thread) -> str:
    """The name of a thread without the number assigned by Python; empty for the main thread."""
    if thread is threading.main_thread() or thread.name == "MainThread":
        return ""
    if _is_of_pool(thread):
        return re.sub(r"(-\d+)?_\d+$", "", thread.name)
    numbered = _NUMBERED.fullmatch(thread.name)
    return f"Thread{numbered.group(1) or ''}" if numbered else thread.name


def _is_of_pool(thread: threading.Thread) -> bool:
    """Which thread of a pool runs a call is arbitrary: its number counts only if two are inside."""
    worker = getattr(sys.modules.get("concurrent.futures.thread"), "_worker", None)
    return worker is not None and getattr(thread, "_target", None) is worker


def _has_twin(process_set: int, thread: threading.Thread) -> bool:
    """Whether another thread runs the same function and may call next. With process sets each may have its own."""
    numbered = _NUMBERED.fullmatch(thread.name)
    if process_set != 0 or numbered is None or not numbered.group(1):
        return False
    return any(other is not thread and title(other) == title(thread) for other in threading.enumerate())
