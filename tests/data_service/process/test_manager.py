"""The manager's decisions over workers that are only played: requests and the autoscaler at the same time."""

import sys

import pytest

from tfdist.data_service.inspection.status import Status
from tfdist.data_service.inspection.wait_report import TrainerWait
from tfdist.data_service.process import manager
from tfdist.data_service.process.manager import Manager
from tfdist.data_service.process.supervisor import DRAINING, ENDED, FAILED, READY, STARTING, Member

DISPATCHER_PORT = 7000


class Team:
    """Plays the supervisor: members do what the test says."""

    def __init__(self):
        self.members = []
        self.terminated = []

    def add(self, name, role, config):
        self.members.append(Member(name, role, dict(config)))
        return self.members[-1]

    def terminate(self, member):
        self.terminated.append(member)
        member.state, member.leaving = DRAINING, True


def tell(line):
    print(line, file=sys.stderr)


class Managed:
    """A manager with two workers, at 7010 and 7020, that are ready."""

    def __init__(self, monkeypatch, autoscale=None):
        order = {"workers": 2, "fixed_workers": False, "restarts": 1, "start_timeout_s": 60, "drain_timeout_s": 60}
        self.answers, self.share, self.tasks = [], 0.5, 1
        self.manager = Manager({**order, "autoscale": autoscale}, "/nowhere", self.answers.append, tell)
        self.manager._supervisor.end()
        self.team = self.manager._supervisor = Team()
        self.manager._service = f"127.0.0.1:{DISPATCHER_PORT}"
        self.ready(self.team.add("data-dispatcher", "dispatcher", {}), DISPATCHER_PORT)
        self.workers = [self.ready(self.manager._add_worker(), port) for port in (7010, 7020)]
        monkeypatch.setattr(manager, "fetch", self.fetch)
        self.clock = manager.time.monotonic()
        monkeypatch.setattr(manager.time, "monotonic", lambda: self.clock)
        self.manager._advance()

    def fetch(self, address, timeout_s):
        role = "dispatcher" if address.port == DISPATCHER_PORT else "worker"
        status = Status(role, address.grpc, address.control_port, "1", "2", "3", 4, 5.0, "ready")
        counters = {"tasks": self.tasks} if role == "worker" else {}
        return Status(**{**vars(status), "counters": counters, "trainers": (TrainerWait("t", self.share, "input"),)})

    def ready(self, member, port):
        member.state, member.service = READY, f"127.0.0.1:{port}"
        return member

    def end(self, member, code=0, lost=""):
        member.state, member.code, member.lost = ENDED, code, lost

    def ask(self, number, do, port=None):
        fields = {"worker": f"127.0.0.1:{port}"} if port else {}
        self.manager._deal_with({"id": number, "do": do, **fields})

    def scale(self, later_s):
        self.clock += later_s
        self.manager._advance()
        self.manager._scale()

    def told(self):
        """The answers since the last call, in their order."""
        told = list(self.answers)
        self.answers.clear()
        return told


@pytest.fixture
def managed(monkeypatch):
    return Managed(monkeypatch)


@pytest.fixture
def scaled(monkeypatch):
    policy = {"smallest": 1, "largest": 3, "add_after_s": 5.0, "drain_after_s": 5.0}
    made = Managed(monkeypatch, policy)
    made.told()
    return made


def workers(*ports):
    return {"workers": [f"127.0.0.1:{port}" for port in ports]}


def test_the_start_names_the_workers(managed):
    assert managed.told() == [{"ready": f"127.0.0.1:{DISPATCHER_PORT}", **workers(7010, 7020)}]


def test_a_drain_is_told_before_it_ends(managed):
    managed.told()
    managed.ask(1, "drain", 7010)
    assert managed.told() == [workers(7020)]
    managed.end(managed.workers[0])
    managed.manager._advance()
    assert managed.told() == [{"id": 1, "worker": "127.0.0.1:7010"}]


def test_a_worker_that_is_drained_twice_is_told_once(managed):
    managed.ask(1, "drain", 7010)
    managed.ask(2, "drain", 7010)
    assert managed.team.terminated == managed.workers[:1]
    managed.end(managed.workers[0])
    managed.told()
    managed.manager._advance()
    managed.ask(3, "drain", 7010)
    managed.manager._advance()
    assert [answer["id"] for answer in managed.told()] == [1, 2, 3]


def test_a_drain_that_lost_something_is_an_error_to_all_who_ask(managed):
    managed.ask(1, "drain", 7010)
    managed.end(managed.workers[0], code=1, lost="it died")
    managed.told()
    managed.manager._advance()
    managed.ask(2, "drain", 7010)
    managed.manager._advance()
    assert managed.told() == [{"id": 1, "error": "it died"}, {"id": 2, "error": "it died"}]


