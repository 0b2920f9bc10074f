"""`tfdist bench scale`: predicts the step on many GPUs from the recorded step of one.

It simulates one step: all ranks do the same work, each a little faster or slower than the mean, and the slowest one
determines when a bucket can start. One stream sends the buckets, one after the other.

A message of m bytes costs alpha + m / bandwidth (Hockney's model, as in Thakur, Rabenseifner, Gropp (2005),
"Optimization of collective communication operations in MPICH", section 3). The additions of a reduction are ignored: on
GPUs they overlap with the transfer. Contention between hosts is ignored too: every network card is assumed to reach
every other one at its full rate.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import ml_dtypes

from tfdist import config
from tfdist.command.bench.allreduce.case import COMPRESSIBLE, ELEMENT_BYTES
from tfdist.command.bench.measure import record, size, statistic, table
from tfdist.command.bench.measure.request import Scale
from tfdist.errors import ConfigError
from tfdist.native import library

HEAD = "GPUs,hosts,buckets,messages to agree,step ms,computing ms,communication ms,of it exposed ms,images/s".split(",")
# As in csrc/core/agree/header.h: up to so many hosts tell each other directly, more in rounds of this radix.
DIRECT_HOSTS = 8
RADIX = 4
_HEADER_BYTES = 24
_MOST_GPUS = 4096

Row = dict[str, Any]
Plan = Sequence[Sequence[int]]
# Plans buckets for tensors of these dtypes and bytes, with at most this many bytes per bucket.
Planner = Callable[[Sequence[str], Sequence[int], int], Plan]
_Read = TypeVar("_Read")


def _is_amount(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf


# The kinds of fields in a JSON file: the description used in errors, and a check.
_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "amount": ("a number, 0 or more", _is_amount),
    "rate": ("a number greater than 0", lambda value: _is_amount(value) and value > 0),
    "count": ("a whole number, 1 or more", lambda value: type(value) is int and value >= 1),
    "text": ("a string", lambda value: isinstance(value, str)),
    "dtype": (f"one of {', '.join(ELEMENT_BYTES)}", lambda value: value in list(ELEMENT_BYTES)),
    "texts": (
        "an object of strings",
        lambda value: type(value) is dict and all(type(v) is str for v in value.values()),
    ),
    "sizes": (
        "a list of whole numbers, 0 or more",
        lambda value: type(value) is list and all(type(each) is int and each >= 0 for each in value),
    ),
    "parts": ("a list of objects", lambda value: type(value) is list and all(type(each) is dict for each in value)),
}


def _field(kind: str, name: str = "", unit: float | None = None, part: type | None = None, **default: Any) -> Any:
    """A field stored in the file under another name and in `unit`; None: stored as it is, or as a list of `part`."""
    return dataclasses.field(metadata={"kind": kind, "name": name, "unit": unit, "part": part}, **default)


@dataclass(frozen=True)
class Cluster:
    """A cluster of equal hosts with equal GPUs.

    Attributes:
        name: The name of the cluster.
        hosts: Number of hosts; predictions for more are extrapolations.
        gpus_per_host: GPUs, and therefore ranks, per host.
        intra_bandwidth: Bytes per second that each GPU can send, and receive at the same time, within its host.
        inter_bandwidth: Bytes per second of a host's network card in each direction; its GPUs share it.
        intra_latency_s: Seconds for an empty message within a host.
        inter_latency_s: Seconds for an empty message between hosts.
        software_latency_s: Additional seconds that each message costs in the processes.
        memory_bandwidth: Bytes per second that a GPU reads and writes, for casts.
        sources: Where the figures come from, by field.
    """

    name: str = _field("text")
    hosts: int = _field("count")
    gpus_per_host: int = _field("count")
    intra_bandwidth: float = _field("rate", "intra_bandwidth_gb_s", 1e9)
    inter_bandwidth: float = _field("rate", "inter_bandwidth_gb_s", 1e9)
    intra_latency_s: float = _field("amount", "intra_latency_us", 1e-6)
    inter_latency_s: float = _field("amount", "inter_latency_us", 1e-6)
    software_latency_s: float = _field("amount", "software_latency_us", 1e-6)
    memory_bandwidth: float = _field("rate", "memory_bandwidth_gb_s", 1e9)
    sources: Mapping[str, str] = _field("texts", default_factory=dict)

    def counts(self) -> list[int]:
        """Numbers of GPUs from 1 to 4,096, each about twice the last, that fit into one host or fill whole hosts."""
        counts = [1]
        while counts[-1] < self.gpus_per_host:
            counts.append(min(2 * counts[-1], self.gpus_per_host))
        while 2 * counts[-1] <= _MOST_GPUS:
            counts.append(2 * counts[-1])
        return counts

    def place(self, gpus: int) -> tuple[int, int]:
        """The number of hosts, and the ranks of each: one host as long as they fit, then whole hosts.

        Raises:
            ConfigError: If there are several hosts and some would not be full.
        """
        full = self.gpus_per_host
        if gpus > full and gpus % full:
            raise ConfigError(
                f"{gpus} GPUs do not fill hosts of {full}; use a multiple of {full}, or fewer than {full}"
            )
        return max(1, gpus // full), min(gpus, full)


@dataclass(frozen=True)
class Layer:
    """Backpropagation through one layer.

    Attributes:
        name: The name of the layer.
        backward_s: Seconds from the gradients of the following layer to its own.
        gradients: Bytes of each gradient.
    """

    name: str = _field("text")
    backward_s: float = _field("amount", "backward_ms", 1e-3)
    gradients: tuple[int, ...] = _field("sizes", "gradient_bytes")


@dataclass(frozen=True)
class Published:
    """A published measurement of this step: efficiency relative to the same number of single GPUs."""

    gpus: int = _field("count")
    efficiency: float = _field("rate", unit=1.0)
    source: str = _field("text")


@dataclass(frozen=True)
class Step:
    """A step on a single GPU.

    Attributes:
        model: Name of the network.
        image_size: Pixels in height and width.
        batch_size: Images per GPU.
        forward_s: Seconds until the loss is computed.
        layers: In backward order, so the last layer of the network first.
        update_s: Seconds for the optimizer after all gradients are computed.
        deviation: Standard deviation of the step time divided by its mean; it makes ranks wait for each other.
        dtype: The dtype of all gradients.
        published: Published measurements to compare with.
        sources: Where the figures come from, by field.
    """

    model: str = _field("text")
    image_size: int = _field("count")
    batch_size: int = _field("count")
    forward_s: float = _field("amount", "forward_ms", 1e-3)
    layers: tuple[Layer, ...] = _field("parts", part=Layer)
    update_s: float = _field("amount", "update_ms", 1e-3, default=0.0)
    deviation: float = _field("amount", "relative_deviation", 1.0, default=0.0)
    dtype: str = _field("dtype", default="float32")
    published: tuple[Published, ...] = _field("parts", part=Published, default=())
    sources: Mapping[str, str] = _field("texts", default_factory=dict)

    @property
    def seconds(self) -> float:
        return self.forward_s + sum(layer.backward_s for layer in self.layers) + self.update_s

    @property
    def gradients(self) -> list[int]:
        """Bytes of each gradient, in backward order."""
        return [size for layer in self.layers for size in layer.gradients]

    def ready(self) -> list[float]:
        """When each of `gradients` is computed: seconds from the start of the step."""
        ends = itertools.accumulate((layer.backward_s for layer in self.layers), initial=self.forward_s)
        return [end for layer, end in zip(self.layers, list(ends)[1:], strict=True) for _ in layer.gradients]

    def wire_sizes(self, compression: str) -> list[int]:
        """Bytes of each gradient on the wire; float32 and float64 can be compressed."""
        wire = config.COMPRESSIONS[compression]
        if not wire or self.dtype not in COMPRESSIBLE:
            return self.gradients
        wire_bytes = ml_dtypes.finfo(wire).bits // 8  # type: ignore[no-untyped-call]
        return [size * wire_bytes // ELEMENT_BYTES[self.dtype] for size in self.gradients]


def read(kind: type[_Read], path: Path) -> _Read:
    """The `Cluster` or `Step` of a JSON file.

    Raises:
        ConfigError: If the file cannot be read, or a field is missing, invalid or unknown.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{path} contains a {type(document).__name__}; expected an object with fields")
    made = _parsed(kind, str(path), document)
    if isinstance(made, Step) and made.seconds == 0:
        raise ConfigError(f"{path}: a step of 0 ms has no throughput; set forward_ms or the backward_ms of layers")
    return made


