"""Prepares the user's command to be started on every host: full paths, and errors before anything runs."""

from __future__ import annotations

import errno
import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from tfdist.errors import ConfigError

# The folder with the package horovod that is tfdist, as in tfdist.alias.
HOROVODS_NAMES = str(Path(__file__).parents[1] / "alias" / "path")
_PYTHON = re.compile(r"python(3(\.\d+)?)?")
# Options of python that take a value as the next argument.
_VALUED = {"-W", "-X", "--check-hash-based-pycs"}
# How much of a first line the kernel reads.
_MOST_BYTES = 256
_FIRST_LINE = "#!/bin/sh"


def resolve(command: Sequence[str], *, check_files: bool = True, folders: Sequence[str] = ()) -> tuple[str, ...]:
    """Returns `command` with the full path of its program, since PATH does not travel to other hosts.

    Args:
        command: The user's command and its arguments.
        check_files: Whether this host runs a rank, so that a file missing here is an error.
        folders: Where the program will find more modules than this process.

    Raises:
        ConfigError: If the program, its interpreter or its Python script does not exist.
    """
    if not command:
        raise ConfigError("no command to run; write it after the options, as in: tfdistrun -np 2 python train.py")
    name = command[0]
    found = shutil.which(name)
    if found is None and _PYTHON.fullmatch(name):
        found = sys.executable
    if found is None:
        if not check_files:
            return tuple(command)
        raise ConfigError(_missing(name))
    if check_files and (reason := _lack_of_interpreter(found)):
        raise ConfigError(f"{name} cannot be run: {reason}")
    program = _own_interpreter(os.path.abspath(found))
    if check_files and _PYTHON.fullmatch(os.path.basename(program)):
        _check_source(program, command[1:], folders)
    return (program, *command[1:])


def _check_source(program: str, arguments: Sequence[str], folders: Sequence[str]) -> None:
    """Raises ConfigError if the script or module that Python should run does not exist."""
    script = python_script(arguments)
    if script is not None and not os.path.exists(script):
        raise ConfigError(f"{script}: no such file; cwd is {os.getcwd()}")
    if program != sys.executable or len(arguments) < 2 or arguments[0] != "-m":
        return
    if not _is_module(arguments[1].partition(".")[0], folders):
        raise ConfigError(f"{arguments[1]}: no such module; cwd is {os.getcwd()}")


def _is_module(name: str, folders: Sequence[str]) -> bool:
    """Whether `python -m` could find this package or module, which is not imported."""
    try:
        found = importlib.util.find_spec(name)
    except ValueError:  # it has no spec, so it has been found before
        return True
    return found is not None or PathFinder.find_spec(name, [os.getcwd(), *folders]) is not None


def obstacle(name: str, error: OSError) -> str:
    """Why a program was not started, and what to do about it.

    Args:
        name: The program, by path or as it was looked up on PATH.
        error: The error from the kernel.
    """
    found = shutil.which(name)
    if found is None:
        return _missing(name)
    if error.errno == errno.ENOEXEC:
        return f"it is not a program and its first line names no interpreter; add a first line such as {_FIRST_LINE}"
    return _lack_of_interpreter(found) or str(error)


def python_script(arguments: Sequence[str]) -> str | None:
    """The script file among python's arguments; None for `-m`, `-c`, standard input and no script."""
    words = iter(arguments)
    for word in words:
        if word in _VALUED:
            next(words, None)
        elif word.startswith(("-m", "-c")) or word == "-":
            return None
        elif not word.startswith("-"):
            return word
    return None


def foreign_interpreter(command: Sequence[str]) -> str | None:
    """A warning if `command` runs another Python environment than the one tfdistrun belongs to."""
    program = command[0]
    if not _PYTHON.fullmatch(os.path.basename(program)):
        return None
    if os.path.dirname(program) == os.path.dirname(sys.executable):
        return None
    return f"note: PATH finds {program}, but tfdistrun belongs to {sys.executable}"


def _own_interpreter(found: str) -> str:
    # The same folder, not only the same file: the python of every environment may link to the same binary.
    same_folder = os.path.dirname(found) == os.path.dirname(sys.executable)
    if same_folder and Path(found).resolve() == Path(sys.executable).resolve():
        return sys.executable
    return found


def _lack_of_interpreter(path: str) -> str:
    """What is wrong with the interpreter in the first line of a script; empty if nothing is."""
    try:
        with open(path, "rb") as file:
            first = file.readline(_MOST_BYTES).rstrip(b"\n")
    except OSError:  # a program that may be executed but not read
        return ""
    words = first.removeprefix(b"#!").strip(b" \t").replace(b"\t", b" ").split(b" ")
    if not first.startswith(b"#!") or os.path.isfile(words[0]):
        return ""
    advice = "it has Windows line endings: " if first.endswith(b"\r") else ""
    advice += f"sed -i 's/\\r$//' {path}" if advice else f"use one that exists, such as {_FIRST_LINE}"
    return f"its first line names the interpreter {os.fsdecode(words[0])!r}, which does not exist; {advice}"


def _missing(name: str) -> str:
    """Why no executable was found, and what to do about it."""
    path = os.path.abspath(name)
    if os.path.isdir(name) and os.sep in name:
        return f"{name} is a folder; use the full path of a program"
    if os.path.isfile(name) and name.endswith(".py"):
        return f"{name} is not executable or not on PATH; write: python {name}"
    if os.path.isfile(name) and os.access(name, os.X_OK):
        return f"{name} is not on PATH; use its full path: {path}"
    if os.path.isfile(name):
        return f"{name} is not executable; run chmod +x {path}, and use its full path"
    if os.sep in name or name.endswith(".py"):
        return f"{name}: no such file; cwd is {os.getcwd()}"
    return f"{name}: no such command on PATH; use its full path"
