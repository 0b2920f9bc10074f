"""Times allreduce between two hosts of two ranks each, beside what their wire allows, and writes docs/performance.md.

The hosts are network namespaces of this machine with a host name and a /dev/shm of their own; between them is a link
that is shaped to a bandwidth in each direction. Needs root, and `ip` and `tc` (Debian: iproute2).

    python benchmarks/two_hosts.py
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import document

from tfdist.command.bench.measure import machine, size, table

HOSTS = ("left", "right")
RANKS_A_HOST = 2
TRANSPORTS = ("MPI", "sockets")
LINK = "tfdist-link"
DEADLINE_S = 900
AGENT = """\
#!/bin/sh
# In the place of ssh. Called as: agent OPTIONS HOST COMMAND...
while [ "${1#-}" != "$1" ]; do case $1 in -o|-p|-i) shift ;; esac; shift; done
host=$1; shift
exec ip netns exec tfdist-$host unshare --uts --mount sh -c \\
  "hostname $host && mount -t tmpfs tmpfs /dev/shm && $*"
"""


def namespace(host: str) -> str:
    return f"tfdist-{host}"


def run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode != 0:
        sys.exit(f"two_hosts: {shlex.join(words)}: {done.stderr.strip()}")


@contextlib.contextmanager
def hosts(megabits: int) -> Iterator[None]:
    """Two namespaces and the link between them, for as long as the context lasts."""
    made: list[str] = []
    try:
        for host in HOSTS:
            run("ip", "netns", "add", namespace(host))
            made.append(namespace(host))
        run(*f"ip link add {LINK} netns {made[0]} type veth peer name {LINK} netns {made[1]}".split())
        for number, name in enumerate(made, start=1):
            for words in (
                f"ip address add 10.77.0.{number}/24 dev {LINK}",
                f"ip link set {LINK} up",
                "ip link set lo up",
                f"tc qdisc add dev {LINK} root tbf rate {megabits}mbit burst 256kb latency 50ms",
            ):
                run("ip", "netns", "exec", name, *words.split())
        yield
    finally:
        for name in made:
            run("ip", "netns", "delete", name)


def wire_seconds(size_bytes: int, megabits: int) -> float:
    """What an allreduce takes at least: each host sends (h - 1) / h of the bytes twice (Patarasuk, Yuan (2009))."""
    count = len(HOSTS)
    return 2 * (count - 1) / count * size_bytes / (megabits * 1e6 / 8)


def measure(folder: Path, transport: str, arguments: argparse.Namespace) -> tuple[list[dict[str, float]], str]:
    """The rows of `tfdist bench allreduce` over one transport, and the command that made them."""
    agent = folder / "agent.sh"
    agent.write_text(AGENT)
    agent.chmod(0o755)
    result = folder / "result.json"
    result.unlink(missing_ok=True)
    bench = f"allreduce --sizes {arguments.size} --tensors {arguments.tensors} --compression none,fp16"
    bench += f" --seconds {arguments.seconds / arguments.starts:g}"
    program = [sys.executable, "-m", "tfdist.command", "bench", *bench.split(), "--json", str(result)]
    start, shown = (by_mpirun if transport == "MPI" else by_agents)(folder, agent)
    environment = dict(os.environ) | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    environment |= {"PATH": os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])}
    environment |= {"OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [str(agent), host, shlex.join([*start, *program])],
            env=environment,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for host in (HOSTS if transport == "sockets" else HOSTS[:1])
    ]
    said = [each.communicate(timeout=DEADLINE_S)[0] for each in started]
    if any(each.returncode for each in started) or not result.exists():
        tail = "\n".join("".join(said).splitlines()[-20:])
        sys.exit(f"two_hosts: the job over {transport} ended with {[each.returncode for each in started]}:\n{tail}")
    return json.loads(result.read_text())["rows"], f"{shown} tfdist bench {bench}"


def by_mpirun(folder: Path, agent: Path) -> tuple[list[str], str]:
    """The words that start the ranks from the first host, and those for the document."""
    places = ",".join(f"{host}:{RANKS_A_HOST}" for host in HOSTS)
    words = [
        *("mpirun", "-np", str(RANKS_A_HOST * len(HOSTS)), "--host", places, "--bind-to", "none"),
        *("--prtemca", "plm_ssh_agent", str(agent), "--prtemca", "prte_keep_fqdn_hostnames", "1"),
        *("--prtemca", "prte_if_include", LINK, "--mca", "btl_tcp_if_include", LINK, "--mca", "btl", "self,sm,tcp"),
        *("-x", "OMP_NUM_THREADS=1"),
    ]
    return words, f"mpirun -np {RANKS_A_HOST * len(HOSTS)} --host {places}"


def by_agents(folder: Path, agent: Path) -> tuple[list[str], str]:
    """The same, as the same command on each host."""
    key = folder / "key"
    key.write_text("k" * 64)
    key.chmod(0o600)
    nodes = f"--nodes {len(HOSTS)} --rendezvous 10.77.0.1:29500"
    words = ["tfdistrun", "-np", str(RANKS_A_HOST * len(HOSTS)), *nodes.split(), "--key-file", str(key)]
    return words, f"tfdistrun -np {RANKS_A_HOST * len(HOSTS)} {nodes} --key-file KEY"


def section(
    found: dict[str, list[list[dict[str, float]]]], commands: Sequence[str], arguments: argparse.Namespace
) -> str:
    """The text of the document."""
    head = "100 MB float32 between 2 hosts|transport|median, ms|least, ms|wire, ms|median / wire|of float32|of MPI"
    head = head.replace("100 MB", size.show(size.parse(arguments.size)))
    medians = {
        (transport, row["compression"]): [start[place]["median_us"] for start in starts]
        for transport, starts in found.items()
        for place, row in enumerate(starts[0])
    }
    cells = []
    for (transport, compression), values in medians.items():
        wire = wire_seconds(size.parse(arguments.size), arguments.megabits) * 1e3
        wire /= 1 if compression == "none" else 2
        median = statistics.median(values) / 1e3
        least = min(row["min_us"] for start in found[transport] for row in start if row["compression"] == compression)
        whole, over_mpi = (
            statistics.median(medians[other]) / 1e3 for other in ((transport, "none"), ("MPI", compression))
        )
        ratios = [f"{median / wire:.2f}", f"{median / whole:.2f}", f"{median / over_mpi:.2f}"]
        cells.append([str(compression), transport, f"{median:.0f}", f"{least / 1e3:.0f}", f"{wire:.0f}", *ratios])
    facts = document.lines_of(machine.describe())
    how = f"Two network namespaces of 2 ranks each, a link of {arguments.megabits} Mbit/s in each direction (tbf), "
    how += f"{arguments.starts} starts of each transport in turn: medians of their medians. "
    how += (
        "`wire`: 2 (h - 1) / h x bytes / rate for h hosts, of the bytes that travel without the heads of packets (5 %)."
    )
    own = f"python benchmarks/two_hosts.py --size {arguments.size} --tensors {arguments.tensors}"
    own += f" --megabits {arguments.megabits} --seconds {arguments.seconds:g} --starts {arguments.starts}"
    shown = ["```", own, *(f"  {command}" for command in commands), "```"]
    return "\n".join(
        [*facts, f"- date: {document.today()}", "", how, "", *shown, "", table.markdown(head.split("|"), cells)]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="100MB", help="default: %(default)s")
    parser.add_argument("--tensors", type=int, default=160, help="default: %(default)s")
    parser.add_argument("--megabits", type=int, default=1000, help="the link, Mbit/s (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each transport (default: %(default)s)")
    parser.add_argument("--starts", type=int, default=3, help="of each transport, in turn (default: %(default)s)")
    parser.add_argument("--document", type=Path, default=document.PERFORMANCE)
    arguments = parser.parse_args()
    missing = [program for program in ("ip", "tc", "unshare", "mpirun") if shutil.which(program) is None]
    if missing or os.geteuid() != 0:
        sys.exit(f"two_hosts: needs root and the programs ip, tc, unshare and mpirun; missing: {missing or 'root'}")
    document.replaced(arguments.document.read_text(), "two hosts", "")  # before the work, not after it
    found: dict[str, list[list[dict[str, float]]]] = {transport: [] for transport in TRANSPORTS}
    commands = {}
    with tempfile.TemporaryDirectory() as folder, hosts(arguments.megabits):
        for start in range(arguments.starts):
            for transport in TRANSPORTS:
                print(f"two_hosts: start {start + 1} of {arguments.starts}, {transport} ...", flush=True)
                rows, commands[transport] = measure(Path(folder), transport, arguments)
                found[transport].append(rows)
    text = section(found, list(commands.values()), arguments)
    document.write(arguments.document, "two hosts", text)
    print(text, f"\nwritten to {arguments.document}", sep="\n")


if __name__ == "__main__":
    main()
