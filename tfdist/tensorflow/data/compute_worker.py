"""The compute job: each rank is a data service worker, some also run a dispatcher, and rank 0 runs the rendezvous.

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
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from tfdist import config
from tfdist.errors import ConfigError
from tfdist.ops.object import broadcast_object
from tfdist.system.terminal.command_line import Parser, amount, whole
from tfdist.tensorflow.data.compute_service import SIDES, TfDataServiceConfig, compute_worker_fn
from tfdist.tensorflow.data.meeting import ComputeService
from tfdist.world import runtime


def main(words: Sequence[str] | None = None) -> None:
    """Serves as a rank of the compute job until the job is ended.

    Args:
        words: The command line; None uses that of the process.

    Raises:
        ConfigError: If an option is invalid.
        PeerLostError: If a part of the job is not available in time.
    """
    options = _parser().parse_args(words)
    runtime.init()
    is_open = config.read().data_service_private_network
    _check(is_open or runtime.local_size() == runtime.size())
    with contextlib.ExitStack() as stack:
        fields = _meet(stack, options, is_open).to_dict() if runtime.rank() == 0 else None
        # Not by the file: one of an earlier job may stand there, and not every machine may see it.
        compute_worker_fn(TfDataServiceConfig.from_dict(broadcast_object(fields, name="compute_config")))
    runtime.shutdown()


def _check(one_machine: bool) -> None:
    if not one_machine:
        raise ConfigError(
            "this job runs on several machines, so whoever can reach its servers could run code in them. If the "
            "network is private, set TFDIST_DATA_SERVICE_PRIVATE_NETWORK=1."
        )


def run() -> NoReturn:
    """Serves, then ends the process even if TensorFlow's threads are still running."""
    status = 0
    try:
        main()
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        status = 2
    except Exception:  # noqa: BLE001  (whatever it is, the launcher has to hear of it)
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _meet(stack: contextlib.ExitStack, options: argparse.Namespace, is_open: bool) -> TfDataServiceConfig:
    """Starts the rendezvous server and writes its file, which is removed at the end."""
    key = secrets.token_bytes(32)
    service = ComputeService(options.dispatchers, key, local=not is_open)
    stack.callback(service.stop)
    made = TfDataServiceConfig(
        options.dispatchers,
        runtime.size() // options.dispatchers,
        options.dispatcher_side,
        service.addresses,
        key,
        options.timeout,
    )
    made.write(options.configfile)
    stack.callback(_remove, options.configfile, made)
    return made


def _remove(path: str, made: TfDataServiceConfig) -> None:
    """Removes the file, unless another job has overwritten it."""
    with contextlib.suppress(ConfigError):
        if TfDataServiceConfig.read(path) == made:
            Path(path).unlink()


def _parser() -> argparse.ArgumentParser:
    made = Parser(prog="python -m tfdist.tensorflow.data.compute_worker", description=__doc__)
    made.add_argument("configfile", help="file for the training scripts, written with mode 0600")
    made.add_argument(
        "--dispatchers",
        type=whole("a number of dispatchers", 1),
        default=1,
        metavar="N",
        help="1 for all training ranks, or one per training rank (default: 1)",
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
