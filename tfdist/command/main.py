"""Entry point of the `tfdist` command: the table of subcommands, and the dispatch to one of them."""

from __future__ import annotations

import difflib
import importlib
import os
import select
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tfdist import __version__
from tfdist.errors import BuildError, ConfigError
from tfdist.system import home
from tfdist.system.terminal import descriptor, screen

USAGE_ERROR = 2
BUILD_ERROR = 1
# As if killed by the signal: the reader of the output, such as `head`, has closed it.
UNREAD = 128 + signal.SIGPIPE


@dataclass(frozen=True)
class Command:
    """One subcommand: a module with `parser()` and `main(words) -> exit status`, and a line of help.

    `main` raises ConfigError for a request that it cannot fulfil.
    """

    module: str
    summary: str


COMMANDS = {
    "run": Command("tfdist.launch.command", "start a command as the ranks of a job: the same as tfdistrun"),
    "env": Command("tfdist.command.environment.command", "print the versions and settings that a bug report needs"),
    "doctor": Command(
        "tfdist.command.doctor.command", "check what works on this machine, what does not, and how to fix it"
    ),
    "data-service": Command(
        "tfdist.data_service.command", "run preprocessing in other processes and on other machines"
    ),
    "bench": Command("tfdist.command.bench.command", "time collectives and training steps, predict scaling"),
    "timeline": Command("tfdist.command.timeline.command", "merge and summarize the recordings of a job's ranks"),
    "chaos": Command("tfdist.command.chaos.command", "run a job and kill its ranks, to test its fault tolerance"),
    "agent": Command("tfdist.launch.agent.command", "offer this host to a tfdistrun on another machine"),
    "completion": Command("tfdist.command.completion", "print a script that completes these commands in a shell"),
    "image": Command("tfdist.command.image.command", "build container images from compatible releases"),
}


def main(argv: Sequence[str] | None = None, commands: Mapping[str, Command] = COMMANDS) -> int:
    """Entry point of the console script `tfdist`. Imports only the module of the requested subcommand."""
    descriptor.open_streams()
    home.fill()
    words = list(sys.argv[1:] if argv is None else argv)
    if not words:
        print(overview(commands), file=sys.stderr)
        return USAGE_ERROR
    name, *rest = words
    if name in ("-h", "--help"):
        print(overview(commands))
        return 0
    if name == "--version":
        print(f"tfdist {__version__}")
        return 0
    if name not in commands:
        _complain(f"tfdist: {_unknown(name, commands)}")
        return USAGE_ERROR
    try:
        status = int(importlib.import_module(commands[name].module).main(rest))
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        if not _is_unread():
            raise
        # Otherwise Python would try to flush the rest again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNREAD
    except ConfigError as error:
        _complain(f"tfdist {name}: {error}")
        return USAGE_ERROR
    except BuildError as error:
        _complain(f"tfdist {name}: {error}")
        return BUILD_ERROR


def _complain(text: str) -> None:
    print(screen.labelled(text, screen.ERROR), file=sys.stderr)


def _is_unread() -> bool:
    """Whether our output was closed by its reader, as opposed to a connection of the subcommand."""
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)
    return any(events & select.POLLERR for _, events in output.poll(0))


def overview(commands: Mapping[str, Command]) -> str:
    """What `tfdist --help` shows."""
    width = max(map(len, commands))
    lines = [f"  {name:<{width}}  {command.summary}" for name, command in commands.items()]
    return "\n".join(["usage: tfdist COMMAND ...", "", *lines, "", "tfdist COMMAND --help explains a command."])


def _unknown(name: str, commands: Mapping[str, Command]) -> str:
    near = difflib.get_close_matches(name, list(commands), n=1, cutoff=0.6)
    advice = f"did you mean {near[0]}?" if near else f"the commands are {', '.join(commands)}; see tfdist --help"
    return f"{name}: no such command; {advice}"
