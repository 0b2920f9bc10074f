"""Writes all output of a job: to the launcher's stdout and stderr, and to one folder per rank."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from tfdist.errors import ConfigError
from tfdist.system.local_path import local_path
from tfdist.system.terminal.chatter import is_chatter
from tfdist.system.terminal.line import FINAL, LINE, PARTIAL, PROGRESS, Piece, PrefixWriter, plain
from tfdist.system.terminal.outlet import Outlet
from tfdist.system.terminal.screen import WARNING, ScreenWriter, has_colours, is_screen, labelled

if TYPE_CHECKING:
    from tfdist.storage.mirror import Mirror

_DESCRIPTORS = {"stdout": 1, "stderr": 2}
# How long to wait for a reader that reads nothing once the job ends.
READER_S = 2.0
# Of a terminal that does not say how wide it is.
_COLUMNS = 80


def _stamp() -> str:
    return datetime.now().astimezone().isoformat(sep=" ", timespec="milliseconds")


class Console:
    """Thread-safe: each piece is written in one go. Writing never waits for a reader.

    Args:
        timestamps: Whether to put the time before each line of a rank.
        chatter: Whether to show informational messages of TensorFlow's C++ for every rank, and not only for rank 0.
        folder: Where output is also written, as `rank.N/stdout` and `rank.N/stderr`, without prefixes; may be None.
        ranks: Number of ranks at the start; files for additional ranks are created when they write.
        descriptors: File descriptors of "stdout" and "stderr".
        spell: Translates the launcher's own messages; unchanged for a terminal.
    """

    def __init__(
        self,
        *,
        timestamps: bool = False,
        chatter: bool = False,
        folder: str | Mirror | None = None,
        ranks: int = 1,
        descriptors: dict[str, int] | None = None,
        clock: Callable[[], str] = _stamp,
        spell: Callable[[str], str] = str,
    ) -> None:
        self._clock = clock if timestamps else None
        self._chatter = chatter
        self._lock = threading.RLock()
        self._spell = spell
        descriptors = descriptors or _DESCRIPTORS
        self._stderr = descriptors["stderr"]
        self._writers = _writers(descriptors)
        self._on_done: Callable[[int, int], None] = lambda rank, size: None
        self._outlets = self._make_outlets(descriptors)
        self._width = len(str(ranks - 1))
        self._mirror = None if folder is None or isinstance(folder, str) else folder
        # The folder or address where the ranks' output also goes; empty if nowhere.
        self.place = "" if folder is None else folder if isinstance(folder, str) else folder.address
        self._folder = folder if folder is None or isinstance(folder, str) else str(folder.folder)
        # The newest states of bars that are redrawn: the files get only the last one.
        self._states: dict[tuple[int, str], bytes] = {}
        self._files = {} if self._folder is None else _files(self._folder, range(ranks), self._width)
        self._missed_bytes = 0

    @property
    def redrawn(self) -> list[str]:
        """The streams that lead to a terminal on which progress bars are redrawn."""
        return [stream for stream, writer in self._writers.items() if isinstance(writer, ScreenWriter)]

    def write(self, rank: int, stream: str, piece: Piece) -> None:
        """Writes a rank's piece with its prefix, and to its file without; then calls the callback of `watch`."""
        with self._lock:
            stamp = f"{self._clock()} " if self._clock else ""
            shown = piece if self._chatter or rank == 0 or stream == "stdout" else _without_chatter(piece)
            text = b"" if shown is None else self._writers[stream].render((rank, stream), shown, stamp)
            self._outlets[stream].put(text, rank, piece.size)
            if self._folder is not None:
                self._keep(self._folder, (rank, stream), self._for_file((rank, stream), piece))

    def _keep(self, folder: str, source: tuple[int, str], data: bytes) -> None:
        """Writes to the file of a rank. A full disk ends no job: what is missing is counted."""
        try:
            if source not in self._files:
                self._files |= _files(folder, range(source[0], source[0] + 1), self._width)
            _write_all(self._files[source], data)
        except (OSError, ConfigError) as error:
            if not self._missed_bytes:
                self.say(
                    f"tfdistrun: output of rank {source[0]} is missing in {self.place}: {error}; the job continues"
                )
            self._missed_bytes += len(data)

    def _for_file(self, source: tuple[int, str], piece: Piece) -> bytes:
        if piece.end == PROGRESS and source[1] in self.redrawn:
            self._states[source] = piece.text
            return b""
        if piece.end not in (PROGRESS, FINAL):
            return piece.text + (b"" if piece.end == PARTIAL else b"\n")
        text = plain(piece.text or self._states.get(source, b""))
        self._states.pop(source, None)
        return text + b"\n" if text else b""

    def say(self, text: str, colour: str = WARNING) -> None:
        """Writes a message of the launcher to stderr; its label has the colour on a terminal."""
        self.quote(labelled(self._spell(text), colour, self._stderr))

    def quote(self, text: str) -> None:
        """Writes another program's message, or a command, to stderr."""
        with self._lock:
            said = text.encode(errors="replace") + b"\n"
            self._outlets["stderr"].put(self._writers["stderr"].quote(said))

    def watch(self, on_done: Callable[[int, int], None]) -> None:
        """From now on, calls `on_done` with (rank, size) of each piece that was written or dropped; from any thread."""
        self._on_done = on_done

    def hurry(self, patience_s: float = READER_S) -> None:
        """The job is ending: output is dropped if the reader reads nothing for this long."""
        for outlet in self._outlets.values():
            outlet.hurry(patience_s)

    def calm(self) -> None:
        """The job continues after all."""
        for outlet in self._outlets.values():
            outlet.calm()

    def close(self) -> None:
        """Ends open lines, closes the files. Returns when all is read, or at most 2 s after the reader has stopped."""
        with self._lock:
            for stream, writer in self._writers.items():
                self._outlets[stream].put(writer.close())
            for descriptor in self._files.values():
                os.close(descriptor)
            self._folder, self._files = None, {}
        if self._mirror is not None:
            self._mirror.close()
        if self._missed_bytes:
            self.say(f"tfdistrun: {self._missed_bytes} bytes of output are missing in {self.place}")
        self.hurry()
        out, err = self._outlets["stdout"], self._outlets["stderr"]
        out.finish()
        if out.unwritten_bytes and out is not err:
            self.say(f"tfdistrun: {out.unwritten_bytes} bytes of output could not be written to stdout: {out.obstacle}")
        if out.dropped_bytes and out is not err:
            self.say(
                f"tfdistrun: the reader of stdout read nothing for {READER_S:g} s after the end of the job: "
                f"{out.dropped_bytes} bytes are lost; "
                + (f"{self.place} has all output" if self.place else "--output-filename DIR keeps all output")
            )
        if out is not err:
            err.finish()

    def _make_outlets(self, descriptors: Mapping[str, int]) -> dict[str, Outlet]:
        """One outlet for both streams if they lead to the same pipe or terminal, so that output stays in order."""

        def done(rank: int, size: int) -> None:
            self._on_done(rank, size)

        err = Outlet(descriptors["stderr"], done)
        if self._writers["stdout"] is self._writers["stderr"] and not stat.S_ISREG(
            os.fstat(descriptors["stdout"]).st_mode
        ):
            return {"stdout": err, "stderr": err}

        def gone() -> None:
            err.put(b"tfdistrun: stdout was closed by its reader: the job continues, further output to it is dropped\n")

        return {"stdout": Outlet(descriptors["stdout"], done, gone), "stderr": err}


