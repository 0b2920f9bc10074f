"""Where all output of a job comes out: the launcher's stdout and stderr, and a folder per rank. It cuts no lines."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable
from datetime import datetime

from tfdist.errors import ConfigError
from tfdist.launch.chatter import is_chatter
from tfdist.launch.line import LINE, PARTIAL, Piece, PrefixWriter
from tfdist.local_path import local_path

_DESCRIPTORS = {"stdout": 1, "stderr": 2}


def _stamp() -> str:
    return datetime.now().astimezone().isoformat(sep=" ", timespec="milliseconds")


class Console:
    """Safe to use from several threads: a piece is written in one go.

    Args:
        timestamps: Whether a time precedes each rank's lines.
        chatter: Whether informational messages of TensorFlow's C++ are shown for every rank, not for rank 0 only.
        folder: Where `rank.N/stdout` and `rank.N/stderr` go as well, without prefixes; None for nowhere.
        ranks: Number of ranks at first; files for more of them are made when they write.
        descriptors: File descriptors of "stdout" and "stderr".
    """

    def __init__(
        self,
        *,
        timestamps: bool = False,
        chatter: bool = False,
        folder: str | None = None,
        ranks: int = 1,
        descriptors: dict[str, int] | None = None,
        clock: Callable[[], str] = _stamp,
    ) -> None:
        self._descriptors = dict(descriptors or _DESCRIPTORS)
        self._clock = clock if timestamps else None
        self._chatter = chatter
        self._lock = threading.RLock()
        self._writers = _writers(self._descriptors)
        self._folder, self._width = folder, len(str(ranks - 1))
        self._files = {} if folder is None else _files(folder, range(ranks), self._width)

    def write(self, rank: int, stream: str, piece: Piece) -> None:
        """Writes a rank's piece with its prefix, and to its file without."""
        with self._lock:
            stamp = f"{self._clock()} " if self._clock else ""
            shown = piece if self._chatter or rank == 0 or stream == "stdout" else _without_chatter(piece)
            if shown is not None:
                self._put(stream, self._writers[stream].render((rank, stream), shown, stamp))
            if self._folder is not None and (rank, stream) not in self._files:
                self._files |= _files(self._folder, range(rank, rank + 1), self._width)
            if self._folder is not None:
                _write_all(self._files[rank, stream], piece.text + (b"" if piece.end == PARTIAL else b"\n"))

    def say(self, text: str) -> None:
        """Writes the launcher's own words to stderr."""
        with self._lock:
            self._put("stderr", self._writers["stderr"].close() + text.encode(errors="replace") + b"\n")

    def close(self) -> None:
        """Ends open lines, closes the files."""
        with self._lock:
            for stream, writer in self._writers.items():
                self._put(stream, writer.close())
            for descriptor in self._files.values():
                os.close(descriptor)
            self._folder, self._files = None, {}

    def _put(self, stream: str, data: bytes) -> None:
        descriptor = self._descriptors.get(stream)
        if descriptor is None or not data:
            return
        try:
            _write_all(descriptor, data)
        except OSError:
            # Its reader has gone, as in `tfdistrun ... | head`: training goes on without that stream.
            del self._descriptors[stream]


def _without_chatter(piece: Piece) -> Piece | None:
    """The piece without the lines that TensorFlow's C++ writes in every process alike; None if none is left."""
    lines = piece.text.split(b"\n")
    kept = [line for line in lines if not is_chatter(line)]
    if len(kept) == len(lines):
        return piece
    return Piece(b"\n".join(kept), piece.end if kept[-1:] == lines[-1:] else LINE) if kept else None


def _writers(descriptors: dict[str, int]) -> dict[str, PrefixWriter]:
    """One a stream; one for both if they end in the same file or terminal, lest they break into each other."""
    shared = PrefixWriter()
    with contextlib.suppress(OSError):
        out, err = (os.fstat(descriptors[stream]) for stream in ("stdout", "stderr"))
        if (out.st_dev, out.st_ino) == (err.st_dev, err.st_ino):
            return {"stdout": shared, "stderr": shared}
    return {"stdout": shared, "stderr": PrefixWriter()}


def _files(folder: str, ranks: range, width: int) -> dict[tuple[int, str], int]:
    files = {}
    try:
        for rank in ranks:
            place = local_path(folder, "--output-filename") / f"rank.{rank:0{width}d}"
            place.mkdir(parents=True, exist_ok=True)
            for stream in _DESCRIPTORS:
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
                files[rank, stream] = os.open(place / stream, flags, 0o666)
    except OSError as error:
        raise ConfigError(f"--output-filename {folder}: cannot write {error.filename}: {error.strerror}") from None
    return files


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        # Another program may have left the terminal in non-blocking mode: wait until there is room, then try.
        select.select([], [descriptor], [])
        with contextlib.suppress(BlockingIOError):
            view = view[os.write(descriptor, view) :]
