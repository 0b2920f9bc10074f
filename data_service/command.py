"""The command `tfdist data-service`: its options and subcommands. `serving` and `supervisor` run the servers."""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tfdist import config
from tfdist.data_service.inspection import advice, passes, table
from tfdist.data_service.inspection.address import LARGEST_PORT, ServiceAddress, is_loopback
from tfdist.data_service.inspection.control_client import plain, request
from tfdist.data_service.inspection.status import DISPATCHER, WORKER
from tfdist.data_service.inspection.survey import DEAD, UNKNOWN, describe, survey
from tfdist.data_service.process.restart import RestartPolicy
from tfdist.data_service.process.serving import serve
from tfdist.data_service.server import core, drain_request, port
from tfdist.data_service.server.config import (
    DISPATCHER_TIMEOUT_S,
    DRAIN_TIMEOUT_S,
    UNREAD_TIMEOUT_S,
    DispatcherConfig,
    WorkerConfig,
)
from tfdist.errors import ConfigError, PeerLostError
from tfdist.system.terminal.command_line import Parser, amount, whole

FAILURE = 1
_ACCEPTED = 202
_PORT = 5050
_ANSWER_S = 5.0
_LOOK_S = 5.0
_COLOCATED = "COLOCATED"
_OTHERWISE = "; HOST:PORT/CONTROL if its --metrics-port is not PORT + 1 (default: TFDIST_DATA_SERVICE)"
_INTERFACES = Path("/sys/class/net")
_PORTS = whole("a port, or 0 for a free one", 0, LARGEST_PORT)

_DESCRIPTION = """\
Runs tf.data pipelines in processes and on machines other than the trainer's: a dispatcher assigns work, workers run
datasets and serve their elements, and tfdist.data_service.distribute makes a trainer read from them.

on one machine, no command is needed: tfdistrun --data-workers 2 ..., or tfdist.data_service.Cluster in the script.

on several machines, in a private network (whoever can reach a port can run code there):
  node1$ tfdist data-service dispatcher --host node1 --insecure
  node2$ tfdist data-service worker --dispatcher node1:5050 --host node2 --insecure
  node3$ tfdist data-service status node1:5050
  node3$ tfdist data-service advise node1:5050
and in the script: dataset = tfdist.data_service.distribute(dataset, "node1:5050")
"""

_DISPATCHER_HELP = """\
Starts the dispatcher and stays in the foreground; SIGTERM and Ctrl-C end it, with status 0.

It serves /healthz, /readyz, /metrics (Prometheus) and /status over HTTP on --metrics-port. With --work-dir and
--fault-tolerant it keeps a journal; it is restarted when it dies, and training continues after a few seconds.
"""

_WORKER_HELP = """\
Starts a worker and stays in the foreground. When it dies it is restarted at its address, so that a pass over the data
completes; with dynamic sharding the elements it held are lost (at-most-once delivery).

SIGTERM and Ctrl-C drain it: it takes no new work, delivers what it holds, and ends with status 0. A second one, or the
end of --drain-timeout, ends it immediately. With --key-file, `tfdist data-service drain` drains it too and counts as
the first one.
"""

_STATUS_HELP = """\
Shows the dispatcher, all workers that ever registered, the status of each, and the passes over datasets that are being
read. Exit status 0 if all is well, 1 if the dispatcher does not answer or is unknown, or if a worker is dead or
unknown.

  ready     works                              draining  delivers what it holds
  drained   has left on request                dead      nothing listens at its address
  unknown   something listens, but nothing answers on its port + 1; for a dispatcher with another --metrics-port write
            HOST:PORT/CONTROL; a worker with another one always shows as unknown

For each worker, over the last ten seconds:
  elements/s, MB/s  what it produced, before compression
  full queues       how many of its tasks waited for trainers to fetch: all of them if trainers are slower than workers,
                    none if trainers wait for this worker
  CPU               cores that its process kept busy, of those it may use

A pass is one run through a dataset, by one trainer or by those that share a job name; each worker has a task for it.
"""

