"""The PEP 517 build backend: setuptools, plus the requirements that depend on the target environment."""

from __future__ import annotations

from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403  (the hooks that need no change)

import build_environment


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """Adds TensorFlow and MPI only where the target environment has none, so that it is never built for another."""
    return [*build_meta.get_requires_for_build_wheel(config_settings), *build_environment.missing_requirements()]


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    """As for a wheel."""
    return [*build_meta.get_requires_for_build_editable(config_settings), *build_environment.missing_requirements()]
