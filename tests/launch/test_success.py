"""Jobs that end well: what is printed, written, and handed to the ranks."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from typing import Any

import pytest


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_output_is_prefixed_by_rank(launch: Any, ranks: int) -> None:
    launch.script("print(f'out {rank * 7}')\nprint(f'err {rank * 5}', file=sys.stderr)\nprint('end', end='')")
    done = launch.run("-np", str(ranks), "python", "rank.py")
    assert done.code == 0, done.stderr
    lines = [line for rank in range(ranks) for line in (f"[{rank}] out {rank * 7}", f"[{rank}] end")]
    assert sorted(done.stdout.splitlines()) == sorted(lines)
    errors = [line for line in done.stderr.splitlines() if line.startswith("[")]
    assert sorted(errors) == [f"[{rank}] err {rank * 5}" for rank in range(ranks)]


def test_lines_of_many_ranks_stay_whole(launch: Any) -> None:
    launch.script("for number in range(3000): print(str(rank) * 60, number)")
    done = launch.run("-np", "3", "python", "rank.py")
    assert done.code == 0
    lines = done.stdout.splitlines()
    assert len(lines) == 9000
    assert all(re.fullmatch(r"\[(\d)\] \1{60} \d+", line) for line in lines)


def test_slow_reader_breaks_no_line(launch: Any, wait_until: Any) -> None:
    launch.script("for number in range(150000): print(str(rank) * 60, number)\nopen(f'up{rank}', 'w').close()")
    job = launch.start("-np", "2", "python", "rank.py")
    # Longer than a pause after which an unfinished line would be shown; nobody reads meanwhile.
    with pytest.raises(subprocess.TimeoutExpired):
        job.wait(timeout=2)
    assert launch.files("up*") == []
    done = launch.end(job)
    assert done.code == 0
    lines = done.stdout.splitlines()
    assert len(lines) == 300000
    assert all(re.fullmatch(r"\[(\d)\] \1{60} \d+", line) for line in lines)


def test_large_output_comes_complete(launch: Any) -> None:
    launch.script("for number in range(200): sys.stdout.write('x' * 99999 + '\\n')")
    done = launch.run("-np", "1", "python", "rank.py")
    assert done.stdout.replace("[0] ", "") == ("x" * 99999 + "\n") * 200


@pytest.mark.starter("mpi")
def test_environment_of_a_service(launch: Any) -> None:
    """Hardly any, as of `env -i`, cron and systemd: Open MPI ends without HOME."""
    launch.script("from mpi4py import MPI\nprint(MPI.COMM_WORLD.allreduce(rank), os.path.isdir(os.environ['HOME']))")
    bare = ("env", "-i", *(f"{name}={value}" for name, value in launch.environment().items() if "LAUNCH_TEST" in name))
    done = launch.end(launch.start("-np", "2", sys.executable, "rank.py", inside=bare))
    assert done.code == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] 1 True", "[1] 1 True"]


@pytest.mark.starter("mpi")
def test_mpi_ranks_meet(launch: Any) -> None:
    launch.script("from mpi4py import MPI\nprint(MPI.COMM_WORLD.allreduce(3 ** MPI.COMM_WORLD.rank))")
    done = launch.run("-np", "3", "python", "rank.py")
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] 13" for rank in range(3)]
    assert done.code == 0


def test_early_exit_with_zero_is_no_failure(launch: Any) -> None:
    launch.script(
        "if rank == 0:\n"
        "    while not os.path.exists('bye'): time.sleep(0.01)\n"
        "else:\n"
        "    import atexit; atexit.register(lambda: open('bye', 'w').close())\n"
    )
    assert launch.run("-np", "2", "python", "rank.py").code == 0


def test_arguments_arrive_unchanged(launch: Any) -> None:
    launch.script("import json\nprint(json.dumps(sys.argv[1:]))")
    words = [":", "a b", "--np", "'\"$HOME", "-np", "é", ""]
    done = launch.run("-np", "1", "python", "rank.py", *words)
    assert json.loads(done.stdout.removeprefix("[0] ")) == words


def test_environment_of_a_rank(launch: Any) -> None:
    launch.script("import json\nprint(json.dumps(dict(os.environ)))")
    done = launch.run("-np", "1", "--fusion-threshold-mb", "3", "python", "rank.py", variables={"TFDIST_X": "y"})
    seen = json.loads(done.stdout.removeprefix("[0] "))
    assert seen["TFDIST_LAUNCHED"] == "1"
    assert seen["TFDIST_FUSION_THRESHOLD"] == str(3 << 20)
    assert seen["TFDIST_X"] == "y"
    assert seen["TFDIST_JOB_ID"]
    assert "TFDIST_RUN_KEY" not in seen


def test_threads_are_shared_out_unless_set(launch: Any) -> None:
    launch.script("print(os.environ['TF_NUM_INTRAOP_THREADS'], os.environ['OMP_NUM_THREADS'])")
    ranks = max(2, os.cpu_count() or 1)
    clean = {"TF_NUM_INTRAOP_THREADS": "", "OMP_NUM_THREADS": "5"}
    done = launch.run("-np", str(ranks), "python", "rank.py", variables=clean)
    assert sorted(done.stdout.splitlines()) == sorted(f"[{rank}] 1 5" for rank in range(ranks))


UP = "open(f'up{rank}', 'w').write(str(os.getpid()))\nwhile not os.path.exists('go'): time.sleep(0.01)"


def _looked_at(launch: Any, wait_until: Any) -> tuple[Any, dict[int, str], dict[int, dict[str, str]]]:
    """A verbose job, and while it ran the command lines and environments of its processes."""
    launch.script(UP)
    job = launch.start("-np", "2", "--verbose", "python", "rank.py")
    wait_until(lambda: len(launch.files("up*")) == 2 and all(path.read_text() for path in launch.files("up*")))
    running = launch.processes()
    environments = {}
    for pid in running:
        with open(f"/proc/{pid}/environ") as file:
            environments[pid] = dict(pair.partition("=")[::2] for pair in file.read().split("\0"))
    (launch.folder / "go").touch()
    return launch.end(job), running, environments


def test_key_is_on_no_command_line_and_in_no_child(launch: Any, wait_until: Any) -> None:
    done, running, environments = _looked_at(launch, wait_until)
    keys = {found["TFDIST_RUN_KEY"] for found in environments.values() if "TFDIST_RUN_KEY" in found}
    assert len(keys) == 1
    key = keys.pop()
    assert len(key) == 64
    assert not any(key in command for command in running.values())
    assert key not in done.stdout + done.stderr
    children = [int(path.read_text()) for path in launch.files("up*")]
    assert all("TFDIST_RUN_KEY" not in environments[pid] for pid in children)


@pytest.mark.starter("mpi")
def test_verbose_says_what_it_runs(launch: Any, wait_until: Any) -> None:
    """To the word, with the variables that are set for it."""
    done, running, environments = _looked_at(launch, wait_until)
    words = shlex.split(done.stderr.partition("tfdistrun: running ")[2].partition("\n")[0])
    settings = dict(word.split("=", 1) for word in words if re.match(r"[A-Z]\w*=", word))
    (pid,) = (pid for pid, command in running.items() if command.split(" ") == [*words[len(settings) :], ""])
    assert settings
    assert settings.items() <= environments[pid].items()


def test_output_filename(launch: Any) -> None:
    launch.script("print('out', rank)\nprint('err', rank, file=sys.stderr)")
    done = launch.run("-np", "2", "--output-filename", "logs", "python", "rank.py")
    assert done.code == 0
    for rank in range(2):
        assert (launch.folder / f"logs/rank.{rank}/stdout").read_text() == f"out {rank}\n"
        assert (launch.folder / f"logs/rank.{rank}/stderr").read_text() == f"err {rank}\n"


def test_timestamps(launch: Any) -> None:
    launch.script("print('x')")
    done = launch.run("-np", "1", "--prefix-output-with-timestamp", "python", "rank.py")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d \[0\] x\n", done.stdout)


def test_prompt_without_newline_is_shown(launch: Any, wait_until: Any) -> None:
    launch.script("print('name? ', end='', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('bob')")
    job = launch.start("-np", "1", "python", "rank.py")
    assert job.stdout.read(10) == "[0] name? "
    (launch.folder / "go").touch()
    assert launch.end(job).stdout == "bob\n"


def test_standard_input_of_a_rank_is_empty(launch: Any) -> None:
    launch.script("print(repr(sys.stdin.read()))")
    done = subprocess.run(
        [sys.executable, "-m", "tfdist.launch", "-np", "2", "python", "rank.py"],
        cwd=launch.folder,
        input="hello",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert sorted(done.stdout.splitlines()) == ["[0] ''", "[1] ''"]


def test_process_left_by_a_rank_is_ended(launch: Any) -> None:
    launch.script("import subprocess\nsubprocess.Popen(['sleep', '1000'], start_new_session=True)")
    assert launch.run("-np", "1", "python", "rank.py").code == 0


def test_closed_stdout_does_not_end_the_job(launch: Any) -> None:
    launch.script("for number in range(20000): print(number)\nopen('done', 'w').close()")
    job = launch.start("-np", "1", "python", "rank.py")
    job.stdout.close()
    job.stdout = None
    assert launch.end(job).code == 0
    assert (launch.folder / "done").exists()


def test_launching_imports_nothing_heavy() -> None:
    heavy = "{'tensorflow', 'keras', 'numpy', 'mpi4py'}"
    code = f"import sys, tfdist.launch.command; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
