"""The launcher's report on a job: turns outcomes into text, or into values for `tfdist.run`."""

from __future__ import annotations

import signal
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tfdist.launch.host.host import Host
from tfdist.launch.job.echo import TRACEBACK
from tfdist.launch.job.job import DIRECT, Job, Obstacle
from tfdist.launch.job.outcome import CLOSED, LostHost, Outcome
from tfdist.system.terminal.text_table import aligned

_TAIL_LINES = 25
_SHORT_TAIL_LINES = 10
_SILENT = "exited with status 0 without tfdist.shutdown(), as os._exit(0) does"
# In the error of a rank that waited for another whose process ended: the end of the other says more.
_LOST = (", whose process has ended.", " lost its connection to rank", " was notified by rank")
# In the error of a rank that timed out waiting for others, whatever TensorFlow wraps it in.
_STALLED = "(TFDIST_STALL_CHECK_SHUTDOWN_TIME; raise it"
# The last line of a rank whose debugger has come to the end of its input.
_NO_TERMINAL = "bdb.BdbQuit"

_SIGNAL_ADVICE: dict[int, str] = {
    signal.SIGKILL: "often the kernel's out-of-memory killer: check dmesg on that host, or lower the batch size",
    signal.SIGSEGV: "a crash in native code: run the rank again with PYTHONFAULTHANDLER=1 to see where",
    signal.SIGABRT: "native code aborted: its last lines above say why",
    signal.SIGBUS: "often a full /dev/shm: check df /dev/shm on that host",
    signal.SIGILL: "the program was built for a different processor than that host has",
    signal.SIGTERM: "something terminated that rank: check the scheduler's log on that host",
}


