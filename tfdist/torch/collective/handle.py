"""Handles of asynchronous collectives, and the names by which the ranks know them.

One thread of the engine runs them, while the script continues. Each rank may start them in an order of its own: before
anything runs, the ranks tell each other which names they have, and run what all have in one order, that of the first
rank. A rank that starts nothing is named by the warning and the `StallError` of the others, with the names that wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tfdist.errors import ConfigError, TfdistError
from tfdist.native import collective, library
from tfdist.world.process_sets import ProcessSet
from tfdist.world.session import session


@dataclass(frozen=True)
class _Pending:
    """The numbers of one or more collectives of the engine, and what makes the result when they have ended.

    `kept` are the tensors whose memory they use.
    """

    numbers: Sequence[int]
    kept: Any
    finish: Callable[[], Any]


_pending: dict[int, _Pending] = {}
# How many collectives had no name, and how many optimizers were made, by the number of the process set.
_unnamed: Counter[int] = Counter()
_optimizers: Counter[int] = Counter()


def label_of(name: str | None, process_set: ProcessSet) -> tuple[str, int]:
    """The name of a collective, and the number of the set of ranks that take part.

    Without a name it is numbered: then all ranks of the set must start such collectives in the same order.

    Raises:
        ConfigError: If `process_set` is not a process set.
        NotInitializedError: If it is not in use.
    """
    if not isinstance(process_set, ProcessSet):
        raise ConfigError(
            f"process_set must be a tfdist.ProcessSet; received {process_set!r}. Make one with tfdist.ProcessSet([0, "
            "1])"
        )
    number = process_set.number()
    session.collectives += 1
    if name:
        return name, number
    _unnamed[number] += 1
    return f"noname.{_unnamed[number]}", number


def optimizer_label(process_set: ProcessSet) -> str:
    """A name for a new optimizer. All ranks of the set make theirs in the same order."""
    number = process_set.number()
    _optimizers[number] += 1
    return f"optimizer {_optimizers[number]}"


def count_alike() -> None:
    """Makes all ranks number unnamed collectives and optimizers alike: who had joined early, or has come late, has seen
    fewer.
    """
    counts = library.gather("numbers of collectives", [_unnamed[0], _optimizers[0]])
    _unnamed[0], _optimizers[0] = map(max, zip(*counts, strict=True))


def register(numbers: Sequence[int], kept: Any, finish: Callable[[], Any]) -> int:
    """A handle for collectives that were started.

    Args:
        numbers: Their numbers in the engine, one or more.
        kept: The tensors whose memory they use.
        finish: Makes the result when they have ended.
    """
    _pending[numbers[0]] = _Pending(tuple(numbers), kept, finish)
    return numbers[0]


def poll(handle: int) -> bool:
    """Whether `synchronize` would return, or raise, at once.

    Args:
        handle: From an asynchronous collective.

    Raises:
        ConfigError: If there is no such handle, or `synchronize` has returned for it.
    """
    pending = _pending.get(handle)
    return all(map(collective.has_ended, [handle] if pending is None else pending.numbers))


def synchronize(handle: int) -> Any:
    """Waits for an asynchronous collective, and returns its result.

    Every handle must be synchronized: until then its tensors are kept in memory, and must not be changed.

    Args:
        handle: From an asynchronous collective.

    Returns:
        What the collective of that name returns; None for a handle that was synchronized before, as in Horovod.

    Raises:
        MismatchError: On every rank, if the ranks called different things.
        ConfigError: On every rank, if the arguments of one are wrong.
        StallError: If a rank does not start the collective in time.
        PeerLostError: If a rank died.

    Example:

    ```python
    handle = hvd.allreduce_async(tensor, name="gradient")
    tensor = hvd.synchronize(handle)
    ```
    """
    pending = _pending.get(handle)
    if pending is None:
        return None
    failure: TfdistError | None = None
    for number in pending.numbers:
        try:
            collective.wait(number)  # an interrupt leaves the handle as it is: its memory is in use
        except TfdistError as error:
            failure = failure or error
    del _pending[handle]
    try:
        if failure is not None:
            raise failure
        return pending.finish()
    finally:
        for number in pending.numbers:
            collective.forget(number)


def forget_all() -> None:
    """Lets go of all handles, which have ended, when the ranks have changed."""
    for pending in _pending.values():
        for number in pending.numbers:
            collective.forget(number)
    _pending.clear()


def synchronize_all() -> None:
    """Waits for all that this rank has started; the results stay, each for its `synchronize`."""
    for pending in list(_pending.values()):
        for number in pending.numbers:
            try:
                collective.wait(number)
            except TfdistError:  # `synchronize` raises it again
                continue
