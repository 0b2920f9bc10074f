"""Tests of tfdist.protocol.epoch."""

from __future__ import annotations

import pytest

from tfdist.protocol.epoch import Epoch

EPOCH = Epoch(
    job="ab",
    number=1,
    rank=2,
    key=b"\x00\xff",
    addresses=(("10.0.0.1", 5), ("10.0.0.1", 6), ("fd00::1", 7)),
    hosts=(0, 0, 1),
    names=("a", "b\n{"),
    processes=(0, 4, 7),
)


def test_line_is_read_back() -> None:
    line = EPOCH.line()
    assert line.count(b"\n") == 1 and line.startswith(b"{") and line.endswith(b"\n")
    assert Epoch.parse(line) == EPOCH


def test_key_is_not_shown() -> None:
    assert "ff" not in repr(EPOCH)


def test_some_of_the_ranks_in_their_own_order() -> None:
    some = EPOCH.among([2, 0])
    assert (some.rank, some.hosts, some.addresses) == (0, (1, 0), (("fd00::1", 7), ("10.0.0.1", 5)))
    assert some.processes == (7, 0), "ranks that belong together differently must not take each other for peers"
    assert EPOCH.among([]) == EPOCH


def test_announcement_of_the_launcher() -> None:
    fields = {"number": 1, "members": ["0 0 10.0.0.1:5", "4 0 10.0.0.1:6", "7 1 [fd00::1]:7"], "hosts": ["a", "b\n{"]}
    announced = Epoch.announced(fields, "ab", 7, b"\x00\xff")
    assert announced == EPOCH
    for wrong in ("0", "0 0", "x 0 10.0.0.1:5", "0 x 10.0.0.1:5", "0 0 10.0.0.1", "1 0 10.0.0.1:5", ""):
        with pytest.raises(ValueError, match=r".+"):
            Epoch.announced({**fields, "members": [wrong]}, "ab", 0, b"")


@pytest.mark.parametrize("line", [b"", b"{}\n", b"7\n", EPOCH.line().replace(b"00ff", b"0")])
def test_other_lines_are_refused(line: bytes) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        Epoch.parse(line)
