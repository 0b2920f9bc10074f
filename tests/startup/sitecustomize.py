"""Run by Python at the start of every process that a test starts: makes the imports of TensorFlow and Keras cheaper.

Most tests start processes that import both. It hides what Keras imports wherever it is installed, a third of the
time of `import keras`: few tests use it, and those take the fixture `all_packages`, which sets SHOWN. And it looks for
garbage after such an import instead of all the time within it, which takes 40 % off the rest.

Where a test sets WITHOUT_MPI, neither mpi4py nor a library of MPI is found either.
"""

import gc
import os
import sys
from importlib.machinery import PathFinder

SHOWN = "PYTEST_TFDIST_ALL_PACKAGES"
WITHOUT_MPI = "PYTEST_TFDIST_WITHOUT_MPI"
HIDDEN = frozenset() if SHOWN in os.environ else frozenset({"matplotlib", "pandas", "sklearn"})
if WITHOUT_MPI in os.environ:
    HIDDEN |= {"mpi4py"}
LARGE = frozenset({"tensorflow", "keras"})


class Finder:
    """Asked first for every module."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in HIDDEN:
            raise ModuleNotFoundError(f"{name} is hidden by {__file__}", name=name)
        spec = PathFinder.find_spec(name, path, target) if name in LARGE and gc.isenabled() else None
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = _without_collections(spec.loader.exec_module)
        return spec


def _without_collections(execute):
    def run(module):
        gc.disable()
        try:
            execute(module)
        finally:
            gc.enable()
            gc.freeze()  # what was imported stays

    return run


def _refuse_mpi(event, arguments):
    """No process of a job without MPI may load one: as if none were installed."""
    if event == "ctypes.dlopen" and "libmpi" in str(arguments[0]):
        raise OSError(f"{arguments[0]} is hidden by {__file__}")


if WITHOUT_MPI in os.environ:
    sys.addaudithook(_refuse_mpi)
sys.meta_path.insert(0, Finder)
