"""Runs an elastic job: one generation after another, until one succeeds or none can follow. See `membership`."""

from __future__ import annotations

import queue
import shutil
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfdist.errors import ConfigError, PeerLostError
from tfdist.launch.host import host, network
from tfdist.launch.host.discovery import LOOK_S, TIMEOUT_S, DiscoveryError, NoHostError
from tfdist.launch.host.host import Host
from tfdist.launch.host.probe import UnreachableError
from tfdist.launch.job.job import Job
from tfdist.launch.job.membership import (
    Action,
    Ended,
    Event,
    Finish,
    Grow,
    Grown,
    Joinable,
    Launch,
    Leave,
    Membership,
    Offered,
    Retire,
    Rules,
    Tick,
    Wait,
    decide,
)
from tfdist.launch.job.summary import kept, leaving, ranks_on, relaunch
from tfdist.launch.run.console import Console
from tfdist.launch.run.launcher import SIGNALS, Launcher
from tfdist.launch.run.newcomers import Growth
from tfdist.launch.run.plan import Plan, Prospect
from tfdist.launch.start.direct import Direct
from tfdist.launch.start.job_folder import MEMORY
from tfdist.launch.wire.call import Call
from tfdist.protocol import backup
from tfdist.system.process import caught

# For hosts that only need to remove their commits.
_TIDY_S = 10.0
# For the last check of the hosts: a script, then a resolver.
_WATCHER_S = TIMEOUT_S + 10.0


