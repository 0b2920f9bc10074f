"""The program that each rank of `run_ranks` runs: `python -m tfdist.testing.worker FOLDER`. Internal."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from tfdist.world import runtime


def main(folder: Path) -> int:
    """Runs the function named in `call.json` in the folder, and writes the result or failure next to it."""
    call = json.loads((folder / "call.json").read_text())
    # Terminates this process, whatever it waits for, if both launcher and caller are gone.
    signal.setitimer(signal.ITIMER_REAL, call["seconds"])
    sys.path += [entry for entry in call["path"] if entry not in sys.path]
    runtime.init()
    try:
        result = find(call["module"], call["file"], call["qualname"])(*call["args"])
        write(folder, json.dumps({"result": result}, default=as_json))
    except Exception:
        write(folder, json.dumps({"traceback": traceback.format_exc(), "time": time.monotonic()}))
        raise
    return 0


def write(folder: Path, record: str) -> None:
    """Writes this rank's record, completely or not at all."""
    path = folder / f"rank{runtime.rank()}.json"
    path.with_suffix(".part").write_text(record)
    os.replace(path.with_suffix(".part"), path)


def find(module: str, file: str, qualname: str) -> Callable[..., Any]:
    """The function of that name, from the module if it can be imported and is that file, else from the file."""
    found: Any = _import(module, file)
    for name in qualname.split("."):
        found = getattr(found, name)
    return found


def as_json(value: Any) -> Any:
    """Arrays, numpy scalars, tensors and variables as numbers and lists."""
    if hasattr(value, "numpy"):
        value = value.numpy()
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"run_ranks can return JSON types, arrays and tensors; received {type(value).__name__}.")


def _import(name: str, file: str) -> ModuleType:
    if name != "__main__":
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not f"{name}.".startswith(f"{error.name}."):
                raise
        else:
            if getattr(module, "__file__", None) and os.path.samefile(str(module.__file__), file):
                return module
    name = Path(file).stem if name == "__main__" else name
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} cannot be imported as Python source")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
