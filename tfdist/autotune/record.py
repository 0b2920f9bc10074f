"""The records of autotuning: the CSV log of its samples, the JSON result for later jobs, and the report for people."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from tfdist import config
from tfdist.autotune.search import Rival, Verdict
from tfdist.errors import ConfigError, StoreError
from tfdist.native.knobs import KIB, SHARED_CHUNKS, Setting
from tfdist.storage import mirror, reading
from tfdist.system.atomic_file import write_atomically
from tfdist.system.local_path import address_of, local_path
from tfdist.system.terminal.text_table import aligned

_FIELDS = tuple(field.name for field in fields(Setting))
COLUMNS = ("sample", "phase", *_FIELDS, "step_ms")
# The setting of tfdist that each field stands for, in `tfdist.config`.
_CONFIG_FIELDS = {
    "fusion_threshold": "fusion_threshold",
    "chunk": "shared_memory",
    "compression": "compression",
    "thread": "communication_thread",
    "hierarchy": "hierarchical_allreduce",
}


class Log:
    """A CSV file with one row per sample, written immediately.

    Args:
        path: The file, or an address in an object store; an existing one is replaced.

    Raises:
        ConfigError: If it cannot be written.
    """

    def __init__(self, path: str | Path) -> None:
        address = address_of(path)
        if address is None:
            self._path = local_path(path, "the log of autotuning")
        else:
            self._path = _copy_of(address)
        self._rows = 0
        self._write(COLUMNS, "w")

    def add(self, phase: str, setting: Setting, seconds: float) -> None:
        """Adds a sample: its phase, the setting, and the step time of the slowest rank."""
        self._rows += 1
        values = asdict(setting)
        self._write((self._rows, phase, *(values[field] for field in _FIELDS), f"{seconds * 1e3:.4f}"), "a")

    def _write(self, row: Sequence[object], mode: str) -> None:
        try:
            with self._path.open(mode, newline="", encoding="utf-8") as file:
                csv.writer(file, lineterminator="\n").writerow(row)
        except OSError as error:
            name = config.variable("autotune_log")
            raise ConfigError(
                f"{name}={self._path} cannot be written: {error}. Choose a file in an existing folder."
            ) from None


def _copy_of(address: str) -> Path:
    """The local file that is put into the store at this address."""
    folder, name = reading.split(address)
    try:
        return mirror.of(folder).folder / name
    except StoreError as error:
        raise ConfigError(f"{config.variable('autotune_log')}={address} cannot be written: {error}") from None


@dataclass(frozen=True)
class Job:
    """The job a result belongs to: in another job another setting may be the fastest.

    Attributes:
        version: Version of tfdist.
        size: Number of ranks.
        hosts: Number of hosts.
        tensors: Number of gradients.
        bytes: Total bytes of the gradients.
    """

    version: str
    size: int
    hosts: int
    tensors: int
    bytes: int


def save(path: str | Path, job: Job, setting: Setting) -> None:
    """Writes a result as JSON.

    Raises:
        ConfigError: If it cannot be written.
    """
    text = json.dumps({"job": asdict(job), "setting": asdict(setting)}, indent=2) + "\n"
    try:
        write_atomically(path, lambda file: file.write_text(text, encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{config.variable('autotune_result')}={path} cannot be written: {error}") from None


def load(path: str | Path, job: Job) -> tuple[Setting | None, str]:
    """Reads a result.

    Returns:
        The setting, or None and why it does not match this job; None and "" if there is no file yet.

    Raises:
        ConfigError: If the file is not a result.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None, ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{config.variable('autotune_result')}={path} cannot be read: {error}") from None
    try:
        document = json.loads(text)
        found, setting = Job(**document["job"]), Setting(**document["setting"])
        same_types = all(
            type(value) is type(getattr(example, name))
            for read, example in ((found, job), (setting, Setting(0, 0, "", False, "")))
            for name, value in asdict(read).items()
        )
        if not same_types:
            raise TypeError("a value has the wrong type")
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{config.variable('autotune_result')}={path} is not an autotuning result ({type(error).__name__}: "
            f"{error}). Delete it, or choose another file."
        ) from None
    wrong = [
        f"{name} is {getattr(found, name)!r} there and {value!r} here"
        for name, value in asdict(job).items()
        if getattr(found, name) != value
    ]
    return (None, "; ".join(wrong)) if wrong else (setting, "")


def report(verdict: Verdict, ranks: int) -> str:
    """The final comparison as a table, the setting kept, and the command that starts with it."""
    kept, default = verdict.kept, verdict.default
    head = ("fusion KiB", "chunk KiB", "compression", "thread", "hierarchy", "step ms", "saves", "")
    table = aligned([head, *(_row(rival, verdict) for rival in verdict.rivals)], indent="  ")
    if kept is default:
        return f"autotune: no setting beats the default by more than the noise, so the default is kept.\n{table}"
    return (
        f"autotune: steps take {kept.gain:.1%} less time than with the default.\n{table}\nTo start with this "
        f"setting:\n  {command(kept.setting, default.setting, ranks)}"
    )


def command(setting: Setting, default: Setting, ranks: int) -> str:
    """The command line that starts a job with a setting, given its default."""
    texts = {
        "fusion_threshold": str(setting.fusion_threshold),
        "chunk": str(setting.chunk * SHARED_CHUNKS),
        "compression": setting.compression,
        "thread": str(int(setting.thread)),
        "hierarchy": setting.hierarchy,
    }
    changed = [field for field in _FIELDS if getattr(setting, field) != getattr(default, field)]
    variables = [f"{config.variable(_CONFIG_FIELDS[field])}={texts[field]}" for field in changed]
    return " ".join([*variables, f"tfdistrun -np {ranks} COMMAND"])


def _row(rival: Rival, verdict: Verdict) -> tuple[str, ...]:
    setting = rival.setting
    saves = "default" if rival is verdict.default else f"{rival.gain:+.1%}"
    return (
        f"{setting.fusion_threshold / KIB:g}",
        f"{setting.chunk / KIB:g}",
        setting.compression,
        "on" if setting.thread else "off",
        setting.hierarchy,
        f"{rival.seconds * 1e3:.2f}",
        saves,
        "kept" if rival is verdict.kept else "",
    )
