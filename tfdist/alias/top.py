"""What `import horovod` itself has."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["__version__", "run"]

# That of the Horovod whose names these are, as scripts compare it; that of tfdist is tfdist.__version__.
__version__ = "0.28.1"


def run(*args: Any, **kwargs: Any) -> Any:
    """`tfdist.run`, with the same arguments; see docs/migrating-from-horovod.md."""
    return importlib.import_module("tfdist").run(*args, **kwargs)
