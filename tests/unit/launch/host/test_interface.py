"""Tests of tfdist.launch.host.interface."""

from __future__ import annotations

import pytest

from tfdist.errors import ConfigError
from tfdist.launch.host import interface


def test_what_is_there_may_be_named() -> None:
    assert interface.check((), local=True) == interface.check(("lo",), local=True) == []


@pytest.mark.parametrize(
    ("names", "local", "refused"),
    [(("lo", "zz9"), True, "zz9 has"), (("zz9", "zz8"), True, "zz9, zz8 have"), (("zz9",), False, "zz9 has")],
)
def test_each_name_is_checked(names: tuple[str, ...], local: bool, refused: str) -> None:
    expected = rf"--network-interfaces: {refused} no IPv4 address on this machine; available: .*lo \(127\.0\.0\.1\)"
    with pytest.raises(ConfigError, match=expected):
        interface.check(names, local=local)


def test_other_hosts_may_name_theirs_differently() -> None:
    (note,) = interface.check(("zz9", "lo"), local=False)
    assert note.startswith("note: --network-interfaces: zz9 has no IPv4 address on this machine")
