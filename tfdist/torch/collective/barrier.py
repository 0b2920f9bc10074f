"""Barrier and join: waiting for all ranks, with and without a collective to come."""

from __future__ import annotations

from tfdist.native import collective
from tfdist.torch.collective.handle import count_alike, label_of, register, synchronize, synchronize_all
from tfdist.world.process_sets import ProcessSet, global_process_set


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Waits until every rank has called it.

    Args:
        process_set: The ranks that take part.

    Raises:
        StallError: If a rank does not arrive in time.

    Example:

    ```python
    if hvd.rank() == 0:
        prepare_data()
    hvd.barrier()
    ```
    """
    label, number = label_of(None, process_set)
    synchronize(register([collective.barrier(collective.Call(label, number, []))], None, lambda: None))


def join(device: int = -1) -> int:
    """Signals that this rank has nothing left to contribute, and waits until all ranks have joined.

    You need it if ranks have unequal numbers of batches. First it waits for all that this rank has started. From then
    on this rank contributes zeros to the others' allreduce by Sum, Average (which still divides by the number of all
    ranks) or Adasum, no rows to allgather, and takes part in barriers; other collectives fail on every rank.

    Args:
        device: Where Horovod makes the zeros. The engine makes them where those of the others are: any will do.

    Returns:
        The rank that joined last; it has seen every update, so broadcast its state from there.

    Raises:
        MismatchError: On every rank, if another rank called a collective that zeros would falsify.

    Example:

    ```python
    for batch in batches:  # unequal numbers
        train_step(batch)
    hvd.broadcast_parameters(model.state_dict(), root_rank=hvd.join())
    ```
    """
    synchronize_all()
    last = collective.join()
    count_alike()
    return last
