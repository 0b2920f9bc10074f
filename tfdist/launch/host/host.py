"""Parses and counts hosts and slots from `-H` and host files; the functions at the end also resolve host names."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tfdist.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_SLOTS = re.compile(r"0*[1-9][0-9]{0,5}")
_SHOWN = 40
_LONGEST_NAME = 64


@dataclass(frozen=True)
class Host:
    """A host and the number of ranks it may run."""

    name: str
    slots: int

    def __str__(self) -> str:
        return f"[{self.name}]:{self.slots}" if ":" in self.name else f"{self.name}:{self.slots}"


def _host(name: str, slots: str, where: str) -> Host:
    if name.startswith("[") and name.endswith("]"):
        numeric = name[1:-1]
        if not _is_ipv6(numeric):
            raise ConfigError(f"{where}: {name!r} is not an IPv6 address")
        name = str(ipaddress.IPv6Address(numeric))
    elif not _NAME.fullmatch(name):
        raise ConfigError(f"{where}: {name!r} is not a host name, IPv4 address or [IPv6 address]")
    if not _SLOTS.fullmatch(slots):
        raise ConfigError(f"{where}: {slots[:_SHOWN]!r} is not a number of slots; expected 1 to 999999")
    return Host(name, int(slots))


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return "%" not in text


def _parted(text: str) -> tuple[str, str, str]:
    """A name, the colon after it if there is one, and the slots. An IPv6 address stands in brackets."""
    if text.startswith("[") and "]" in text:
        name, bracket, rest = text.partition("]")
        return name + bracket, rest[:1], rest[1:]
    return text.partition(":")


def is_name(text: str) -> bool:
    """Whether this can be the name of a host."""
    return len(text) <= _LONGEST_NAME and _NAME.fullmatch(text) is not None


def _merged(hosts: Iterable[Host], where: str) -> tuple[Host, ...]:
    merged: dict[str, Host] = {}
    for host in hosts:
        if host.name in merged:
            raise ConfigError(f"{where}: host {host.name!r} is listed twice; list it once with all its slots")
        merged[host.name] = host
    return tuple(merged.values())


def listed(pairs: Iterable[tuple[str, str]], where: str) -> tuple[Host, ...]:
    """Hosts from pairs of a name and a number of slots; error messages start with `where`."""
    return _merged((_host(name, slots, where) for name, slots in pairs), where)


def counted(text: str, where: str) -> tuple[Host, ...]:
    """Parses a file with one line per slot: the name of its host."""
    slots = Counter(line.strip() for line in text.splitlines() if line.strip())
    if not slots:
        raise ConfigError(f"{where}: no hosts found; expected one name per line")
    return listed(((name, str(count)) for name, count in slots.items()), where)


def parse_list(text: str) -> tuple[Host, ...]:
    """Parses `host:slots,host:slots`; a host without slots has one."""
    where = f"-H {text}"
    hosts = []
    for part in text.split(","):
        name, colon, slots = _parted(part.strip())
        if not name:
            raise ConfigError(f"{where}: empty host; expected host:slots,host:slots")
        hosts.append(_host(name, slots if colon else "1", where))
    return _merged(hosts, where)


def parse_file(text: str, path: str) -> tuple[Host, ...]:
    """Parses a host file: one host per line, as `name slots=2` or `name:2`; `#` starts a comment."""
    hosts = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"{path}:{number}"
        name, colon, slots = _parted(words[0])
        if len(words) > 2 or (len(words) == 2 and (colon or not words[1].startswith("slots="))):
            raise ConfigError(f"{where}: cannot parse {line.strip()!r}; expected `name slots=2` or `name:2`")
        if len(words) == 2:
            slots = words[1].removeprefix("slots=")
        hosts.append(_host(name, slots if colon or len(words) == 2 else "1", where))
    if not hosts:
        raise ConfigError(f"{path}: no hosts found; expected lines like `name slots=2`")
    return _merged(hosts, path)


def read_file(path: str) -> tuple[Host, ...]:
    """The hosts of a host file. Raises ConfigError."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--hostfile {path} cannot be read: {error}") from None
    return parse_file(text, path)


def parse_found(text: str, slots_per_host: int) -> tuple[Host, ...]:
    """Parses the output of a discovery script: one host per line, as `name:slots` or `name`; may be empty."""
    where = "in its output"
    hosts = []
    for line in text.splitlines():
        if line.strip():
            name, colon, slots = _parted(line.strip())
            hosts.append(_host(name, slots if colon else str(slots_per_host), where))
    return _merged(hosts, where)


def used(hosts: tuple[Host, ...], processes: int) -> tuple[Host, ...]:
    """The hosts, with the slots that `processes` ranks use, in order. Raises ConfigError if there are too few."""
    total = sum(host.slots for host in hosts)
    if processes > total:
        listed = ", ".join(map(str, hosts))
        raise ConfigError(f"-np {processes} exceeds the {total} slots of {listed}; add slots or lower -np")
    taken = []
    for host in hosts:
        if processes > 0:
            taken.append(Host(host.name, min(host.slots, processes)))
            processes -= host.slots
    return tuple(taken)


def placement(hosts: tuple[Host, ...]) -> tuple[str, ...]:
    """The host name of each rank."""
    return tuple(host.name for host in hosts for _ in range(host.slots))


def known_as(node: str, numeric: str, elsewhere: Mapping[str, str]) -> str:
    """The name by which the user knows a host, or `node` if that is unknown.

    The address is checked first, because a container's own name is an arbitrary id.

    Args:
        node: The host's own name.
        numeric: The address it connected from.
        elsewhere: The addresses of the given hosts, by name.
    """
    for named in (
        [name for name, known in elsewhere.items() if known == numeric],
        [name for name, known in elsewhere.items() if name != known and name.split(".")[0] == node.split(".")[0]],
    ):
        if len(named) == 1:
            return named[0]
    return node


def addresses_elsewhere(hosts: Iterable[Host]) -> dict[str, str]:
    """The addresses of the hosts that are other machines, by name. Raises ConfigError if one cannot be resolved."""
    return {item.name: address(item.name) for item in hosts if not is_local(item.name)}


def is_local(name: str) -> bool:
    """Whether `name` is this machine. Raises ConfigError if it cannot be resolved."""
    if name == "localhost" or name.split(".")[0] == os.uname().nodename.split(".")[0]:
        return True
    return _is_own_address(address(name))


def address(name: str) -> str:
    """The address of `name`: IPv4 if it has one, else IPv6. Raises ConfigError if it cannot be resolved."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(
            f"host {name!r} cannot be resolved: {error.strerror}. Check its spelling, /etc/hosts and DNS."
        ) from None
    except UnicodeError:  # of the encoding of host names
        raise ConfigError(
            f"host {name!r} is not a host name: expected 1 to 63 characters between dots. Check its spelling."
        ) from None
    found.sort(key=lambda each: each[0] != socket.AF_INET)
    return str(found[0][4][0])


def family(numeric: str) -> socket.AddressFamily:
    """That of an address."""
    return socket.AF_INET6 if ":" in numeric else socket.AF_INET


def _is_own_address(numeric: str) -> bool:
    # A socket can only bind to this machine's own addresses, so no list of interfaces is needed.
    with socket.socket(family(numeric), socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((numeric, 0))
        except OSError:
            return False
    return True
