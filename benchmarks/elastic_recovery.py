"""Measures how long an elastic fit stands still after each fault that it survives, and prints a table.

    python benchmarks/elastic_recovery.py [--rounds N] [--only JOB] [--json FILE] [--horovod-python PYTHON]

Each round is a job of `tfdistrun` for each entry of JOBS: a fit of 4 ranks (of 1 in `second`) that has one fault after
the other, each at a step of its own. What is timed, by the machine's clock, is the fault until the first rank has ended
the next step. Of what is planned (SIGTERM, other hosts) it is the last step of the ranks before until the first of
those after; of a newcomer it is that less a median step. "All anew" is the time in which processes start and import
TensorFlow, all on this machine. The model is small: what grows with it is a copy of its weights. Hosts are network
namespaces; without root their faults are left out.

Elastic Horovod leaves out the whole host of a rank that is lost, and then goes on with the processes of the others; so
beside it a job of two hosts is timed, which are two names of this machine.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import two_hosts

from tfdist.command.bench.measure import table

SECONDS = 300
STALL_S, HOST_S = 10, 3
PLAN, STEPS = "plan.json", "steps"
NEAR, FAR = "10.77.0.1", "10.77.0.2"
MEGABITS = 10_000
SIGNALS = {"kill": signal.SIGKILL, "meeting": signal.SIGKILL, "stop": signal.SIGSTOP, "told": signal.SIGTERM}
PLANNED, LOSSES = ("hosts", "told", "back", "joins"), ("host", "again")


@dataclass(frozen=True)
class Fault:
    """What happens to a job of 4 ranks, or of as many as `of` of its first fault says.

    Attributes:
        name: What it is called in the table.
        step: At the end of which step; of `again`, of which step since ranks have started later on.
        ranks: Whom it happens to, by the numbers that they were started with.
        how: `kill`, `stop`, `error`, `exit` (with status 0), `told` (SIGTERM), `commit` (killed in the middle of one),
            `meeting` (the first is killed, and the second when it goes on without the first), `hosts` (the script finds
            others), `joins` (it finds one slot more), `host` (one is lost), `back` (it has returned), `again` (and is
            lost once more).
        size: The ranks that go on.
        of: The ranks before.
    """

    name: str
    step: int
    ranks: tuple[int, ...]
    how: str
    size: int
    of: int = 4


def in_place(number: int) -> list[Fault]:
    victim = 1 + number % 3
    first = min({1, 2, 3} - {victim})
    return [
        Fault("a rank is killed", 20, (victim,), "kill", 3),
        Fault("rank 0 is killed", 40, (0,), "kill", 2, of=3),
        Fault("a rank is killed while it writes a commit", 60, (first,), "commit", 1, of=2),
    ]


def in_recovery(number: int) -> list[Fault]:
    victim = 1 + number % 3
    return [
        Fault("a rank is killed while the others go on without another", 20, (victim, 1 + victim % 3), "meeting", 2),
    ]


def by_itself(number: int) -> list[Fault]:
    victim = 1 + number % 3
    return [
        Fault("a rank gets SIGTERM, and leaves at its next commit", 20, (victim,), "told", 3),
        Fault("a rank fails by an error of its own", 40, (1 + victim % 3,), "error", 2, of=3),
    ]


def too_early(number: int) -> list[Fault]:
    return [Fault("a rank ends too early with status 0: all anew", 20, (1 + number % 3,), "exit", 4)]


def flapping(_: int) -> list[Fault]:
    return [
        Fault("a host is killed for the first time", 20, (0, 1, 2, 3), "host", 2),
        Fault("it comes back", 0, (), "back", 4, of=2),
        Fault("and is killed again", 20, (0, 1, 4, 5), "again", 2),
    ]


def anew(number: int) -> list[Fault]:
    victim = 1 + number % 3
    return [
        Fault("two ranks are killed at once", 20, tuple({1, 2, 3} - {victim}), "kill", 2),
        Fault("too few are left: all anew", 40, (victim,), "kill", 4, of=2),
        Fault("fewer slots", 60, (0,), "hosts", 3),
    ]


def newcomer(_: int) -> list[Fault]:
    return [Fault("a new rank joins, of 5", 20, (0,), "joins", 5)]


def second(_: int) -> list[Fault]:
    return [Fault("a new rank joins, of 2", 20, (0,), "joins", 2, of=1)]


def hang(number: int) -> list[Fault]:
    return [Fault(f"a rank hangs ({STALL_S} s limit)", 20, (1 + number % 3,), "stop", 3)]


def killed_host(_: int) -> list[Fault]:
    return [Fault("a host is killed", 20, (0, 1, 2, 3), "host", 2)]


def cut_host(_: int) -> list[Fault]:
    return [Fault(f"a host is cut off ({HOST_S} s limit)", 20, (0, 1, 2, 3), "host", 2)]


LINK_OPTIONS = ("--elastic", "--network-interfaces", two_hosts.LINK)
HOST_OPTIONS = (*LINK_OPTIONS, "-H", f"{NEAR}:2,{FAR}:2")
JOBS = {
    "in-place": (in_place, ("--elastic",)),
    "in-recovery": (in_recovery, ("--elastic",)),
    "by-itself": (by_itself, ("--elastic",)),
    "too-early": (too_early, ("--elastic",)),
    "anew": (anew, ("--min-np", "2", "--host-discovery-script", "cat hosts")),
    "newcomer": (newcomer, ("--elastic", "--host-discovery-script", "cat hosts")),
    "second": (second, ("--elastic", "--host-discovery-script", "cat hosts")),
    "hang": (hang, ("--elastic", "--stall-check-shutdown-time-seconds", str(STALL_S))),
    "killed-host": (killed_host, HOST_OPTIONS),
    "flapping-host": (
        flapping,
        (*LINK_OPTIONS, "--host-discovery-script", "cat hosts", "--blacklist-cooldown-range", "15", "60"),
    ),
    "cut-host": (cut_host, (*HOST_OPTIONS, "--host-timeout", str(HOST_S))),
}


def train() -> None:
    """What each rank runs, in the folder of the job."""
    import keras
    import numpy as np
    import tensorflow as tf

    import tfdist

    tfdist.init()
    faults = [Fault(**fault) for fault in json.loads(Path(PLAN).read_text())]
    own = int(os.environ["RANK"])
    samples = np.random.default_rng(0).normal(size=(4800, 8)).astype("float32")
    rows = tf.data.Dataset.from_tensor_slices((samples, samples.sum(1, keepdims=True))).shuffle(4800, seed=1)
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(), "mse")

    class Watch(keras.callbacks.Callback):
        since, size = 0, 0

        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            steps = int(self.model.optimizer.iterations)
            if tfdist.size() != self.size:
                self.since, self.size = steps, tfdist.size()
            with open(STEPS, "a") as file:
                file.write(f"{steps} {time.time()!r} {self.size}\n")
            for number, fault in enumerate(faults):
                if own in fault.ranks and is_due(fault, steps, self.since, self.size):
                    make(fault, number, own, steps)
            over = self.size == faults[-1].size and steps >= self.since + 5
            self.model.stop_training = over and any(Path().glob(f"fault-{len(faults) - 1}-*"))

    callbacks = [tfdist.callbacks.DataParallel(elastic=True), Watch()]
    model.fit(tfdist.shard(rows).batch(8), epochs=1000, verbose=0, callbacks=callbacks)


def is_due(fault: Fault, step: int, since: int, size: int) -> bool:
    """Whether a fault comes at the end of this step; so many ranks are there since that one."""
    if fault.how == "again":
        return size == fault.of and since > 1 and step == since + fault.step
    return step == fault.step


def note(number: int, own: int, step: int) -> None:
    """Writes down when a fault happens, and in which step; the last of its ranks counts."""
    Path(f"fault-{number}-{own}").write_text(f"{time.time()!r} {step}")


def make(fault: Fault, number: int, own: int, step: int) -> None:
    """Has this rank suffer it."""
    if fault.how == "commit":
        in_next_commit(number, own, step)
        return
    if fault.how == "meeting" and own != fault.ranks[0]:
        when_it_meets()
        return
    note(number, own, step)
    if fault.how in ("hosts", "joins"):
        Path("hosts.new").write_text(f"localhost:{fault.size}\n")
        Path("hosts.new").replace("hosts")  # who looks in between sees some
    elif fault.how in LOSSES:
        until(lambda: Path(go(number)).exists(), "the fault")
    elif fault.how == "error":
        raise ValueError("the data is broken")
    elif fault.how == "exit":
        raise SystemExit(0)
    else:
        os.kill(os.getpid(), SIGNALS[fault.how])


def go(number: int) -> str:
    """The file that tells the ranks on the host that is left that the other one is lost."""
    return f"go-{number}"


def in_next_commit(number: int, own: int, step: int) -> None:
    """The kernel cuts the file that is written, and kills the writer."""
    from tfdist.elastic.commit_store import CommitStore

    put = CommitStore.put

    def cut(*words: Any) -> None:
        note(number, own, step + 1)  # a commit comes before the end of its step is told
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200, resource.RLIM_INFINITY))
        put(*words)

    CommitStore.put = cut  # type: ignore[method-assign]


def when_it_meets() -> None:
    from tfdist.world import runtime

    runtime.renew = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)


HOROVOD = "Horovod: a rank is killed, the other host goes on"


def measure_horovod(python: str) -> dict[str, float]:
    """Seconds of the fault of one job of Horovod. Raises RuntimeError if it did not end well."""
    name = os.uname().nodename
    fault = Fault(HOROVOD, 20, (), "kill", 2)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "hosts").write_text(f"localhost:2\n{name}:2\n")
        words = [str(Path(python).with_name("horovodrun")), "-np", "4", "--min-np", "2", "--max-np", "4"]
        words += ["--host-discovery-script", f"cat {folder}/hosts", python]
        words += [str(Path(__file__).resolve().with_name("horovod") / "elastic.py"), str(fault.step), name]
        path = f"{Path(python).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            words,
            cwd=folder,
            env=os.environ | {"PATH": path, "CUDA_VISIBLE_DEVICES": ""},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        try:
            return standstills(Path(folder), [fault])
        except (RuntimeError, ValueError, OSError) as error:
            raise RuntimeError(f"{error}\n{done.stdout[-2000:]}{done.stderr[-2000:]}") from error


def until(condition: Any, what: str) -> None:
    """Raises RuntimeError if it does not come."""
    end = time.monotonic() + SECONDS
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(f"waited {SECONDS} s for {what}")
        time.sleep(0.001)


def standstills(folder: Path, faults: Sequence[Fault]) -> dict[str, float]:
    """Seconds of each fault of a job that has ended.

    Raises:
        RuntimeError: If the job went on in another way than was asked for.
    """
    lines = [line.split() for line in (folder / STEPS).read_text().splitlines()]
    steps = sorted((float(at), int(step), int(size)) for step, at, size in lines)
    seconds = {}
    for number, fault in enumerate(faults):
        begin, last = moment(folder, number, fault, steps)
        usual = median_step(steps, last) if fault.how == "joins" else 0.0
        steps = [one for one in steps if one[0] > begin and one[1] > last]
        if not steps or steps[0][2] != fault.size:
            raise RuntimeError(f"{fault.name}: {steps[0][2] if steps else 'no'} ranks went on, not {fault.size}")
        seconds[fault.name] = steps[0][0] - begin - usual
    return seconds


def median_step(steps: Sequence[tuple[float, int, int]], last: int) -> float:
    """Seconds of a step, up to this one: from the end of one, at the first rank that tells it, to that of the next."""
    ends: dict[int, float] = {}
    for at, step, _ in steps:
        ends.setdefault(step, at)
    return statistics.median(ends[step] - ends[step - 1] for step in ends if step <= last and step - 1 in ends)


def moment(folder: Path, number: int, fault: Fault, steps: Sequence[tuple[float, int, int]]) -> tuple[float, int]:
    """When a fault happens, and in which step.

    `steps` are those since the fault before it: when a rank has ended which one, and of how many ranks.
    """
    if fault.how in PLANNED:
        before = list(itertools.takewhile(lambda one: one[2] == fault.of, steps))
        return before[-1][0], before[-1][1]
    notes = [path.read_text().split() for path in folder.glob(f"fault-{number}-*")]
    return max(float(at) for at, _ in notes), max(int(step) for _, step in notes)


def measure(job: str, number: int) -> dict[str, float]:
    """Seconds of each fault of one job. Raises RuntimeError if it did not end well."""
    make_faults, options = JOBS[job]
    faults = make_faults(number)
    words = [sys.executable, "-m", "tfdist.launch", "-np", str(faults[0].of), *options]
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        (folder / PLAN).write_text(json.dumps([asdict(fault) for fault in faults]))
        (folder / "hosts").write_text(
            f"{NEAR}:2\n{FAR}:2\n" if job.endswith("-host") else f"localhost:{faults[0].of}\n"
        )
        path = os.environ["PATH"]
        if job.endswith("-host"):
            stack.enter_context(two_hosts.hosts(MEGABITS))
            words, path = inside(folder, words)
        with (folder / "output").open("w") as output:
            started = subprocess.Popen(
                [*words, sys.executable, str(Path(__file__).resolve()), "--train"],
                cwd=folder,
                env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "PATH": path},
                stdout=output,
                stderr=output,
            )
            with ending(started):
                for place, fault in enumerate(faults):
                    if fault.how in LOSSES:
                        lose_host(folder, place, fault, cut=job.startswith("cut"))
                started.wait(SECONDS)
        if started.returncode != 0:
            raise RuntimeError((folder / "output").read_text()[-4000:])
        return standstills(folder, faults)


@contextlib.contextmanager
def ending(started: subprocess.Popen[bytes]) -> Iterator[None]:
    """Whatever happens, the job has ended afterwards."""
    try:
        yield
    finally:
        if started.poll() is None:
            started.terminate()
            started.wait(60)


def inside(folder: Path, words: Sequence[str]) -> tuple[list[str], str]:
    """The launcher on the first host, and a PATH where its ssh starts agents on the second one.

    Linux gives each session a share of the cores (autogroup), and one that has just begun a tenth of it, where a host
    would have cores of its own. So that newcomers can import beside ranks that train, the second host's counts more.
    """
    ssh = folder / "bin" / "ssh"
    ssh.parent.mkdir()
    far = two_hosts.namespace(two_hosts.HOSTS[1])
    ssh.write_text(
        "#!/bin/sh\necho -10 > /proc/self/autogroup\n"
        'while [ "${1#-}" != "$1" ]; do case $1 in -o|-p|-i) shift ;; esac; shift; done\nshift\n'
        f'exec ip netns exec {far} unshare --uts --mount sh -c "hostname far && mount -t tmpfs tmpfs /dev/shm && $*"\n'
    )
    ssh.chmod(0o755)
    near = two_hosts.namespace(two_hosts.HOSTS[0])
    return ["ip", "netns", "exec", near, *words], f"{ssh.parent}{os.pathsep}{os.environ['PATH']}"


def lose_host(folder: Path, number: int, fault: Fault, cut: bool) -> None:
    """Kills all that runs on the second host, or takes its link away, when all ranks have come to that step."""
    until(lambda: len(list(folder.glob(f"fault-{number}-*"))) == len(fault.ranks), "the ranks")
    far = two_hosts.namespace(two_hosts.HOSTS[1])
    note_at = folder / f"fault-{number}-host"
    if cut:
        note_at.write_text(f"{time.time()!r} 0")
        two_hosts.run("ip", "-n", far, "link", "set", two_hosts.LINK, "down")
    else:
        found = subprocess.run(["ip", "netns", "pids", far], capture_output=True, text=True, check=True).stdout.split()
        note_at.write_text(f"{time.time()!r} 0")
        for signum in (signal.SIGSTOP, signal.SIGKILL):  # those that are killed last must not tell of the first
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signum)
    (folder / go(number)).touch()


def rows(seconds: Mapping[str, Sequence[float]]) -> list[list[str]]:
    """The cells of the table. p95 is the least that at least 95 of 100 rounds do not exceed (nearest rank)."""
    return [
        [name, str(len(of)), *(f"{value:.3f}" for value in (statistics.median(of), percentile(of, 95), max(of)))]
        for name, of in seconds.items()
    ]


def percentile(values: Sequence[float], percent: int) -> float:
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=20, metavar="N", help="of each job (default: %(default)s)")
    options.add_argument("--only", choices=JOBS, action="append", help="this job; may be given again (default: all)")
    options.add_argument("--horovod-python", metavar="PYTHON", help="of an environment with Horovod: README.md")
    options.add_argument("--json", type=Path, metavar="FILE", help="write each round's seconds there as well")
    options.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    known = options.parse_args()
    if known.train:
        train()
        return
    jobs = [job for job in known.only or JOBS if os.geteuid() == 0 or not job.endswith("-host")]
    jobs += [HOROVOD] if known.horovod_python else []
    seconds: dict[str, list[float]] = {}
    for number in range(known.rounds):
        for job in jobs:
            found = measure(job, number) if job in JOBS else measure_horovod(known.horovod_python)
            for name, value in found.items():
                seconds.setdefault(name, []).append(value)
                print(f"round {number + 1} of {known.rounds}: {name}: {value:.3f} s", flush=True)
        if known.json:
            known.json.write_text(json.dumps(seconds, indent=1))
    print("", table.markdown(["fault", "rounds", "p50, s", "p95, s", "max, s"], rows(seconds)), sep="\n")


if __name__ == "__main__":
    main()
