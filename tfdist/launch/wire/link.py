"""One connection that never blocks, as seen by those who send and receive messages. TLS is a subclass in `tls`."""

from __future__ import annotations

import selectors
import socket
import time

# What the one who connects wants to be: an agent that offers a host, or the supervisor of a rank.
AGENT, RANK = "tfdist-agent", "tfdist-rank"


class Link:
    """One thread may receive while another one sends.

    Attributes:
        connection: Its socket, for its options and for selectors.
        protocol: What the other end wants to speak, as it says itself; empty if unknown.
    """

    protocol = ""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection

    def shake(self) -> int:
        """Continues the opening of the connection: `selectors.EVENT_READ` or `EVENT_WRITE` to wait for, 0 if done.

        Raises:
            RefusedFrameError: If the other end does not speak the same protocol.
            OSError: If the connection has ended.
        """
        return 0

    def receive(self, most: int) -> bytes:
        """The next bytes, at most `most`; empty at the end. Raises BlockingIOError if there are none yet.

        Read 16 KiB or more, or until BlockingIOError: under TLS, no selector sees the rest of what was decrypted.
        """
        return self.connection.recv(most)

    def send(self, data: bytes | bytearray) -> int:
        """Sends what fits, and returns how much that was. Raises BlockingIOError if nothing fits now."""
        return self.connection.send(data)

    def send_all(self, data: bytes, timeout_s: float) -> None:
        """Sends everything. Raises OSError, such as TimeoutError if the other end does not read in time."""
        deadline = time.monotonic() + timeout_s
        unsent = data
        while unsent:
            try:
                unsent = unsent[self.send(unsent) :]
            except BlockingIOError:
                self.wait(selectors.EVENT_WRITE, deadline)

    def receive_by(self, most: int, deadline: float) -> bytes:
        """The next bytes, as `receive`, when they come. Raises TimeoutError if none come in time."""
        while True:
            try:
                return self.receive(most)
            except BlockingIOError:
                self.wait(selectors.EVENT_READ, deadline)

    def wait(self, event: int, deadline: float) -> None:
        """Waits until the connection is ready for a selector's event. Raises TimeoutError."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.connection, event)
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise TimeoutError("no answer in time")

    @property
    def own_address(self) -> str:
        """The address of this end."""
        return str(self.connection.getsockname()[0])

    def close(self) -> None:
        self.connection.close()