class Generations:
    """Runs a plan as often as needed. Use once.

    Args:
        plan: What to start; its hosts are those of the first generation.
        rules: When to restart it, and where.
        offered: All available hosts, with their slots.
        console: Where the ranks' output goes.
        look: Finds the hosts available now; None if they do not change. Raises DiscoveryError.
        summon: Has the agents of a plan started. Raises UnreachableError.
        call: The function to send to the ranks, and its results; None for an ordinary command.
    """

    def __init__(
        self,
        plan: Plan,
        rules: Rules,
        offered: tuple[Host, ...],
        console: Console,
        look: Callable[[], tuple[Host, ...]] | None = None,
        summon: Callable[[Plan], Plan] = lambda plan: plan,
        call: Call | None = None,
    ) -> None:
        self._call = call
        self._plan, self._rules, self._console, self._look, self._summon = plan, rules, console, look, summon
        # Held while deciding: by this thread, the launcher's signal thread, or the one that looks for hosts.
        self._lock = threading.Lock()
        self._membership = Membership(offered, running=plan.starter.hosts)
        self._signals: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._over = threading.Event()
        self._trouble = self._told = ""
        # None until the first ones that are needed have come.
        self._launcher: Launcher | None = None
        self._summoning = False
        self._status = 0
        self._reason = ""
        # The hosts with commits that no rank has been told to remove.
        self._keeping: set[str] = set()

    def run(self) -> int:
        """Returns the job's exit status; leaves none of its processes on this machine, and none of its commits."""
        watcher = threading.Thread(target=self._watch, name="tfdistrun-hosts", daemon=True)
        with caught(SIGNALS, self._on_signal):
            try:
                watcher.start()
                self._run()
            except BaseException:
                self._status = self._status or 1  # the newest commit is worth keeping
                raise
            finally:
                self._over.set()
                watcher.join(_WATCHER_S)
                self._tidy_here()
                if self._plan.reserve is not None:
                    self._plan.reserve.close(self._status or 0, self.explanation)
            self._tidy()
        return self._status

    @property
    def explanation(self) -> str:
        """After `run`: why the job failed, or on which ranks it succeeded; empty if on all."""
        last = "" if self._launcher is None else self._launcher.explanation
        return "\n".join(text for text in (last, self._reason) if text)

    @property
    def heard(self) -> list[str]:
        """After `run`: the output of what started the ranks, if it may matter."""
        return [] if self._launcher is None else self._launcher.heard

    def report(self) -> dict[str, Any]:
        """After `run`: as the launcher's, of the last ranks that ran."""
        never: dict[str, Any] = {"first": None, "ranks": [], "size": None, "hosts": [], "codes": []}
        last = never if self._launcher is None else self._launcher.report()
        return last | {"status": self._status, "explanation": "\n".join([*self.heard, self.explanation])}

    def _run(self) -> None:
        action: Action = Launch(self._plan.starter.hosts)
        ended, asked_to_stop = "", False
        while isinstance(action, Launch):
            try:
                launcher = self._prepare(action, ended)
            except UnreachableError as error:
                self._status, ended = 1, str(error)
                action = self._follow(Ended(1, error.hosts), ended)
                continue
            except (ConfigError, PeerLostError, KeyboardInterrupt) as error:
                action = self._prevented(error, ended)
                continue
            self._status = launcher.run()
            for signum in launcher.unheard:
                self._signals.put(signum)
            job = launcher.job
            end = _end_of(job, launcher.unreachable)
            self._note_commits(launcher)
            ended = "all ranks have left" if job.left and job.cause is None else launcher.explanation
            asked_to_stop = job.told_to_end and job.interrupt is None
            action = self._follow(end, ended)
        if action.reason:  # ranks that leave exit with 0, but the training has not finished
            self._status = self._status or 1
        never = ended if self._launcher is None else ""
        reason = "not restarting the ranks: the job was asked to stop" if asked_to_stop else action.reason
        self._reason = "\n".join(filter(None, (never, reason)))

    def _prepare(self, action: Launch, ended: str) -> Launcher:
        """Creates the launcher of the next generation. Raises KeyboardInterrupt if a signal comes while hosts do."""
        plan = self._plan
        if ended:
            self._say(relaunch(ended, action.hosts, action.without))
            plan = self._plan_for(action.hosts)
        self._summoning = True
        try:
            plan = self._summon(plan)
        finally:
            self._summoning = False
        with self._lock:
            made = self._launcher = self._make_launcher(plan)
            if self._membership.leaving:  # decided in the meantime, and sent to the previous launcher
                made.leave()
        while not self._signals.empty():
            made.interrupt(self._signals.get())
        return made

    def _prevented(self, error: BaseException, ended: str) -> Finish:
        """No launcher could be created: a host has vanished since, there is a problem here, or a signal came."""
        if isinstance(error, KeyboardInterrupt):
            return self._interrupted(self._signals.get())
        self._status = self._status or 1
        return Finish(f"not restarting the ranks: {error}" if ended else str(error))

    def _interrupted(self, signum: int) -> Finish:
        self._status = 128 + signum
        return Finish(f"interrupted by {signal.Signals(signum).name} while no rank was running")

    def _on_signal(self, signum: int) -> None:
        """Handles a signal between two generations, when the next launcher may exist already but not run."""
        self._signals.put(signum)
        if self._summoning:
            raise KeyboardInterrupt
        if self._launcher is not None:
            self._launcher.interrupt(signum)

    def _note_commits(self, launcher: Launcher) -> None:
        """Notes which hosts hold commits. A lost host removes its own when it detects that it is cut off."""
        lost = {*(each.name for each in launcher.job.lost_hosts), *launcher.unreachable}
        self._keeping = ((self._keeping | launcher.job.visited) - launcher.forgetful) - lost

    def _tidy_here(self) -> None:
        """Removes all commits from this machine's memory, after saving one that may be needed later."""
        commits, place = Path(MEMORY, self._plan.commits), self._plan.backup
        if place and self._status != 0 and commits.is_dir():
            names, trouble = [], ""
            try:
                names = backup.keep(commits, place)
            except OSError as error:
                trouble = str(error)
            if names or trouble:
                self._say(kept(names, place, trouble))
        shutil.rmtree(commits, ignore_errors=True)

    def _tidy(self) -> None:
        """Removes the commits from hosts of earlier generations, by starting ranks there that do nothing else."""
        hosts = tuple(Host(name, 1) for name in sorted(self._keeping) if not _is_gone_or_here(name))
        if not hosts or self._plan.reserve is not None:  # supervisors without a launcher remove what they have
            return
        try:
            plan = replace(self._plan_for(hosts), command=("true",), start_timeout_s=_TIDY_S, least=1)
            prospect = Prospect.NOBODY if self._status == 0 else Prospect.LATER
            done = Launcher(self._summon(plan), self._console, prospect=lambda _: prospect).run() == 0
        except (ConfigError, PeerLostError):  # a host that has vanished since
            done = False
        if not done:
            names = ", ".join(each.name for each in hosts)
            self._say(f"commits may be left in {MEMORY / self._plan.commits} of {names}")

    def _follow(self, event: Ended, ended: str) -> Launch | Finish:
        """What follows the end of a generation, after waiting if necessary."""
        action = self._decide(event)
        said = ""
        while not isinstance(action, Finish):
            if isinstance(action, Launch) and self._signals.empty():
                found, trouble = known_hosts(action.hosts)
                if found == action.hosts:
                    return action
                self._say(trouble)
                without = tuple(each.name for each in action.hosts if each not in found)
                action = self._decide(Ended(1, without, started=False))
                continue
            if isinstance(action, Wait) and not said:
                said = action.reason
                self._say(f"{ended.splitlines()[0]}; {said}")
            try:
                # Hosts may be found before the time is up.
                signum = self._signals.get(timeout=LOOK_S)
            except queue.Empty:
                action = self._decide(Tick())
            else:
                return self._interrupted(signum)
        return action

    def _decide(self, event: Event) -> Action:
        with self._lock:
            self._membership, action = decide(self._rules, self._membership, event, time.monotonic())
        return action

    def _watch(self) -> None:
        """Looks for hosts, and checks whether to restart the ranks on others."""
        while not self._over.wait(LOOK_S):
            found = self._find_hosts()
            if not self._over.is_set():
                self._look_after(found)

    def _find_hosts(self) -> Event:
        if self._look is None:
            return Tick()
        if self._plan.reserve is not None:  # agents need no addresses
            return Offered(self._look())
        found: Event = Tick()
        running = self._membership.running
        try:
            # A host on which ranks run needs no address now, and a resolver may fail for a moment.
            hosts, trouble = known_hosts(self._look(), running)
            found = Offered(hosts)
        except NoHostError as error:
            found = Offered(())
            trouble = f"{error}; ignored while ranks run, the host list stays unchanged" if running else ""
        except DiscoveryError as error:
            trouble = f"{error}; ignored, the host list stays unchanged"
        # Not the first time: the end of a generation ends the script too, and a host may vanish while it is resolved.
        if trouble and trouble == self._trouble != self._told:
            self._say(f"--host-discovery-script: {trouble}")
            self._told = trouble
        self._trouble = trouble
        return found

    def _look_after(self, event: Event) -> None:
        """Handles an event while ranks run; between two generations `_follow` does."""
        action: Action | None = None
        with self._lock:
            launcher = self._launcher
            if self._membership.running:
                self._membership, action = decide(self._rules, self._membership, event, time.monotonic())
            elif isinstance(event, Offered):
                self._membership = replace(self._membership, offered=event.hosts)
            if isinstance(action, Leave) and launcher is not None:
                launcher.leave()
            elif isinstance(action, Retire) and launcher is not None:
                launcher.retire(action.hosts)
        if isinstance(action, Leave):
            self._say(f"{action.reason}: all ranks leave at their next commit and are restarted")
        elif isinstance(action, Retire):
            self._say(f"{action.reason}: {leaving(action.hosts)}, the others continue")
        elif isinstance(action, Grow) and launcher is not None:
            self._say(f"{action.reason}: starting {ranks_on(action.hosts)}, to join the others at a commit")
            self._start_growth(launcher, action.hosts)

    def _start_growth(self, launcher: Launcher, hosts: tuple[Host, ...]) -> None:
        """Has processes started that join the running ranks: at once, or when agents of new hosts have come."""
        if self._plan.reserve is not None:
            launcher.grow(Growth(hosts, *self._plan.reserve.take([each.name for each in hosts])))
            return
        try:
            elsewhere = host.addresses_elsewhere(hosts)
        except ConfigError as error:
            self._say(str(error))
            known, _ = known_hosts(hosts)
            self._give_up(launcher, Grown(failed=tuple(each.name for each in hosts if each not in known)))
            return
        new = tuple(each for each in hosts if each.name in elsewhere and not launcher.serves(each.name))
        growth = Growth(hosts, elsewhere)
        if not new:
            launcher.grow(growth)
        elif launcher.is_local:
            self._give_up(launcher, Joinable(yes=False))
            self._give_up(launcher, Grown())
        else:
            threading.Thread(
                target=self._summon_for, args=(launcher, growth, new), name="tfdistrun-growth", daemon=True
            ).start()

    def _summon_for(self, launcher: Launcher, growth: Growth, new: tuple[Host, ...]) -> None:
        """Waits for the agents of new hosts. The thread lives on, because what starts agents ends with it."""
        try:
            force = self._summon(self._plan_for(new)).force
        except UnreachableError as error:
            self._say(str(error))
            self._give_up(launcher, Grown(failed=tuple(error.hosts)))
            return
        except (ConfigError, PeerLostError) as error:
            self._say(str(error))
            self._give_up(launcher, Grown(failed=tuple(each.name for each in new)))
            return
        assert force is not None
        force.listener.close()  # supervisors come to the job's own
        launcher.grow(replace(growth, force=force))
        self._over.wait()

    def _give_up(self, launcher: Launcher, event: Grown | Joinable) -> None:
        """Nobody of this growth joins."""
        if launcher is self._launcher and not self._over.is_set():
            self._look_after(event)

    def _prospect(self, job: Job) -> Prospect:
        """Who will continue from the commits. `decide` is a pure function, so asking it changes nothing."""
        action = decide(self._rules, self._membership, _end_of(job, ()), time.monotonic())[1]
        if isinstance(action, Finish):
            return Prospect.LATER if job.status or job.left else Prospect.NOBODY
        return Prospect.SOON if isinstance(action, Launch) else Prospect.PERHAPS

    def _plan_for(self, hosts: tuple[Host, ...]) -> Plan:
        elsewhere = host.addresses_elsewhere(hosts)
        call = self._plan.starter
        assert isinstance(call, Direct)
        usable = network.choose(elsewhere.values(), call.extra, self._plan.environment, call.path)
        starter = replace(call, hosts=hosts, local=not elsewhere, network=usable, served=frozenset(elsewhere))
        return replace(self._plan, starter=starter, elsewhere=elsewhere)

    def _make_launcher(self, plan: Plan) -> Launcher:
        return Launcher(
            plan,
            self._console,
            self._call,
            prospect=self._prospect,
            on_change=self._look_after,
        )

    def _say(self, text: str) -> None:
        self._console.say(f"tfdistrun: {text}")


def known_hosts(found: tuple[Host, ...], surely: tuple[Host, ...] = ()) -> tuple[tuple[Host, ...], str]:
    """The hosts that have an address, and a message about the others; empty if there are none."""
    known = []
    trouble = ""
    sure = {each.name for each in surely}
    for each in found:
        try:
            if each.name not in sure:
                host.is_local(each.name)
        except ConfigError as error:
            trouble = trouble or f"{error} The host is excluded"
        else:
            known.append(each)
    return tuple(known), trouble


def _is_gone_or_here(name: str) -> bool:
    """If a name no longer resolves, the host is gone, and its memory with it."""
    try:
        return host.is_local(name)
    except ConfigError:
        return True


def _end_of(job: Job, unreachable: tuple[str, ...]) -> Ended:
    lost = tuple(each.name for each in job.lost_hosts if each.name not in job.hosts_survived)
    left = bool(job.left) and job.cause is None
    culprit = "" if job.first_to_fail is None else job.hosts[job.first_to_fail]
    return Ended(job.status, (*lost, *unreachable), job.told_to_end, job.committed, left, culprit)
