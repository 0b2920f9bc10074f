"""Stands between the launcher and mpirun, and ends all when the launcher is killed. It decides nothing of a job.

mpirun cannot do that: told to end, it kills the supervisors while they still end what their ranks have started. Nor
does it tidy up when it is killed: it leaves a folder named by its process id, and a later mpirun of that id refuses to
start because of it. In a container that is started again, ids repeat soon. So every mpirun gets a folder of its own
(`job_folder`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

if not __package__:
    # At the end, so that whatever is installed beside tfdist does not shadow the standard library.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))

from tfdist.launch.start import job_folder
from tfdist.launch.wire.ticket import JOB_VARIABLE
from tfdist.protocol.member import backup
from tfdist.system.process import adopt_orphans, before_exec, descendants, end_descendants, signal_pipe

# The supervisors see the launcher's connection end, and tidy up; mpirun ends, and tidies up, when they have gone.
_THEMSELVES_S = 3.0
# The same where they write commits to a disk.
_BACKUP_S = 60.0
_PATIENCE_S = 0.5
_POLL_S = 0.02


def watch(mpirun: subprocess.Popen[bytes], signals: int, launcher: int) -> bool:
    """Waits for mpirun, passing on SIGTERM; False if the launcher ended first."""
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
    folder.mkdir(mode=0o700)
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
