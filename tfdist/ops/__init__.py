"""The collectives, one per file: argument checks, the TensorFlow op, its gradient. The algorithms are in csrc/core."""

from __future__ import annotations

# The public names of what all ranks must call, but for `join`, which every string has too.
COLLECTIVES = frozenset(
    "allreduce grouped_allreduce allgather grouped_allgather allgather_object broadcast grouped_broadcast broadcast_ "
    "broadcast_variables broadcast_object broadcast_object_fn alltoall reducescatter grouped_reducescatter "
    "barrier".split()
)
