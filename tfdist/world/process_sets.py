"""Process sets: groups of ranks in which a collective may run. Not the collectives themselves.

The set of all ranks always exists. Others are made in `tfdist.init(process_sets=[...])`, or later, by all ranks
together, after `tfdist.init(process_sets="dynamic")`.
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Sequence
from typing import Any

from tfdist import errors
from tfdist.native import library
from tfdist.world.session import session

# In the place of a rank: a process of another job, and none.
_STRANGER, _NOBODY = -1, -2


def _checked(ranks: Any) -> list[int]:
    try:
        numbers = [operator.index(rank) for rank in ranks]
    except (TypeError, ValueError):
        numbers = []
    if not numbers or len(set(numbers)) != len(numbers) or min(numbers) < 0:
        raise errors.ConfigError(
            f"a process set needs one or more distinct ranks, or an mpi4py communicator; received {ranks!r}."
        )
    return sorted(numbers)


class ProcessSet:
    """A group of ranks; pass it to a collective as `process_set=` to run it among them only.

    You need it to train parts of a job independently, or to share data with some ranks only. Ranks keep their global
    numbers: `root_rank` of a broadcast is such a number.

    Args:
        ranks: Distinct ranks of the job, in any order; or, for `tfdist.init` only, an `mpi4py.MPI.Comm` with its
            processes. The communicator may differ by rank, as after a `Split`: then each becomes a set.

    Attributes:
        ranks: The ranks, ascending.
        process_set_id: The number of the set, 0 for all ranks; None before it is added.

    Raises:
        ConfigError: If `ranks` is neither.

    Example:

    ```python
    even = tfdist.ProcessSet(range(0, 4, 2))
    tfdist.init(process_sets=[even])
    if even.included():
        total = tfdist.allreduce(tf.constant(1.0), op=tfdist.Sum, process_set=even)  # 2.0
    ```
    """

    def __init__(self, ranks: Sequence[int] | Any) -> None:
        self.process_set_id: int | None = None
        self._ranks: list[int] | None = None
        self._comm = ranks if hasattr(ranks, "Get_group") else None
        if self._comm is None:
            self._ranks = _checked(ranks)

    @property
    def ranks(self) -> list[int]:
        if self.process_set_id == 0:
            return list(range(library.ask("size")))
        if self._ranks is None:
            raise errors.NotInitializedError(
                "the ranks of this process set are known only after passing it to tfdist.init(process_sets=[...])."
            )
        return list(self._ranks)

    def included(self) -> bool:
        """Whether this process is in the set.

        Raises:
            NotInitializedError: Before the set was added.
        """
        self.number()
        return library.ask("rank") in self.ranks

    def size(self) -> int:
        """The number of ranks in the set.

        Raises:
            NotInitializedError: Before the set was added.
        """
        self.number()
        return len(self.ranks)

    def rank(self) -> int:
        """This process's index in the set: 0 to `size() - 1`.

        Raises:
            ConfigError: If this process is not in the set.
            NotInitializedError: Before the set was added.
        """
        if not self.included():
            raise errors.ConfigError(
                f"rank {library.ask('rank')} is not in {self}, so it has no index there. Check included() first."
            )
        return self.ranks.index(library.ask("rank"))

    def number(self) -> int:
        """The number by which the engine knows the set.

        Raises:
            NotInitializedError: Before the set was added, or after it was removed.
        """
        if self.process_set_id is None:
            raise errors.NotInitializedError(
                f"{self} is not in use. Pass it to tfdist.init(process_sets=[...]), or add it with "
                "tfdist.add_process_set after tfdist.init(process_sets='dynamic')."
            )
        return self.process_set_id

    def __repr__(self) -> str:
        if self.process_set_id == 0:
            return "ProcessSet(all ranks)"
        ranks = "a communicator" if self._ranks is None else self._ranks
        return f"ProcessSet({ranks}, process_set_id={self.process_set_id})"


global_process_set = ProcessSet([0])
global_process_set.process_set_id = 0


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Adds a process set while the job runs; every rank calls it with the same ranks.

    Args:
        process_set: A `ProcessSet` or ranks.

    Returns:
        The set, ready for collectives.

    Raises:
        ConfigError: If `tfdist.init` was called without `process_sets="dynamic"`, or there is already a set of these
            ranks.
        MismatchError: On every rank, if the ranks differ.

    Example:

    ```python
    tfdist.init(process_sets="dynamic")
    pair = tfdist.add_process_set([0, 1])
    ```
    """
    _need_dynamic("add_process_set")
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    if process_set._comm is not None:
        raise errors.ConfigError(
            "a process set of a communicator can only be made by tfdist.init(process_sets=[...]). Pass its ranks "
            "instead."
        )
    _add(process_set)
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes a process set, which cannot be used afterwards; every rank calls it.

    Args:
        process_set: One that `add_process_set` or `tfdist.init` made.

    Returns:
        False if the set was not in use, otherwise True.

    Raises:
        ConfigError: If it is the set of all ranks, or `tfdist.init` was called without `process_sets="dynamic"`.
        MismatchError: On every rank, if the ranks remove different sets.
    """
    _need_dynamic("remove_process_set")
    if not isinstance(process_set, ProcessSet):
        raise errors.ConfigError(f"remove_process_set expects a tfdist.ProcessSet; received {process_set!r}.")
    if process_set.process_set_id == 0:
        raise errors.ConfigError("the set of all ranks cannot be removed.")
    number = process_set.process_set_id
    if number is None:
        return False
    library.call("tfdist_remove_process_set", number)
    del session.process_sets[number]
    process_set.process_set_id = None
    return True


def get_process_set_ids_and_ranks() -> dict[int, list[int]]:
    """The ranks of all process sets, by number; 0 is the set of all ranks."""
    return {number: process_set.ranks for number, process_set in sorted(_by_number().items())}


def of_number(number: int) -> ProcessSet:
    """The process set with this number in the engine.

    Raises:
        ConfigError: If there is none, or no longer.
    """
    if number not in _by_number():
        raise errors.ConfigError(f"there is no process set {number}; in use are {get_process_set_ids_and_ranks()}.")
    return _by_number()[number]


def start(process_sets: Sequence[ProcessSet] | str | None, comm: Any) -> None:
    """Makes the sets that `tfdist.init` received, once the engine runs.

    Args:
        process_sets: As `tfdist.init` received it.
        comm: As `tfdist.init` received it: the world that ranks refer to.
    """
    session.dynamic = process_sets == "dynamic"
    if process_sets is None or isinstance(process_sets, str):
        return
    for process_set in process_sets:
        if process_set._comm is None:
            _add(process_set)
        else:
            _add_communicators(process_set, comm)


def check(process_sets: Any) -> None:
    """Validates the argument `process_sets` of `tfdist.init`.

    Raises:
        ConfigError: If it is neither None, "dynamic" nor a list of process sets.
    """
    listed = isinstance(process_sets, list | tuple) and all(isinstance(part, ProcessSet) for part in process_sets)
    if process_sets is not None and process_sets != "dynamic" and not listed:
        raise errors.ConfigError(
            f"init(process_sets=...) must be None, 'dynamic' or a list of tfdist.ProcessSet; received {process_sets!r}."
        )


def forget() -> None:
    """Marks all sets as unused after shutdown."""
    for process_set in session.process_sets.values():
        process_set.process_set_id = None
    session.process_sets.clear()


def _by_number() -> dict[int, ProcessSet]:
    return {0: global_process_set, **session.process_sets}


def _need_dynamic(function: str) -> None:
    library.ask("rank")
    if not session.dynamic:
        raise errors.ConfigError(
            f"{function} needs dynamic process sets. Start with tfdist.init(process_sets='dynamic')."
        )


def _add(process_set: ProcessSet) -> None:
    if process_set.process_set_id is not None:
        raise errors.ConfigError(f"{process_set} is already in use.")
    ranks, number = process_set.ranks, ctypes.c_int()
    library.call("tfdist_add_process_set", (ctypes.c_int * len(ranks))(*ranks), len(ranks), ctypes.byref(number))
    process_set.process_set_id = number.value
    session.process_sets[number.value] = process_set


def _add_communicators(process_set: ProcessSet, whole: Any) -> None:
    """Adds the communicators of all ranks on every rank, in the order of their first rank."""
    mine = _ranks_of(process_set._comm, whole)
    size = library.ask("size")
    sent = mine if len(mine) <= size else [_STRANGER]  # one with more ranks than the job includes foreign processes
    gathered = library.gather("communicators of process sets", [*sent, *[_NOBODY] * (size - len(sent))])
    by_rank = [[rank for rank in ranks if rank != _NOBODY] for ranks in gathered]
    strangers = [rank for rank, ranks in enumerate(by_rank) if not ranks or min(ranks) < 0]
    if strangers:
        raise errors.ConfigError(
            "the communicator of a process set is MPI.COMM_NULL, or has processes that did not call tfdist.init "
            f"together, on the ranks {strangers}. Pass every rank a communicator of ranks of this job."
        )
    process_set._ranks = mine
    for ranks in sorted(set(map(tuple, by_rank))):
        _add(process_set if list(ranks) == mine else ProcessSet(ranks))


def _ranks_of(comm: Any, whole: Any) -> list[int]:
    """The global ranks of the processes of a communicator; negative for a process that has none."""
    from mpi4py import MPI

    if comm == MPI.COMM_NULL:
        return []
    if whole is None:
        group = MPI.COMM_WORLD.Get_group()
    elif hasattr(whole, "Get_group"):
        group = whole.Get_group()
    else:
        group = MPI.COMM_WORLD.Get_group().Incl(list(whole))
    return sorted(MPI.Group.Translate_ranks(comm.Get_group(), None, group))
