"""What this process keeps of its job from one call to the next: one object, read and written by the rooms above too."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfdist.world.process_sets import ProcessSet
    from tfdist.world.tuning import Tuning


@dataclass
class Session:
    """Where this process stands.

    Attributes:
        early: What importing tfdist has changed in this process, in words.
        place: Rank and number of ranks, for the log; None before `init` and after `shutdown`.
        watches_exit: Whether the end of the process is looked after, from the first line of `init` on.
        mpi4py_ends_mpi: Whether mpi4py had started MPI before, and so ends it.
        started: Whether `init` has come as far as starting the engine.
        arguments: What `init` was called with first: `comm` and `process_sets`.
        first_rank: The rank that this process started with; -1 before `init`.
        process_sets: Those in use besides that of all ranks, by their numbers in the engine.
        dynamic: Whether process sets may be added and removed.
        tuning: How collectives run where that was changed; None where the settings hold.
        resumed_at: What processes before this one have reached in the training that this one continues.
        data_sharded: Whether `tfdist.shard` has dealt out data.
        gradients_reduced: Whether gradients, or what may be gradients, were reduced.
        settings_tuned: Whether settings were looked for, or could have been.
        fit_is_elastic: Whether `keras.Model.fit` is that of an elastic job.
        warned_of_seeds: Whether rank 0 has warned of equal random states.
        warned_of_elastic: Whether rank 0 has warned that script and start disagree about elastic training.
    """

    early: list[str] = field(default_factory=list)
    place: tuple[int, int] | None = None
    watches_exit: bool = False
    mpi4py_ends_mpi: bool = False
    started: bool = False
    arguments: tuple[Any, Any] = (None, None)
    first_rank: int = -1
    process_sets: dict[int, ProcessSet] = field(default_factory=dict)
    dynamic: bool = False
    tuning: Tuning | None = None
    resumed_at: int = 0
    data_sharded: bool = False
    gradients_reduced: bool = False
    settings_tuned: bool = False
    fit_is_elastic: bool = False
    warned_of_seeds: bool = False
    warned_of_elastic: bool = False


session = Session()
