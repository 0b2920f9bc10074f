"""The rest of horovodrun's options: those that undo another one, old spellings, and those that have no effect here."""

from __future__ import annotations

import argparse
from typing import Any

from tfdist.config import IDLE_OF_HOROVOD
from tfdist.system.terminal.command_line import whole

# Accepted without effect: name -> (takes a value, the variable of Horovod that says why).
IDLE = {
    "--cycle-time-ms": (True, "CYCLE_TIME"),
    "--cache-capacity": (True, "CACHE_CAPACITY"),
    "--disable-cache": (False, "CACHE_CAPACITY"),
    "--num-nccl-streams": (True, "NUM_NCCL_STREAMS"),
    "--hierarchical-allgather": (False, "HIERARCHICAL_ALLGATHER"),
    "--no-hierarchical-allgather": (False, "HIERARCHICAL_ALLGATHER"),
    "--torus-allreduce": (False, "TORUS_ALLREDUCE"),
    "--no-torus-allreduce": (False, "TORUS_ALLREDUCE"),
    "--autotune-warmup-samples": (True, "AUTOTUNE_WARMUP_SAMPLES"),
    "--autotune-gaussian-process-noise": (True, "AUTOTUNE_GAUSSIAN_PROCESS_NOISE"),
    "--mpi-threads-disable": (False, "MPI_THREADS_DISABLE"),
    "--no-mpi-threads-disable": (False, "MPI_THREADS_DISABLE"),
    "--thread-affinity": (True, "THREAD_AFFINITY"),
    "--gloo-timeout-seconds": (True, "GLOO_TIMEOUT_SECONDS"),
    "--log-with-timestamp": (False, "LOG_HIDE_TIME"),
    "--no-log-hide-timestamp": (False, "LOG_HIDE_TIME"),
    "--log-without-timestamp": (False, "LOG_HIDE_TIME"),
    "--log-hide-timestamp": (False, "LOG_HIDE_TIME"),
}
# Options that undo another one, of the command line or of the environment: name -> destination.
_UNDOING = {
    "--no-autotune": "autotune",
    "--no-hierarchical-allreduce": "hierarchical_allreduce",
    "--no-timeline-mark-cycles": "timeline_mark_cycles",
    "--stall-check": "no_stall_check",
}


def add(made: argparse.ArgumentParser) -> None:
    """Adds them to the options of tfdistrun, in groups of their own."""
    group = made.add_argument_group("of horovodrun")
    group.add_argument(
        "--as-horovod",
        action="store_true",
        help="import horovod in the script imports tfdist: a script for Horovod runs unchanged (TFDIST_AS_HOROVOD)",
    )
    steps, samples = whole("a number of steps", 1), whole("a number of samples", 1)
    group.add_argument("--autotune-steps-per-sample", type=steps, metavar="N", help="TFDIST_AUTOTUNE_STEPS")
    group.add_argument("--autotune-bayes-opt-max-samples", type=samples, metavar="N", help="TFDIST_AUTOTUNE_SAMPLES")
    group.add_argument(
        "--network-interface",
        action="append",
        default=[],
        metavar="NAME",
        help="an interface to use, as in --network-interfaces; may be repeated",
    )
    for name, destination in _UNDOING.items():
        told = f"undoes --{destination.replace('_', '-')}, also of a file and of the environment"
        group.add_argument(name, dest=destination, action="store_false", default=None, help=told)
    idle = made.add_argument_group("accepted from horovodrun, without effect")
    for name, (valued, _) in IDLE.items():
        more: dict[str, Any] = {"metavar": "N"} if valued else {"action": "store_true"}
        idle.add_argument(name, help=_reason(name), **more)


def complete(known: argparse.Namespace) -> None:
    """Gives each option that has two spellings one value."""
    single = [name.strip() for text in known.network_interface for name in text.split(",")]
    known.network_interfaces = (*known.network_interfaces, *filter(None, single))


def notes(known: argparse.Namespace) -> list[str]:
    """A line for each given option that has no effect."""
    given = [name for name in IDLE if getattr(known, name.removeprefix("--").replace("-", "_"))]
    return [f"{name} has no effect: {_reason(name)}" for name in given]


def _reason(name: str) -> str:
    return IDLE_OF_HOROVOD[f"HOROVOD_{IDLE[name][1]}"]


def variables(known: argparse.Namespace) -> dict[str, str | None]:
    """The configuration variables that these options stand for; None for one that was not given."""
    steps, samples = known.autotune_steps_per_sample, known.autotune_bayes_opt_max_samples
    return {
        "TFDIST_AS_HOROVOD": "1" if known.as_horovod else None,
        "TFDIST_AUTOTUNE_STEPS": None if steps is None else str(steps),
        "TFDIST_AUTOTUNE_SAMPLES": None if samples is None else str(samples),
    }
