"""Worlds and step times that are made up."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tfdist.autotune.tuner import DONE, WATCH, Tuner
from tfdist.native.knobs import KIB, MIB, Knob, Setting, World, offered


@dataclass
class Surface:
    """Step times in seconds with their best somewhere; every knob counts, by itself or with another."""

    seed: int

    def __post_init__(self) -> None:
        chance = random.Random(self.seed)
        self._bucket, self._chunk = chance.uniform(18, 27), chance.uniform(15, 19)
        self._of_bucket, self._of_chunk = chance.uniform(0, 0.0125), chance.uniform(0, 0.025)
        self._of_wire, self._of_thread = chance.uniform(-0.2, 0.2), chance.uniform(-0.2, 0.2)
        self._of_both = chance.uniform(-0.1, 0.1)

    def __call__(self, setting: Setting) -> float:
        fp16 = setting.compression == "fp16"
        return 0.01 * (
            1
            + self._of_bucket * (math.log2(setting.fusion_threshold) - self._bucket) ** 2
            + self._of_chunk * (math.log2(setting.chunk) - self._chunk) ** 2
            + self._of_wire * fp16
            + self._of_thread * setting.thread
            + self._of_both * (fp16 and setting.thread)
        )


def _noise(chance: random.Random, part: float) -> float:
    """A machine that is sometimes late, and now and then very late."""
    return 1 + part * abs(chance.gauss(0, 1)) * (5 if chance.random() < 0.05 else 1)


@pytest.fixture
def default() -> Setting:
    return Setting(8 * MIB, 128 * KIB, "none", False, "off")


@pytest.fixture
def world() -> Callable[..., World]:
    """Four ranks on the CPU of one host; `world(size=1)` changes a part of it."""

    def make(**changes: object) -> World:
        values: dict[str, object] = {
            "size": 4,
            "hosts": 1,
            "on_gpu": False,
            "compiled": False,
            "most_chunk": 512 * KIB,
            "lossy": True,
            "plan": lambda threshold: threshold,
        }
        return World(**{**values, **changes})  # type: ignore[arg-type]

    return make


@pytest.fixture
def knobs(default: Setting, world: Callable[..., World]) -> tuple[Knob, ...]:
    return offered(world(), default)


@pytest.fixture
def surface() -> type[Surface]:
    return Surface


@pytest.fixture
def tune(default: Setting, knobs: tuple[Knob, ...]) -> Callable[..., Tuner]:
    """`tune(times, part, seed)` is a tuner that has come to its choice by times with noise."""

    def run(times: Callable[[Setting], float], part: float = 0.0, seed: int = 0) -> Tuner:
        chance = random.Random(seed)
        tuner = Tuner(default, knobs, samples=20)
        while tuner.order.phase not in (WATCH, DONE):
            tuner.tell(times(tuner.order.setting) * _noise(chance, part))
        return tuner

    return run
