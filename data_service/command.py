"""The `tfdist data-service` command: its options, and what each part does with them. It runs no server itself."""

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
_OTHERWISE = "; HOST:PORT/CONTROL where its --metrics-port is not PORT + 1 (default: TFDIST_DATA_SERVICE)"
_INTERFACES = Path("/sys/class/net")
_PORTS = whole("a port, or 0 for a free one", 0, LARGEST_PORT)

_DESCRIPTION = """\
Runs tf.data pipelines on other processes and machines than the trainer's: a dispatcher hands out work, workers run
datasets and serve their elements, and tfdist.data_service.distribute makes a trainer read from them.

on one machine, no command is needed: tfdistrun --data-workers 2 ..., or tfdist.data_service.Cluster in the script.

over machines, on a private network (whoever reaches a port can run code there):
  node1$ tfdist data-service dispatcher --host node1 --insecure
  node2$ tfdist data-service worker --dispatcher node1:5050 --host node2 --insecure
  node3$ tfdist data-service status node1:5050
  node3$ tfdist data-service advise node1:5050
and in the script: dataset = tfdist.data_service.distribute(dataset, "node1:5050")
"""

_DISPATCHER_HELP = """\
Starts the dispatcher and stays in the foreground; SIGTERM and Ctrl-C end it, with status 0.

It answers HTTP on --metrics-port: /healthz, /readyz, /metrics (Prometheus) and /status. With --work-dir and
--fault-tolerant it keeps a journal, is started again when it dies, and training goes on after a pause of seconds.
"""

_WORKER_HELP = """\
Starts a worker and stays in the foreground. When it dies it is started again at its address, so that a pass over the
data ends; elements that it held are lost (at most once) under dynamic sharding.

SIGTERM and Ctrl-C drain it: it takes no new work, delivers what it holds, and ends with status 0; a second one, or the
end of --drain-timeout, ends it at once. With --key-file it also drains by `tfdist data-service drain`, which counts as
the first one.
"""

_STATUS_HELP = """\
Shows the dispatcher, all workers that ever registered, what each tells about itself, and the passes over datasets that
are being read. Exit status 0 if all is well, 1 if the dispatcher does not answer or is unknown, or if a worker is dead
or unknown.

  ready     works                              draining  delivers what it holds
  drained   has left as it was told to         dead      nothing listens at its address
  unknown   something listens, but nothing answers on its port + 1; a dispatcher with another --metrics-port is written
            HOST:PORT/CONTROL, a worker with another one always looks like this

Of the last ten seconds, for each worker:
  elements/s, MB/s  what it made, before compression
  full queues       how many of its tasks waited for trainers to fetch: all of them if trainers are slower than workers,
                    none if trainers wait for this worker
  CPU               cores that its process kept busy, of those it may use

A pass is one time through a dataset, by one trainer or those that share a job name; each worker has a task of it.
"""

_ADVISE_HELP = """\
Answers "am I input-bound?": looks at the service twice, --seconds apart, and shows which share of the time each trainer
waits for its data, how much each worker works, and how many workers would end the waiting. Trainers tell how long they
wait once they have read by tfdist.data_service.distribute for 10 s, so ask while training runs; after a change of the
workers ask 20 s later.

n workers that are busy while the trainers wait a share w of the time should be n / (1 - w). Workers that are not busy
are not what is waited for, and it says what else may be.
"""

_DRAIN_HELP = """\
Asks a worker to drain, as SIGTERM on its machine would. It must have been started with the same key:

  (umask 077; head -c 32 /dev/urandom | base64 > drain.key)     then copy drain.key to the worker's machine, mode 0600
"""


def main(words: Sequence[str]) -> int:
    """Runs a part of the command.

    Returns:
        Its exit status.

    Raises:
        ConfigError: If an option cannot be honoured.
    """
    options = _parser().parse_args(words)
    try:
        return int(options.run(options))
    except PeerLostError as error:
        print(f"tfdist data-service: {error}", file=sys.stderr)
        return FAILURE


def _parser() -> argparse.ArgumentParser:
    made = Parser(prog="tfdist data-service", description=_DESCRIPTION)
    part = made.add_subparsers(metavar="PART", required=True).add_parser
    _add_dispatcher(part("dispatcher", help="start a dispatcher", description=_DISPATCHER_HELP))
    _add_worker(part("worker", help="start a worker", description=_WORKER_HELP))
    _add_status(part("status", help="show a service and its workers", description=_STATUS_HELP))
    summary = "tell whether training waits for its data, and what would help"
    _add_advise(part("advise", help=summary, description=_ADVISE_HELP))
    _add_drain(part("drain", help="ask a worker to drain", description=_DRAIN_HELP))
    return made


def _add_dispatcher(part: argparse.ArgumentParser) -> None:
    _add_server(part, _PORT)
    part.add_argument("--work-dir", metavar="DIR", help="folder of the journal; the same for the workers")
    part.add_argument("--fault-tolerant", action="store_true", help="keep the journal and go on from it")
    part.add_argument(
        "--workers",
        default="",
        metavar="HOST:PORT,...",
        help="all workers, for sharding by file, data, file_or_data and hint, which gives each a fixed part",
    )
    _add_seconds(
        part, "--unread-timeout", UNREAD_TIMEOUT_S, "seconds after which a pass that nobody reads any more is forgotten"
    )
    _add_restarts(part)
    part.set_defaults(run=_dispatcher)


