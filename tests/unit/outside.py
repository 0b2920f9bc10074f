"""Prints what scripts rely on: public names with their signatures, options, variables, exit statuses.

    python tests/unit/outside.py > tests/unit/outside.txt
    python tests/unit/outside.py MODULE...    only the names of these

No prose: what an option is called, takes and is without being given, not what its help says.
"""

from __future__ import annotations

import argparse
import enum
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

MODULES = (
    "tfdist",
    "tfdist.callbacks",
    "tfdist.compression",
    "tfdist.config",
    "tfdist.data",
    "tfdist.data_service",
    "tfdist.elastic",
    "tfdist.errors",
    "tfdist.keras",
    "tfdist.keras.callbacks",
    "tfdist.keras.elastic",
    "tfdist.optimizer",
    "tfdist.process_sets",
    "tfdist.runtime",
    "tfdist.ray",
    "tfdist.spark",
    "tfdist.spark.store",
    "tfdist.tensorflow",
    "tfdist.tensorflow.data.compute_service",
    "tfdist.tensorflow.elastic",
    "tfdist.testing",
)
STATUSES = {
    "tfdist: usage": ("tfdist.command.main", "USAGE_ERROR"),
    "tfdist: build": ("tfdist.command.main", "BUILD_ERROR"),
    "tfdist: nobody reads": ("tfdist.command.main", "UNREAD"),
    "a rank that leaves": ("tfdist.protocol.member", "LEFT_STATUS"),
}
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def main() -> None:
    if sys.argv[1:]:
        print(*names(sys.argv[1:]), sep="\n")
        return
    for part in (names, variables, statuses, options):
        print(f"# {part.__name__}", *part(), sep="\n")


def names(modules: Iterable[str] = MODULES) -> Iterator[str]:
    """Each public name once, where it is found first; a second module that has it only says so."""
    homes: dict[int, str] = {}
    for module in modules:
        home = _module(module)
        for name in sorted(_public(home)):
            value, path = getattr(home, name), f"{module}.{name}"
            if inspect.ismodule(value):
                continue
            named = inspect.isroutine(value) or inspect.isclass(value)
            if named and homes.setdefault(id(value), path) != path:
                yield f"{path} = {homes[id(value)]}"
            else:
                yield from _described(path, value)


def _module(name: str) -> Any:
    """A submodule, or one that the package offers under a shorter name."""
    package, _, leaf = name.rpartition(".")
    offered = getattr(importlib.import_module(package), "_MODULES", {}) if package else {}
    return importlib.import_module(offered.get(leaf, name))


def _public(module: Any) -> Iterator[str]:
    offered = getattr(module, "__all__", None)
    for name in vars(module) if offered is None else offered:
        own = offered is not None or getattr(vars(module)[name], "__module__", None) == module.__name__
        if own and not name.startswith("_"):
            yield name


def _described(path: str, value: Any) -> Iterator[str]:
    if inspect.isclass(value):
        bases = ", ".join(base.__name__ for base in value.__bases__)
        signature = f"({'|'.join(value.__members__)})" if issubclass(value, enum.Enum) else _signature(value)
        yield f"{path}{signature}: {bases}"
        for name, member in sorted(vars(value).items()):
            if not name.startswith("_"):
                function = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
                yield f"{path}.{name}{_signature(function) if inspect.isroutine(function) else ''}"
    elif inspect.isroutine(value):
        yield f"{path}{_signature(value)}"
    else:
        yield f"{path}: {type(value).__name__}"


def _signature(value: Any) -> str:
    """Names and defaults; types are another matter."""
    try:
        found = inspect.signature(value)
    except ValueError:  # of a class written in C
        return "(...)"
    plain = [each.replace(annotation=inspect.Parameter.empty) for each in found.parameters.values()]
    return _ADDRESS.sub("", str(found.replace(parameters=plain, return_annotation=inspect.Signature.empty)))


def variables() -> Iterator[str]:
    from tfdist import config

    for row in config.SETTINGS:
        default = "computed" if callable(row.default) else repr(row.default)
        yield f"{row.variable} {row.horovod_variable or '-'} {row.field} {default}"


def statuses() -> Iterator[str]:
    for meaning, (module, name) in STATUSES.items():
        yield f"{meaning}: {int(getattr(importlib.import_module(module), name))}"


def options() -> Iterator[str]:
    from tfdist.command import main as tfdist
    from tfdist.launch import command as tfdistrun

    yield from _of_parser("tfdistrun", _parser_of(lambda: tfdistrun.main(["--help"])))
    yield "tfdist run = tfdistrun"
    for name in [each for each in tfdist.COMMANDS if each != "run"]:
        yield from _of_parser(f"tfdist {name}", _parser_of(lambda name=name: tfdist.main([name, "--help"])))


def _parser_of(show_help: Callable[[], object]) -> argparse.ArgumentParser:
    """The one that would print its help."""
    found: list[argparse.ArgumentParser] = []
    printing = argparse.ArgumentParser.print_help
    argparse.ArgumentParser.print_help = lambda parser, file=None: found.append(parser)  # type: ignore[method-assign]
    try:
        show_help()
    except SystemExit:
        pass
    finally:
        argparse.ArgumentParser.print_help = printing  # type: ignore[method-assign]
    return found[0]


def _of_parser(path: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    below: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            below = action.choices
            continue
        name = "|".join(action.option_strings) or f"[{action.dest}]"
        choices = f" of {'|'.join(map(str, action.choices))}" if action.choices else ""
        times = "" if action.nargs is None else f" nargs {action.nargs}"
        needed = " required" if action.required else ""
        yield f"{path} {name} {action.metavar or '-'}{choices}{times}{needed} default {action.default!r}"
    for name, each in below.items():
        yield from _of_parser(f"{path} {name}", each)


if __name__ == "__main__":
    sys.exit(main())
