"""Runs between the launcher and mpirun, and terminates everything if the launcher is killed.

mpirun cannot do that: on SIGTERM it kills the supervisors while they still terminate what their ranks have started. Nor
does it clean up if it is killed: it leaves a folder named after its process id, because of which a later mpirun with
the same id refuses to start. In a restarted container, ids repeat soon. So every mpirun gets its own folder
(`job_folder`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

if not __package__:
    # At the end, so that packages installed next to tfdist do not shadow the standard library.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))

from tfdist.launch.start import job_folder
from tfdist.launch.wire.ticket import JOB_VARIABLE
from tfdist.protocol.commit_file import is_private
from tfdist.protocol.member import backup
from tfdist.system.process import adopt_orphans, before_exec, descendants, end_descendants, signal_pipe

# The supervisors see the launcher's connection close, and clean up; mpirun exits, and cleans up, after them.
_THEMSELVES_S = 3.0
# The same if they write commits to a disk.
_BACKUP_S = 60.0
_PATIENCE_S = 0.5
_POLL_S = 0.02


def watch(mpirun: subprocess.Popen[bytes], signals: int, launcher: int) -> bool:
    """Waits for mpirun, passing on SIGTERM; False if the launcher exited first."""
    while mpirun.poll() is None:
        for signum in os.read(signals, 64):
            if signum == signal.SIGTERM:
                mpirun.terminate()
        if os.getppid() != launcher:
            return False
    return True


def main() -> int:
    launcher = os.getppid()
    adopt_orphans()
    signals = signal_pipe((signal.SIGCHLD, signal.SIGHUP, signal.SIGTERM))
    job, words = os.environ[JOB_VARIABLE], sys.argv[1:]
    folder = job_folder.session(job)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:  # of the guard of those that these ranks join
        if not is_private(folder, 0o077):
            raise
    try:
        prepare = before_exec(signal.SIGTERM, own_session=False)
        variables = {**os.environ, **job_folder.session_variables(folder, words, os.environ)}
        mpirun = subprocess.Popen(words, env=variables, preexec_fn=prepare)  # noqa: PLW1509  (one thread)
        if watch(mpirun, signals, launcher):
            return mpirun.returncode if mpirun.returncode >= 0 else 128 - mpirun.returncode
        deadline = time.monotonic() + (_THEMSELVES_S if backup(os.environ) is None else _BACKUP_S)
        while descendants(os.getpid()) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            mpirun.poll()
        end_descendants(os.getpid(), _PATIENCE_S)
    finally:
        job_folder.remove(job)
    return 1


if __name__ == "__main__":
    sys.exit(main())
