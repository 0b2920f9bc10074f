"""Jobs whose output is closed, or read slowly, or not at all; and output that is no text."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from tfdist.launch.run.console import READER_S

# Each rank writes more than its window and the pipes hold, and less than its supervisor keeps.
FLOOD = "for number in range(250): sys.stdout.write(str(rank) * 9999 + '\\n')\nsys.stdout.flush()\n"
LOST = r"the reader of stdout read nothing for 2 s after the end of the job: \d{7} bytes are lost; --output-filename"


def _start(launch: Any, redirections: str, *words: str) -> subprocess.Popen[str]:
    """A launcher whose streams the shell closes or redirects."""
    return launch.start(*words, inside=("sh", "-c", f'exec "$@" {redirections}', "sh"))


@pytest.mark.parametrize(("closed", "told"), [(">&-", True), ("<&- >&- 2>&-", False)])
def test_closed_streams(launch: Any, closed: str, told: bool) -> None:
    """As daemons and some schedulers leave them. The ranks have streams all the same."""
    launch.script(
        "print('out')\nprint('err', file=sys.stderr)\nopen(f'up{rank}', 'w').close()\n"
        "while not os.path.exists(f'up{1 - rank}'): time.sleep(0.01)\n"
        "sys.exit(rank)"
    )
    done = launch.end(_start(launch, closed, "-np", "2", "python", "rank.py"))
    assert done.code == 1
    assert len(launch.files("up*")) == 2
    assert ("[1] err" in done.stderr and "failed first: exit code 1" in done.stderr) == told
    assert ("[0] out\n" in done.stdout) == (">&-" not in closed.split())


def test_closed_streams_of_a_program_that_runs_a_function(launch: Any) -> None:
    (launch.folder / "caller.py").write_text(
        "import tfdist\n"
        "def name(): import os; print('out'); return os.environ['RANK']\n"
        "open('got', 'w').write('-'.join(tfdist.run(name, num_proc=2)))\n"
    )
    done = launch.end(launch.start(program=["caller.py"], inside=("sh", "-c", 'exec "$@" <&- >&-', "sh")))
    assert (done.code, (launch.folder / "got").read_text()) == (0, "0-1"), done.stderr


class Unread:
    """A job whose stdout nobody reads until `read`."""

    def __init__(self, launch: Any) -> None:
        self.reader, writer = os.pipe()
        self.job = launch.start("-np", "2", "python", "rank.py", stdout=writer)
        os.close(writer)

    def read(self) -> bytes:
        data = b""
        while more := os.read(self.reader, 1 << 16):
            data += more
        os.close(self.reader)
        return data


def test_reader_that_does_not_read_holds_up_no_end(launch: Any) -> None:
    launch.script(FLOOD + "open(f'end{rank}', 'w').close()")
    unread = Unread(launch)
    done = launch.end(unread.job)
    ended = max(path.stat().st_mtime for path in launch.files("end*"))
    assert done.code == 0, done.stderr
    assert time.time() - ended < READER_S + 3
    assert re.search(LOST, done.stderr), done.stderr
    assert unread.read().startswith((b"[0] 0000", b"[1] 1111"))


def test_rank_that_fails_is_noticed_though_nobody_reads(launch: Any) -> None:
    launch.script(f"if rank == 0: time.sleep(1000)\n{FLOOD}sys.exit(3)")
    unread = Unread(launch)
    done = launch.end(unread.job)
    assert (done.code, done.seconds < 15) == (3, True), done.stderr
    assert "rank 1 on " in done.stderr and "failed first: exit code 3" in done.stderr
    unread.read()


def test_job_hears_signals_though_nobody_reads(launch: Any, wait_until: Any) -> None:
    """The ranks are blocked in their output, as those of any program in a pipe."""
    launch.script(f"open(f'up{{rank}}', 'w').close()\nwhile True: {FLOOD.splitlines()[0].partition(': ')[2]}")
    unread = Unread(launch)
    wait_until(lambda: len(launch.files("up*")) == 2, what="the ranks")
    unread.job.send_signal(signal.SIGTERM)
    done = launch.end(unread.job)
    assert (done.code, done.seconds < 10) == (143, True), done.stderr
    assert "terminated by tfdistrun after SIGTERM" in done.stderr
    assert "did not answer" not in done.stderr
    unread.read()


def test_slow_reader_gets_all_after_the_end(launch: Any, wait_until: Any) -> None:
    """It reads a little now and then, and the ranks are long gone."""
    launch.script(FLOOD + "open(f'end{rank}', 'w').close()")
    unread = Unread(launch)
    wait_until(lambda: len(launch.files("end*")) == 2, what="the ends")
    data = b""
    for _ in range(8):
        threading.Event().wait(READER_S / 5)
        data += os.read(unread.reader, 1 << 14)
    data += unread.read()
    done = launch.end(unread.job)
    assert (done.code, done.stderr) == (0, "")
    lines = [b"[%d] %s" % (rank, b"%d" % rank * 9999) for rank in (0, 1) for _ in range(250)]
    assert sorted(data.splitlines()) == lines


def test_reader_that_goes_away_ends_no_job(launch: Any) -> None:
    """As `tfdistrun ... | head -1`: the job continues without that stream."""
    launch.script(
        FLOOD + FLOOD + "open(f'end{rank}', 'w').close()\n"
        "while not os.path.exists(f'end{1 - rank}'): time.sleep(0.01)\n"
        "sys.exit(rank)"
    )
    unread = Unread(launch)
    assert os.read(unread.reader, 4).startswith(b"[")
    os.close(unread.reader)
    done = launch.end(unread.job)
    assert done.code == 1
    assert len(launch.files("end*")) == 2
    assert done.stderr.count("stdout was closed by its reader: the job continues") == 1


def test_bytes_that_are_no_text(launch: Any) -> None:
    """Also where the locale and Python's own setting know ASCII alone; the last line has no end."""
    launch.script("os.write(1, b'\\xff\\x00\\n' + 'é\\n'.encode() + b'last'); os.write(2, b'\\xfe')")
    variables = {"LANG": "C", "LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    job = subprocess.Popen(
        [sys.executable, "-m", "tfdist.launch", "-np", "1", "python", "rank.py"],
        cwd=launch.folder,
        env=launch.environment() | variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = job.communicate(timeout=60)
    assert (job.returncode, out, err) == (
        0,
        "[0] \udcff\0\n[0] é\n[0] last\n".encode(errors="surrogateescape"),
        b"[0] \xfe\n",
    )