_ADVISE_HELP = """\
Answers "am I input-bound?": surveys the service twice, --seconds apart, and shows the share of time that each trainer
waits for its data, how busy each worker is, and how many workers would end the waiting. Trainers report how long they
wait once they have read through tfdist.data_service.distribute for 10 s, so run it during training, and wait 20 s after
a change of the workers.

If n workers are busy while the trainers wait a share w of the time, n / (1 - w) workers are needed. If the workers are
not busy, they are not the bottleneck, and the command says what else may be.
"""

_DRAIN_HELP = """\
Drains a worker, as SIGTERM on its machine would. The worker must have been started with the same key:

  (umask 077; head -c 32 /dev/urandom | base64 > drain.key)     then copy drain.key to the worker's machine, mode 0600
"""


def main(words: Sequence[str]) -> int:
    """Runs a subcommand.

    Returns:
        Its exit status.

    Raises:
        ConfigError: If an option is invalid.
    """
    options = parser().parse_args(words)
    try:
        return int(options.run(options))
    except PeerLostError as error:
        print(f"tfdist data-service: {error}", file=sys.stderr)
        return FAILURE


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = Parser(prog="tfdist data-service", description=_DESCRIPTION)
    part = made.add_subparsers(metavar="PART", required=True).add_parser
    _add_dispatcher(part("dispatcher", help="start a dispatcher", description=_DISPATCHER_HELP))
    _add_worker(part("worker", help="start a worker", description=_WORKER_HELP))
    _add_status(part("status", help="show a service and its workers", description=_STATUS_HELP))
    summary = "show whether training waits for its data, and what would help"
    _add_advise(part("advise", help=summary, description=_ADVISE_HELP))
    _add_drain(part("drain", help="ask a worker to drain", description=_DRAIN_HELP))
    return made


def _add_dispatcher(part: argparse.ArgumentParser) -> None:
    _add_server(part, _PORT)
    part.add_argument("--work-dir", metavar="DIR", help="folder for the journal; the same folder on all workers")
    part.add_argument(
        "--fault-tolerant", action="store_true", help="keep a journal and continue from it after a restart"
    )
    part.add_argument(
        "--workers",
        default="",
        metavar="HOST:PORT,...",
        help="all workers, for sharding by file, data, file_or_data and hint, where each has a fixed shard",
    )
    _add_seconds(
        part, "--unread-timeout", UNREAD_TIMEOUT_S, "seconds after which a pass that is no longer read is dropped"
    )
    _add_restarts(part)
    part.set_defaults(run=_dispatcher)


def _add_worker(part: argparse.ArgumentParser) -> None:
    part.add_argument("--dispatcher", metavar="HOST:PORT", help=f"the dispatcher{_OTHERWISE}")
    _add_server(part, 0)
    part.add_argument("--work-dir", metavar="DIR", help="the dispatcher's work dir; verified to be the same folder")
    part.add_argument("--key-file", metavar="FILE", help="key for drain requests, mode 0600 (default: no requests)")
    part.add_argument(
        "--tags", type=_tags, default=(), metavar="A,B", help="labels that `status` shows and tf.data receives"
    )
    part.add_argument(
        "--cores",
        type=whole("a number of cores", 1, 4096),
        metavar="N",
        help="cores that the worker may use, different from those of other workers if there are enough (default: all)",
    )
    _add_seconds(part, "--drain-timeout", DRAIN_TIMEOUT_S, "seconds a drain may take")
    _add_seconds(part, "--dispatcher-timeout", DISPATCHER_TIMEOUT_S, "seconds to wait for the dispatcher at startup")
    _add_restarts(part)
    part.set_defaults(run=_worker)


