"""Run by Python as it starts, where the search path has this folder: Keras is translated as soon as it is imported.

Scripts import Keras before horovod. tfdist is imported then and not now, as not every process needs it.
"""

import importlib
import importlib.util
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

HERE = Path(__file__).resolve().parent


def translate_keras():
    """Called when Keras has been imported."""
    importlib.import_module("tfdist.alias.keras2").translate()


if os.environ.get("TFDIST_AS_HOROVOD") == "1":
    place = HERE.parents[1] / "system" / "after_import.py"
    spec = importlib.util.spec_from_file_location("tfdist_after_import", place)
    after_import = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(after_import)
    after_import.after_import("keras", translate_keras)

# The one that this one hides, which some environments have.
others = [place for place in sys.path if Path(place or ".").resolve() != HERE]
spec = PathFinder.find_spec("sitecustomize", others)
if spec is not None and spec.loader is not None:
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
