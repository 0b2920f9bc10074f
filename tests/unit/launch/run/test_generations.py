"""Tests of generations with launchers that start nothing; jobs are in tests/elastic and tests/compose."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tfdist.errors import ConfigError
from tfdist.launch.host import host
from tfdist.launch.host.core import Cores
from tfdist.launch.host.discovery import DiscoveryError, NoHostError
from tfdist.launch.host.host import Host
from tfdist.launch.host.probe import UnreachableError
from tfdist.launch.job.membership import Change, Grown, Joinable, Rules
from tfdist.launch.job.outcome import LostHost
from tfdist.launch.run import generations
from tfdist.launch.run.generations import Generations
from tfdist.launch.run.plan import Plan
from tfdist.launch.start.direct import Direct

A, B, C = Host("host-a", 1), Host("host-b", 2), Host("host-c", 3)
RULES = Rules(least=1, most=6, timeout_s=20.0)


def lost(*names: str) -> SimpleNamespace:
    """A generation that has lost hosts."""
    return SimpleNamespace(status=1, lost=names, left=set())


WELL = SimpleNamespace(status=0, lost=(), left=set())
LEFT = SimpleNamespace(status=0, lost=(), left={0})


class Course:
    """What the generations are to come to, one after another, and what is seen of them."""

    def __init__(self, *ends: SimpleNamespace) -> None:
        self.ends, self.started, self.said, self.unknown = list(ends), [], [], set[str]()  # type: ignore[var-annotated]
        self.while_running: Callable[[], object] = lambda: None
        self.is_joinable = self.is_local = False
        self.served = {"host-a", "host-b", "host-c"}
        self.on_change: Callable[[Change], None] = lambda _: None

    def address(self, name: str) -> str:
        if name in self.unknown:
            raise ConfigError(f"host {name!r} cannot be resolved.")
        return f"192.0.2.{ord(name[-1])}"

    def say(self, text: str) -> None:
        self.said.append(text)

    def launcher(
        self, plan: Plan, *_: Any, on_change: Callable[[Change], None] = lambda _: None, **__: Any
    ) -> SimpleNamespace:
        self.started.append(plan.starter.hosts)

        def run() -> int:
            on_change(Joinable(self.is_joinable))
            self.on_change = on_change
            self.while_running()
            return int(end.status)

        end = self.ends.pop(0)
        told = tuple(LostHost(name, (0,), "was shot") for name in end.lost)
        job = SimpleNamespace(
            status=end.status,
            lost_hosts=told,
            left=end.left,
            interrupt=None,
            committed=True,
            cause=None,
            told_to_end=False,
            hosts=[each.name for each in plan.starter.hosts],
            hosts_survived=(),
            visited={each.name for each in plan.starter.hosts},
            first_to_fail=None,
        )
        explanation = "\n".join([*(f"{name} was shot" for name in end.lost), "a table"]) if end.status else ""
        return SimpleNamespace(
            run=run,
            job=job,
            hosts=plan.starter.hosts,
            unheard=(),
            unreachable=(),
            forgetful=set() if end.lost or end.left else {each.name for each in plan.starter.hosts},
            explanation=explanation,
            heard=[],
            leave=lambda: self.say("leave"),
            retire=lambda hosts: self.say(f"retire {', '.join(map(str, hosts))}"),
            grow=lambda growth: self.say(f"grow {', '.join(map(str, growth.hosts))}"),
            serves=lambda name: name in self.served,
            is_local=self.is_local,
        )


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    def make(
        course: Course,
        rules: Rules = RULES,
        look: Callable[[], tuple[Host, ...]] | None = None,
        summon: Callable[[Plan], Plan] = lambda plan: plan,
        backup: str = "",
    ) -> tuple[int, str]:
        monkeypatch.setattr(generations, "Launcher", course.launcher)
        monkeypatch.setattr(generations, "LOOK_S", 0.01)
        monkeypatch.setattr(host, "address", course.address)
        direct = Direct(
            "m",
            (A, B, C),
            local=False,
            cores=Cores(1, bindable=True),
            served=frozenset(each.name for each in (A, B, C)),
        )
        plan = Plan(direct, ("x",), {}, 30.0, least=1, commits="none", backup=backup)
        job = Generations(plan, rules, (A, B, C), course, look, summon)  # type: ignore[arg-type]
        return job.run(), job.explanation

    return make


def test_lost_host_is_left_out(run: Callable[..., tuple[int, str]]) -> None:
    course = Course(lost("host-b"), WELL)
    assert run(course) == (0, "")
    assert course.started == [(A, B, C), (A, C)]
    assert course.said == ["tfdistrun: host-b was shot; restarting with 4 ranks on host-a:1, host-c:3"]


def test_host_that_has_no_address_any_more_is_lost_too(run: Callable[..., tuple[int, str]]) -> None:
    course = Course(lost("host-b"), WELL)
    course.while_running = lambda: course.unknown.add("host-c")
    assert run(course, replace(RULES, reset_limit=1)) == (0, "")
    assert course.started == [(A, B, C), (A,)]
    assert course.said == [
        "tfdistrun: host 'host-c' cannot be resolved. The host is excluded",
        "tfdistrun: host-b was shot; restarting with 1 rank on host-a:1",
    ]


@pytest.mark.parametrize("comes_back", [False, True])
def test_commits_are_removed_from_a_host_that_was_left_out(
    run: Callable[..., tuple[int, str]], comes_back: bool
) -> None:
    """If it is there."""
    course = Course(lost("host-b"), WELL, *[WELL] * comes_back)
    changes: list[Callable[[], object]] = [lambda: course.unknown.add("host-c")]
    changes += [course.unknown.clear] * comes_back
    course.while_running = lambda: changes and changes.pop(0)()
    assert run(course) == (0, "")
    assert course.started == [(A, B, C), (A,), *[(Host("host-c", 1),)] * comes_back]


def test_newest_commit_is_kept_when_the_launcher_fails(
    run: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "none").mkdir()
    monkeypatch.setattr(generations, "MEMORY", tmp_path)
    kept: list[tuple[Path, str]] = []
    monkeypatch.setattr(generations.backup, "keep", lambda commits, place: kept.append((commits, place)) or [])
    course = Course(WELL)

    def fail() -> None:
        raise ZeroDivisionError

    course.while_running = fail
    with pytest.raises(ZeroDivisionError):
        run(course, backup="/backup")
    assert kept == [(tmp_path / "none", "/backup")]
    assert not (tmp_path / "none").exists()


def test_ranks_left_without_successors_did_not_succeed(run: Callable[..., tuple[int, str]]) -> None:
    """Their status is 0."""
    status, explanation = run(Course(LEFT, WELL), Rules(least=1, most=6, reset_limit=0))
    assert status == 1
    assert explanation.endswith("--reset-limit 0 is reached")


def test_host_gone_at_the_last_moment_ends_the_job(
    run: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    course = Course(LEFT)
    asked = iter([0] * 3)

    def address(name: str) -> str:
        if next(asked, None) is None:
            raise ConfigError(f"host {name!r} cannot be resolved.")
        return "192.0.2.1"

    course.address = address  # type: ignore[method-assign]
    status, explanation = run(course)
    assert status == 1
    assert explanation.endswith("not restarting the ranks: host 'host-a' cannot be resolved.")


def test_wait_tells_what_has_led_to_it(run: Callable[..., tuple[int, str]]) -> None:
    course = Course(lost("host-b", "host-c"), WELL)
    rules = Rules(least=4, most=math.inf, cooldown_s=(0.05, 1.0))
    assert run(course, rules) == (0, "")
    assert course.said[0].startswith("tfdistrun: host-b was shot; the remaining hosts have slots for 1 rank, but")
    assert course.started == [(A, B, C), (A, B, C)]


def test_discovery_that_keeps_failing_is_reported_once(
    run: Callable[..., tuple[int, str]], wait_until: Callable[..., None]
) -> None:
    answers: list[tuple[Host, ...] | str] = ["killed", (A, B, C), "broken", "broken", "broken", (A, B, C)]
    course = Course(WELL)

    def look() -> tuple[Host, ...]:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, str):
            raise DiscoveryError(answer)
        return answer

    course.while_running = lambda: wait_until(lambda: len(answers) == 1, what="all answers")
    assert run(course, look=look) == (0, "")
    assert course.said == ["tfdistrun: --host-discovery-script: broken; ignored, the host list stays unchanged"]


def test_empty_list_is_not_believed_while_ranks_run(
    run: Callable[..., tuple[int, str]], wait_until: Callable[..., None]
) -> None:
    """It is told once, and the script is asked again."""
    lists: list[tuple[Host, ...]] = [(), (), (), (A, B, C, Host("host-d", 1))]
    course = Course(LEFT, WELL)

    def look() -> tuple[Host, ...]:
        found = lists.pop(0) if len(lists) > 1 else lists[0]
        if not found:
            raise NoHostError("it printed no host")
        return found

    def running() -> None:
        wait_until(lambda: "leave" in course.said, what="the ranks to be asked to leave")
        course.while_running = lambda: None

    course.while_running = running
    assert run(course, replace(RULES, most=math.inf, discovers=True), look=look) == (0, "")
    trouble = "it printed no host; ignored while ranks run, the host list stays unchanged"
    assert course.said[:2] == [f"tfdistrun: --host-discovery-script: {trouble}", "leave"]
    assert course.started == [(A, B, C), (A, B, C, Host("host-d", 1))]


def test_growth_on_a_host_with_an_agent(run: Callable[..., tuple[int, str]], wait_until: Callable[..., None]) -> None:
    course = Course(WELL)
    course.is_joinable = True
    course.while_running = lambda: wait_until(lambda: "grow host-a:2" in course.said, what="the growth")
    assert run(course, replace(RULES, most=9), look=lambda: (Host("host-a", 3), B, C)) == (0, "")
    told = "tfdistrun: there are slots for 8 ranks: starting 2 ranks on host-a:2, to join the others at a commit"
    assert course.said == [told, "grow host-a:2"]


def test_growth_on_a_host_that_cannot_be_reached(
    run: Callable[..., tuple[int, str]], wait_until: Callable[..., None]
) -> None:
    """It is left out from then on; the others run on."""
    course = Course(WELL)
    course.is_joinable = True

    def summon(plan: Plan) -> Plan:
        if plan.starter.hosts == (A, B, C):
            return plan
        raise UnreachableError("no agent could be started", ["host-d"])

    course.while_running = lambda: wait_until(lambda: "tfdistrun: no agent could be started" in course.said)
    found = (A, B, C, Host("host-d", 1))
    assert run(course, replace(RULES, most=9), look=lambda: found, summon=summon) == (0, "")
    assert len(course.started) == 1
    assert not [text for text in course.said if text.startswith(("leave", "grow"))]


def test_another_machine_cannot_join_a_job_of_this_one(
    run: Callable[..., tuple[int, str]], wait_until: Callable[..., None]
) -> None:
    """Its ranks and its launcher listen where only this machine is heard, so all start again."""
    course = Course(LEFT, WELL)
    course.is_joinable = course.is_local = True
    new = Host("host-d", 1)

    def running() -> None:
        wait_until(lambda: "leave" in course.said, what="the ranks to be asked to leave")
        course.while_running = lambda: None

    course.while_running = running
    assert run(course, replace(RULES, most=7), look=lambda: (A, B, C, new)) == (0, "")
    assert course.started == [(A, B, C), (A, B, C, new)]


def test_fewer_slots_and_a_newcomer_that_fails(
    run: Callable[..., tuple[int, str]], wait_until: Callable[..., None]
) -> None:
    course = Course(WELL)
    course.is_joinable = True
    found = [A, B, C]

    def running() -> None:
        found[2] = Host("host-c", 4)
        wait_until(lambda: "grow host-c:1" in course.said, what="the growth")
        course.on_change(Grown(failed=("host-c",)))
        found[1] = Host("host-b", 1)
        wait_until(lambda: "retire host-b:1" in course.said, what="the end of one")

    course.while_running = running
    assert run(course, replace(RULES, most=9), look=lambda: tuple(found)) == (0, "")
    assert course.said.count("grow host-c:1") == 1
    fewer = "host-b has fewer slots or none: 1 rank on host-b:1 leaves at its next commit, the others continue"
    assert f"tfdistrun: {fewer}" in course.said


def test_empty_list_is_not_told_while_no_rank_runs(run: Callable[..., tuple[int, str]]) -> None:
    course = Course(lost("host-b"), WELL)
    lists: list[tuple[Host, ...]] = [(), (), (), (), (A, C, Host("host-d", 2))]

    def look() -> tuple[Host, ...]:
        if len(course.started) == 1 and not course.said:  # it has not ended yet
            return A, B, C
        found = lists.pop(0) if len(lists) > 1 else lists[0]
        if not found:
            raise NoHostError("it printed no host")
        return found

    assert run(course, Rules(least=6, most=6, discovers=True), look=look) == (0, "")
    assert course.started == [(A, B, C), (A, C, Host("host-d", 2))]
    assert not [text for text in course.said if "printed no host" in text]


def test_look_that_does_not_end_does_not_hold_the_job_up(
    run: Callable[..., tuple[int, str]], wait_until: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generations, "_WATCHER_S", 0.05)
    looks, free = threading.Event(), threading.Event()
    course = Course(WELL)

    def look() -> tuple[Host, ...]:
        looks.set()
        assert free.wait(60)
        return (A,)

    course.while_running = lambda: wait_until(looks.is_set, what="a look")
    assert run(course, look=look) == (0, "")
    (watcher,) = [each for each in threading.enumerate() if each.name == "tfdistrun-hosts"]
    free.set()
    wait_until(lambda: not watcher.is_alive(), what="its end")
    assert course.said == [], "what it has found is of no use"


def test_discovery_with_an_unknown_host_keeps_the_others(
    run: Callable[..., tuple[int, str]], wait_until: Callable[..., None]
) -> None:
    course = Course(LEFT, WELL)
    course.unknown.update(("host-d", "host-b"))
    told = "tfdistrun: --host-discovery-script: host 'host-d' cannot be resolved. The host is excluded"
    new = Host("host-e", 4)
    found = [A, B, C, Host("host-d", 8)]

    def running() -> None:
        wait_until(lambda: told in course.said, what="a word of host-d")
        assert "leave" not in course.said, "ranks run on host-b"
        course.unknown.remove("host-b")
        found.append(new)
        wait_until(lambda: "leave" in course.said, what="the ranks to be asked to leave")
        course.while_running = lambda: None

    course.while_running = running
    assert run(course, Rules(least=1, most=10), look=lambda: tuple(found)) == (0, "")
    assert course.started == [(A, B, C), (A, B, C, new)]
    assert course.said.count(told) == 1
