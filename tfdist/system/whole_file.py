"""Files that say in their first line how they continue, so that a torn one is known; the newest whole one counts.

A file is the line "tfdist KIND CHECKSUM BYTES" and so many bytes, of which nothing is known here. Two numbers in its
name say which of two files is newer.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfdist.system.atomic_file import write_atomically

_HEADER = re.compile(rb"tfdist (\w+ \d+) ([0-9a-f]+) (\d{1,18})\n")


class DamagedFileError(ValueError):
    """A file is not whole."""


@dataclass(frozen=True, order=True)
class NumberedFile:
    """A file by the numbers in its name."""

    numbers: tuple[int, int]
    path: Path


@dataclass(frozen=True)
class FileKind:
    """Files of one kind, of which a folder has several.

    Args:
        kind: What the first line says, with the version of the contents, as in "commit 1".
        template: The name of a file, with two numbers, as in "%d-%d.commit".
        checksum: Of the contents, in hexadecimal digits.
        mode: Of a file that is made, before the umask.
    """

    kind: str
    template: str
    checksum: Callable[[Sequence[memoryview]], str]
    mode: int = 0o666

    def header(self, parts: Sequence[memoryview]) -> bytes:
        """The first line of a file of these bytes."""
        return f"tfdist {self.kind} {self.checksum(parts)} {sum(part.nbytes for part in parts)}\n".encode()

    def contents(self, data: bytes) -> memoryview:
        """What follows the first line. Raises DamagedFileError."""
        match = _HEADER.match(data)
        if match is None or match[1].decode() != self.kind:
            raise DamagedFileError(f"it does not begin like a {self.kind}")
        payload = memoryview(data)[match.end() :]
        if payload.nbytes != int(match[3]):
            raise DamagedFileError(f"it has {payload.nbytes} bytes of {int(match[3])}")
        if self.checksum([payload]) != match[2].decode():
            raise DamagedFileError("its checksum does not fit its contents")
        return payload

    def write(self, folder: Path, numbers: tuple[int, int], parts: Sequence[memoryview]) -> Path:
        """Writes a file, whole or not at all. Raises OSError; the others are unchanged then."""

        def fill(path: Path) -> None:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, self.mode), "wb") as file:
                file.write(self.header(parts))
                file.writelines(parts)

        path = folder / (self.template % numbers)
        write_atomically(path, fill)
        return path

    def newest_first(self, folder: Path) -> list[NumberedFile]:
        """The files in a folder, whole or not; none where there is no folder."""
        paths = folder.iterdir() if folder.is_dir() else ()
        found = [(re.fullmatch(self._pattern, path.name), path) for path in paths]
        named = [NumberedFile((int(match[1]), int(match[2])), path) for match, path in found if match]
        return sorted(named, reverse=True)

    def remove_unfinished(self, folder: Path) -> None:
        """Removes what killed processes have begun to write. Nobody may be writing there."""
        for path in folder.iterdir() if folder.is_dir() else ():
            if re.fullmatch(rf"\..+\.\d+\.{self._pattern}", path.name):  # as `write_atomically` names it
                path.unlink(missing_ok=True)

    @property
    def _pattern(self) -> str:
        return re.sub(r"%\d*d", r"(\\d+)", re.escape(self.template))
