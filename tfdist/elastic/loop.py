"""Runs the training function of an elastic job again after each loss of a rank."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Concatenate, ParamSpec, TypeVar

from tfdist import config, errors
from tfdist.elastic import advice, retirement, survival
from tfdist.elastic.commit_store import CommitStore
from tfdist.elastic.state import State
from tfdist.protocol import member
from tfdist.system import release
from tfdist.world import runtime
from tfdist.world.session import session

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_StateType = TypeVar("_StateType", bound=State)
_trainings = itertools.count()
_running: list[State] = []


def run(
    func: Callable[Concatenate[_StateType, _Arguments], _Result],
) -> Callable[Concatenate[_StateType, _Arguments], _Result]:
    """Makes a training function survive the loss of ranks; for use as a decorator.

    The function gets the state as its first argument and continues from it, for example from `state.epoch`. It is
    called once every rank has the same state. When a rank is lost, the others meet, are renumbered, return to the
    newest commit, call what was registered by `state.register_reset_callbacks`, and call the function again. Start the
    job with `tfdistrun --elastic`; otherwise a lost rank ends it.

    The same happens when ranks are added: the new processes run the script up to `run`, each as a world of its own, and
    join the others at a commit. That is possible in the first `run` of a script that calls no collective before it.
    Otherwise, and if the others cannot continue in place, `tfdistrun` restarts all ranks, and `run` starts from the
    newest commit left on a host. The script then runs from its beginning: training that had ended ends immediately.

    Put everything that depends on the number of ranks into the function: `tfdist.shard`, `steps_per_epoch`. Any other
    exception is raised as usual.

    Args:
        func: The training function.

    Returns:
        A function with the same arguments and result.

    Raises:
        PeerLostError: If a rank is lost in a job that is not elastic.

    Example:

    ```python
    @tfdist.elastic.run
    def train(state):
        while state.step < 1000:
            step(next(batches))
            state.step += 1
            state.commit()

    train(tfdist.elastic.TensorFlowState([*model.weights, *optimizer.variables], step=0))
    ```
    """

    @functools.wraps(func)
    def call(state: _StateType, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        runtime.init()
        advice.need_elastic_job("tfdist.elastic.run")
        with _kept_in_files(state):
            return _call(state, *args, **kwargs)

    def _call(state: _StateType, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        lost, ours = False, state.framework()
        if session.apart >= 0:
            survival.join()
            ours.begin_anew()
        while True:
            try:
                if lost:
                    state.restore()
                state.sync()
                if lost or state.is_of_others:
                    state.on_reset()
                result = func(state, *args, **kwargs)
                if state.is_open:  # nobody ends alone while another meets newcomers at its last commit
                    ours.allgather_object(None, name="end of the training")
                return result
            except errors.HostsUpdatedInterrupt as meeting:
                survival.go_on(meeting)
                release.forget(meeting)
            except Exception as error:
                trouble = ours.loss_behind(error)
                if isinstance(trouble, errors.StallError):
                    member.report(member.STALLED)  # the launcher of an elastic job ends the rank that hangs
                    if not config.is_elastic():
                        raise
                if not isinstance(trouble, errors.HorovodInternalError):
                    raise
                survival.go_on(trouble)
                release.forget(error, trouble)
            ours.begin_anew()
            lost = True

    return call


def is_running() -> bool:
    """Whether a function of `run` has been called in this process, and has not returned."""
    return bool(_running)


@contextlib.contextmanager
def _kept_in_files(state: State) -> Iterator[None]:
    """Restarted processes continue from the state of the outermost function; nested ones start from scratch."""
    folder = member.commits()
    outermost = folder is not None and not _running
    if folder is not None and outermost:
        training = next(_trainings)
        state.keep_in(CommitStore(folder, member.backup()), training)
        # Who joins runs the script from its beginning to here, alone.
        state.is_open = config.is_elastic() and training == 0 and (session.apart >= 0 or session.collectives == 0)
        member.report(member.OPEN if state.is_open else member.CLOSED)
    _running.append(state)
    try:
        with retirement.at_next_commit() if outermost else contextlib.nullcontext():
            yield
    finally:
        _running.pop()
        if state.is_open and outermost:
            state.is_open = False
            member.report(member.CLOSED)
