"""The compute job: each rank is a worker of a data service, some have a dispatcher too, and rank 0 the meeting point.

    tfdistrun -np 4 python -m tfdist.tensorflow.data.compute_worker /tmp/compute.json --dispatchers 2

It serves until a training script calls `TfDataServiceConfig.read("/tmp/compute.json").compute_client().shutdown()`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tfdist import config
from tfdist.errors import ConfigError
from tfdist.ops.object import broadcast_object
from tfdist.system.terminal.command_line import amount
from tfdist.tensorflow.data.compute_service import SIDES, TfDataServiceConfig, serve
from tfdist.tensorflow.data.meeting import ComputeService
from tfdist.world import runtime


def main(words: Sequence[str] | None = None) -> list[Any]:
    """Serves as a rank of the compute job until it is ended.

    Args:
        words: The command line; None takes that of the process.

    Returns:
        Its servers, which still run.

    Raises:
        ConfigError: If an option cannot be honoured.
        PeerLostError: If a part of the job does not come in time.
    """
    options = _parser().parse_args(words)
    runtime.init()
    is_open = config.read().data_service_private_network
    _check(runtime.size(), options.dispatchers, one_machine=is_open or runtime.local_size() == runtime.size())
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(_meeting(options, is_open)) if runtime.rank() == 0 else None
        # Not by the file: one of an earlier job may stand there, and not every machine may see it.
        fields = broadcast_object(made.to_dict() if made is not None else None, name="compute_config")
        return serve(TfDataServiceConfig.from_dict(fields))


def _check(size: int, dispatchers: int, one_machine: bool) -> None:
    if size % dispatchers:
        raise ConfigError(
            f"the number of processes must be a multiple of --dispatchers; received -np {size}, --dispatchers "
            f"{dispatchers}."
        )
    if not one_machine:
        raise ConfigError(
            "this job runs on several machines. Its servers would be open to all that reach them and run what they are "
            "sent: set TFDIST_DATA_SERVICE_PRIVATE_NETWORK=1 where the network is private."
        )


def run() -> NoReturn:
    """Serves, and ends the process with its servers: to stop the worker of TensorFlow first would hold up the end while
    it looks for a dispatcher that has gone.
    """
    status = 0
    running = []  # who forgets a server stops it
    try:
        running += main()
        runtime.shutdown()
    except Exception:  # noqa: BLE001  (whatever it is, the launcher has to hear of it)
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


@contextlib.contextmanager
def _meeting(options: argparse.Namespace, is_open: bool) -> Iterator[TfDataServiceConfig]:
    """The meeting point, and its file, which goes with it."""
    key = secrets.token_bytes(32)
    service = ComputeService(options.dispatchers, key, local=not is_open)
    try:
        made = TfDataServiceConfig(
            options.dispatchers,
            runtime.size() // options.dispatchers,
            options.dispatcher_side,
            service.addresses,
            key,
            options.timeout,
        )
        made.write(options.configfile)
        try:
            yield made
        finally:
            _remove(options.configfile, made)
    finally:
        service.shutdown()


def _remove(path: str, made: TfDataServiceConfig) -> None:
    """Takes the file away, unless another job has written its own there."""
    with contextlib.suppress(ConfigError, FileNotFoundError):
        if TfDataServiceConfig.read(path) == made:
            Path(path).unlink()


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of dispatchers; expected 1 or more")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m tfdist.tensorflow.data.compute_worker",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("configfile", help="file that training scripts read; it is written with mode 0600")
    made.add_argument(
        "--dispatchers",
        type=_count,
        default=1,
        metavar="N",
        help="1, for all training ranks, or one for each of them (default: 1)",
    )
    made.add_argument(
        "--dispatcher-side", choices=SIDES, default=SIDES[0], help="where the dispatchers run (default: compute)"
    )
    made.add_argument(
        "--timeout",
        type=amount("seconds"),
        default=60,
        metavar="S",
        help="seconds to wait for dispatchers and workers, here and in the training job (default: 60)",
    )
    return made


if __name__ == "__main__":
    run()
