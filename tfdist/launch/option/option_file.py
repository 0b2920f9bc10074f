"""Options of tfdistrun from a YAML file: its text as words of a command line. Pure; no option is known here by name."""

from __future__ import annotations

import argparse
import difflib
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from tfdist.errors import ConfigError

# Horovod's sections, and what precedes the name of an option inside them.
_SECTIONS = {
    "params": "",
    "library-options": "",
    "autotune": "autotune-",
    "logging": "log-",
    "stall-check": "stall-check-",
    "timeline": "timeline-",
}
# What has no sense in a file.
_OF_THE_COMMAND_LINE = ("help", "version", "check_build", "config_file")


def read(text: str, path: str, options: Mapping[str, argparse.Action]) -> dict[str, list[str]]:
    """The words that the options of a file are on a command line, by their names.

    Args:
        text: YAML: a mapping of long option names, with - or _, to values. Sections of Horovod's files may be in it.
        path: Of the file, for messages.
        options: The options there are, by their names.

    Raises:
        ConfigError: For what is no YAML, no option, or no value for it.
    """
    import yaml  # a job without a file need not wait for it

    where = f"--config-file {path}"
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:  # of a date that there is not, for example
        raise ConfigError(f"{where} is not YAML: {' '.join(str(error).split())}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{where}: {type(content).__name__} found; expected options, as the line `num-proc: 4`")
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


def _flat(content: Mapping[Any, Any], known: Mapping[str, argparse.Action]) -> Iterator[tuple[str, str, Any]]:
    """Each entry as it is written, the name of its option, and its value."""
    for key, value in content.items():
        name = _hyphenated(key)
        if not isinstance(value, dict) or name not in _SECTIONS:
            yield str(key), name, value
            continue
        for part, inner in value.items():
            written = f"{key}: {part}"
            if part != "enabled":
                yield written, _SECTIONS[name] + _hyphenated(part), inner
            elif f"no-{name}" in known and isinstance(inner, bool):
                yield written, f"no-{name}", not inner
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
            raise ConfigError(f"{where}: {value!r} found; expected true or false")
        return [f"--{name}"] if value else []
    if isinstance(action.nargs, int):
        if not isinstance(value, list) or len(value) != action.nargs:
            raise ConfigError(f"{where}: {value!r} found; expected a list of {action.nargs}")
        return [f"--{name}", *(_text(where, each) for each in value)]
    if isinstance(value, list):
        parts = [_text(where, each) for each in value]
        return [f"--{name}={shlex.join(parts) if action.metavar == 'WORDS' else ','.join(parts)}"]
    if isinstance(value, int) and ":" in str(action.metavar):
        # In YAML 1:4 is a number of base 60.
        raise ConfigError(f"{where}: {value} found; expected {action.metavar} in quotes, without which YAML counts")
    return [f"--{name}={_text(where, value)}"]


def _text(where: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        shown = "nothing" if value is None else repr(value)
        raise ConfigError(f"{where}: {shown} found; expected text or a number (in quotes)")
    return str(value)
