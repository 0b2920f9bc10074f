"""The address of a data service server: host, port of tf.data's gRPC, control port. Resolves no names."""

from __future__ import annotations

from dataclasses import dataclass

from tfdist.errors import ConfigError

_FORM = '"HOST:PORT", or "HOST:PORT/CONTROL" if the control port is not PORT + 1'
LARGEST_PORT = 65535
_LOOPBACK_NAMES = frozenset({"localhost", "ip6-localhost", "::1", "[::1]"})


@dataclass(frozen=True, order=True)
class ServiceAddress:
    """Where a dispatcher or a worker is.

    Attributes:
        host: Name or address; an IPv6 address is in brackets.
        port: TCP port of tf.data's gRPC.
        control_port: TCP port of health, metrics and status.
    """

    host: str
    port: int
    control_port: int

    @classmethod
    def parse(cls, text: str) -> ServiceAddress:
        """Parses an address.

        Raises:
            ConfigError: If it is not one.
        """
        place, slash, control = text.partition("/")
        host, _, port = place.rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        if not host or " " in host or not host.isprintable() or (":" in host and not bracketed):
            raise ConfigError(f"expected the address of a data service as {_FORM}; received {text!r}.")
        number = _port(port, text)
        return cls(host, number, _port(control, text) if slash else number + 1)

    def __str__(self) -> str:
        return self.grpc if self.control_port == self.port + 1 else f"{self.grpc}/{self.control_port}"

    @property
    def grpc(self) -> str:
        """Host and port of tf.data's gRPC."""
        return f"{self.host}:{self.port}"

    @property
    def elsewhere(self) -> str:
        """The remedy if the control port does not answer because it is another one."""
        return f"if its --metrics-port is not {self.control_port}, write {self.grpc}/CONTROL"

    @property
    def control(self) -> str:
        """Host and port of health, metrics and status."""
        return f"{self.host}:{self.control_port}"


def is_loopback(host: str) -> bool:
    """Whether a host name denotes the loopback device, judging by the name alone."""
    return host.lower() in _LOOPBACK_NAMES or (host.startswith("127.") and host.replace(".", "").isdigit())


def _port(text: str, whole: str) -> int:
    # 65535 has no port above it for control, so it needs one that is named.
    if not (text.isascii() and text.isdigit()) or not 0 < int(text) <= LARGEST_PORT:
        raise ConfigError(
            f"expected the address of a data service as {_FORM}, with ports from 1 to {LARGEST_PORT}; received "
            f"{whole!r}."
        )
    if int(text) == LARGEST_PORT and "/" not in whole:
        raise ConfigError(
            f"there is no port above {LARGEST_PORT} for control; give a control port, as in {whole}/5051."
        )
    return int(text)
