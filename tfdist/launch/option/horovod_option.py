"""The rest of horovodrun's options: those that undo another one, old spellings, and those that have no effect here."""

from __future__ import annotations

import argparse
from typing import Any

from tfdist.system.terminal.command_line import whole

# Accepted without effect: name -> (takes a value, the reason).
_NO_CACHE = "there is no negotiation, so there is no response cache"
_ALGORITHM = "tfdist chooses the algorithm by the size of the tensors and the hosts"
_NO_TIMES = "tfdist's log lines have no time; --prefix-output-with-timestamp puts one before each line"
_THREADS = "tfdist calls MPI from one thread at a time"
IDLE = {
    "--cycle-time-ms": (True, "there is no negotiation cycle"),
    "--cache-capacity": (True, _NO_CACHE),
    "--disable-cache": (False, _NO_CACHE),
    "--num-nccl-streams": (True, "collectives run in order, in one stream separate from the training"),
    "--hierarchical-allgather": (False, _ALGORITHM),
    "--no-hierarchical-allgather": (False, _ALGORITHM),
    "--torus-allreduce": (False, _ALGORITHM),
    "--no-torus-allreduce": (False, _ALGORITHM),
    "--autotune-warmup-samples": (True, "each setting is compared with the default several times instead"),
    "--autotune-gaussian-process-noise": (True, "the search uses no Gaussian process"),
    "--mpi-threads-disable": (False, _THREADS),
    "--no-mpi-threads-disable": (False, _THREADS),
    "--thread-affinity": (True, "there is no background thread to bind; --binding-args binds the ranks"),
    "--gloo-timeout-seconds": (True, "--start-timeout and --stall-check-shutdown-time-seconds limit all waits"),
    "--log-with-timestamp": (False, _NO_TIMES),
    "--no-log-hide-timestamp": (False, _NO_TIMES),
    "--log-without-timestamp": (False, _NO_TIMES),
    "--log-hide-timestamp": (False, _NO_TIMES),
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
    for name, (valued, reason) in IDLE.items():
        more: dict[str, Any] = {"metavar": "N"} if valued else {"action": "store_true"}
        idle.add_argument(name, help=reason, **more)


def complete(known: argparse.Namespace) -> None:
    """Gives each option that has two spellings one value."""
    single = [name.strip() for text in known.network_interface for name in text.split(",")]
    known.network_interfaces = (*known.network_interfaces, *filter(None, single))


def notes(known: argparse.Namespace) -> list[str]:
    """A line for each given option that has no effect."""
    given = [name for name in IDLE if getattr(known, name.removeprefix("--").replace("-", "_"))]
    return [f"{name} has no effect: {IDLE[name][1]}" for name in given]


def variables(known: argparse.Namespace) -> dict[str, str | None]:
    """The configuration variables that these options stand for; None for one that was not given."""
    steps, samples = known.autotune_steps_per_sample, known.autotune_bayes_opt_max_samples
    return {
        "TFDIST_AS_HOROVOD": "1" if known.as_horovod else None,
        "TFDIST_AUTOTUNE_STEPS": None if steps is None else str(steps),
        "TFDIST_AUTOTUNE_SAMPLES": None if samples is None else str(samples),
    }
