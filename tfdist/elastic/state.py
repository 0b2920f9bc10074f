"""What a training goes on from when a rank was lost: the state of the last commit, kept in the memory of each rank."""

from __future__ import annotations

import abc
import copy
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from tfdist import errors
from tfdist.elastic import retirement
from tfdist.elastic.commit_store import CommitStore
from tfdist.ops.object import allgather_object, broadcast_object
from tfdist.protocol import member
from tfdist.world import runtime
from tfdist.world.session import session

_logger = logging.getLogger("tfdist")


class State(abc.ABC):
    """The state of a training, with the last commit of it.

    A subclass says what the state is. `run` calls `sync` before it calls the training function, and `restore` when a
    rank was lost.
    """

    def __init__(self) -> None:
        self._commits = 0
        self._store: CommitStore | None = None
        self._training = 0
        self._is_told = self._lacks_room = self._synced = False
        self._reset_callbacks: list[Callable[[], None]] = []

    def commit(self) -> None:
        """Makes the present state the one that training goes on from. Every rank calls it after the same step.

        Talks to no other rank. It costs a copy of the state in the memory of each rank, and in that of each host a file
        from which new processes can go on.
        """
        self.save()
        self.check_host_updates()

    def save(self) -> None:
        """A commit that does not look for changed hosts, so that this process stays."""
        self._keep()
        self._commits += 1
        self._write()
        if not self._is_told:
            self._is_told = True
            member.report(member.COMMITTED)

    def check_host_updates(self) -> None:
        """Ends this process where hosts are to be added or left, or SIGTERM has come. Others go on.

        `commit` does it, so that nothing is lost. Only processes that `tfdistrun` has started for an elastic job end.

        Raises:
            SystemExit: With a status that `tfdistrun` knows.
        """
        if self._store is None:
            return
        if member.must_leave():
            member.report(member.LEFT)
            raise SystemExit(member.LEFT_STATUS)
        if retirement.is_due():
            member.report(member.RETIRED)
            sys.exit(member.LEFT_STATUS)  # which, unlike the exception alone, waits for none of the others

    def restore(self) -> None:
        """Goes back to the last commit of this rank; without one, to the state at the last `sync`."""
        self._put_back()

    def sync(self) -> None:
        """Gives every rank the state of the one with the newest commit, and keeps it. Every rank calls it.

        A rank may be lost when some ranks have ended a step, and committed it, and others have not: the step counts,
        as all ranks gave their part to it. Where nobody has committed, the state is that of rank 0.

        Raises:
            PeerLostError: If a rank is lost meanwhile; `restore` and `sync` come again then.
        """
        commits = allgather_object(self._commits, name="commits")
        newest = max(commits)
        if newest and not self._synced:
            session.resumed_at = newest  # else its models would draw the masks again that were drawn before
        self._synced = True
        self._remove_damaged(anew=newest == 0)
        self._receive(commits.index(newest))
        self._keep()
        self._commits = newest
        # Whoever wrote the newest commit may be lost, and have been so before it was written.
        self._write()

    def keep_in(self, store: CommitStore, training: int) -> None:
        """Also keeps commits in files, and begins with the newest one that processes before this one have left there.

        Args:
            store: The files of this host.
            training: Which of the trainings of the script this is: the same number in each process that runs it.

        Raises:
            ConfigError: If what is there does not fit this state.
        """
        self._store, self._training = store, training
        found = store.newest(training)
        if found is not None:
            self._commits, content = found
            self._adopt(content)
            self._put_back()

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], None]]) -> None:
        """Has functions called after ranks were lost and before training goes on, such as one that adapts a rate.

        Args:
            callbacks: Functions without arguments, called in order on every rank; `tfdist.size()` is the new one.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Calls what was registered by `register_reset_callbacks`."""
        for callback in self._reset_callbacks:
            callback()

    def _remove_damaged(self, anew: bool) -> None:
        """One rank of each host does, when all have read; if no rank has found a whole one, that has to be known."""
        if self._store is None or runtime.local_rank() != 0:
            return
        damaged = self._store.remove_damaged()
        if damaged and anew:
            _logger.error(
                "the training starts from its beginning, as each commit that was found on %s is damaged:\n  %s",
                os.uname().nodename,
                "\n  ".join(damaged),
            )

    def _write(self) -> None:
        """One rank of each host does, for all of them. Without room for it, training goes on."""
        if self._store is None or runtime.local_rank() != 0:
            return
        try:
            self._store.put(self._training, self._commits, self._kept_content())
            self._lacks_room = False
        except OSError as error:
            if not self._lacks_room:
                _logger.error(
                    "commit %d and those after it are not in a file, so new processes could not go on from "
                    "them: %s. Make room in /dev/shm (in a container: --shm-size); the training goes on.",
                    self._commits,
                    error,
                )
            self._lacks_room = True

    @abc.abstractmethod
    def _keep(self) -> None:
        """Copies the present state; complete, or the copy before stays."""

    @abc.abstractmethod
    def _put_back(self) -> None:
        """Makes the copy the present state."""

    @abc.abstractmethod
    def _receive(self, root: int) -> None:
        """Makes the present state of rank `root` that of all ranks."""

    @abc.abstractmethod
    def _kept_content(self) -> dict[str, Any]:
        """The copy, as it can be pickled."""

    @abc.abstractmethod
    def _adopt(self, content: dict[str, Any]) -> None:
        """Makes what `_kept_content` gave in another process the copy. Raises ConfigError if it does not fit."""


class ObjectState(State):
    """A state of Python objects, which are its attributes.

    Args:
        **values: The attributes by name, with what they are at first. They can be pickled; others of the same object
            are not part of the state.

    Example:

    ```python
    state = tfdist.elastic.ObjectState(epoch=0, best=None)
    state.epoch += 1
    state.commit()
    ```
    """

    def __init__(self, **values: Any) -> None:
        super().__init__()
        self._names = tuple(values)
        for name, value in values.items():
            setattr(self, name, value)
        self._kept: dict[str, Any] = {}
        ObjectState._keep(self)

    def _keep(self) -> None:
        self._kept = copy.deepcopy(self._values())

    def _put_back(self) -> None:
        self._set(copy.deepcopy(self._kept))

    def _receive(self, root: int) -> None:
        self._set(broadcast_object(self._values(), root, name="attributes of the state"))

    def _kept_content(self) -> dict[str, Any]:
        return {"values": self._kept}

    def _adopt(self, content: dict[str, Any]) -> None:
        values = content["values"]
        if values.keys() != set(self._names):
            raise errors.ConfigError(
                f"a commit of this job has the attributes {', '.join(sorted(values)) or 'none'}, and the state "
                f"{', '.join(sorted(self._names)) or 'none'}: was the script changed? Start the job anew, without what "
                "is in --backup-dir."
            )
        self._kept = values

    def _values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._names}

    def _set(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, value)