def _add_worker(part: argparse.ArgumentParser) -> None:
    part.add_argument("--dispatcher", metavar="HOST:PORT", help=f"the dispatcher{_OTHERWISE}")
    _add_server(part, 0)
    part.add_argument("--work-dir", metavar="DIR", help="the dispatcher's work dir; checked to be the same folder")
    part.add_argument("--key-file", metavar="FILE", help="key of requests to drain, mode 0600 (default: no requests)")
    part.add_argument(
        "--tags", type=_tags, default=(), metavar="A,B", help="words that `status` shows, and that tf.data is told"
    )
    part.add_argument(
        "--cores",
        type=whole("a number of cores", 1, 4096),
        metavar="N",
        help="cores that the worker may use, apart from those of other workers if there are enough (default: all)",
    )
    _add_seconds(part, "--drain-timeout", DRAIN_TIMEOUT_S, "seconds a drain may take")
    _add_seconds(part, "--dispatcher-timeout", DISPATCHER_TIMEOUT_S, "seconds to wait for the dispatcher at the start")
    _add_restarts(part)
    part.set_defaults(run=_worker)


def _add_server(part: argparse.ArgumentParser, usual: int) -> None:
    shown = f"{usual}" if usual else "a free one"
    part.add_argument(
        "--host",
        default="localhost",
        metavar="NAME",
        help="name under which the others reach this machine (default: localhost, closed to other machines)",
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
        help="TCP port of health, metrics, status (default: port + 1); with another one a dispatcher is written "
        "HOST:PORT/CONTROL everywhere, and a worker is unknown to `status`",
    )
    part.add_argument(
        "--insecure", action="store_true", help="listen for other machines, all of which can run code in this process"
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
        help=f"failures within {window:g} minutes that are answered by a restart (default: %(default)s)",
    )


def _add_status(part: argparse.ArgumentParser) -> None:
    part.add_argument("service", nargs="?", metavar="HOST:PORT", help=f"dispatcher{_OTHERWISE}")
    part.add_argument("--json", action="store_true", help="JSON instead of a table")
    _add_seconds(part, "--timeout", _ANSWER_S, "seconds for each answer")
    part.set_defaults(run=_status)


def _add_advise(part: argparse.ArgumentParser) -> None:
    part.add_argument("service", nargs="?", metavar="HOST:PORT", help=f"dispatcher{_OTHERWISE}")
    part.add_argument("--json", action="store_true", help="JSON instead of text")
    _add_seconds(part, "--seconds", _LOOK_S, "seconds in which the workers' load is measured")
    _add_seconds(part, "--timeout", _ANSWER_S, "seconds for each answer")
    part.set_defaults(run=_advise)


def _add_drain(part: argparse.ArgumentParser) -> None:
    part.add_argument(
        "worker",
        metavar="HOST:PORT",
        help="the worker, as `status` shows it; HOST:PORT/CONTROL where its --metrics-port is not PORT + 1",
    )
    part.add_argument("--key-file", required=True, metavar="FILE", help="the worker's key, mode 0600")
    _add_seconds(part, "--timeout", _ANSWER_S, "seconds for the answer")
    part.set_defaults(run=_drain)


def _place(options: argparse.Namespace) -> dict[str, Any]:
    """The fields that both roles have."""
    insecure = _may_be_open(options.host, options.insecure)
    # The server takes them again; here it is told before TensorFlow has been imported.
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
        core.check(options.cores)  # the worker does it too; here it is told before TensorFlow has been imported
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
        raise PeerLostError(f"the dispatcher at {service} does not tell who waits: {after.dispatcher.detail}")
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
        raise PeerLostError(f"{worker.grpc} was not asked to drain: {error}; {worker.elsewhere}") from None
    if code != _ACCEPTED:
        raise PeerLostError(f"{worker.grpc} does not drain: {plain(text.decode(errors='replace').strip())}")
    print(f"{worker.grpc} drains; `tfdist data-service status` shows it as drained when it has left")
    return 0


def _may_be_open(host: str, insecure: bool) -> bool:
    """Whether the ports are to be open to other machines.

    Raises:
        ConfigError: If they would be, and nobody has said that they may.
    """
    allowed = insecure or config.read().data_service_private_network
    others = [name for _, name in socket.if_nameindex() if name != "lo" and _is_up(name)]
    if not is_loopback(host) and others and not allowed:
        raise ConfigError(
            f"--host {host} opens the ports to other machines, by {', '.join(others)}. tf.data service has no "
            "authentication and no encryption, and runs the programs it is sent: whoever reaches a port can run code "
            "here. On a private network say --insecure, or set TFDIST_DATA_SERVICE_PRIVATE_NETWORK=1; for this machine "
            "alone leave --host out"
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
        raise ConfigError(f"which data service? Give {option}, or set TFDIST_DATA_SERVICE")
    return service


def _tags(text: str) -> tuple[str, ...]:
    tags = tuple(text.split(","))
    if any(tag.upper() == _COLOCATED for tag in tags):
        raise argparse.ArgumentTypeError(
            f"{text!r} has {_COLOCATED}, by which tf.data knows a worker in the trainer's own process; trainers would "
            "not read from this one"
        )
    return tags
