"""Barrier: nobody goes on before everybody has come."""

from __future__ import annotations

from tfdist.ops import call


def barrier(name: str | None = None) -> None:
    """Waits until every rank has called it.

    Args:
        name: Same on every rank; errors name the barrier by it.

    Raises:
        MismatchError: On every rank, if one of them called something else.
        StallError: If a rank does not come in time.

    Example:

    ```python
    if tfdist.rank() == 0:
        prepare_data()
    tfdist.barrier(name="data is prepared")
    ```
    """
    call.run("tfdist_barrier", label=name or "barrier")
