"""The name under which a thread's collectives are compared: a number only where it tells two threads apart."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from tfdist.native import library
from tfdist.ops.graph import caller

LIMIT_S = 30


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str]]]:
    """What threads have been named, in order, each with the thread's own name."""
    found: list[tuple[str, str]] = []

    def name(text: bytes) -> None:
        found.append((threading.current_thread().name, text.decode()))

    monkeypatch.setattr(library, "load", lambda: SimpleNamespace(tfdist_set_calling_thread=name))
    yield found
    caller._crowded.clear()


def call(process_set: int = 0, inside: Callable[[], Any] = int) -> None:
    with caller.named(process_set):
        inside()


def run(*threads: threading.Thread) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)


def test_main_thread_has_no_name(names: list[tuple[str, str]]) -> None:
    call()
    run(threading.Thread(target=call, name="MainThread"))
    assert names == [("MainThread", ""), ("MainThread", "")]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: threading.Thread(target=call), "Thread (call)"),
        (lambda: threading.Thread(target=call, name="prefetch"), "prefetch"),
        (lambda: threading.Thread(target=call, name="worker_3"), "worker_3"),
        (type("Own", (threading.Thread,), {"run": lambda self: call()}), "Thread"),
    ],
)
def test_name_is_taken_back(names: list[tuple[str, str]], make: Callable[[], threading.Thread], expected: str) -> None:
    thread = make()
    run(thread)
    assert names == [(thread.name, expected), (thread.name, "")]


def test_threads_of_one_function_are_told_apart(names: list[tuple[str, str]]) -> None:
    both = threading.Barrier(2)

    def work(process_set: int) -> None:
        both.wait(LIMIT_S)
        call(process_set)
        both.wait(LIMIT_S)

    for process_set in (0, 7):
        names.clear()
        threads = [threading.Thread(target=work, args=(process_set,)) for _ in range(2)]
        run(*threads)
        # Each may have a process set of its own, and another number on another rank.
        expected = {thread.name if process_set == 0 else "Thread (work)" for thread in threads}
        assert {name for _, name in names if name} == expected


@pytest.mark.parametrize("prefix", ["", "loader"])
def test_threads_of_a_pool_are_told_apart_once_two_are_inside(names: list[tuple[str, str]], prefix: str) -> None:
    both = threading.Barrier(2)
    with ThreadPoolExecutor(2, prefix) as pool:
        for _ in range(3):
            pool.submit(call).result(LIMIT_S)
        title = prefix or "ThreadPoolExecutor"
        assert {name for _, name in names if name} == {title}
        futures = [pool.submit(call, 0, lambda: both.wait(LIMIT_S)) for _ in range(2)]
        for future in futures:
            future.result(LIMIT_S)
        names.clear()
        pool.submit(call).result(LIMIT_S)
        assert [name for _, name in names] == [names[0][0], ""]
        names.clear()
        pool.submit(call, 7).result(LIMIT_S)
        assert names[0][1] == title, "in another process set nothing has happened"
