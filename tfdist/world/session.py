"""The process-wide state of a job between calls: one object, also read and written by the rooms above."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfdist.world.process_sets import ProcessSet
    from tfdist.world.roster import Roster
    from tfdist.world.tuning import Tuning


@dataclass
class Session:
    """The state of this process.

    Attributes:
        early: What importing tfdist has changed in this process, as text.
        transport: What carries its collectives: "mpi", "socket", or empty for a world of one.
        place: Rank and number of ranks, for the log; None before `init` and after `shutdown`.
        watches_exit: Whether the exit of the process is handled, from the first line of `init` on.
        mpi4py_ends_mpi: Whether mpi4py started MPI, and so ends it.
        started: Whether `init` has reached the start of the engine.
        roster: The launcher's reports; None before `init`.
        apart: The number of this process while it prepares, as a world of one, to join others that train; else -1.
        collectives: How many collectives the script has called or traced in this process.
        introduced: Whether `tfdistrun` has been told where this process listens, in a job without MPI.
        arguments: The arguments of the first `init`: `comm` and `process_sets`.
        first_rank: The rank that this process started with; -1 before `init`.
        process_sets: Process sets in use, besides the set of all ranks, by their numbers in the engine.
        dynamic: Whether process sets may be added and removed.
        tuning: How collectives run, if that was changed; None if the settings apply.
        gradients: Whose gradients of collectives were chosen, as in the setting; empty if nobody has chosen.
        catches_up: Whether a `fit` begins here that the other ranks have begun before.
        takes_over: Whether a `fit` begins here at a commit, of the other ranks or of earlier processes.
        resumed_at: The progress of earlier processes in the training that this one continues.
        data_sharded: Whether `tfdist.shard` has sharded data.
        parameters_sent: Whether parameters of PyTorch were given to other ranks.
        told_alone: Whether rank 0 has warned that ranks train on their own on sharded data.
        told_of_evaluation: Whether rank 0 has warned of an `evaluate` on the part of a rank.
        gradients_reduced: Whether gradients, or possible gradients, were reduced.
        reductions: How often a step, or the trace of one, has reduced gradients, or possible gradients, in TensorFlow.
        optimizer_reduced: Whether an optimizer of Keras or a tape has reduced gradients of variables.
        weights_alike: Whether tensors of one rank were given to all, or the ranks have compared their weights.
        fit_without_step: Whether the last `fit` with DataParallel has ended, or is, before its first step.
        compiled_for_ranks: Whether XLA compiles, in an elastic job, a function that is for this rank and as many ranks.
        settings_tuned: Whether autotuning ran, or could have.
        fit_is_elastic: Whether `keras.Model.fit` is wrapped for an elastic job.
        warned_of_seeds: Whether rank 0 has warned about equal random states.
        warned_of_elastic: Whether rank 0 has warned that script and launch disagree about elastic training.
    """

    early: list[str] = field(default_factory=list)
    transport: str = ""
    place: tuple[int, int] | None = None
    watches_exit: bool = False
    mpi4py_ends_mpi: bool = False
    started: bool = False
    roster: Roster | None = None
    apart: int = -1
    collectives: int = 0
    introduced: bool = False
    arguments: tuple[Any, Any] = (None, None)
    first_rank: int = -1
    process_sets: dict[int, ProcessSet] = field(default_factory=dict)
    dynamic: bool = False
    tuning: Tuning | None = None
    gradients: str = ""
    catches_up: bool = False
    takes_over: bool = False
    resumed_at: int = 0
    data_sharded: bool = False
    parameters_sent: bool = False
    told_alone: bool = False
    told_of_evaluation: bool = False
    gradients_reduced: bool = False
    reductions: int = 0
    optimizer_reduced: bool = False
    weights_alike: bool = False
    fit_without_step: bool = False
    compiled_for_ranks: bool = False
    settings_tuned: bool = False
    fit_is_elastic: bool = False
    warned_of_seeds: bool = False
    warned_of_elastic: bool = False


session = Session()
