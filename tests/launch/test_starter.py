"""Jobs whose ranks are started by programs in the place of jsrun and srun, which tell ranks their place as those do."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytestmark = pytest.mark.starter("mpi")

# Starts as many processes as it is told, with variables for each, and ends with the first status that is not 0.
PROGRAM = """\
#!/usr/bin/env python3
import os, subprocess, sys
words = sys.argv[1:]
if words == ["--mpi=list"]:
    sys.exit(print("pmix_v4"))
if words[-2] == "-c":
    sys.exit(print("ranks 2\\nranks 2"))
options = dict(word[2:].split("=", 1) for word in words if word.startswith("--") and "=" in word)
size = int(options.get("ntasks") or options["tasks_per_rs"])
command = words[next(place for place, word in enumerate(words) if word.startswith("/")):]
open("words", "w").write(" ".join(words))
def variables(rank):
    names = {names!r}
    values = dict(rank=rank, size=size, tasks=f"{{size}}(x1)", node=0)
    return {{name: str(values[value]) for name, value in names.items()}} | {{"PMIX_RANK": str(rank)}}
started = [subprocess.Popen(command, env=os.environ | variables(rank)) for rank in range(size)]
sys.exit(max(process.wait() for process in started))
"""
# Hydra serves the MPI of each rank by a descriptor, which its supervisor must leave open.
HYDRA = """\
#!/usr/bin/env python3
import os, socket, subprocess, sys
words = sys.argv[1:]
if words == ["--version"]:
    sys.exit(print("HYDRA build details:"))
size = int(words[words.index("-n") + 1])
command = words[next(place for place, word in enumerate(words) if word.startswith("/")):]
started = []
for rank in range(size):
    ours, theirs = socket.socketpair()
    number = theirs.fileno()
    values = dict(PMI_RANK=rank, PMI_SIZE=size, MPI_LOCALRANKID=rank, MPI_LOCALNRANKS=size, PMI_FD=number)
    environment = os.environ | {name: str(value) for name, value in values.items()}
    started.append((subprocess.Popen(command, env=environment, pass_fds=[number]), ours))
    theirs.close()
for rank, (_, ours) in enumerate(started):
    ours.settimeout(60)
    if ours.recv(9) != b"rank %d" % rank:
        sys.exit("a rank has said something else")
sys.exit(max(process.wait() for process, _ in started))
"""
STARTERS = {
    "jsrun": {
        "JSM_NAMESPACE_RANK": "rank",
        "JSM_NAMESPACE_SIZE": "size",
        "JSM_NAMESPACE_LOCAL_RANK": "rank",
        "JSM_NAMESPACE_LOCAL_SIZE": "size",
    },
    "srun": {
        "SLURM_PROCID": "rank",
        "SLURM_STEP_NUM_TASKS": "size",
        "SLURM_LOCALID": "rank",
        "SLURM_NODEID": "node",
        "SLURM_STEP_TASKS_PER_NODE": "tasks",
    },
}
JOBS = {
    "jsrun": {"LSB_JOBID": "3", "LSB_MCPU_HOSTS": "localhost 2"},
    "srun": {"SLURM_JOB_ID": "3", "SLURM_JOB_NODELIST": "localhost", "SLURM_TASKS_PER_NODE": "2"},
}
NAMES = [f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")]


def _run(launch: Any, name: str, text: str) -> Any:
    program = launch.folder / name
    program.write_text(PROGRAM.format(names=STARTERS[name]))
    program.chmod(0o755)
    launch.script(text)
    variables = JOBS[name] | {"PATH": f"{launch.folder}:{launch.environment()['PATH']}"}
    return launch.run(f"--{name}", "--verbose", "python", "rank.py", variables=variables)


@pytest.mark.parametrize("name", STARTERS)
def test_ranks_are_told_their_place(launch: Any, name: str) -> None:
    done = _run(launch, name, f"import json\nprint(json.dumps([os.environ.get(name) for name in {NAMES}]))")
    assert done.code == 0, done.stderr
    lines = sorted(done.stdout.splitlines())
    assert [json.loads(line[4:]) for line in lines] == [[str(rank), "2", str(rank), "2"] for rank in range(2)]
    assert f"tfdistrun: {name} starts the ranks: chosen by an option\n" in done.stderr
    assert "tfdistrun: 2 ranks on hosts of the allocation localhost:2, from " in done.stderr
    assert (launch.folder / "words").read_text() in done.stderr


def test_ranks_have_the_descriptor_of_hydra(launch: Any) -> None:
    program = launch.folder / "mpi" / "bin" / "mpirun"
    program.parent.mkdir(parents=True)
    program.write_text(HYDRA)
    program.chmod(0o755)
    launch.script("os.write(int(os.environ['PMI_FD']), b'rank %d' % rank)")
    done = launch.run("-np", "2", "python", "rank.py", variables={"TFDIST_MPI_HOME": str(program.parents[1])})
    assert done.code == 0, done.stderr


@pytest.mark.parametrize("name", STARTERS)
def test_failure(launch: Any, name: str) -> None:
    done = _run(launch, name, "sys.exit(7) if rank == 1 else time.sleep(1000)")
    assert done.code == 7, done.stderr
    assert "failed first: exit code 7" in done.stderr


def test_starter_that_fails(launch: Any) -> None:
    program = launch.folder / "jsrun"
    program.write_text("#!/bin/sh\necho jsrun: no resources >&2\nexit 4\n")
    program.chmod(0o755)
    variables = JOBS["jsrun"] | {"PATH": f"{launch.folder}:{launch.environment()['PATH']}"}
    done = launch.run("--jsrun", "true", variables=variables)
    assert done.code == 1
    assert "[jsrun] jsrun: no resources\ntfdistrun: jsrun exited before all ranks did\n" in done.stderr
    assert "jsrun's exit status was 4" in done.stderr
    assert "ssh" not in done.stderr