def _add_server(part: argparse.ArgumentParser, usual: int) -> None:
    shown = f"{usual}" if usual else "a free one"
    part.add_argument(
        "--host",
        default="localhost",
        metavar="NAME",
        help="name at which the others reach this machine (default: localhost, closed to other machines)",
    )
    part.add_argument(
        "--port",
        type=_PORTS,
        default=usual,
        metavar="PORT",
        help=f"TCP port (default: {shown})",
    )
    part.add_argument(
        "--metrics-port",
        type=_PORTS,
        metavar="PORT",
        help="TCP port of health, metrics, status (default: port + 1); with another one write HOST:PORT/CONTROL for a "
        "dispatcher, and `status` shows a worker as unknown",
    )
    part.add_argument(
        "--insecure", action="store_true", help="accept other machines, all of which can then run code in this process"
    )


def _add_seconds(part: argparse.ArgumentParser, name: str, default: float, meaning: str) -> None:
    shown = f"{meaning} (default: {default:g})"
    part.add_argument(name, type=amount("seconds"), default=default, metavar="S", help=shown)


def _add_restarts(part: argparse.ArgumentParser) -> None:
    limit, window = RestartPolicy.limit, RestartPolicy.window_s / 60
    part.add_argument(
        "--restarts",
        type=whole("a number of restarts", 0, 1000),
        default=limit,
        metavar="N",
        help=f"failures within {window:g} minutes that lead to a restart (default: %(default)s)",
    )


def _add_status(part: argparse.ArgumentParser) -> None:
    part.add_argument("service", nargs="?", metavar="HOST:PORT", help=f"dispatcher{_OTHERWISE}")
    part.add_argument("--json", action="store_true", help="JSON instead of a table")
    _add_seconds(part, "--timeout", _ANSWER_S, "seconds for each answer")
    part.set_defaults(run=_status)


def _add_advise(part: argparse.ArgumentParser) -> None:
    part.add_argument("service", nargs="?", metavar="HOST:PORT", help=f"dispatcher{_OTHERWISE}")
    part.add_argument("--json", action="store_true", help="JSON instead of text")
    _add_seconds(part, "--seconds", _LOOK_S, "seconds over which the workers' load is measured")
    _add_seconds(part, "--timeout", _ANSWER_S, "seconds for each answer")
    part.set_defaults(run=_advise)


def _add_drain(part: argparse.ArgumentParser) -> None:
    part.add_argument(
        "worker",
        metavar="HOST:PORT",
        help="the worker, as `status` shows it; HOST:PORT/CONTROL if its --metrics-port is not PORT + 1",
    )
    part.add_argument("--key-file", required=True, metavar="FILE", help="the worker's key, mode 0600")
    _add_seconds(part, "--timeout", _ANSWER_S, "seconds for the answer")
    part.set_defaults(run=_drain)


def _place(options: argparse.Namespace) -> dict[str, Any]:
    """The fields that both roles have."""
    insecure = _may_be_open(options.host, options.insecure)
    # The server binds them again; checking here reports a port in use before TensorFlow is imported.
    port.take(options.port, options.metrics_port, "").release()
    ports = {"port": options.port, "control_port": options.metrics_port}
    return {"host": options.host, "work_dir": options.work_dir, "insecure": insecure, **ports}


def _dispatcher(options: argparse.Namespace) -> int:
    workers = tuple(filter(None, options.workers.split(",")))
    made = DispatcherConfig(
        fault_tolerant=options.fault_tolerant,
        worker_addresses=workers,
        unread_timeout_s=options.unread_timeout,
        **_place(options),
    )
    # Without a journal a new dispatcher knows none of the trainers: whoever runs us may decide what then.
    limit = options.restarts if options.fault_tolerant else 0
    return serve(DISPATCHER, asdict(made), RestartPolicy(limit=limit), DRAIN_TIMEOUT_S)


