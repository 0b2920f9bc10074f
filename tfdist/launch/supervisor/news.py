"""The pipe on which a supervisor reports to its rank what the launcher says. Never waits for the rank to read."""

from __future__ import annotations

import os
import selectors

from tfdist.launch.wire.record import Message, RefusedFrameError
from tfdist.protocol import member
from tfdist.protocol.epoch import Epoch

# What the launcher says to the rank.
KINDS = ("gone", "epoch", "meet", "retire")


def line(message: Message, job: str, process: int, key: bytes) -> bytes:
    """One of these messages as a line for the rank.

    Args:
        message: The message.
        job: The job's name.
        process: The number of the rank's process.
        key: What the ranks prove to each other that they have.

    Raises:
        RefusedFrameError: If it is a list of ranks that cannot be parsed.
    """
    if message.kind == "gone":
        return member.gone(message.fields["who"])
    if message.kind == "meet":
        return member.meet(message.fields["after"])
    if message.kind == "retire":
        return member.retire()
    try:
        return Epoch.announced(message.fields, job, process, key).line()
    except ValueError as error:
        raise RefusedFrameError(f"a list of ranks that cannot be parsed: {error}") from None


class NewsPipe:
    """Use in the thread of the selector.

    Args:
        selector: Its user calls the data of a key, which is `flush`, when the rank has read.

    Attributes:
        pipe: For the rank's variables.
    """

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._unsent = b""
        self._waits = False
        self.pipe = member.Pipe(reader, self._writer)
        self.tell(member.TOKEN)

    def tell(self, line: bytes) -> None:
        """Writes a line as far as it fits, and the rest when the rank has read that."""
        self._unsent += line
        self.flush()

    def flush(self) -> None:
        """Writes more of what did not fit."""
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self._writer, self._unsent) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:  # the rank has exited
            self._unsent = b""
        if self._waits != bool(self._unsent):
            self._waits = bool(self._unsent)
            if self._waits:
                self._selector.register(self._writer, selectors.EVENT_WRITE, self.flush)
            else:
                self._selector.unregister(self._writer)
