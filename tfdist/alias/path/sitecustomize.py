"""Run by Python as it starts, where the search path has this folder: Keras is translated as soon as it is imported.

Scripts import Keras before horovod. tfdist is imported then and not now, as not every process needs it.
"""

import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent


def translate_keras() -> None:
    """Called when Keras has been imported."""
    importlib.import_module("tfdist.alias.keras2").translate()


def run(found: ModuleSpec | None) -> ModuleType | None:
    """Runs a module that has been found, if one has, without making it known by a name."""
    if found is None or found.loader is None:
        return None
    made = importlib.util.module_from_spec(found)
    found.loader.exec_module(made)
    return made


# First the one that this one hides, which some environments have and which may find Keras, too.
others = [place for place in sys.path if Path(place or ".").resolve() != HERE]
run(PathFinder.find_spec("sitecustomize", others))

# Without tfdist itself: it is imported when Keras is.
system = run(
    importlib.util.spec_from_file_location("tfdist_after_import", HERE.parents[1] / "system" / "after_import.py")
)
if system is not None:
    system.after_import("keras", translate_keras)
