"""The course of a tuning: its phases, in order, and how often it begins again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfdist.autotune.drift import WINDOW
from tfdist.autotune.search import FINALISTS, ROUNDS, Verdict
from tfdist.autotune.tuner import COMPARE, DONE, EXPLORE, MOST_AGAIN, WATCH, Tuner
from tfdist.native.knobs import Knob, Setting

SAMPLES = 6


def phases(tuner: Tuner, times: Callable[[Setting], float], most: int) -> list[str]:
    found = []
    while len(found) < most and tuner.order.phase != DONE:
        found.append(tuner.order.phase)
        tuner.tell(times(tuner.order.setting))
    return found


def by_thread(setting: Setting) -> float:
    return 0.01 if setting.thread else 0.013


def test_explores_compares_and_watches(default: Setting, knobs: tuple[Knob, ...]) -> None:
    verdicts: list[Verdict] = []
    tuner = Tuner(default, knobs, SAMPLES, on_verdict=verdicts.append)
    compared = (1 + FINALISTS) * ROUNDS
    assert tuner.order.setting == default
    assert phases(tuner, by_thread, SAMPLES + compared) == [EXPLORE] * SAMPLES + [COMPARE] * compared
    assert tuner.order.phase == WATCH
    assert tuner.order.setting.thread
    assert [verdict.kept.setting for verdict in verdicts] == [tuner.order.setting]


def test_is_done_at_once_without_knobs(default: Setting) -> None:
    tuner = Tuner(default, (), SAMPLES)
    assert (tuner.order.phase, tuner.order.setting) == (DONE, default)
    assert tuner.tell(1.0).phase == DONE


def test_what_was_found_before_is_watched(default: Setting, knobs: tuple[Knob, ...]) -> None:
    start = knobs[0].values[0]
    tuner = Tuner(default, knobs, SAMPLES, start=Setting(start, 64, "none", True, "off"))
    assert phases(tuner, lambda setting: 1.0, 3 * WINDOW) == [WATCH] * 3 * WINDOW
    assert tuner.order.setting.fusion_threshold == start


def test_begins_again_where_times_drift_and_not_for_ever(default: Setting, knobs: tuple[Knob, ...]) -> None:
    verdicts: list[Any] = []
    tuner = Tuner(default, knobs, SAMPLES, on_verdict=verdicts.append)
    told = 0

    def drifting(setting: Setting) -> float:
        """Twice as long from one watch to the next."""
        nonlocal told
        told += tuner.order.phase == WATCH
        return float(by_thread(setting) * 2 ** (told // WINDOW))

    seen = phases(tuner, drifting, 10_000)
    assert tuner.order.phase == DONE
    assert len(verdicts) == 1 + MOST_AGAIN
    assert seen.count(EXPLORE) == SAMPLES * (1 + MOST_AGAIN)
    assert seen.count(WATCH) == 2 * WINDOW * MOST_AGAIN
    assert tuner.order.setting == verdicts[-1].kept.setting