def _parsed(kind: type[_Read], where: str, document: dict[str, Any]) -> _Read:
    values: dict[str, Any] = {}
    for field, name in _fields(kind):
        if name not in document:
            if field.default is field.default_factory is dataclasses.MISSING:
                raise ConfigError(f"{where}: missing field {name}")
            continue
        value, (wanted, fits) = document[name], _KINDS[field.metadata["kind"]]
        if not fits(value):
            raise ConfigError(f"{where}: {name} is {value!r}; expected {wanted}")
        if (part := field.metadata["part"]) is not None:
            value = [_parsed(part, f"{where}: {name}[{index}]", item) for index, item in enumerate(value)]
        unit = field.metadata["unit"]
        values[field.name] = tuple(value) if isinstance(value, list) else value if unit is None else value * unit
    if unknown := sorted(document.keys() - {name for _, name in _fields(kind)}):
        raise ConfigError(f"{where}: unknown fields: {', '.join(unknown)}")
    return kind(**values)


def _fields(kind: Any) -> Iterator[tuple[dataclasses.Field[Any], str]]:
    """Each field, and its name in a file."""
    return ((field, field.metadata["name"] or field.name) for field in dataclasses.fields(kind))


def write(path: Path, step: Step) -> None:
    """The document that `read` reads; times in milliseconds, rounded to a nanosecond."""
    document = _document(step)
    document["layers"] = document.pop("layers")  # last, so that people see the rest
    record.write_json(path, document)