def _worker(options: argparse.Namespace) -> int:
    dispatcher = _service(options.dispatcher, "--dispatcher HOST:PORT")
    made = WorkerConfig(
        dispatcher,
        key_file=options.key_file,
        dispatcher_timeout_s=options.dispatcher_timeout,
        tags=options.tags,
        cores=options.cores,
        **_place(options),
    )
    if options.cores:
        core.check(options.cores)  # the worker checks too; here the error comes before TensorFlow is imported
    if options.key_file:
        drain_request.read_key(options.key_file)
    return serve(WORKER, asdict(made), RestartPolicy(limit=options.restarts), options.drain_timeout)


def _status(options: argparse.Namespace) -> int:
    address = ServiceAddress.parse(_service(options.service, "HOST:PORT"))
    found = survey(address, options.timeout)
    reading = passes.read(found, address, options.timeout)
    if options.json:
        print(json.dumps(describe(found) | passes.describe(reading), indent=2))
    else:
        print(f"{table.render(found, time.time())}\n\n{table.render_passes(reading)}")
    return FAILURE if any(server.state in (DEAD, UNKNOWN) for server in (found.dispatcher, *found.workers)) else 0


def _advise(options: argparse.Namespace) -> int:
    service = _service(options.service, "HOST:PORT")
    before, start = survey(service, options.timeout), time.monotonic()
    time.sleep(options.seconds)
    after, end = survey(service, options.timeout), time.monotonic()
    told = after.dispatcher.status
    if told is None:
        raise PeerLostError(
            f"the dispatcher at {service} does not report which trainers wait: {after.dispatcher.detail}"
        )
    found = advice.advise(told.trainers, advice.loads(before, after, end - start))
    print(json.dumps(found.to_json(), indent=2) if options.json else table.advice(found))
    return 0


def _drain(options: argparse.Namespace) -> int:
    worker = ServiceAddress.parse(options.worker)
    key = drain_request.read_key(options.key_file)
    body, proof = drain_request.compose(key, worker.grpc, time.time())
    headers = {drain_request.HEADER.replace("-", "_"): proof}
    try:
        code, text = request(worker, "POST", "/drain", options.timeout, body, **headers)
    except OSError as error:
        raise PeerLostError(f"the drain request did not reach {worker.grpc}: {error}; {worker.elsewhere}") from None
    if code != _ACCEPTED:
        raise PeerLostError(f"{worker.grpc} refused to drain: {plain(text.decode(errors='replace').strip())}")
    print(f"{worker.grpc} is draining; `tfdist data-service status` shows it as drained once it has left")
    return 0


def _may_be_open(host: str, insecure: bool) -> bool:
    """Whether to open the ports to other machines.

    Raises:
        ConfigError: If that is needed but not permitted.
    """
    allowed = insecure or config.read().data_service_private_network
    others = [name for _, name in socket.if_nameindex() if name != "lo" and _is_up(name)]
    if not is_loopback(host) and others and not allowed:
        raise ConfigError(
            f"--host {host} opens the ports to other machines through {', '.join(others)}. tf.data service has no "
            "authentication or encryption and runs the programs it receives: whoever can reach a port can run code "
            "here. On a private network pass --insecure, or set TFDIST_DATA_SERVICE_PRIVATE_NETWORK=1; to serve only "
            "this machine, omit --host"
        )
    return insecure or (allowed and not is_loopback(host))


def _is_up(interface: str) -> bool:
    try:
        return bool(int((_INTERFACES / interface / "flags").read_text(), 16) & 1)
    except (OSError, ValueError):
        return True  # rather one too many


def _service(given: str | None, option: str) -> str:
    service = given or config.read().data_service
    if not service:
        raise ConfigError(f"no data service given. Pass {option}, or set TFDIST_DATA_SERVICE")
    return service


def _tags(text: str) -> tuple[str, ...]:
    tags = tuple(text.split(","))
    if any(tag.upper() == _COLOCATED for tag in tags):
        raise argparse.ArgumentTypeError(
            f"{text!r} contains {_COLOCATED}, which tf.data reserves for workers in the trainer's own process, so "
            "trainers would not read from this one. Omit it"
        )
    return tags
