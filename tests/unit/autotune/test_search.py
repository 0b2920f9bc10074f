"""Exploring and comparing settings, on step times that are made up or that `benchmarks/autotune.py` has recorded."""

from __future__ import annotations

import itertools
import json
import random
import statistics
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import optuna
import pytest

from tfdist.autotune import search
from tfdist.autotune.search import compare, explore, finalists
from tfdist.autotune.tuner import Tuner
from tfdist.errors import BuildError
from tfdist.native.knobs import Knob, Setting, settings

Tune = Callable[..., Tuner]
RECORDED = json.loads(Path(__file__).with_name("recording.json").read_text())["models"]
SAMPLES = 20
SEEDS = range(50)


def drive(course: Generator[Setting, float, Any], times: Callable[[Setting], float]) -> tuple[list[Setting], Any]:
    """All settings in turn, and what the generator returns."""
    asked = [next(course)]
    while True:
        try:
            asked.append(course.send(times(asked[-1])))
        except StopIteration as end:
            return asked, end.value


@dataclass
class Recording:
    """Several samples of every setting of a model, in microseconds."""

    default: Setting
    knobs: tuple[Knob, ...]
    samples: dict[Setting, list[float]]

    @classmethod
    def of(cls, model: dict[str, Any], steady: bool = True) -> Recording:
        knobs = tuple(Knob(field, tuple(values), needs) for field, values, needs in model["knobs"])
        rows = [row[-1] for row in model["us"]]
        times = without_drift(rows) if steady else rows
        found = {Setting(*row[:-1]): samples for row, samples in zip(model["us"], times, strict=True)}
        return cls(Setting(*model["default"]), knobs, found)

    def regret(self, course: Generator[Setting, float, dict[Setting, float]], seed: int) -> float:
        """How much longer a step is with what a search found to be the fastest than with what is the fastest."""
        chance = random.Random(seed)
        _, found = drive(course, lambda setting: chance.choice(self.samples[setting]))
        medians = {setting: statistics.median(values) for setting, values in self.samples.items()}
        return medians[min(found, key=found.__getitem__)] / min(medians.values()) - 1


def without_drift(rows: list[list[float]], reach: int = 3) -> list[list[float]]:
    """Samples as of a machine with one speed. Rows are settings in the order of their visits, columns are rounds.

    The machine was up to 1.6 times slower for minutes, which is no property of the settings that it had then. So each
    sample is divided by the machine's pace, the median of its time neighbours' samples over their settings' own times.
    These are at first the second least samples, as others slow a step down but never speed it up, then the medians.
    """
    own = [sorted(row)[1] for row in rows]
    for _ in range(5):
        paces = [[sample / time for sample in row] for row, time in zip(rows, own, strict=True)]
        near = [list(zip(*paces[max(0, i - reach) : i + reach + 1], strict=True)) for i in range(len(rows))]
        steady = [
            [sample / statistics.median(others) for sample, others in zip(row, by_round, strict=True)]
            for row, by_round in zip(rows, near, strict=True)
        ]
        own = [statistics.median(row) for row in steady]
    return steady


def at_random(default: Setting, knobs: tuple[Knob, ...], samples: int, seed: int) -> Generator[Setting, float, Any]:
    """The search that `explore` must not be worse than: the default, and then other settings in a random order."""
    others = [setting for setting in settings(default, knobs) if setting != default]
    seconds = {}
    for setting in [default, *random.Random(seed).sample(others, samples - 1)]:
        seconds[setting] = yield setting
    return seconds


@pytest.mark.parametrize("model", RECORDED)
def test_recording_has_every_setting(model: str) -> None:
    recording = Recording.of(RECORDED[model])
    assert set(recording.samples) == set(settings(recording.default, recording.knobs))
    assert min(map(len, recording.samples.values())) > 1


@pytest.mark.slice("launch")
@pytest.mark.parametrize("steady", [True, False])
def test_is_as_good_as_a_random_search(steady: bool) -> None:
    """Over all models: of one, the fastest settings differ by less than what the recording can tell."""
    recordings = [Recording.of(model, steady) for model in RECORDED.values()]

    def median_regret(search: Callable[..., Generator[Setting, float, Any]]) -> float:
        return statistics.median(
            recording.regret(search(recording.default, recording.knobs, SAMPLES, seed), seed)
            for recording in recordings
            for seed in SEEDS
        )

    assert median_regret(explore) <= median_regret(at_random)


@pytest.mark.parametrize("model", RECORDED)
def test_most_samples_are_decided_by_the_sampler(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not enqueued by us, nor drawn at random before there is enough to decide by."""
    studies = []
    create = optuna.create_study

    def create_study(**arguments: Any) -> Any:
        studies.append(create(**arguments))
        return studies[-1]

    monkeypatch.setattr(optuna, "create_study", create_study)
    recording = Recording.of(RECORDED[model])
    asked, _ = drive(explore(recording.default, recording.knobs, SAMPLES), lambda s: recording.samples[s][0])
    (study,) = studies
    told = [trial for trial in study.trials if trial.state.is_finished()]
    decided = [trial for trial in told[int(search.STARTUP * SAMPLES) :] if "fixed_params" not in trial.system_attrs]
    assert len(told) == len(asked) == SAMPLES
    assert 2 * len(decided) > SAMPLES


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