def _document(item: Any) -> dict[str, Any]:
    document = {}
    for field, name in _fields(item):
        value, unit = getattr(item, field.name), field.metadata["unit"]
        if field.metadata["part"] is not None:
            value = list(map(_document, value))
        document[name] = round(value / unit, 6) if unit == 1e-3 else value
    return document


def allreduce_s(cluster: Cluster, gpus: int, size: float, schedule: str = "hierarchical") -> float:
    """The seconds of one allreduce of `size` bytes on the wire; 0 if there is nothing to exchange.

    Sources: Thakur et al. (2005), section 4.1 (half a ring: reduce-scatter or allgather), 4.2 and 4.5 (the binomial
    trees of broadcast and reduce); NVIDIA/nccl, src/graph/tuning.cc, ncclTopoTuneModel (nsteps and nInterSteps: the
    latencies of the flat ring).

    Args:
        cluster: The cluster that connects the ranks.
        gpus: Their number.
        size: Bytes per rank.
        schedule: "hierarchical" is tfdist's: a reduce-scatter gives each of g local ranks 1/g of the sums of its host;
            that part is allreduced between the hosts by ring or tree, whichever is faster, with 1/g of the network
            card, followed by an allgather. "flat" is one ring through all ranks that enters and leaves each host once,
            as NCCL's ring does; its slowest link determines the time.
    """
    hosts, local = cluster.place(gpus)
    inside = cluster.intra_latency_s + cluster.software_latency_s
    between = cluster.inter_latency_s + cluster.software_latency_s
    if size == 0:
        return 0.0
    if schedule == "flat" and hosts > 1:
        slowest = min(cluster.inter_bandwidth, cluster.intra_bandwidth if local > 1 else math.inf)
        return 2 * ((hosts - 1) * between + (gpus - hosts) * inside + (gpus - 1) * size / gpus / slowest)
    local_s = 2 * (local - 1) * (inside + size / local / cluster.intra_bandwidth)
    own_s = size / cluster.inter_bandwidth  # 1/g of the bytes over 1/g of the card
    ring_s = (hosts - 1) * (between + own_s / hosts)
    tree_s = math.ceil(math.log2(hosts)) * (between + own_s)
    return local_s + 2 * min(ring_s, tree_s)