def name_of(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


def outcome_text(outcome: Outcome | None, culprit: str) -> str:
    """One cell of the table; `culprit` says why ranks were terminated, as in "rank 1 failed"."""
    if outcome is None:
        return "never started"
    if outcome.code == 0:
        return "finished"
    if outcome.retired:
        return "left at a commit after a signal"
    if not outcome.recorded:
        return f"{outcome.lost} after {culprit}" if outcome.told else "vanished without a record"
    if outcome.signum is not None:
        if outcome.told and outcome.signum in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            by_force = " (by SIGKILL)" if outcome.signum == signal.SIGKILL else ""
            return f"terminated by tfdistrun after {culprit}{by_force}"
        return f"killed by {name_of(outcome.signum)}"
    return f"exit code {outcome.code}" + (" after a signal" if outcome.told else "")


def last_lines(tail: Sequence[str]) -> list[str]:
    """The last traceback of `tail`, else its last lines."""
    lines = [line.rstrip() for line in tail]
    starts = [number for number, line in enumerate(lines) if line == TRACEBACK]
    if not starts:
        return lines[-_SHORT_TAIL_LINES:]
    shown = lines[starts[-1] :]
    return shown if len(shown) <= _TAIL_LINES else [TRACEBACK, "  ...", *shown[2 - _TAIL_LINES :]]


def _waited_in_vain(outcome: Outcome) -> bool:
    """Whether a rank failed because it timed out waiting for others, which its error names."""
    return any(_STALLED in line for line in last_lines(outcome.tail))


def _explained(job: Job, cause: Outcome) -> list[Outcome]:
    """The ranks whose last lines are shown: the first to fail, and if it left no traceback, another that did."""
    if TRACEBACK in last_lines(cause.tail):
        return [cause]
    gone = {*job.survived, *job.left}
    failed = [outcome for rank, outcome in job.outcomes.items() if rank not in gone and outcome.code]
    return [cause, *[outcome for outcome in failed if _tells(last_lines(outcome.tail))][:1]]


def _tells(lines: Sequence[str]) -> bool:
    return TRACEBACK in lines and not any(text in line for text in _LOST for line in lines)


def _shown(outcome: Outcome) -> str:
    lines = "\n".join(f"  | {line}" for line in last_lines(outcome.tail))
    return f"last lines of rank {outcome.rank}:\n{lines}"


def ranks_text(ranks: Sequence[int]) -> str:
    """As in "rank 3", "ranks 0, 1 and 2" or "ranks 0 to 7"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 3 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _count(ranks: int) -> str:
    """As in "1 rank" or "3 ranks"."""
    return f"{ranks} rank{'s' * (ranks != 1)}"


def _end_text(job: Job, outcome: Outcome) -> str:
    """How a rank ended that the job survived, in full."""
    if outcome.retired and outcome.rank in job.dismissed:
        return "left at a commit, because its slot was taken away"
    if outcome.retired:
        return "left at a commit after a signal"
    if outcome.rank in job.hanging:
        return "ended by tfdistrun, because the others had waited for it too long"
    if outcome.lost:
        return f"lost: it {outcome.lost}"
    if outcome.signum is None:
        return f"exit code {outcome.code}"
    name, number = name_of(outcome.signum), f"signal {outcome.signum}"
    return f"killed by {number}" + (f" ({name})" if name != number else "")


def survival(job: Job, rank: int) -> str:
    """The line that reports at once that the others continue without `rank`."""
    outcome, left = job.outcomes[rank], job.survived[rank]
    verb = "" if outcome.retired else "was " if not outcome.recorded or outcome.signum is not None else "ended with "
    on = f"{_count(left)} continue{'s' * (left == 1)} (--min-np {job.least})"
    return f"rank {rank} ({outcome.host}) {verb}{_end_text(job, outcome)}; {on}"


def joined(job: Job, ranks: Sequence[int]) -> str:
    """The line that reports that these have joined the others."""
    hosts = ", ".join(dict.fromkeys(job.hosts[rank] for rank in ranks))
    verb = "has" if len(ranks) == 1 else "have"
    return f"{ranks_text(ranks)} ({hosts}) {verb} joined; {_count(len(job.running))} continue"


def strayed(job: Job, rank: int) -> str:
    """The line that reports that `rank` will not join the others."""
    outcome = job.outcomes.get(rank)
    if outcome is None:
        how = "it was not there in time, or nobody can join any more"
    elif outcome.code == 0:
        how = "it ended before it could"
    else:
        how = _end_text(job, outcome)
    return f"rank {rank} ({job.hosts[rank]}) does not join the others, which continue: {how}"


def _survived_texts(job: Job) -> list[str]:
    return [
        f"rank {rank} ({job.outcomes[rank].host}): {_end_text(job, job.outcomes[rank])}, {_count(left)} continued"
        for rank, left in job.survived.items()
    ]


def _obstacle_text(job: Job) -> str:
    assert job.obstacle is not None
    left = len(job.members) - len(job.survived) - 1
    if job.obstacle == Obstacle.TOO_FEW and left:
        return f"only {_count(left)} {'was' if left == 1 else 'were'} left (--min-np {job.least})"
    return "no rank was left" if job.obstacle == Obstacle.TOO_FEW else job.obstacle.value


def _lost_text(lost: LostHost) -> str:
    return f"host {lost.name} with {ranks_text(lost.ranks)} was lost: it {lost.how}"


def _all_are_silent(job: Job) -> bool:
    """Whether this machine is more likely the one that was lost."""
    silent = {lost.name for lost in job.lost_hosts if lost.how != CLOSED}
    return len(silent) > 1 and silent == job.elsewhere


def _names(names: Collection[str]) -> str:
    """As in "host a" or "hosts a, b"."""
    return f"host{'s' * (len(names) > 1)} {', '.join(names)}"


def _starter(job: Job) -> str:
    """Who has started the ranks, as the beginning of a sentence."""
    return "the ranks' supervisors" if job.starter == DIRECT else job.starter


def _headline(job: Job, unreachable: Collection[str]) -> str:
    cause = job.cause
    lost = [_lost_text(each) for each in job.lost_hosts if each.name not in job.hosts_survived]
    if job.interrupt is not None:
        return "\n".join([f"interrupted by {name_of(job.interrupt)}", *lost])
    if lost:
        return "\n".join(lost)
    missing = f": {_names(unreachable)} cannot be reached by ssh" if unreachable else ""
    if job.never_started:
        return f"not all ranks started in time{missing}"
    if cause is None or cause.told:
        return f"{_starter(job)} exited before all ranks did{missing}"
    if job.obstacle is not None:
        end = f"the job could not continue without it, since {_obstacle_text(job)}"
        return f"rank {cause.rank} on {cause.host} failed: {outcome_text(cause, '')}; {end}"
    return f"rank {cause.rank} on {cause.host} failed first: {outcome_text(cause, '')}"


def _culprit(job: Job) -> str:
    if job.interrupt is not None:
        return name_of(job.interrupt)
    if job.lost_hosts:
        others = len(job.lost_hosts) - 1
        return f"host {job.lost_hosts[0].name}{f' and {others} more' if others else ''} was lost"
    if job.never_started:
        return "others did not start"
    if job.cause is None or job.cause.told:
        return f"{_starter(job)} exited"
    return f"rank {job.cause.rank} failed"


def advice(job: Job, unreachable: Mapping[str, str] = MappingProxyType({}), output: str = "") -> str:
    """The next step, in one line. Arguments: as of `render`."""
    cause = job.cause
    if job.lost_hosts:
        return _advice_on_lost_hosts(job)
    if unreachable:
        name, said = next(iter(unreachable.items()))
        verb = "is" if len(unreachable) == 1 else "are"
        return f"check that {_names(unreachable)} {verb} up and on the network: `ssh {name} true` ends with: {said}"
    if job.never_started:
        return _advice_on_start(job)
    if cause is None or cause.told:
        shown = job.starter_spoke and not job.complete
        said = "its messages are above, --verbose shows more" if shown else "run with --verbose to see its output"
        return f"{_possessive(_starter(job))} exit status was {job.starter_status}; {said}"
    if job.silent:
        return (
            f"{ranks_text(sorted(job.silent))} {_SILENT}, before the other ranks had finished: Python's exit hooks did "
            "not run. Let the script return or call sys.exit, or call tfdist.shutdown() on every rank"
        )
    return _advice_on_rank(cause, output)


def _advice_on_start(job: Job) -> str:
    hosts = sorted({job.hosts[rank] for rank in job.never_started})
    if job.starter == DIRECT and not job.elsewhere:
        return "this machine may be busy: try a longer --start-timeout"
    if job.starter == DIRECT:
        return (
            f"look at what the agents on {', '.join(hosts)} have printed, and check that no firewall blocks the "
            "launcher's port; a slow host needs a longer --start-timeout"
        )
    if not job.by_ssh:
        return (
            f"run with --verbose to see the output of {job.starter}; another step may hold the job's tasks; a slow "
            "host needs a longer --start-timeout"
        )
    return (
        f"check that `ssh {hosts[0]} true` works without a password, that no firewall blocks the hosts, and that "
        "Python and tfdist have the same paths there; a slow host needs a longer --start-timeout"
    )


def _possessive(name: str) -> str:
    return f"{name}'" if name.endswith("s") else f"{name}'s"


def _advice_on_rank(cause: Outcome, output: str) -> str:
    where = f"rank {cause.rank} on {cause.host}"
    if not cause.recorded:
        return f"the supervisor of {where} was killed or its host was lost: check dmesg there"
    if cause.signum == signal.SIGABRT and not cause.tail:
        return f"{where}: native code aborted without a message: run it again with PYTHONFAULTHANDLER=1 to see where"
    if cause.signum is not None:
        return f"{where}: {_SIGNAL_ADVICE.get(cause.signum, 'look up what sends this signal')}"
    if _waited_in_vain(cause):
        return (
            f"{where} timed out waiting for the ranks that its error names; see what they did: their lines above, or "
            "their stacks during the wait (kill -USR1; TFDIST_STACK_DUMP_DIR writes all of them to files)"
        )
    if cause.tail and last_lines(cause.tail)[-1] == _NO_TERMINAL:
        return (
            f"{where}: breakpoint() found no terminal there. Run the script without tfdistrun, or attach a "
            "debugger to the rank: docs/debugger.md"
        )
    if not cause.tail:
        return f"{where} printed nothing: look for what exits with code {cause.code}, such as sys.exit({cause.code})"
    full = f"{output} has" if output else "--output-filename DIR keeps"
    return f"{where}: fix the error above; {full} each rank's full output"


def _advice_on_lost_hosts(job: Job) -> str:
    names = [lost.name for lost in job.lost_hosts]
    if _all_are_silent(job):
        return "all other hosts were lost at the same time: check the network of this machine, where tfdistrun ran"
    return (
        f"check that {_names(names)} {'is' if len(names) == 1 else 'are'} up and on the network, and look in the log "
        "there for the cause (out of memory: dmesg)"
    )


def relaunch(explanation: str, hosts: Sequence[Host], without: Sequence[str] = ()) -> str:
    """The line that reports that all ranks are restarted.

    Args:
        explanation: What `render` reported on the previous end of the ranks.
        hosts: Where the new ranks run, with the slots they use.
        without: Hosts that are excluded because the ranks failed without progress when these first took part.
    """
    ranks, where = sum(host.slots for host in hosts), ", ".join(map(str, hosts))
    left_out = f", without {', '.join(without)}, where no rank has made a commit yet" if without else ""
    first_line = explanation.partition("\n")[0]
    return f"{first_line}; restarting with {_count(ranks)} on {where}{left_out}"


def ranks_on(hosts: Sequence[Host]) -> str:
    """As in "2 ranks on a:1, b:1"."""
    return f"{_count(sum(host.slots for host in hosts))} on {', '.join(map(str, hosts))}"


def leaving(hosts: Sequence[Host]) -> str:
    """As in "1 rank on a:1 leaves at its next commit"."""
    verb = "leaves at its" if sum(host.slots for host in hosts) == 1 else "leave at their"
    return f"{ranks_on(hosts)} {verb} next commit"


def kept(names: Sequence[str], folder: str, error: str) -> str:
    """The line that reports whether the newest commit was written to a disk; `error` says why it was not."""
    if error:
        return f"the newest commit could not be written to {folder}: {error}"
    return f"saved {', '.join(names)} in {folder}; run the same command again to continue from there"


def render(job: Job, unreachable: Mapping[str, str] = MappingProxyType({}), output: str = "") -> str:
    """The text for the end of a job; empty if every rank succeeded.

    Args:
        job: The job.
        unreachable: Hosts that ssh cannot reach, with its error messages.
        output: The folder or address with the ranks' whole output; empty if it was not asked for.
    """
    survived = _survived_texts(job)
    if job.status == 0:
        well = f"succeeded on {len(job.members) - len(survived)} of {_count(len(job.members))}; lost: "
        return well + "; ".join(survived) if survived else ""
    parts = [_headline(job, unreachable), *survived]
    rows: list[tuple[str, ...]] = [("rank", "host", "outcome")]
    lost = {rank for each in job.lost_hosts for rank in each.ranks}
    for rank, host in enumerate(job.hosts):
        text = "lost with its host" if rank in lost else outcome_text(job.outcomes.get(rank), _culprit(job))
        text = _SILENT if rank in job.silent else text
        rows.append((str(rank), host, text))
    parts.append(aligned(rows, indent="  "))
    if job.interrupt is None and job.cause is not None and not job.cause.told:
        parts += [_shown(outcome) for outcome in _explained(job, job.cause) if outcome.tail]
    if job.interrupt is None or job.lost_hosts:
        parts.append(f"next: {advice(job, unreachable, output)}")
    return "\n".join(parts)


def report(job: Job, members: Sequence[int], explanation: str) -> dict[str, Any]:
    """What `tfdist.run` needs to know about a job that has ended, in types that JSON supports.

    Args:
        job: The job.
        members: The last ranks, in their order; empty if they never met.
        explanation: Why it failed.
    """
    ended = [job.outcomes.get(rank) for rank in range(len(job.hosts))]
    well = {rank for rank, outcome in job.outcomes.items() if not outcome.failed}
    return {
        "status": job.status,
        "first": job.culprit,
        "ranks": [rank for rank in members or job.members if rank in well],
        "size": len(ended) if job.least is None else None,
        "hosts": job.hosts,
        "codes": [outcome.code if outcome is not None else None for outcome in ended],
        "explanation": explanation,
    }
