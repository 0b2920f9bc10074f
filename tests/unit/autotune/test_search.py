"""Exploring and comparing settings, on step times that are made up."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

import pytest

from tfdist.autotune import search
from tfdist.autotune.search import compare, explore, finalists
from tfdist.autotune.tuner import Tuner
from tfdist.errors import BuildError
from tfdist.native.knobs import Knob, Setting, settings

Tune = Callable[..., Tuner]


def drive(course: Generator[Setting, float, Any], times: Callable[[Setting], float]) -> tuple[list[Setting], Any]:
    """All settings in turn, and what the generator returns."""
    asked = [next(course)]
    while True:
        try:
            asked.append(course.send(times(asked[-1])))
        except StopIteration as end:
            return asked, end.value


@pytest.mark.parametrize("seed", range(12))
def test_finds_the_best_within_three_percent(
    surface: Callable[[int], Any], tune: Tune, default: Setting, knobs: tuple[Knob, ...], seed: int
) -> None:
    times = surface(seed)
    kept = tune(times).order.setting
    assert times(kept) <= 1.03 * min(map(times, settings(default, knobs)))


@pytest.mark.parametrize("part", [0.02, 0.1, 0.3])
def test_is_never_slower_than_the_default(
    surface: Callable[[int], Any], tune: Tune, default: Setting, part: float
) -> None:
    """Nor with noise as large as the differences."""
    for seed in range(20):
        times = surface(seed)
        assert times(tune(times, part, seed).order.setting) <= times(default), seed


def test_the_default_is_kept_where_it_is_the_best(tune: Tune, default: Setting) -> None:
    for seed in range(20):
        assert tune(lambda setting: 1.0 + 0.03 * (setting != default), 0.1, seed).order.setting == default


def test_a_gain_within_the_noise_is_none(tune: Tune, default: Setting) -> None:
    kept = [tune(lambda setting: 1.0, 0.3, seed).order.setting for seed in range(20)]
    assert kept.count(default) >= 18


def test_a_clear_gain_is_found_in_noise(tune: Tune) -> None:
    for seed in range(10):
        assert tune(lambda setting: 1.0 if setting.thread else 1.3, 0.05, seed).order.setting.thread


def test_explores_the_default_first_and_each_setting_once(default: Setting, knobs: tuple[Knob, ...]) -> None:
    asked, seconds = drive(explore(default, knobs, 20), lambda setting: 1e-9 * setting.fusion_threshold)
    assert asked[0] == default
    assert len(asked) == len(set(asked)) == len(seconds) == 20
    assert set(asked) <= set(settings(default, knobs))


def test_the_same_times_lead_to_the_same_settings(default: Setting, knobs: tuple[Knob, ...]) -> None:
    first, second = (drive(explore(default, knobs, 12), lambda s: 1e-9 * s.chunk)[0] for _ in range(2))
    assert first == second
    assert first != drive(explore(default, knobs, 12), lambda s: 1e-9 / s.chunk)[0]


def test_explores_no_more_than_there_is(default: Setting) -> None:
    knobs = (Knob("thread", (False, True)), Knob("compression", ("fp16", "none")))
    asked, _ = drive(explore(default, knobs, 20), lambda setting: 1.0)
    assert sorted((s.thread, s.compression) for s in asked) == list(itertools.product((False, True), ("fp16", "none")))


def test_one_sample_is_the_default(default: Setting, knobs: tuple[Knob, ...]) -> None:
    assert drive(explore(default, knobs, 1), lambda setting: 1.0)[0] == [default]


def test_without_optuna_it_says_what_to_install(
    default: Setting, knobs: tuple[Knob, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(BuildError, match="pip install 'optuna<6'"):
        next(explore(default, knobs, 20))


def test_finalists_are_the_fastest_beside_the_default(default: Setting) -> None:
    others = [replace(default, chunk=64 * number) for number in range(5)]
    seconds = {default: 0.1, **{setting: 1.0 + number for number, setting in enumerate(reversed(others))}}
    assert finalists(seconds, default) == others[:1:-1]


def test_a_comparison_begins_each_round_with_another_one(default: Setting) -> None:
    rivals = [replace(default, thread=True), replace(default, chunk=64)]
    asked, verdict = drive(compare(default, rivals, rounds=3), lambda setting: 1.0)
    a, b, c = default, *rivals
    assert asked == [a, b, c, b, c, a, c, a, b]
    assert verdict.kept is verdict.default


def test_of_several_winners_the_one_that_saves_most_is_kept(default: Setting) -> None:
    good, best = replace(default, thread=True), replace(default, chunk=64)
    _, verdict = drive(compare(default, [good, best]), {default: 1.0, good: 0.9, best: 0.8}.__getitem__)
    assert verdict.kept.setting == best
    assert (verdict.kept.seconds, verdict.default.seconds) == (0.8, 1.0)
    assert [round(rival.gain, 3) for rival in verdict.rivals] == [0.0, 0.1, 0.2]


@pytest.mark.parametrize(("lost", "kept"), [(0, True), (search.LOST_ROUNDS, True), (search.LOST_ROUNDS + 1, False)])
def test_a_winner_loses_hardly_a_round(default: Setting, lost: int, kept: bool) -> None:
    rival = replace(default, thread=True)
    rounds = iter([2.0] * lost + [0.9] * search.ROUNDS)
    _, verdict = drive(compare(default, [rival]), lambda setting: 1.0 if setting == default else next(rounds))
    assert (verdict.kept.setting == rival) == kept


def test_a_gain_of_no_use_is_not_taken(default: Setting) -> None:
    rival = replace(default, thread=True)
    _, verdict = drive(compare(default, [rival]), {default: 1.0, rival: 1 - search.LEAST_GAIN / 2}.__getitem__)
    assert not verdict.rivals[1].beats_default