@dataclass(frozen=True)
class Agreement:
    """What the first rank of each host sends before a collective, so that all know that they call the same.

    Attributes:
        messages: How many messages; the other ranks of a host send none.
        seconds: How long it takes. Those of a round leave one after the other, then one latency passes.
    """

    messages: int
    seconds: float


def agreement(cluster: Cluster, gpus: int) -> Agreement:
    """The ranks of a host meet in memory; then an allgather of the headers of all hosts, by Bruck's algorithm above 8.

    A meeting in memory, and what the first rank says there at the end, take the software of a message each.

    Source: Bruck et al. (1997), "Efficient algorithms for all-to-all communications in multiport message-passing
    systems", section 3.
    """
    hosts, local = cluster.place(gpus)
    radix = DIRECT_HOSTS if hosts <= DIRECT_HOSTS else RADIX
    in_memory = 0 if local == 1 else 1 if hosts == 1 else 2
    messages, seconds, held = 0, in_memory * cluster.software_latency_s, 1
    while held < hosts:
        distances = range(held, min(held * radix, hosts), held)
        size = sum(min(held, hosts - distance) for distance in distances) * local * _HEADER_BYTES
        seconds += cluster.inter_latency_s + len(distances) * cluster.software_latency_s
        seconds += size / cluster.inter_bandwidth
        messages += len(distances)
        held *= radix
    return Agreement(messages, seconds)


def predict(step: Step, plan: Plan, cluster: Cluster, gpus: int, compression: str, schedule: str, overlap: bool) -> Row:
    """Simulates a step.

    Args:
        step: The step of a single GPU, without communication.
        plan: The positions, in `step.gradients`, of each bucket's gradients.
        cluster: Where it runs.
        gpus: Number of ranks.
        compression: One of `config.COMPRESSIONS`.
        schedule: One of `request.SCHEDULES`.
        overlap: Whether buckets are sent while earlier layers still compute; if not, all follow the last gradient.

    Returns:
        A row of the output. `computing_ms` is for the slowest rank, `communication_ms` for the stream, overlapped or
        not, `exposed_ms` the part not overlapped; `efficiency` is `images_per_second` divided by `gpus` times that of
        a single GPU.

    Raises:
        ConfigError: If the GPUs do not fill their hosts.
    """
    hosts, _ = cluster.place(gpus)
    slowest = 1 + step.deviation * statistic.expected_maximum(gpus)  # relative to the mean, for a normal distribution
    computed = (step.seconds - step.update_s) * slowest
    ready, sizes, wire = step.ready(), step.gradients, step.wire_sizes(compression)
    meeting = agreement(cluster, gpus)
    agreed, end, busy = 0.0, 0.0, 0.0
    for bucket in sorted(filter(None, plan), key=max):  # a bucket can start when its last gradient is computed
        before, after = (sum(all_sizes[index] for index in bucket) for all_sizes in (sizes, wire))
        seconds = allreduce_s(cluster, gpus, after, schedule)
        if gpus > 1 and before != after:  # a cast reads its input and writes its output, in both directions
            seconds += 2 * (before + after) / cluster.memory_bandwidth
        agreed = max(agreed, ready[max(bucket)] * slowest if overlap else computed) + meeting.seconds
        end = max(end, agreed) + seconds
        busy += seconds
    exposed = max(0.0, end - computed)
    step_s = step.seconds * slowest + exposed
    return {
        "model": step.model,
        "image_size": step.image_size,
        "batch_size": step.batch_size,
        "compression": compression,
        "schedule": schedule,
        "overlap": overlap,
        "gpus": gpus,
        "hosts": hosts,
        "described": hosts <= cluster.hosts,
        "buckets": len(plan),
        "agreement_messages": meeting.messages,
        "step_ms": step_s * 1e3,
        "computing_ms": step.seconds * slowest * 1e3,
        "communication_ms": busy * 1e3,
        "exposed_ms": exposed * 1e3,
        "images_per_second": gpus * step.batch_size / step_s,
        "efficiency": step.seconds / step_s,
        "published_efficiency": next((item.efficiency for item in step.published if item.gpus == gpus), None),
    }