def test_the_last_one_stays(managed):
    managed.ask(1, "drain", 7010)
    managed.told()
    managed.ask(2, "drain", 7020)
    (answer,) = managed.told()
    assert answer["id"] == 2 and "7020 is the last worker" in answer["refused"]
    managed.ask(3, "drain", 7777)
    assert "worker must be one of 127.0.0.1:7020; received '127.0.0.1:7777'" in managed.told()[0]["refused"]


def test_an_added_worker_is_among_the_workers_when_it_is_told(managed):
    managed.told()
    managed.ask(1, "add")
    managed.manager._advance()
    assert managed.told() == []
    managed.ready(managed.team.members[-1], 7030)
    managed.manager._advance()
    assert managed.told() == [workers(7010, 7020, 7030), {"id": 1, "worker": "127.0.0.1:7030"}]


@pytest.mark.parametrize(("tasks", "reuses"), [(0, True), (1, False)])
def test_drained_workers_address_is_reused_between_passes(managed, monkeypatch, tasks, reuses):
    managed.tasks = tasks
    taken = []
    monkeypatch.setattr(manager.port, "take", lambda number, *_: taken.append(number) or FREE)
    managed.ask(1, "drain", 7010)
    managed.end(managed.workers[0])
    managed.manager._advance()
    managed.ask(2, "add")
    assert managed.team.members[-1].config["port"] == (7010 if reuses else 0)
    assert taken == ([7010] if reuses else [])


def test_an_address_that_somebody_else_has_by_now_is_not(managed):
    managed.tasks = 0
    pair = manager.port.take(0, None, "127.0.0.1")
    managed.ready(managed.workers[0], pair.port)
    managed.ask(1, "drain", pair.port)
    managed.end(managed.workers[0])
    managed.manager._advance()
    managed.ask(2, "add")
    assert managed.team.members[-1].config["port"] == 0
    pair.release()


class FREE:
    """Nothing was taken."""

    release = staticmethod(lambda: None)


def test_trainers_that_wait_get_a_worker_and_the_log_says_why(scaled, capfd):
    scaled.scale(6)
    assert len(scaled.team.members) == 4 and scaled.team.members[-1].state == STARTING
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("[data-service] 2 -> 3 workers: ") and "50.0%" in line
    scaled.scale(60)  # it starts
    scaled.ready(scaled.team.members[-1], 7030)
    scaled.scale(60)  # the most
    assert len(scaled.team.members) == 4
    assert scaled.told() == [workers(7010, 7020, 7030)]


def test_idle_workers_are_removed_newest_first_but_one(scaled, capfd):
    scaled.share = 0.0
    scaled.scale(6)
    assert scaled.team.terminated == [scaled.workers[1]]
    assert "2 -> 1 workers: the trainer waits 0.0%" in capfd.readouterr().err
    assert scaled.told() == [workers(7010)]
    scaled.ask(1, "drain", 7020)  # a user who has not heard of it
    scaled.end(scaled.workers[1])
    scaled.scale(60)
    assert scaled.team.terminated == [scaled.workers[1]]
    assert scaled.told() == [{"id": 1, "worker": "127.0.0.1:7020"}]


def test_the_autoscaler_waits_for_the_users_change(scaled):
    scaled.share = 0.0
    scaled.ask(1, "drain", 7010)
    scaled.scale(60)
    assert scaled.team.terminated == [scaled.workers[0]]
    scaled.end(scaled.workers[0])
    scaled.scale(60)  # the fewest
    assert scaled.team.terminated == [scaled.workers[0]]


def test_a_user_adds_no_more_than_the_bounds_allow(scaled):
    scaled.ask(1, "add")
    assert scaled.told() == []
    scaled.ask(2, "add")
    assert "autoscale allows at most 3 workers" in scaled.told()[0]["refused"]


@pytest.mark.parametrize(("tasks", "drains"), [(1, False), (0, True)])
def test_with_many_spare_addresses_it_drains_only_between_passes(scaled, tasks, drains):
    for number in range(manager.SparePorts()._most):
        scaled.manager._spare.put(8000 + 10 * number)
    scaled.share, scaled.tasks = 0.0, tasks
    scaled.scale(6)
    assert bool(scaled.team.terminated) == drains


def test_the_last_worker_that_has_not_failed_is_not_drained(managed):
    """One that has failed takes nobody's share."""
    managed.workers[1].state = FAILED
    managed.told()
    managed.ask(1, "drain", 7010)
    (answer,) = managed.told()
    assert answer["id"] == 1 and "127.0.0.1:7010 is the last worker" in answer["refused"]
    assert managed.team.terminated == []
