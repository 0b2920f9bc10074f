"""Training on the nodes of a Ray cluster: Horovod's `horovod.ray`, without MPI and ssh.

Importing this package does not import ray; the executor does.
"""

from __future__ import annotations

from tfdist.ray.executor import RayExecutor
from tfdist.ray.loop import log

__all__ = ["RayExecutor", "log"]
