"""One training step as a simulation sees it: times and gradients, layer by layer, in a file. It measures nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfdist.command.bench.allreduce import case
from tfdist.command.bench.measure import record
from tfdist.command.bench.scale.scale_document import Document
from tfdist.errors import ConfigError


@dataclass(frozen=True)
class Layer:
    """What backpropagation does at one layer.

    Attributes:
        name: Of the layer.
        backward_s: Seconds from the gradients of the layer behind it to its own.
        gradients: Bytes of each gradient.
    """

    name: str
    backward_s: float
    gradients: tuple[int, ...] = ()


@dataclass(frozen=True)
class Published:
    """What somebody measured of this step on so many GPUs: throughput by that of as many single GPUs."""

    gpus: int
    efficiency: float
    source: str


@dataclass(frozen=True)
class Step:
    """A step of one GPU alone.

    Attributes:
        model: Name of the network.
        image_size: Pixels in height and width.
        batch_size: Images of a GPU.
        forward_s: Seconds until the loss is there.
        layers: In backward order, so the last layer of the network first.
        update_s: Seconds for the optimizer's work after all gradients are there.
        deviation: Standard deviation of the time of steps, by their mean; what makes ranks wait for each other.
        dtype: Of all gradients.
        published: Measurements of others to compare with.
        sources: Where figures come from, by field.
    """

    model: str
    image_size: int
    batch_size: int
    forward_s: float
    layers: tuple[Layer, ...]
    update_s: float = 0.0
    deviation: float = 0.0
    dtype: str = "float32"
    published: tuple[Published, ...] = ()
    sources: dict[str, str] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return self.forward_s + sum(layer.backward_s for layer in self.layers) + self.update_s

    @property
    def gradients(self) -> list[int]:
        """Bytes of each gradient, in backward order."""
        return [size for layer in self.layers for size in layer.gradients]

    def ready(self, stretch: float = 1.0) -> list[float]:
        """When each of `gradients` is there: seconds from the start of the step, all work `stretch` times as long."""
        times = []
        now = self.forward_s
        for layer in self.layers:
            now += layer.backward_s
            times += [now * stretch] * len(layer.gradients)
        return times


def read(path: Path) -> Step:
    """The step of a file that `tfdist bench scale --record` wrote. Raises ConfigError."""
    document = Document.read(path)
    step = Step(
        model=document.text("model"),
        image_size=document.whole("image_size"),
        batch_size=document.whole("batch_size"),
        dtype=document.text("dtype", "float32"),
        forward_s=document.number("forward_ms") / 1e3,
        update_s=document.number("update_ms", default=0.0) / 1e3,
        deviation=document.number("relative_deviation", default=0.0),
        layers=tuple(_layer(part) for part in document.parts("layers")),
        published=tuple(_published(part) for part in document.parts("published", [])),
        sources=document.texts("sources"),
    )
    document.finish()
    if step.dtype not in case.ELEMENT_BYTES:
        raise ConfigError(f"{path}: dtype is {step.dtype!r}; expected one of {', '.join(case.ELEMENT_BYTES)}")
    if step.seconds == 0:
        raise ConfigError(f"{path}: a step of 0 ms has no throughput; give forward_ms or the backward_ms of layers")
    return step


def write(path: Path, step: Step) -> None:
    """What `read` reads; times in milliseconds, rounded to a nanosecond."""
    document: dict[str, Any] = {
        "model": step.model,
        "image_size": step.image_size,
        "batch_size": step.batch_size,
        "dtype": step.dtype,
        "forward_ms": _ms(step.forward_s),
        "update_ms": _ms(step.update_s),
        "relative_deviation": step.deviation,
        "sources": step.sources,
        "published": list(step.published),
        "layers": [
            {"name": layer.name, "backward_ms": _ms(layer.backward_s), "gradient_bytes": list(layer.gradients)}
            for layer in step.layers
        ],
    }
    record.write_json(path, document)


def share(seconds: float, operations: Sequence[float]) -> list[float]:
    """Seconds of each layer when all of them take `seconds`, by their operations."""
    total = sum(operations)
    return [seconds * count / total for count in operations]


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 6)


def _layer(part: Document) -> Layer:
    layer = Layer(part.text("name"), part.number("backward_ms") / 1e3, part.sizes("gradient_bytes"))
    part.finish()
    return layer


def _published(part: Document) -> Published:
    published = Published(part.whole("gpus"), part.number("efficiency", positive=True), part.text("source"))
    part.finish()
    return published
