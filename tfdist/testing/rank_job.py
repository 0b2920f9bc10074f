"""Runs a function on several ranks on this machine and returns each rank's result. For tests, not for training.

The launcher starts the ranks as processes. Function and arguments are passed by name and as JSON in a private folder,
and results are returned the same way: nothing is pickled, and no port is opened here.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfdist.errors import ConfigError, RankError
from tfdist.system.process import end_child
from tfdist.system.rank import job_place

# The launcher terminates its job within 10 s of a signal; ranks that it cannot reach exit by themselves after that.
_SECONDS_TO_END = 15.0
_OUTPUT_TAIL_CHARACTERS = 4000


def run_ranks(n: int, fn: Callable[..., Any], *args: Any, timeout_seconds: float = 60.0) -> list[Any]:
    """Calls `fn(*args)` on `n` ranks at the same time and returns the results by rank.

    You need it to test distributed code in an ordinary test: each rank is a process on this machine in which
    `tfdist.init()` has been called. The ranks' output is shown only if something fails.

    Args:
        n: Number of ranks.
        fn: A function at the top level of a module or script. The ranks import that file, so a script must do its work
            under `if __name__ == "__main__":`.
        *args: Arguments, the same on every rank, of JSON types; a tuple arrives as a list.
        timeout_seconds: After this time the job is terminated and an error raised.

    Returns:
        What `fn` returned on each rank, in JSON types: arrays, tensors and tuples become lists.

    Raises:
        ConfigError: If `fn` cannot be found by name, an argument is not JSON, or this process is itself a rank.
        RankError: If a rank raises an exception, with its rank and traceback, or exceeds the timeout.

    Example:

    ```python
    def total(factor):
        return tfdist.allreduce(tf.constant(factor * tfdist.rank()), op=tfdist.Sum)

    def test_total():
        assert run_ranks(3, total, 2.0) == [6.0, 6.0, 6.0]
    ```
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ConfigError(f"n must be a whole number of ranks, 1 or more; received {n!r}.")
    if job_place.is_taken():
        raise ConfigError("run_ranks starts a new job and cannot be called on a rank of a running job.")
    call = _describe(fn, args) | {"seconds": timeout_seconds + _SECONDS_TO_END}
    with tempfile.TemporaryDirectory(prefix="tfdist-ranks-") as name:
        folder = Path(name)
        (folder / "call.json").write_text(json.dumps(call))
        code = _run_job(n, folder, timeout_seconds)
        records = [_read(folder / f"rank{rank}.json") for rank in range(n)]
        output = (folder / "output").read_text(errors="replace")[-_OUTPUT_TAIL_CHARACTERS:]
    _raise_first_failure(call["qualname"], records)
    missing = [rank for rank, record in enumerate(records) if "result" not in record]
    if code is None:
        raise RankError(
            f"{call['qualname']} did not finish on ranks {missing} of {n} within {timeout_seconds} s and was "
            f"terminated. Raise timeout_seconds if it is just slow. Last output:\n{output}"
        )
    if code != 0 or missing:
        raise RankError(f"{call['qualname']}: the job of {n} ranks exited with code {code}. Last output:\n{output}")
    return [record["result"] for record in records]


def _describe(fn: Callable[..., Any], args: tuple[Any, ...]) -> dict[str, Any]:
    """What another process needs to find the function: its module, its file, and its name there."""
    qualname = getattr(fn, "__qualname__", "")
    path = inspect.getsourcefile(fn) if inspect.isfunction(fn) else None
    if path is None or "<" in qualname or not os.path.isfile(path):
        raise ConfigError(f"run_ranks needs a function at the top level of a file; received {fn!r}.")
    try:
        arguments = json.loads(json.dumps(args))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the arguments of {qualname} must be JSON (numbers, text, lists, dicts): {error}.") from None
    return {
        "module": fn.__module__,
        "file": os.path.abspath(path),
        "qualname": qualname,
        "args": arguments,
        "path": [os.path.abspath(entry) for entry in sys.path],
    }


def _run_job(n: int, folder: Path, timeout_seconds: float) -> int | None:
    """The launcher's exit code; None if the job exceeded the timeout."""
    # On this machine, whatever the working folder's tfdist.yaml or a cluster's allocation say.
    command = [sys.executable, "-m", "tfdist.launch", "--no-config", "-np", str(n), "-H", f"localhost:{n}"]
    command += [sys.executable, "-m", "tfdist.testing.worker", str(folder)]
    # A file, because a leftover process could keep a pipe open.
    with open(folder / "output", "wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            return process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            end_child(process, _SECONDS_TO_END)


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.is_file() else {}


def _raise_first_failure(qualname: str, records: list[dict[str, Any]]) -> None:
    """The first failure in time is the cause: the others lost their peer."""
    failed = [(record["time"], rank) for rank, record in enumerate(records) if "traceback" in record]
    if failed:
        rank = min(failed)[1]
        raise RankError(f"{qualname} failed on rank {rank} of {len(records)}:\n{records[rank]['traceback']}", rank)
