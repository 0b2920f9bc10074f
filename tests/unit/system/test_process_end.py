"""The exit status that a process is about to have, found out before; and hooks that a fork does not inherit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAD = """
import atexit, os, pickle, sys, threading, traceback
from tfdist.system import process_end
process_end.watch()
atexit.register(lambda: print("found", process_end.status()))
def caught(status):
    try:
        sys.exit(status)
    except SystemExit as error:
        return error
"""
# What a script does, the status that is found, and the one that the process has.
ENDS = {
    "end": ("", "0", 0),
    "exit": ("sys.exit(3)", "3", 3),
    "exit well": ("sys.exit()", "0", 0),
    "exit with 0": ("sys.exit(0)", "0", 0),
    "exit with text": ("sys.exit('no such file')", "1", 1),
    "exit with more than a byte": ("sys.exit(256 + 7)", "7", 7),
    "exit in a function": (
        "def main():\n    try:\n        sys.exit(4)\n    finally:\n        print('x')\nmain()",
        "4",
        4,
    ),
    "exit after an error": ("try:\n    1 / 0\nexcept ZeroDivisionError:\n    sys.exit(5)", "5", 5),
    "exit that is raised again": ("try:\n    sys.exit(6)\nexcept SystemExit:\n    raise", "6", 6),
    "error": ("1 / 0", "1", 1),
    "caught": ("caught(3)", "0", 0),
    "caught and kept": ("kept = caught(3)", "0", 0),
    "caught, then an error": ("caught(0)\n1 / 0", "1", 1),
    "caught, then another": ("caught(3)\nsys.exit(0)", "0", 0),
    "caught, then one by hand": ("caught(3)\nraise SystemExit(8)", "None", 8),
    "by hand": ("raise SystemExit(9)", "None", 9),
    "by hand, well": ("raise SystemExit", "None", 0),
    "exit()": ("exit(2)", "None", 2),
    "error that is shown and survived": (
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    sys.excepthook(*sys.exc_info())",
        "0",
        0,
    ),
    "exit of a thread": ("t = threading.Thread(target=sys.exit, args=(3,)); t.start(); t.join()", "0", 0),
    "a hook around ours": (
        "before = sys.excepthook\nsys.excepthook = lambda *args: before(*args)\nraise KeyError('x')",
        "1",
        1,
    ),
    "argparse": ("import argparse\nargparse.ArgumentParser().parse_args(['--n'])", "2", 2),
    "what is caught is an ordinary exit": (
        "error = caught((1, 2))\nassert error.code == (1, 2), error.code\n"
        "assert pickle.loads(pickle.dumps(caught(3))).code == 3\nassert caught(None).code is None\n"
        "assert repr(type(error)) == repr(SystemExit), type(error)\n"
        "assert pickle.loads(pickle.dumps(sys.exit)) is sys.exit",
        "0",
        0,
    ),
}


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("form", ["file", "module"])
def test_status_is_known_before_the_end(tmp_path: Path, how: str, form: str) -> None:
    body, found, status = ENDS[how]
    (tmp_path / "script.py").write_text(HEAD + body + "\n")
    words = ["script.py"] if form == "file" else ["-m", "script"]
    done = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout.splitlines()[-1], done.returncode) == (f"found {found}", status), done.stderr


def test_hook_is_not_called_in_a_forked_process(tmp_path: Path) -> None:
    script = (
        "import os, sys\nfrom tfdist.system import exit_hook\nexit_hook.register(print, 'hook of', os.getpid())\n"
        "pid = os.fork()\nif pid: os.waitpid(pid, 0)\nprint('end of', os.getpid(), flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    child, parent, hook = done.stdout.splitlines()
    assert child != parent
    assert hook == parent.replace("end", "hook")
