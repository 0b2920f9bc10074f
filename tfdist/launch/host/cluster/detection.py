"""Finds the allocation this process runs in, if any, by asking each manager's module in turn."""

from __future__ import annotations

from collections.abc import Mapping

from tfdist.launch.host.cluster import lsf, mpijob, pbs, sagemaker, slurm
from tfdist.launch.host.cluster.allocation import Allocation

_MANAGERS = (slurm.find, lsf.find, pbs.find, sagemaker.find, mpijob.find)


def detect(environment: Mapping[str, str]) -> Allocation | None:
    """The allocation of the first manager that made one. Raises ConfigError if its variables cannot be used."""
    return next((found for find in _MANAGERS if (found := find(environment)) is not None), None)
