"""Lets go of objects in a thread, because destroying them may take long.

An iterator of tf.data is one: its threads may be asleep and miss that it ends. Then destroying it takes up to half as
long as it has lived, at most a minute. The other ranks would wait for that, also if it is garbage collection that comes
upon it.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
import traceback
from typing import Any

_NAME = "tfdist-release"
_LOOK_S = 0.1
_LONGEST_S = 600.0
# A process that ends waits so long for what nobody has any more. An iterator that is not destroyed leaves a reader to a
# data service, whose workers would wait for it.
_LAST_S = 5.0


def _references(objects: list[Any]) -> list[int]:
    return [sys.getrefcount(each) for each in objects]


# The count of an object that nobody else has.
_ALONE = _references([object()])[0]
# Each object once, with the time after which whoever still has it keeps it.
_held: list[Any] = []
_until: list[float] = []
_watchers: list[threading.Thread] = []  # one, while anything is held
_changing = threading.Lock()
# A forked process has no thread to release it.
os.register_at_fork(before=_changing.acquire, after_in_parent=_changing.release, after_in_child=_changing.release)


def destroy_later(objects: list[Any]) -> None:
    """Takes over these objects, and destroys each once nobody else has it.

    Until then garbage collection, which may find it in a circle of references, does not destroy it elsewhere.
    """
    with _changing:
        new = [each for each in objects if not any(each is other for other in _held)]
        _held.extend(new)
        _until.extend([time.monotonic() + _LONGEST_S] * len(new))
        objects.clear()
        if new and not _watchers:
            _watchers.append(threading.Thread(target=_watch, name=_NAME))
            _watchers[0].start()


def forget(*errors: BaseException) -> None:
    """Clears the local variables of functions that these errors, and those they come from, have ended."""
    threading.Thread(target=_clear, args=(list(errors),), name=_NAME, daemon=True).start()


def _watch() -> None:
    """Until all is destroyed, or for `_LAST_S` after the main thread: the interpreter waits for this thread."""
    busy: list[threading.Thread] = []
    while True:
        ends = not threading.main_thread().is_alive()
        for own in _take_free():
            # Each in a thread of its own: the longer one waits for others, the longer its own end would take.
            busy.append(threading.Thread(target=own.clear, name=_NAME, daemon=True))
            busy[-1].start()
            del own
        busy = [each for each in busy if each.is_alive()]
        if ends or not (_held or busy):
            break
        time.sleep(_LOOK_S)
    until = time.monotonic() + _LAST_S
    for each in busy:
        each.join(max(0.0, until - time.monotonic()))


def _take_free() -> list[list[Any]]:
    with _changing:
        now = time.monotonic()
        is_free = [count <= _ALONE or until <= now for count, until in zip(_references(_held), _until, strict=True)]
        free = [[each] for each in itertools.compress(_held, is_free)]
        stays = [not each for each in is_free]
        _held[:], _until[:] = itertools.compress(_held, stays), itertools.compress(_until, stays)
        if not _held:
            _watchers.clear()
        return free


def _clear(errors: list[BaseException]) -> None:
    seen: set[int] = set()
    while errors:
        error = errors.pop()
        if id(error) not in seen:
            seen.add(id(error))
            errors += [each for each in (error.__cause__, error.__context__) if each is not None]
            traceback.clear_frames(error.__traceback__)
