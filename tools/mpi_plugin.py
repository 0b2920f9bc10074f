#!/usr/bin/env python3
"""Compiles the plugin for the MPI of this environment, and puts it beside the libraries of the tfdist installed there.

It takes seconds, where a whole build takes minutes: the tests of other MPIs use it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import build_environment

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    folder = Path(build_environment.target_paths()[0], "tfdist")
    options = build_environment.find().cmake_options()
    kept = {name: value for name, value in options.items() if "TENSORFLOW" not in name}
    kept |= {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_LIBRARY_OUTPUT_DIRECTORY": str(folder),
        "TFDIST_CORE_LIBRARY": str(folder / "libtfdist_core.so"),
    }
    cmake = build_environment.cmake_command()
    with tempfile.TemporaryDirectory() as build:
        definitions = [f"-D{name}={value}" for name, value in kept.items()]
        subprocess.run([*cmake, "-S", str(ROOT), "-B", build, *definitions], check=True)
        subprocess.run([*cmake, "--build", build], check=True)
    print(f"the plugin for {options['TFDIST_MPI_VERSION']} is in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
