"""Tests of tfdist.launch.host.host."""

from __future__ import annotations

import socket

import pytest

from tfdist.errors import ConfigError
from tfdist.launch.host import host
from tfdist.launch.host.host import Host


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", (Host("a", 1),)),
        ("a:2,b.example.org:4", (Host("a", 2), Host("b.example.org", 4))),
        ("10.0.0.1:3, c_d:1", (Host("10.0.0.1", 3), Host("c_d", 1))),
        ("[fd00::1]:2,[FD00:0::2],a:1", (Host("fd00::1", 2), Host("fd00::2", 1), Host("a", 1))),
    ],
)
def test_list(text: str, expected: tuple[Host, ...]) -> None:
    assert host.parse_list(text) == expected


@pytest.mark.parametrize(
    "text", ["", "a,,b", "a:", "a:0", "a:-1", "a:x", "a:1:2", "-o x:1", "a b:1", "a:1,a:2", ":2", "a:²"]
)
def test_list_refuses(text: str) -> None:
    with pytest.raises(ConfigError, match="-H"):
        host.parse_list(text)


def test_file() -> None:
    text = "# all\nh1 slots=2\n\nh2:3  # big\n  h3\n"
    assert host.parse_file(text, "f") == (Host("h1", 2), Host("h2", 3), Host("h3", 1))


@pytest.mark.parametrize(
    "line",
    [
        "h slots=x",
        "h slots=0",
        "h slots=",
        "h slots=1000000",
        f"h:{'9' * 5000}",
        "h:2 slots=2",
        "h 2",
        "h slots=2 max=3",
        "h:",
        "$(x)",
    ],
)
def test_file_error_names_the_line(line: str) -> None:
    with pytest.raises(ConfigError, match=r"^hosts\.txt:3: "):
        host.parse_file(f"\nok:1\n{line}\n", "hosts.txt")


def test_line_for_each_slot() -> None:
    assert host.counted("b\na\n\n b \n", "f") == (Host("b", 2), Host("a", 1))
    with pytest.raises(ConfigError, match=r"^f: 'a b' is not a host name"):
        host.counted("a b\n", "f")
    with pytest.raises(ConfigError, match=r"^f: no hosts found"):
        host.counted("\n", "f")


def test_empty_file() -> None:
    with pytest.raises(ConfigError, match="no hosts found"):
        host.parse_file("# none\n", "f")


def test_used_fills_in_order() -> None:
    hosts = (Host("a", 2), Host("b", 4), Host("c", 1))
    assert host.used(hosts, 3) == (Host("a", 2), Host("b", 1))
    assert host.used(hosts, 7) == hosts
    assert host.placement(host.used(hosts, 3)) == ("a", "a", "b")
    with pytest.raises(ConfigError, match=r"-np 8 .* 7 slots"):
        host.used(hosts, 8)


@pytest.mark.parametrize(
    ("node", "address", "name"),
    [
        ("3f2a9c", "10.0.0.2", "worker-2"),
        ("worker-1", "10.0.0.2", "worker-2"),
        ("worker-1", "10.9.9.9", "worker-1"),
        ("node7.example.com", "10.9.9.9", "node7"),
        ("twin", "10.0.0.5", "twin.west"),
        ("twin", "10.9.9.9", "twin"),
        ("10", "10.9.9.9", "10"),
        ("elsewhere", "10.9.9.9", "elsewhere"),
    ],
)
def test_known_as(node: str, address: str, name: str) -> None:
    given = {"worker-1": "10.0.0.1", "worker-2": "10.0.0.2", "node7": "10.0.0.3", "10.0.0.4": "10.0.0.4"}
    assert host.known_as(node, address, given | {"twin.west": "10.0.0.5", "twin.east": "10.0.0.6"}) == name


def test_known_as_where_all_hosts_have_one_address() -> None:
    given = {"a": "127.0.0.1", "b": "127.0.0.1"}
    assert [host.known_as(node, "127.0.0.1", given) for node in ("b", "a", "c")] == ["b", "a", "c"]


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "127.0.0.9"])
def test_local(name: str) -> None:
    assert host.is_local(name)


def test_not_local() -> None:
    assert not host.is_local("198.51.100.7")


def test_unknown() -> None:
    with pytest.raises(ConfigError, match=r"'no-such-host\.invalid' cannot be resolved"):
        host.is_local("no-such-host.invalid")


@pytest.mark.parametrize("name", ["a..b", f"{'a' * 64}.example"])
def test_name_that_cannot_be_asked_for(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"'{name}' is not a host name: expected 1 to 63 characters"):
        host.is_local(name)


@pytest.mark.parametrize(
    "text",
    ["fd00::1", "[fd00::1", "[a]:2", "[fd00::1]2", "[fd00::1]:0", "[fe80::1%eth0]:1", "[::1]:1,[0:0::1]:2"],
)
def test_list_refuses_ipv6(text: str) -> None:
    with pytest.raises(ConfigError, match="-H"):
        host.parse_list(text)


def test_ipv6_is_written_in_brackets() -> None:
    assert str(Host("fd00::1", 2)) == "[fd00::1]:2"
    assert host.parse_file("[fd00::1] slots=2\n[fd00::2]:3", "f") == (Host("fd00::1", 2), Host("fd00::2", 3))


def test_ipv4_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    four, six = (socket.AF_INET, 1, 6, "", ("10.0.0.1", 0)), (socket.AF_INET6, 1, 6, "", ("fd00::1", 0, 0, 0))
    for found, expected in (([six, four], "10.0.0.1"), ([six], "fd00::1")):
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, found=found, **__: list(found))
        assert host.address("a") == expected
        assert host.family(expected) == (socket.AF_INET6 if ":" in expected else socket.AF_INET)


@pytest.mark.parametrize(("name", "local"), [("::1", True), ("127.0.0.1", True), ("2001:db8::1", False)])
def test_own_addresses(name: str, local: bool) -> None:
    assert host.is_local(name) is local


@pytest.mark.parametrize(("text", "good"), [("node-1.example", True), ("a b", False), ("", False), ("x" * 65, False)])
def test_what_can_be_a_name(text: str, good: bool) -> None:
    assert host.is_name(text) is good
