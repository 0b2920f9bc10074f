"""The end of a rank's data, while the others continue."""

from __future__ import annotations

from tfdist.native import collective
from tfdist.torch.collective.handle import count_alike, synchronize_all
from tfdist.torch.training.optimizer import begin_all_anew


def join(device: int = -1) -> int:
    """Signals that this rank has nothing left to contribute, and waits until all ranks have joined.

    You need it if ranks have unequal numbers of batches. First it waits for all that this rank has started. From then
    on this rank contributes zeros to the others' allreduce by Sum, Average (which still divides by the number of all
    ranks) or Adasum, no rows to allgather, and takes part in barriers; other collectives fail on every rank.

    Args:
        device: Where Horovod makes the zeros. The engine makes them where those of the others are: any will do.

    Returns:
        The rank that joined last; it has seen every update, so broadcast its parameters, and before more steps the
        state of its optimizer, from there.

    Raises:
        MismatchError: On every rank, if another rank called a collective that zeros would falsify.

    Example:

    ```python
    for batch in batches:  # unequal numbers
        train_step(batch)
    last = hvd.join()
    hvd.broadcast_parameters(model.state_dict(), root_rank=last)
    hvd.broadcast_optimizer_state(optimizer, root_rank=last)
    ```
    """
    synchronize_all()
    last = collective.join()
    count_alike()
    begin_all_anew()  # who joined early has compared less
    return last