def _without_chatter(piece: Piece) -> Piece | None:
    """The piece without the lines that TensorFlow's C++ prints in every process; None if nothing is left."""
    lines = piece.text.split(b"\n")
    kept = [line for line in lines if not is_chatter(line)]
    if len(kept) == len(lines):
        return piece
    return Piece(b"\n".join(kept), piece.end if kept[-1:] == lines[-1:] else LINE) if kept else None


def _writers(descriptors: Mapping[str, int]) -> dict[str, PrefixWriter]:
    """One per stream; one for both if they lead to the same file or terminal, so that lines do not mix."""
    shared = _writer(descriptors["stdout"])
    with contextlib.suppress(OSError):
        out, err = (os.fstat(descriptors[stream]) for stream in ("stdout", "stderr"))
        if (out.st_dev, out.st_ino) == (err.st_dev, err.st_ino):
            return {"stdout": shared, "stderr": shared}
    return {"stdout": shared, "stderr": _writer(descriptors["stderr"])}


def _writer(descriptor: int) -> PrefixWriter:
    if not is_screen(descriptor, os.environ):
        return PrefixWriter()
    return ScreenWriter(lambda: _columns(descriptor), has_colours(descriptor, os.environ))


def _columns(descriptor: int) -> int:
    try:
        return os.get_terminal_size(descriptor).columns or _COLUMNS
    except OSError:  # the terminal is gone
        return _COLUMNS


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
        view = view[os.write(descriptor, view) :]
