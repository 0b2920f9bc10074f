"""What both kinds of jobs have in common: the launcher in a thread, where it listens, and callbacks."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tfdist.launch.function import function_job, parcel, session
from tfdist.launch.function.embedded import Offer, agent_words, program_of
from tfdist.launch.function.parcel import Returned
from tfdist.launch.host import host
from tfdist.protocol import mesh
from tfdist.system.network import endpoint

CALLER = "tfdist.ray.RayExecutor"
# Called with what rank 0 logs.
Callback = Callable[[Mapping[str, Any]], Any]


class LauncherThread:
    """Runs the launcher of a job whose agents are in actors.

    Args:
        packed: The function of each rank, with its arguments.
        name: Its name, for messages.
        agents: How many to wait for.
        words: Further options of tfdistrun.
        variables: For the ranks' environment.
    """

    def __init__(
        self, packed: bytes, name: str, agents: int, words: Sequence[str], variables: Mapping[str, str]
    ) -> None:
        self.results: list[Any] | None = None
        self.error: BaseException | None = None
        self._stopped = threading.Event()
        self._agents, self._words, self._variables = agents, words, dict(variables)
        self._door = _door()
        self.offer = Offer(endpoint.text(self._door.getsockname()[:2]), secrets.token_hex(32))
        self._thread = threading.Thread(target=self._run, args=(packed, name), name="tfdist-ray-launcher", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Waits for its end; whether it has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Ends the job, if it still runs."""
        self._stopped.set()

    def _run(self, packed: bytes, name: str) -> None:
        try:
            with self._door as door, session.key_file(self.offer.key) as key_file:
                words = agent_words(self._agents, self.offer.launcher, key_file, self._variables)
                setting = session.Setting(door, key_file, self._variables, is_wanted=lambda: not self._stopped.is_set())
                whole = [*words, *self._words]
                self.results = function_job.call_on_ranks(packed, name, whole, program_of(), setting, CALLER)
        except BaseException as error:  # noqa: BLE001  (raised by who waits)
            self.error = error


def _door() -> Any:
    import ray

    return mesh.listen(host.address(ray.util.get_node_ip_address()))


@contextlib.contextmanager
def logs(ray: Any, callbacks: Sequence[Callback]) -> Iterator[tuple[Any, Callable[[], None]]]:
    """A queue for what rank 0 logs, None without callbacks, and what calls these with all that has come."""
    if not callbacks:
        yield None, lambda: None
        return
    from ray.util.queue import Empty, Queue
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # On this node, without which the job ends anyway: Ray would choose one that may be lost.
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    values = Queue(actor_options={"num_cpus": 0, "scheduling_strategy": here})

    def drain() -> None:
        with contextlib.suppress(Empty):
            while True:
                answer = parcel.unpack_answer(values.get_nowait())
                assert isinstance(answer, Returned)
                found = answer.load()
                for callback in callbacks:
                    callback(found)

    try:
        yield values, drain
    finally:
        values.shutdown(force=True)
