"""Reads tfdistrun options from a YAML file as command-line arguments, and writes arguments as such a file."""

from __future__ import annotations

import argparse
import difflib
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfdist.errors import ConfigError

# Horovod's sections, and the prefix of the option names inside them.
_SECTIONS = {
    "params": "",
    "library-options": "",
    "autotune": "autotune-",
    "logging": "log-",
    "stall-check": "stall-check-",
    "timeline": "timeline-",
}
# Options that make no sense in a file.
_OF_THE_COMMAND_LINE = ("help", "version", "check_build", "config_file", "no_config", "print_config")
_HEADER = "# Options of tfdistrun. It finds them in ./tfdist.yaml, or by --config-file.\n"
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")


def read(text: str, where: str, options: Mapping[str, argparse.Action]) -> dict[str, list[str]]:
    """The command-line arguments for the options of a file, by option name.

    Args:
        text: YAML: a mapping of long option names, with - or _, to values. It may contain Horovod's sections.
        where: What messages call the file.
        options: The known options, by name.

    Raises:
        ConfigError: If it is not YAML, or contains an unknown option or an invalid value.
    """
    import yaml  # slow to import, and needed only with a file

    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:  # for example, of an impossible date
        raise ConfigError(f"{where} is not YAML: {' '.join(str(error).split())}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{where}: found {type(content).__name__}; expected options, such as the line `num-proc: 4`")
    known = {
        name.removeprefix("--"): action
        for name, action in options.items()
        if name.startswith("--") and action.dest not in _OF_THE_COMMAND_LINE
    }
    found: dict[str, list[str]] = {}
    dests: dict[str, str] = {}
    for key, name, value in _flat(content, known):
        if name not in known:
            raise ConfigError(f"{where}: {key}: no such option; {_advice(name, known, options)}")
        action = known[name]
        if action.dest in dests:
            raise ConfigError(f"{where}: {key} and {dests[action.dest]} are the same option; give it once")
        dests[action.dest] = key
        found[f"--{name}"] = _words(f"{where}: {key}", name, value, action)
    return found


def write(words: Sequence[str], options: Mapping[str, argparse.Action]) -> str:
    """The YAML file that gives the same options.

    Args:
        words: The arguments; a value is joined to its option by `=`, several follow it. Of those that exclude each
            other, the last one counts.
        options: The known options, by name.

    Raises:
        ConfigError: If there are none.
    """
    import yaml

    found: dict[str, tuple[str, Any]] = {}
    rest = list(words)
    while rest:
        option, equals, value = rest.pop(0).partition("=")
        action = options[option]
        if action.dest in _OF_THE_COMMAND_LINE:
            continue
        name = next(each for each in action.option_strings if each.startswith("--")).removeprefix("--")
        given: Any = True
        if isinstance(action.nargs, int) and action.nargs:
            given = [_number(rest.pop(0)) for _ in range(action.nargs)]
        elif equals:
            given = _number(value)
        if isinstance(action, argparse._AppendAction) and action.dest in found:
            given = f"{found[action.dest][1]},{given}"
        found[action.dest] = (name, given)
    if not found:
        raise ConfigError(
            "--print-config received no options to print; give them, as in: tfdistrun -np 2 --print-config"
        )
    return _HEADER + str(yaml.safe_dump(dict(found.values()), sort_keys=False, allow_unicode=True))


def _number(text: str) -> int | str:
    return int(text) if _NUMBER.fullmatch(text) else text


def _flat(content: Mapping[Any, Any], known: Mapping[str, argparse.Action]) -> Iterator[tuple[str, str, Any]]:
    """Each entry as written in the file, the name of its option, and its value."""
    for key, value in content.items():
        name = _hyphenated(key)
        if not isinstance(value, dict) or name not in _SECTIONS:
            yield str(key), name, value
            continue
        for part, inner in value.items():
            written = f"{key}: {part}"
            if part != "enabled":
                yield written, _SECTIONS[name] + _hyphenated(part), inner
            elif f"no-{name}" in known and inner is False:
                yield written, f"no-{name}", True
            else:
                yield written, name, inner


def _hyphenated(key: Any) -> str:
    return str(key).replace("_", "-")


def _advice(name: str, known: Mapping[str, argparse.Action], options: Mapping[str, argparse.Action]) -> str:
    if (short := options.get(f"-{name}")) is not None:
        return f"did you mean {short.dest.replace('_', '-')}?"
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else "all options: tfdistrun --help"


def _words(where: str, name: str, value: Any, action: argparse.Action) -> list[str]:
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise ConfigError(f"{where}: found {value!r}; expected true or false")
        return [f"--{name}"] if value else []
    if isinstance(action.nargs, int):
        if not isinstance(value, list) or len(value) != action.nargs:
            raise ConfigError(f"{where}: found {value!r}; expected a list of {action.nargs}")
        return [f"--{name}", *(_text(where, each) for each in value)]
    if isinstance(value, list):
        parts = [_text(where, each) for each in value]
        return [f"--{name}={shlex.join(parts) if action.metavar == 'WORDS' else ','.join(parts)}"]
    if isinstance(value, int) and ":" in str(action.metavar):
        # In YAML 1:4 is a number of base 60.
        raise ConfigError(
            f"{where}: found {value}; expected {action.metavar} in quotes, otherwise YAML reads it as a number"
        )
    return [f"--{name}={_text(where, value)}"]


def _text(where: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        shown = "nothing" if value is None else repr(value)
        raise ConfigError(f"{where}: found {shown}; expected text or a number (in quotes)")
    return str(value)
