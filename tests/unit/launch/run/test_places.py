"""Tests of tfdist.launch.run.places."""

from __future__ import annotations

from tfdist.launch.host.core import Cores
from tfdist.launch.host.host import Host
from tfdist.launch.run.places import Places
from tfdist.launch.start.direct import Direct
from tfdist.launch.supervisor.crew import Crew

HERE, FAR, NEW = Host("here", 2), Host("far", 2), Host("new", 1)


def _places() -> Places:
    starter = Direct("m", (HERE, FAR), local=False, cores=Cores(1, bindable=True), served=frozenset(["far"]))
    return Places(starter)


def test_newcomers_have_numbers_that_none_has_had() -> None:
    places = _places()
    added = list(places.add((Host("far", 1), NEW), {"far": "a", "new": "b"}, range(4)))
    assert added == [("far", Crew(4, 1, 6, (2,))), ("new", Crew(5, 1, 6, (0,)))]
    assert places.hosts == ["here", "here", "far", "far", "far", "new"]
    assert [places.is_served(name) for name in ("here", "far", "new")] == [False, True, True]


def test_newcomer_takes_the_place_of_a_lost_one() -> None:
    places = _places()
    assert list(places.add((Host("far", 2),), {"far": "a"}, (0, 1, 3))) == [("far", Crew(4, 2, 6, (0, 2)))]


def test_names_of_this_machine_share_its_places() -> None:
    places = _places()
    added = list(places.add((Host("here", 1), Host("localhost", 1)), (), (0, 1, 2, 3)))
    assert added == [("here", Crew(4, 1, 6, (2,))), ("localhost", Crew(5, 1, 6, (3,)))]
