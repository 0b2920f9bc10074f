"""What becomes of the times of steps: rows, efficiency, and options that were not honoured. Nothing is trained."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tfdist.command.bench import option
from tfdist.command.bench.measure import rank
from tfdist.command.bench.train import train
from tfdist.errors import ConfigError


def options(*words: str) -> option.Train:
    parsed = option.parse(["train", "--steps", "2", "--rounds", "2", "--batch-size", "4", *words])
    assert isinstance(parsed, option.Train)
    return parsed


def training(*rounds: list[float]) -> Any:
    return SimpleNamespace(rounds=list(rounds), communication=[[0.25 * step for step in part] for part in rounds])


def test_one_process() -> None:
    """Two rounds of two steps of 4 images: 8 images in 1 s, then 8 in 2 s."""
    row = train._row("alone", training([0.25, 0.75], [1.0, 1.0]), options(), ranks=1)
    assert (row["run"], row["ranks"], row["steps"]) == ("alone", 1, 4)
    assert (row["median_ms"], row["min_ms"]) == (875.0, 250.0)
    assert row["images_per_second"] == row["images_per_second_rank"] == 6.0
    # t(0.975, 1) = 12.7062; s of 8 and 4 is sqrt(8); over sqrt(2).
    assert row["images_per_second_half_width"] == pytest.approx(25.412, abs=1e-3)
    assert row["communication_ms"] == pytest.approx(187.5)


def test_ranks_count_with_their_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def mean(samples: list[float], name: str) -> list[float]:
        """As if there were another rank, all of whose steps take 1 s longer."""
        seen.append(name)
        return [sample + 0.5 for sample in samples]

    monkeypatch.setattr(rank, "mean_over_ranks", mean)
    row = train._row("2 ranks", training([0.5, 0.5], [0.5, 0.5]), options(), ranks=2)
    assert seen == ["bench.steps", "bench.communication"]
    assert (row["median_ms"], row["min_ms"]) == (1000.0, 1000.0)
    assert (row["images_per_second"], row["images_per_second_rank"]) == (8.0, 4.0)
    assert row["images_per_second_half_width"] == 0.0


def test_one_round_has_no_interval() -> None:
    row = train._row("alone", training([0.5, 0.5]), options("--rounds", "1"), ranks=1)
    assert row["images_per_second_half_width"] is None
    assert train._cells(row)[4:6] == ["8.0", "8.0"]


def test_efficiency_is_time_alone_by_time_together() -> None:
    together = {"median_ms": 10.0, "min_ms": 8.0}
    alone = {"median_ms": 9.0, "min_ms": 6.0}
    assert train._efficiency([together, alone]) == {"of_medians": 0.9, "of_minima": 0.75}


def test_uncompiled_step_is_an_error_with_jit_compile() -> None:
    plain: Any = SimpleNamespace(model=SimpleNamespace(jit_compile=False))
    compiled: Any = SimpleNamespace(model=SimpleNamespace(jit_compile=True))
    train._check_compiled(options(), plain)
    train._check_compiled(options("--jit-compile"), compiled)
    with pytest.raises(ConfigError, match="--jit-compile"):
        train._check_compiled(options("--jit-compile"), plain)
