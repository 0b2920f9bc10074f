"""The gate for the system that a library needs: broken on purpose."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest

import wheels

# `pthread_create` came to the C library itself with 2.34.
NEEDS_A_NEW_SYSTEM = """
#include <pthread.h>
int tfdist_start(pthread_t* thread, void* (*run)(void*)) { return pthread_create(thread, 0, run, 0); }
"""
LIBRARY = "tfdist/libtfdist_core.so"


def test_library_that_needs_a_newer_system_is_refused(wheel: Path, tmp_path: Path) -> None:
    source, library, changed = tmp_path / "new.c", tmp_path / "new.so", tmp_path / wheel.name
    source.write_text(NEEDS_A_NEW_SYSTEM)
    subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    with zipfile.ZipFile(wheel) as before, zipfile.ZipFile(changed, "w") as after:
        for name in before.namelist():
            after.writestr(name, library.read_bytes() if name == LIBRARY else before.read(name))
    assert wheels.audit(wheel, tmp_path / "good", "x86_64").name == wheel.name
    with pytest.raises(
        SystemExit, match=r"is for manylinux_2_27, but its libraries make it tfdist-.*manylinux_2_3[4-9]_x86_64.whl"
    ):
        wheels.audit(changed, tmp_path / "bad", "x86_64")
