"""The `tfdist completion` command: prints a script that completes tfdist and tfdistrun in a shell. shtab writes it."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from types import ModuleType

from tfdist.command.main import COMMANDS
from tfdist.errors import ConfigError
from tfdist.launch.option import option
from tfdist.system.terminal.command_line import Parser

SHELLS = ("bash", "zsh", "fish")
_DESCRIPTION = """\
Prints a script that completes the commands, options and files of tfdist and tfdistrun. To use it in every new shell:

  bash:  echo 'eval "$(tfdist completion bash)"' >> ~/.bashrc
  zsh:   echo 'eval "$(tfdist completion zsh)"' >> ~/.zshrc      after the line with compinit
  fish:  tfdist completion fish > ~/.config/fish/conf.d/tfdist.fish
"""
_RUN = "run"


def main(words: Sequence[str]) -> int:
    """Prints the script; returns 0.

    Raises:
        ConfigError: If shtab is not installed.
    """
    shell = parser().parse_args(words).shell
    try:
        import shtab  # few need it: an extra
    except ImportError:
        raise ConfigError(
            "needs the package shtab, the extra `completion` of tfdist; install it with: pip install shtab"
        ) from None
    print(*(shtab.complete(parser, shell) for parser in (_tfdistrun(shtab), _tfdist(shtab))), sep="\n")
    return 0


def parser() -> argparse.ArgumentParser:
    """The options."""
    parser = Parser(prog="tfdist completion", description=_DESCRIPTION)
    parser.add_argument("shell", choices=SHELLS, help="the shell to write for")
    return parser


def _tfdistrun(shtab: ModuleType) -> argparse.ArgumentParser:
    """Its options, and files as the user's command."""
    made = option.parser()
    made.add_argument("command", nargs="*")
    return _with_files(made, shtab)


def _tfdist(shtab: ModuleType) -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="tfdist")
    commands = top.add_subparsers()
    for name, command in COMMANDS.items():
        inner = _tfdistrun(shtab) if name == _RUN else importlib.import_module(command.module).parser()
        commands.add_parser(name, help=command.summary, parents=[_with_files(inner, shtab)], add_help=False)
    return top


def _with_files(parser: argparse.ArgumentParser, shtab: ModuleType) -> argparse.ArgumentParser:
    """Completes the values that are files or folders, in the commands below it too."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                _with_files(below, shtab)
        elif action.metavar == "DIR":
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif action.metavar == "FILE" or action.dest == "command":
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    return parser