def predictions(
    steps: Sequence[Step], cluster: Cluster, options: Scale, threshold: int, planner: Planner
) -> Iterator[Row]:
    """One row per step, compression, schedule and number of GPUs, in this order."""
    for step in steps:
        # By the bytes of gradients in memory, as `tfdist.training.gradients` plans them.
        plan = planner([step.dtype] * len(step.gradients), step.gradients, threshold)
        for manner in itertools.product(options.compressions, options.schedules):
            for gpus in options.gpus or cluster.counts():
                yield predict(step, plan, cluster, gpus, *manner, options.overlap)


def run(options: Scale) -> None:
    """Prints one table per step, compression and schedule, and writes the requested files."""
    steps = [read(Step, path) for path in options.step]
    cluster = read(Cluster, options.cluster)
    threshold = config.read().fusion_threshold if options.threshold is None else options.threshold
    rows = list(predictions(steps, cluster, options, threshold, library.plan_buckets))
    print(f"tfdist bench scale: {cluster.name}, buckets of {size.show(threshold)}")
    for title, group in itertools.groupby(rows, _label):
        print(f"\n{title}{'' if options.overlap else ', without overlap'}")
        print(_table(list(group)))
    if not all(row["described"] for row in rows):
        print(f"\n* : more than the {cluster.hosts} hosts described, assuming that the network scales with them")
    if options.csv is not None:
        record.write_csv(options.csv, rows)
    if options.json is not None:
        document = {"benchmark": "scale", "options": options, "threshold_bytes": threshold, "cluster": cluster}
        record.write_json(options.json, document | {"steps": steps, "rows": rows})
    if options.plot is not None:
        plot(options.plot, rows, cluster.name)


def _label(row: Mapping[str, Any]) -> str:
    """The label of a line or table."""
    kind = "" if row["compression"] == "none" else f", {row['compression']}"
    return f"{row['model']}, batch {row['batch_size']}{kind}, {row['schedule']}"


def _table(rows: Sequence[Row]) -> str:
    """Includes a column for published measurements, if there are any."""
    parts = {"efficiency": "efficiency", "published": "published_efficiency"}
    if all(row["published_efficiency"] is None for row in rows):
        del parts["published"]
    return table.aligned([*HEAD, *parts], [_cells(row, parts.values()) for row in rows])


def _cells(row: Row, parts: Iterable[str]) -> list[str]:
    cells = [f"{row['gpus']}{'' if row['described'] else ' *'}", str(row["hosts"]), str(row["buckets"])]
    cells.append(str(row["agreement_messages"]))
    cells += [f"{row[name]:.1f}" for name in ("step_ms", "computing_ms", "communication_ms", "exposed_ms")]
    percentages = ("" if row[name] is None else f"{100 * row[name]:.1f} %" for name in parts)
    return [*cells, f"{row['images_per_second']:.0f}", *percentages]


def plot(path: Path, rows: Sequence[Row], title: str) -> None:
    """Plots efficiency over GPUs to a file; needs no display. One colour per network, one line style per variant."""
    import matplotlib.figure

    figure = matplotlib.figure.Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for color, model in enumerate(dict.fromkeys(row["model"] for row in rows)):
        own = sorted((row for row in rows if row["model"] == model), key=lambda row: row["gpus"])
        for label, dashes in zip(dict.fromkeys(map(_label, own)), itertools.cycle(("-", "--", ":", "-."))):
            points = [(row["gpus"], 100 * row["efficiency"]) for row in own if _label(row) == label]
            axes.plot(*zip(*points, strict=True), dashes, color=f"C{color}", label=label)
        measured = {row["gpus"]: 100 * row["published_efficiency"] for row in own if row["published_efficiency"]}
        if measured:
            axes.plot(*zip(*measured.items(), strict=True), "o", color=f"C{color}", label=f"{model}, published")
    axes.set_xscale("log", base=2)
    ticks = sorted({row["gpus"] for row in rows})
    axes.set_xticks(ticks, [str(gpus) for gpus in ticks])
    axes.set_ylim(0, 105)
    axes.set_xlabel("GPUs")
    axes.set_ylabel("efficiency, %")
    axes.set_title(title)
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    figure.savefig(path, format="png", dpi=120)
