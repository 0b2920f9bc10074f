"""The state from which training continues after the loss of a rank: the last commit, kept in memory by each rank."""

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
from tfdist.elastic.framework import Framework, of_tensorflow
from tfdist.protocol import member
from tfdist.world import runtime
from tfdist.world.session import session

_logger = logging.getLogger("tfdist")


class State(abc.ABC):
    """The training state, and its last commit.

    Subclasses define what the state contains. `run` calls `sync` before it calls the training function, and `restore`
    after a rank is lost.
    """

    def __init__(self) -> None:
        self._commits = 0
        self._store: CommitStore | None = None
        self._training = 0
        self._reported = self._lacks_room = self._synced = self._resumed = False
        self._is_new = session.apart >= 0
        # Whether others may join at a commit, and whether some of the ranks have come since their last commit.
        self.is_open = self.has_newcomers = False
        # Whether the state comes from another number of ranks, which what was registered must be told.
        self.is_of_others = False
        self._ranks_of_found = 0
        self._reset_callbacks: list[Callable[[], None]] = []

    def commit(self) -> None:
        """Makes the current state the one to continue from after a failure. Every rank calls it after the same step.

        It does not communicate. It costs a copy of the state in the memory of each rank, and on each host a file in
        memory from which restarted processes can continue.
        """
        self.save()
        self.check_host_updates()

    def save(self) -> None:
        """Commits without checking for changed hosts, so the process does not leave."""
        self._keep()
        self._commits += 1
        self._is_new = False
        self._write()
        if not self._reported:
            self._reported = True
            member.report(member.COMMITTED)

    def _has_request(self) -> bool:
        """Whether `check_host_updates` would have this process leave, or meet others."""
        leaves = member.must_leave() or retirement.is_due() or runtime.retires()
        return self._store is not None and (leaves or (self.is_open and runtime.meets()))

    def check_host_updates(self) -> None:
        """Has new ranks join, or exits this process if its slot is taken away, or after SIGTERM. The others continue.

        `commit` calls it, so no work is lost. Does nothing in a job that is not elastic.

        Raises:
            SystemExit: With a status that `tfdistrun` recognises.
            HostsUpdatedInterrupt: For `run`, which continues when the others have come.
        """
        if self._store is None:
            return
        if member.must_leave():
            member.report(member.LEFT)
            raise SystemExit(member.LEFT_STATUS)
        if retirement.is_due() or runtime.retires():
            member.report(member.RETIRED)
            sys.exit(member.LEFT_STATUS)  # unlike the exception alone, this does not wait for other ranks
        if self.is_open and runtime.meets():
            raise errors.HostsUpdatedInterrupt("ranks join the job at this commit")

    def restore(self) -> None:
        """Returns to the last commit of this rank; without one, to the state at the last `sync`."""
        self._put_back()

    def sync(self) -> None:
        """Gives every rank the state of the rank with the newest commit, and keeps it. Every rank calls it.

        A rank may be lost when some ranks have completed and committed a step and others have not: the step counts,
        because all ranks contributed to it. If no rank has committed, the state is that of rank 0.

        Raises:
            PeerLostError: If a rank is lost in the process; call `restore` and `sync` again then.
        """
        by_rank = self.framework().allgather_object((self._commits, self._is_new, self._ranks_of_found), name="commits")
        commits = [number for number, _, _ in by_rank]
        self.has_newcomers = any(is_new for _, is_new, _ in by_rank)
        newest = max(commits)
        ranks = by_rank[commits.index(newest)][2]
        self.is_of_others = self.has_newcomers or ranks not in (0, runtime.size())
        self._ranks_of_found = 0
        if newest and not self._synced:
            session.resumed_at = newest  # otherwise models would draw the same dropout masks again
            self._resumed = True
        self._synced = True
        self._remove_damaged(from_scratch=newest == 0)
        self._receive(commits.index(newest))
        self._keep()
        self._commits = newest
        # The rank that made the newest commit may be lost, perhaps before it could write the file.
        self._write()

    def keep_in(self, store: CommitStore, training: int) -> None:
        """Also keeps commits in files, and starts from the newest one that earlier processes left there.

        Args:
            store: The commit files of this host.
            training: The number of this training in the script, the same in each process that runs it.

        Raises:
            ConfigError: If the commit found does not match this state.
        """
        self._store, self._training = store, training
        if self._is_new:
            return  # it gets the newest from the others, which may write one just now
        found = store.newest(training)
        if found is not None:
            self._commits, content = found
            self._ranks_of_found = content.get("ranks", 0)
            self._adopt(content)
            self._put_back()

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], None]]) -> None:
        """Registers functions to call before training continues with other ranks, for example to adapt a rate.

        After ranks are lost, when ranks have joined, and after a restart with another number of ranks.

        Args:
            callbacks: Functions without arguments, called in order on every rank, also on one that has just joined;
                `tfdist.size()` is the new size.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Calls the functions registered with `register_reset_callbacks`."""
        for callback in self._reset_callbacks:
            callback()

    def framework(self) -> Framework:
        """What trains: TensorFlow, unless a subclass says otherwise."""
        return of_tensorflow()

    def _remove_damaged(self, from_scratch: bool) -> None:
        """Called after all ranks have read; acts on one rank per host. Reports if no rank found an intact commit."""
        if self._store is None or runtime.local_rank() != 0:
            return
        damaged = self._store.remove_damaged()
        if damaged and from_scratch:
            _logger.error(
                "training starts from scratch, because every commit found on %s is damaged:\n  %s",
                os.uname().nodename,
                "\n  ".join(damaged),
            )

    def _write(self) -> None:
        """Acts on one rank per host, which writes for all of them. Training continues if there is no space."""
        if self._store is None or runtime.local_rank() != 0:
            return
        try:
            self._store.put(self._training, self._commits, {"ranks": runtime.size(), **self._kept_content()})
            self._lacks_room = False
        except OSError as error:
            if not self._lacks_room:
                _logger.error(
                    "commit %d could not be written to a file: %s. Training continues, but a restart would lose this "
                    "commit and later ones, until one can be written. Free up space in /dev/shm (in a container: raise "
                    "--shm-size).",
                    self._commits,
                    error,
                )
            self._lacks_room = True

    @abc.abstractmethod
    def _keep(self) -> None:
        """Copies the current state. If that fails, the previous copy stays."""

    @abc.abstractmethod
    def _put_back(self) -> None:
        """Replaces the current state by the copy."""

    @abc.abstractmethod
    def _receive(self, root: int) -> None:
        """Gives all ranks the current state of rank `root`."""

    @abc.abstractmethod
    def _kept_content(self) -> dict[str, Any]:
        """The copy, in a form that can be pickled."""

    @abc.abstractmethod
    def _adopt(self, content: dict[str, Any]) -> None:
        """Takes what `_kept_content` returned in another process as the copy. Raises ConfigError if it does not fit."""


class ObjectState(State):
    """A state of Python objects, which are its attributes.

    Args:
        **values: The attributes by name, with their initial values, which must be picklable. Other attributes of the
            object are not part of the state.

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
        values = self.framework().broadcast_object(self._values(), root, name="attributes of the state")
        self._set(values)

    def _kept_content(self) -> dict[str, Any]:
        return {"values": self._kept}

    def _adopt(self, content: dict[str, Any]) -> None:
        values = content["values"]
        if values.keys() != set(self._names):
            raise errors.ConfigError(
                f"a commit of this job has the attributes {', '.join(sorted(values)) or 'none'}, but the state has "
                f"{', '.join(sorted(self._names)) or 'none'}. If the script was changed, start the job from scratch, "
                "with an empty --backup-dir."
            )
        self._kept = values

    def _values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._names}

    def _set(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, value)
