"""The process of an embedded cluster, started by `Cluster` and by tfdistrun.

It is its own process, so that dead servers are restarted however busy the trainer is, and so that all of them end with
the trainer, however that ends. Standard input carries the order and then requests, standard output the answers, one
line of JSON each. The end of standard input, or of the process that started it, ends everything.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from tfdist.data_service.inspection.address import ServiceAddress
from tfdist.data_service.inspection.control_client import fetch
from tfdist.data_service.inspection.status import DISPATCHER, WORKER
from tfdist.data_service.process.autoscale import ADD, DRAIN, KEEP, ScalePolicy
from tfdist.data_service.process.log import Log
from tfdist.data_service.process.restart import RestartPolicy
from tfdist.data_service.process.scaler import Scaler, staying
from tfdist.data_service.process.spare import SparePorts
from tfdist.data_service.process.supervisor import ENDED, FAILED, READY, Member, Supervisor
from tfdist.data_service.server import port
from tfdist.data_service.server.config import DRAIN_TIMEOUT_S
from tfdist.errors import ConfigError
from tfdist.system.process import adopt_orphans, call_this_process, end_descendants, heeded, signal_pipe
from tfdist.system.scratch import scratch

_HOST = "127.0.0.1"
_STEP_S = 0.5
_KILL_S = 2.0
# Servers of this machine answer in milliseconds; meanwhile nothing else is done.
_ANSWER_S = 1.0
_CHUNK_BYTES = 1 << 16


class Manager:
    """One embedded cluster.

    Args:
        order: "workers", "start_timeout_s", and "autoscale": the fields of a `ScalePolicy`, or None; optionally
            "fixed_workers" (default: false), "restarts" and "drain_timeout_s".
        work_dir: Folder for the journal of the dispatcher.
        answer: Takes one answer.
        show: Takes a line of the log.
    """

    def __init__(
        self,
        order: dict[str, Any],
        work_dir: str,
        answer: Callable[[dict[str, Any]], None],
        show: Callable[[str], None],
    ) -> None:
        usual = {"fixed_workers": False, "restarts": RestartPolicy.limit, "drain_timeout_s": DRAIN_TIMEOUT_S}
        self._order, self._work_dir, self._answer, self._show = usual | order, work_dir, answer, show
        self._supervisor = Supervisor(
            RestartPolicy(limit=self._order["restarts"]), self._order["drain_timeout_s"], show
        )
        self._deadline = time.monotonic() + order["start_timeout_s"]
        self._pending: list[tuple[int, Member, str]] = []
        self._told: set[Member] = set()
        self._told_workers: list[str] = []
        self._spare, self._left = SparePorts(), set[Member]()
        policy = ScalePolicy(**order["autoscale"]) if order["autoscale"] is not None else None
        self._scaler = Scaler(policy, time.monotonic()) if policy is not None else None
        self._announced = self._over = False
        self._input = b""
        self._service = ""

    def run(self) -> int:
        """Serves until told to end and returns the exit status. Leaves no process behind."""
        try:
            self._start()
            while not self._over:
                self._supervisor.step(_STEP_S)
                self._advance()
                self._scale()
        finally:
            self._supervisor.end()
            end_descendants(os.getpid(), 0.0, _KILL_S)
        return 0 if self._announced else 1

    def watch(self, descriptor: int, react: Callable[[], None]) -> None:
        """Has `react` called whenever the descriptor can be read."""
        self._supervisor.watch(descriptor, react)

    def stop(self) -> None:
        """Ends `run` soon."""
        self._over = True

    def read_requests(self) -> None:
        """Handles requests from standard input."""
        data = os.read(0, _CHUNK_BYTES)
        if not data:
            self._over = True
            return
        *lines, self._input = (self._input + data).split(b"\n")
        for line in lines:
            self._deal_with(json.loads(line))

    def _start(self) -> None:
        # Chosen here, so that the workers start at the same time as the dispatcher they wait for, and that it knows
        # who has which fixed shard.
        pairs = [port.take(0, None, _HOST) for _ in range(1 + self._order["workers"])]
        for pair in pairs:
            pair.release()
        own, *others = (pair.port for pair in pairs)
        self._service = f"{_HOST}:{own}"
        config = {"host": _HOST, "port": own, "work_dir": self._work_dir, "fault_tolerant": True}
        if self._order["fixed_workers"]:
            config["worker_addresses"] = [f"{_HOST}:{other}" for other in others]
        self._supervisor.add("data-dispatcher", DISPATCHER, config)
        for other in others:
            self._add_worker(other)

    def _add_worker(self, number_of_port: int = 0) -> Member:
        number = len(self._supervisor.members) - 1
        config = {
            "host": _HOST,
            "port": number_of_port,
            "dispatcher": self._service,
            "work_dir": self._work_dir,
        }
        return self._supervisor.add(f"data-worker-{number}", WORKER, config)

    @property
    def _workers(self) -> list[Member]:
        return [member for member in self._supervisor.members if member.role == WORKER]

    def _deal_with(self, request: dict[str, Any]) -> None:
        number = request["id"]
        refusal = ""
        if request["do"] == "add":
            refusal = self._why_not_add()
            if not refusal:
                self._pending.append((number, self._add_worker(self._free_port()), "add"))
        else:
            member = {member.address: member for member in self._workers}.get(request["worker"])
            refusal = self._why_not_drain(member, request["worker"])
            if member is not None and not refusal:
                if not member.leaving:  # a second SIGTERM would end it at once, with what it holds
                    self._supervisor.terminate(member)
                self._pending.append((number, member, "drain"))
        if refusal:
            self._answer({"id": number, "refused": refusal})
        self._tell_workers()

    def _why_not_add(self) -> str:
        if self._scaler is None or len(staying(self._workers)) < self._scaler.policy.largest:
            return ""
        return (
            f"autoscale allows at most {self._scaler.policy.largest} workers, and that many already run. Drain one "
            "first."
        )

    def _why_not_drain(self, member: Member | None, named: str) -> str:
        if member is not None and member.leaving:
            return ""
        running = [member.address for member in staying(self._workers) if not member.over and member.address]
        if named not in running:
            return f"worker must be one of {', '.join(running)}; received {named!r}."
        if len(running) == 1:
            return f"{named} is the last worker, so none would take over its share. Add one first, or stop the cluster."
        return ""

    def _advance(self) -> None:
        if not self._announced:
            self._announce()
            return
        self._keep_ports()
        self._tell_workers()
        for entry in list(self._pending):
            number, member, action = entry
            if member.over or (action == "add" and member.state == READY):
                self._pending.remove(entry)
                failed = member.state == FAILED or (action == "drain" and (member.code != 0 or member.lost))
                outcome = {"error": member.lost or member.detail} if failed else {"worker": member.address}
                self._answer({"id": number, **outcome})
        self._tell_failures()

    def _tell_failures(self) -> None:
        for member in self._supervisor.members:
            if member.state == FAILED and member not in self._told:
                self._told.add(member)
                self._answer({"failed": member.address or member.name, "detail": member.detail})

    def _keep_ports(self) -> None:
        """Keeps the ports of workers that have left."""
        for member in self._workers:
            if member.state == ENDED and member.leaving and member.service and member not in self._left:
                self._left.add(member)
                self._spare.put(ServiceAddress.parse(member.service).port)

    def _tell_workers(self) -> None:
        """Announces the workers whenever they change, before anything that depends on it."""
        workers = [member.address for member in staying(self._workers) if member.address]
        if workers != self._told_workers:
            self._told_workers = workers
            self._answer({"workers": workers})

    def _scale(self) -> None:
        """Runs the autoscaler, one change at a time."""
        if self._scaler is None or not self._announced:
            return
        now = time.monotonic()
        decision = self._scaler.look(now, self._workers, self._waiting)
        workers = staying(self._workers)
        # A drain now would leave a port that no worker can make use of in this pass, and there are enough of these.
        if decision.action == KEEP or (decision.action == DRAIN and self._spare.full and self._is_in_pass()):
            return
        after = len(workers) + (1 if decision.action == ADD else -1)
        self._show(f"[data-service] {len(workers)} -> {after} workers: {decision.reason}")
        if decision.action == ADD:
            self._add_worker(self._free_port())
        else:
            self._supervisor.terminate(workers[-1])
        self._scaler.note(decision.action, now)
        self._tell_workers()

    def _waiting(self) -> list[float]:
        return [told.share for told in fetch(ServiceAddress.parse(self._service), _ANSWER_S).trainers]

    def _is_in_pass(self) -> bool:
        """Whether a pass over the data is running, as far as the workers report."""
        for member in staying(self._workers):
            if member.state == READY:
                try:
                    if fetch(ServiceAddress.parse(member.service), _ANSWER_S).counters["tasks"]:
                        return True
                except OSError:  # one that does not answer may work
                    return True
        return False

    def _free_port(self) -> int:
        """A port for a new worker; 0 lets it pick a new one."""
        for candidate in self._spare.take(self._is_in_pass()):
            try:
                if candidate:
                    port.take(candidate, None, _HOST).release()
            except ConfigError:  # somebody else has it by now
                continue
            return candidate
        return 0

    def _announce(self) -> None:
        members = self._supervisor.members
        failed = [member for member in members if member.state == FAILED]
        if failed:
            self._answer({"error": f"{failed[0].name} could not start: {failed[0].detail}"})
            self._over = True
        elif all(member.state == READY for member in members):
            self._announced = True
            self._told_workers = [member.address for member in members if member.role == WORKER]
            self._answer({"ready": self._service, "workers": self._told_workers})
        elif time.monotonic() > self._deadline:
            missing = ", ".join(member.name for member in members if member.state != READY)
            waited = self._order["start_timeout_s"]
            self._answer({"error": f"{missing} not ready within {waited:g} s; see their output above for the cause"})
            self._over = True


def main() -> int:
    """Runs the order read from standard input."""
    parent = os.getppid()
    call_this_process("tfdist-data")
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return 1
        line += byte
    order = json.loads(line)
    adopt_orphans()

    def answer(fields: dict[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):  # the end of its owner is noticed by other ways, and soon
            sys.stdout.write(json.dumps(fields) + "\n")
            sys.stdout.flush()

    with contextlib.closing(Log()) as log, scratch("data-service") as work_dir:
        manager = Manager(order, work_dir, answer, log.show)
        manager.watch(signal_pipe(heeded((signal.SIGTERM, signal.SIGHUP))), manager.stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        manager.watch(0, manager.read_requests)
        # A child of the trainer that was forked without exec may hold the other end of standard input open.
        owner = os.pidfd_open(parent)
        manager.watch(owner, manager.stop)
        if os.getppid() != parent:
            return 1
        try:
            return manager.run()
        except ConfigError as error:
            answer({"error": str(error)})
            return 1


if __name__ == "__main__":
    sys.exit(main())
