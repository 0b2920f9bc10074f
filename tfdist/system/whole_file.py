"""Files with a checksum in their first line, so that a damaged one is detected; the newest intact one is used.

A file is the line "tfdist KIND CHECKSUM BYTES" followed by that many bytes of any contents. Two numbers in its name
determine which of two files is newer.
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
    """A file is damaged or incomplete."""


@dataclass(frozen=True, order=True)
class NumberedFile:
    """A file, identified by the numbers in its name."""

    numbers: tuple[int, int]
    path: Path


@dataclass(frozen=True)
class FileKind:
    """Files of one kind, several in a folder.

    Args:
        kind: The kind in the first line, with the version of the contents, as in "commit 1".
        template: The name of a file, with two numbers, as in "%d-%d.commit".
        checksum: Computes the checksum of the contents, in hexadecimal digits.
        mode: The mode of a new file, before the umask.
    """

    kind: str
    template: str
    checksum: Callable[[Sequence[memoryview]], str]
    mode: int = 0o666

    def header(self, parts: Sequence[memoryview]) -> bytes:
        """The first line of a file with these contents."""
        return f"tfdist {self.kind} {self.checksum(parts)} {sum(part.nbytes for part in parts)}\n".encode()

    def contents(self, data: bytes) -> memoryview:
        """The contents after the first line. Raises DamagedFileError."""
        match = _HEADER.match(data)
        if match is None or match[1].decode() != self.kind:
            raise DamagedFileError(f"it does not begin like a {self.kind}")
        payload = memoryview(data)[match.end() :]
        if payload.nbytes != int(match[3]):
            raise DamagedFileError(f"it has {payload.nbytes} bytes of {int(match[3])}")
        if self.checksum([payload]) != match[2].decode():
            raise DamagedFileError("its checksum does not match its contents")
        return payload

    def write(self, folder: Path, numbers: tuple[int, int], parts: Sequence[memoryview]) -> Path:
        """Writes a file completely or not at all. Raises OSError; other files are unchanged then."""

        def fill(path: Path) -> None:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, self.mode), "wb") as file:
                file.write(self.header(parts))
                file.writelines(parts)

        path = folder / (self.template % numbers)
        write_atomically(path, fill)
        return path

    def newest_first(self, folder: Path) -> list[NumberedFile]:
        """The files in a folder, intact or not; empty if there is no folder."""
        paths = folder.iterdir() if folder.is_dir() else ()
        found = [(re.fullmatch(self.pattern, path.name), path) for path in paths]
        named = [NumberedFile((int(match[1]), int(match[2])), path) for match, path in found if match]
        return sorted(named, reverse=True)

    def remove_unfinished(self, folder: Path) -> None:
        """Removes files that killed processes left partly written. No other process may be writing there."""
        for path in folder.iterdir() if folder.is_dir() else ():
            if re.fullmatch(rf"\..+\.\d+\.{self.pattern}", path.name):  # as `write_atomically` names it
                path.unlink(missing_ok=True)

    @property
    def pattern(self) -> str:
        """A regular expression of the names, with a group for each number."""
        return re.sub(r"%\d*d", r"(\\d+)", re.escape(self.template))
