"""What the two modules with Horovod's names share: answers for names that have no counterpart. Not a public door."""

from __future__ import annotations

from typing import NoReturn

GUIDE = "See docs/migrating-from-horovod.md."

_SESSIONS = "sessions and global variables belong to TensorFlow 1"
_LATER = "is not part of this version"
_MISSING = {
    "broadcast_global_variables": f"{_SESSIONS}: call broadcast_variables(model.weights, root_rank=0)",
    "BroadcastGlobalVariablesHook": f"{_SESSIONS}: use callbacks.BroadcastGlobalVariablesCallback(0)",
    "check_num_rank_power_of_2": "Adasum takes any number of ranks",
    "gpu_available": 'use tf.config.list_physical_devices("GPU")',
    "handle_average_backwards_compatibility": "allreduce takes average= itself",
    "vendored_tensorflow_built": "there is one build of tfdist",
    "start_timeline": _LATER,
    "stop_timeline": _LATER,
    "elastic": _LATER,
}


def refuse(module: str, name: str) -> NoReturn:
    """Says why `module` does not have `name`, and what to write instead.

    Raises:
        AttributeError: Always.
    """
    reason = _MISSING.get(name)
    text = f"module {module!r} has no attribute {name!r}"
    raise AttributeError(f"{text}: {reason}. {GUIDE}" if reason else text)
