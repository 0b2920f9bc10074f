"""The command `tfdist agent`: its options. `agent` does the work."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from tfdist.errors import PeerLostError
from tfdist.launch.agent.agent import WAIT_S, Post, say_on_stderr, serve
from tfdist.launch.host import core
from tfdist.protocol import key_file
from tfdist.system.terminal.command_line import Parser, address, amount, whole

FAILURE = 1
_PROGRAM = "tfdist agent"

_DESCRIPTION = """\
Offers this host to a tfdistrun on another machine, which then starts ranks here. It needs no ssh and no MPI: the agent
and the ranks' supervisors dial the launcher. When they start, the ranks of all hosts connect with each other, at any
free port. Either side may be started first.

  1. make a key, on one machine, and copy it to the others, mode 0600:
       (umask 077; python -c "import secrets; print(secrets.token_hex(32))" > job.key)
  2. where the job is started:
       tfdistrun --agents 2 --listen node1:4000 --key-file job.key -np 8 python train.py
  3. on each host that runs ranks:
       tfdist agent --launcher node1:4000 --key-file job.key

The launcher decides what runs here, as this user: keep the key as you keep a private key of ssh. The connections are
encrypted (TLS 1.3), and both ends prove that they have the key. The ranks get the launcher's working folder, if this
host has it, and some of its variables (tfdistrun --export adds others). Their output appears at the launcher.
"""

_EPILOG = """\
exit status: that of the job; 1 if no launcher was there in time or it vanished; 2 for an error in the options, another
key or another version of tfdist. Ctrl-C and SIGTERM end the ranks of this host, and with them the job; those of an
elastic job leave at their next commit, and the others continue. Whatever happens, no process of the job is left here.
"""


def main(words: Sequence[str]) -> int:
    """Runs an agent.

    Returns:
        Its exit status.

    Raises:
        ConfigError: If an option is invalid, or the launcher has another key or version.
    """
    known = parser().parse_args(words)
    key = key_file.read(known.key_file, "--key-file")
    slots = known.slots or core.available().count
    say = say_on_stderr(_PROGRAM)
    try:
        return serve(Post(known.launcher, key, known.name or os.uname().nodename, slots, known.wait), say)
    except PeerLostError as error:
        say(str(error))
        return FAILURE


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = Parser(prog=_PROGRAM, description=_DESCRIPTION, epilog=_EPILOG)
    made.add_argument(
        "--launcher", type=address, required=True, metavar="HOST:PORT", help="what tfdistrun has in --listen"
    )
    made.add_argument("--key-file", required=True, metavar="FILE", help="a file with the key, which only you can read")
    made.add_argument(
        "--slots",
        type=whole("a number of ranks", 1),
        metavar="N",
        help="how many ranks this host may run (default: one for each physical core)",
    )
    made.add_argument(
        "--name",
        metavar="NAME",
        help="how the launcher calls this host (default: its host name, which in a container is a random one)",
    )
    made.add_argument(
        "--wait",
        type=amount("seconds"),
        default=WAIT_S,
        metavar="SECONDS",
        help="how long to wait for the launcher (default: %(default)g)",
    )
    return made
