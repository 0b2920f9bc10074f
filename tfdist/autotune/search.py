"""Which settings to try, and whether one beats the default. Generators: they yield a setting and get its seconds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

from tfdist import errors
from tfdist.native.knobs import Knob, Setting, effective, settings

SEED = 1
# The last part of the samples goes to what lies nearest to the best so far.
NEAREST = 0.6
# The best so many of what was explored are compared with the default, in so many rounds.
FINALISTS = 3
ROUNDS = 9
COMPARED = ROUNDS * (1 + FINALISTS)
# A gain below this is no reason to leave the default.
LEAST_GAIN = 0.01
# Standard errors that a gain must exceed, and rounds that a finalist may lose.
STANDARD_ERRORS = 2.0
LOST_ROUNDS = 1
# The median's standard error is 1.25 that of a mean; 1.48 times the median deviation is a normal standard deviation.
_MEDIAN_ERROR = 1.2533 * 1.4826


def explore(
    default: Setting, knobs: tuple[Knob, ...], samples: int, seed: int = SEED
) -> Generator[Setting, float, dict[Setting, float]]:
    """Tries settings, the default first and each one once: what optuna's TPE asks for, then what is near the best.

    Args:
        default: What the other settings are compared with.
        knobs: As `knobs.offered` gives them.
        samples: Settings to try at most.
        seed: Of the sampler; the same times then lead to the same settings.

    Returns:
        The seconds of each setting that was tried.

    Raises:
        BuildError: If optuna cannot be imported.
    """
    try:
        import optuna
    except ImportError as error:
        raise errors.BuildError(
            f"autotuning needs optuna, which cannot be imported: {error}. Install it: pip install 'optuna<6'"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=max(4, samples // 3))
    study = optuna.create_study(sampler=sampler)
    begin = [default, *_switched(default, knobs)]
    for first in begin:
        study.enqueue_trial(_places(first, knobs))
    near_from = max(len(begin), (1 - NEAREST) * samples)
    untried = list(settings(default, knobs))
    seconds: dict[Setting, float] = {}
    while untried and len(seconds) < samples:
        trial = study.ask()
        setting = _suggested(trial, default, knobs)
        if setting in seconds or len(seconds) >= near_from:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            best = min(seconds, key=seconds.__getitem__)
            setting = min(untried, key=lambda other: _distance(best, other, knobs))
            study.enqueue_trial(_places(setting, knobs))
            trial = study.ask()
            _suggested(trial, default, knobs)
        untried.remove(setting)
        seconds[setting] = yield setting
        study.tell(trial, seconds[setting])
    return seconds


def finalists(seconds: dict[Setting, float], default: Setting) -> list[Setting]:
    """The fastest settings beside the default, the fastest first."""
    others = [setting for setting in seconds if setting != default]
    return sorted(others, key=seconds.__getitem__)[:FINALISTS]


@dataclass(frozen=True)
class Rival:
    """A setting in the final comparison.

    Attributes:
        setting: The setting.
        seconds: Its median step.
        gain: The part of the default's step that it saves, the median over rounds; 0 for the default.
        beats_default: Whether that is more than the noise.
    """

    setting: Setting
    seconds: float
    gain: float
    beats_default: bool


@dataclass(frozen=True)
class Verdict:
    """What the final comparison came to: the default and its rivals, and the one that is kept."""

    rivals: tuple[Rival, ...]
    kept: Rival

    @property
    def default(self) -> Rival:
        """The default, which comes first."""
        return self.rivals[0]


def compare(
    default: Setting, candidates: Sequence[Setting], rounds: int = ROUNDS
) -> Generator[Setting, float, Verdict]:
    """Measures the default and the candidates in turn, in rounds that each begin with another one.

    Args:
        default: Kept where no candidate beats it by more than the noise.
        candidates: Other settings.
        rounds: Measurements of each.

    Returns:
        The comparison; of the candidates that beat the default, the one that saves most is kept.
    """
    runners = [default, *candidates]
    times: dict[Setting, list[float]] = {setting: [] for setting in runners}
    for number in range(rounds):
        begin = number % len(runners)
        for setting in runners[begin:] + runners[:begin]:
            times[setting].append((yield setting))
    rivals = [Rival(default, statistics.median(times[default]), 0.0, False)]
    for setting in candidates:
        gain, beats = _gain(times[default], times[setting])
        rivals.append(Rival(setting, statistics.median(times[setting]), gain, beats))
    winners = [rival for rival in rivals if rival.beats_default]
    return Verdict(tuple(rivals), max(winners, key=lambda rival: rival.gain, default=rivals[0]))


def _gain(of_default: Sequence[float], of_candidate: Sequence[float]) -> tuple[float, bool]:
    """The median gain of a candidate over rounds, and whether it is more than their noise."""
    gains = [1 - mine / theirs for theirs, mine in zip(of_default, of_candidate, strict=True)]
    gain = statistics.median(gains)
    deviation = statistics.median(abs(each - gain) for each in gains)
    noise = _MEDIAN_ERROR * deviation / math.sqrt(len(gains))
    lost = sum(each <= 0 for each in gains)
    return gain, lost <= LOST_ROUNDS and gain > max(LEAST_GAIN, STANDARD_ERRORS * noise)


def _switched(default: Setting, knobs: tuple[Knob, ...]) -> list[Setting]:
    """The default with one switch turned, for each knob that is one, and with what the switch needs."""
    turned = []
    for knob in knobs:
        if len(knob.values) == 2:
            changes = {knob.field: next(v for v in knob.values if v != getattr(default, knob.field))}
            if knob.needs is not None:
                changes[knob.needs] = True
            turned.append(replace(default, **changes))
    return turned


def _places(setting: Setting, knobs: tuple[Knob, ...]) -> dict[str, int]:
    return {knob.field: knob.values.index(getattr(setting, knob.field)) for knob in knobs}


def _suggested(trial: object, default: Setting, knobs: tuple[Knob, ...]) -> Setting:
    """By places and not by values, so that neighbouring sizes are neighbours."""
    suggest = trial.suggest_int  # type: ignore[attr-defined]  # optuna's Trial, which is not imported here
    places = {knob.field: suggest(knob.field, 0, len(knob.values) - 1) for knob in knobs}
    suggested = replace(default, **{knob.field: knob.values[places[knob.field]] for knob in knobs})
    return effective(suggested, default, knobs)


def _distance(one: Setting, other: Setting, knobs: tuple[Knob, ...]) -> int:
    places, others = _places(one, knobs), _places(other, knobs)
    return sum(abs(places[field] - others[field]) for field in places)
