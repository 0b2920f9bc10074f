"""Barrier: waiting for all ranks."""

from __future__ import annotations

from tfdist.native import collective
from tfdist.torch.collective.handle import label_of, register, synchronize
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
