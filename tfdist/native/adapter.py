"""TensorFlow, and the library with tfdist's ops for it."""

from __future__ import annotations

import logging
from types import ModuleType

from tfdist import errors
from tfdist.native import build, library, requirement
from tfdist.native.once import Once

_logger = logging.getLogger("tfdist")


def import_tensorflow() -> ModuleType:
    """Imports TensorFlow.

    Raises:
        BuildError: If it is missing; the message has the command that installs it.
    """
    try:
        import tensorflow
    except errors.BuildError:  # of `ops`, which `init` may have asked for when TensorFlow is imported
        raise
    except ImportError as error:
        raise errors.BuildError(
            f"TensorFlow could not be imported: {error}. Install it: pip install "
            f"{requirement.tensorflow()}, or {requirement.of('tensorflow[and-cuda]')} for NVIDIA GPUs"
        ) from error
    return tensorflow


def ops() -> ModuleType:
    """The generated Python functions of the ops.

    Raises:
        BuildError: If TensorFlow or the core is missing, or there is no adapter for this TensorFlow.
    """
    import_tensorflow()  # before the lock of `_load`: this function may be what is called when TensorFlow is imported
    return _load()


@Once
def _load() -> ModuleType:
    tensorflow = import_tensorflow()
    library.load()  # the adapter finds the core by its name
    version = tensorflow.__version__
    path = build.adapter(version)
    known = build.record(path)["tensorflow"].split()
    try:
        loaded: ModuleType = tensorflow.load_op_library(str(path))
    except tensorflow.errors.NotFoundError as error:
        raise errors.BuildError(
            f"{path.name} could not be loaded: {error}. It is for TensorFlow {' and '.join(known)}; found TensorFlow "
            f"{version}. Build tfdist for this one: {build.reinstall()}"
        ) from error
    if version.replace("-", "") not in known:
        _logger.warning(
            "TensorFlow %s is installed; tfdist knows %s. Patch releases have had the same C++ interface so far, so "
            "this one is used. If the ops fail, build tfdist for it: %s",
            *(version, " and ".join(known), build.reinstall()),
        )
    return loaded


def record() -> dict[str, str]:
    """What the ops for the installed TensorFlow were built for, as `build.record`.

    Raises:
        BuildError: As `ops`, but loads nothing of tfdist.
    """
    return build.record(build.adapter(import_tensorflow().__version__))
