"""A job whose ranks live from the start of an executor to its end, and call one function after the other."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from tfdist.errors import RankError
from tfdist.launch.function import parcel, verdict
from tfdist.launch.function.parcel import Failed, Returned
from tfdist.ray import loop
from tfdist.ray.job import CALLER, Callback, LauncherThread, logs
from tfdist.ray.placement import Placement, Request, engine

_LOOK_S = 0.2
# How long the launcher may take to say why a rank was lost, and everything to end.
_CAUSE_S = 10.0
_END_S = 15.0


class StaticJob:
    """Starts the ranks.

    Args:
        request: For the actors.
        words: Options of tfdistrun.
        variables: For the ranks' environment.
        timeout_s: How long the ranks may take to start, after their actors.

    Raises:
        ConfigError: If there is no room for them.
        RankError: If they do not start.
    """

    def __init__(self, request: Request, words: Sequence[str], variables: Mapping[str, str], timeout_s: float) -> None:
        self._ray = engine()
        self._stack = contextlib.ExitStack()
        self._placement = self._stack.enter_context(Placement(request))
        self._launcher: LauncherThread | None = None
        self._over = ""
        self._asking = threading.Lock()
        # The answers of the last call, and what Ray says of an actor that was lost.
        self._asked: list[Any] = []
        self._loss = ""
        try:
            self._actors = self._begin(request.actors, words, variables, timeout_s)
        except BaseException:
            self._over = "they did not start"
            self.close()
            raise

    def _begin(self, count: int, words: Sequence[str], variables: Mapping[str, str], timeout_s: float) -> list[Any]:
        """The actors by rank."""
        nodes = self._placement.nodes(count)
        # The launcher numbers the ranks by the names of their hosts, which begin with those of the nodes.
        places = sorted(
            ((node, actor) for node, actor in zip(nodes, self._placement.actors, strict=True) if node is not None),
            key=lambda place: (place[0][1], place[0][0]),
        )
        actors = [actor for _, actor in places]
        packed = parcel.pack_call(loop.serve, (), {})
        self._launcher = launcher = LauncherThread(packed, CALLER, count, words, variables)
        begun = [actor.begin.remote(launcher.offer, place, {}, None) for place, actor in enumerate(actors)]
        self._get(begun)
        found = self._get([actor.rank.remote(timeout_s) for actor in actors])
        if any(rank is None for rank, _ in found):
            self._raise_loss("start", next(said for rank, said in found if rank is None))
        ranks = [rank for rank, _ in found]
        self._hosts = dict(zip(ranks, (node[1] for node, _ in places), strict=True))
        return [actor for _, actor in sorted(zip(ranks, actors, strict=True), key=lambda pair: pair[0])]

    def make(self, cls: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Has each rank make an object. Raises what that raises."""
        self.call(parcel.pack_call(loop.make, (cls, args, kwargs), {}), parcel.name_of(cls), ())

    def apply(
        self, function: Callable[[Any], Any], callbacks: Sequence[Callback], only_first: bool = False
    ) -> list[Any]:
        """Calls a function with that object."""
        packed = parcel.pack_call(loop.apply, (function,), {})
        return self.call(packed, parcel.name_of(function), callbacks, self._actors[: 1 if only_first else None])

    def call(
        self, packed: bytes, name: str, callbacks: Sequence[Callback], actors: Sequence[Any] | None = None
    ) -> list[Any]:
        """Calls a function on all ranks, or on those of some actors; returns the results by rank."""
        self._check_alive()
        asked_of = actors or self._actors
        try:
            with logs(self._ray, callbacks) as (values, drain):
                answers = self._answers(self._ask(asked_of, packed, values), drain)
                drain()
            first = next((rank for rank, answer in answers.items() if not isinstance(answer, Returned)), None)
            if first is not None and answers[first] is None:
                self._raise_loss(name)
            return verdict.results(self._verdict(name, first, answers))
        except BaseException as error:
            if self._over and isinstance(error, RankError):
                raise RankError(f"{CALLER}: {name} did not end, because {self._over}.") from None
            # The ranks may wait for each other for ever.
            self._over = f"{name} or a callback of it ended with {type(error).__name__}"
            self.close()
            raise

    def _ask(self, actors: Sequence[Any], packed: bytes, values: Any) -> list[Any]:
        """Has ranks call a function. Calls of several threads come to all ranks in the same order."""
        with self._asking:
            self._asked = [actor.call.remote(packed, values) for actor in actors]
            return self._asked

    def _answers(self, asked: list[Any], drain: Callable[[], None]) -> dict[int, Returned | Failed | None]:
        """What the ranks answer, up to the first that is no result: then others may wait for ever. In order of time."""
        answers: dict[int, Returned | Failed | None] = {}
        pending = list(asked)
        while pending:
            done, pending = self._ray.wait(pending, timeout=_LOOK_S)
            drain()
            for one in done:
                try:
                    answer = parcel.unpack_answer(self._ray.get(one))
                except self._ray.exceptions.RayError as error:
                    answer, self._loss = None, str(error).partition("\n")[0]
                answers[asked.index(one)] = answer
                if not isinstance(answer, Returned):
                    return answers
        return answers

    def _verdict(self, name: str, first: int | None, answers: Mapping[int, Any]) -> verdict.Job:
        report = {"first": first, "ranks": sorted(answers), "size": len(self._actors), "hosts": self._hosts}
        return verdict.Job(name, 0 if first is None else 1, report, answers, CALLER)

    def call_remote(self, packed: bytes) -> list[Any]:
        """Calls a function on all ranks; returns references to the results, by rank."""
        self._check_alive()
        unpack = self._ray.remote(_unpacked).options(num_cpus=0)
        asked = self._ask(self._actors, packed, None)
        threading.Thread(target=self._watch, args=(asked,), name="tfdist-ray-call", daemon=True).start()
        return [unpack.remote(answer, rank) for rank, answer in enumerate(asked)]

    def _watch(self, asked: list[Any]) -> None:
        """Ends the ranks if one of them fails, since the others may wait for it for ever."""
        answers = self._answers(asked, lambda: None)
        if len(answers) < len(asked) or not all(isinstance(answer, Returned) for answer in answers.values()):
            self._over = self._over or "a call of run_remote failed"
            self.close()

    def close(self) -> None:
        """Ends the ranks, the agents, the launcher, the actors, and their placement group."""
        failed, self._over = bool(self._over), self._over or "it was shut down"
        launcher, self._launcher = self._launcher, None
        if not self._ray.is_initialized():  # its actors ended with it
            if launcher is not None:
                launcher.stop()
                launcher.wait(_END_S)
            return
        if launcher is not None:
            ended = [actor.end.remote() for actor in self._placement.actors]
            asked = self._asked
            is_called = bool(asked) and len(self._ray.wait(asked, num_returns=len(asked), timeout=0)[0]) < len(asked)
            if failed or is_called or not launcher.wait(_END_S):
                launcher.stop()
                launcher.wait(_END_S)
            self._ray.wait(ended, num_returns=len(ended), timeout=_END_S)
        self._stack.close()

    def _get(self, asked: list[Any]) -> list[Any]:
        """The values of references. Raises what the launcher says if one of them has none, or if it ends before."""
        pending = list(asked)
        try:
            while pending:
                _, pending = self._ray.wait(pending, timeout=_LOOK_S)
                if pending and self._launcher is not None and self._launcher.error is not None:
                    raise self._launcher.error
            return list(self._ray.get(asked))
        except self._ray.exceptions.RayError as error:
            self._raise_loss("start", str(error).partition("\n")[0])

    def _raise_loss(self, name: str, said: str = "") -> NoReturn:
        launcher, said = self._launcher, said or self._loss
        if launcher is not None and launcher.wait(_CAUSE_S) and launcher.error is not None:
            if self._loss and isinstance(launcher.error, RankError):
                raise RankError(f"{launcher.error}\nRay says: {self._loss}", launcher.error.rank) from None
            raise launcher.error
        raise RankError(f"{CALLER}: {name}: {said or 'a rank was lost, and its launcher has not said why'}")

    def _check_alive(self) -> None:
        if self._over:
            raise RankError(
                f"{CALLER}: its ranks have ended, because {self._over}. Call shutdown(), and start() again."
            )


def _unpacked(data: bytes, rank: int) -> Any:
    """The result that a rank has answered. Raises what it has raised."""
    answer = parcel.unpack_answer(data)
    if answer is None:
        raise RankError(f"{CALLER}: rank {rank} was lost", rank)
    failed = isinstance(answer, Failed)
    report = {"first": rank if failed else None, "ranks": [rank], "size": None, "hosts": {rank: "its actor"}}
    return verdict.results(verdict.Job("the function", int(failed), report, {rank: answer}, CALLER))[0]
