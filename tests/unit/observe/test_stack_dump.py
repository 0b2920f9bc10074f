"""SIGUSR1 prints the stacks of a process, or leaves a handler of the script alone. Each case in its own process."""

import stat
import subprocess
import sys

import pytest

from tfdist import config

# Prints what `install` says, then gets the signal; `inside` is on its stack.
SCRIPT = """
import faulthandler, os, signal, sys, threading
from tfdist.observe import stack_dump
{before}
def inside():
    os.kill(os.getpid(), signal.SIGUSR1)
    print("goes on", flush=True)
print(stack_dump.install({folder!r}), flush=True)
{after}
inside()
"""
IN_A_THREAD = """
started, done = threading.Event(), threading.Event()
def other():
    started.set()
    done.wait()
threading.Thread(target=other, daemon=True).start()
started.wait()
"""
OWN = "signal.signal(signal.SIGUSR1, lambda *_: print('own handler', flush=True))"


def run(before="", after="", folder=""):
    text = SCRIPT.format(before=before, after=after, folder=folder)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "goes on" or before, done.stdout
    return done


def test_the_stacks_of_all_threads_go_to_stderr():
    done = run(after=IN_A_THREAD)
    assert done.stdout.splitlines() == ["True", "goes on"]
    assert done.stderr.count("(most recent call first):") == 2
    assert "in inside\n" in done.stderr and "in other\n" in done.stderr


def test_the_stacks_go_to_a_file_when_asked(tmp_path):
    folder = tmp_path / "new" / "stacks"
    done = run(folder=str(folder), after="print(os.uname().nodename, os.getpid())")
    _, place, _ = done.stdout.splitlines()
    (written,) = folder.iterdir()
    assert written.name == "stacks-{}-{}.txt".format(*place.split())
    assert "in inside\n" in written.read_text()
    assert done.stderr == ""


def test_installing_twice_is_installing_once():
    done = run(after="print(stack_dump.install(''))")
    assert done.stdout.splitlines() == ["True", "True", "goes on"]
    assert done.stderr.count("in inside\n") == 1


@pytest.mark.parametrize(
    ("before", "said", "printed"),
    [
        (OWN, "own handler", 0),
        ("signal.signal(signal.SIGUSR1, signal.SIG_IGN)", "goes on", 0),
        ("faulthandler.register(signal.SIGUSR1)", "goes on", 1),  # of which Python's signal module does not know
    ],
)
def test_a_handler_of_the_script_stays(before, said, printed):
    done = run(before=before)
    assert done.stdout.splitlines()[0] == "False"
    assert said in done.stdout.splitlines()
    assert done.stderr.count("in inside\n") == printed


def test_a_handler_that_the_script_sets_later_wins():
    done = run(before="pass", after=OWN)
    assert set(done.stdout.splitlines()) == {"True", "own handler", "goes on"}
    assert done.stderr == ""


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    text = f"from tfdist.observe import stack_dump; stack_dump.install({str(tmp_path / 'file')!r})"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False)
    assert "ConfigError: the stacks of this process cannot be written to" in done.stderr
    assert "TFDIST_STACK_DUMP_DIR" in done.stderr


def test_the_setting():
    assert config.read({}).stack_dump_folder == ""
    assert config.read({"TFDIST_STACK_DUMP_DIR": "/tmp/x"}).stack_dump_folder == "/tmp/x"


LINKED = """
import os, sys
from tfdist import errors
from tfdist.observe import stack_dump
folder, target = sys.argv[1:]
os.symlink(target, f"{folder}/stacks-{os.uname().nodename}-{os.getpid()}.txt")
try:
    stack_dump.install(folder)
except errors.ConfigError as error:
    print(error)
"""


def test_the_file_is_the_owners_and_no_link_of_others(tmp_path):
    run(folder=str(tmp_path / "own"))
    (file,) = (tmp_path / "own").iterdir()
    assert stat.filemode(file.stat().st_mode) == "-rw-------"
    victim = tmp_path / "victim"
    victim.write_text("as it was")
    command = [sys.executable, "-c", LINKED, str(tmp_path), str(victim)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "the stacks of this process cannot be written to" in done.stdout
    assert victim.read_text() == "as it was"
