"""Chooses settings to try, and decides whether one beats the default. Generators yield a setting and get its time."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

from tfdist import errors
from tfdist.native.knobs import Knob, Setting, effective, settings

SEED = 1
# Random samples, the default included, before the sampler proposes settings: as a share of all, and at least.
STARTUP = 0.3
LEAST_STARTUP = 4
# How many of the fastest explored settings are compared with the default, and in how many rounds.
FINALISTS = 3
ROUNDS = 9
COMPARED = ROUNDS * (1 + FINALISTS)
# A smaller gain is not worth changing the default for.
LEAST_GAIN = 0.01
# A gain must exceed this many standard errors, and a finalist may lose this many rounds.
STANDARD_ERRORS = 2.0
LOST_ROUNDS = 1
# The median's standard error is 1.25 that of a mean; 1.48 times the median deviation is a normal standard deviation.
_MEDIAN_ERROR = 1.2533 * 1.4826


def explore(
    default: Setting, knobs: tuple[Knob, ...], samples: int, seed: int = SEED
) -> Generator[Setting, float, dict[Setting, float]]:
    """Tries each setting once: the default, some at random, then proposals of optuna's TPE sampler.

    Args:
        default: The setting to compare the others with.
        knobs: As `knobs.offered` returns them.
        samples: The most settings to try.
        seed: The sampler's seed; equal times then lead to equal settings.

    Returns:
        The step time in seconds of each setting tried.

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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # optuna 4 calls the liar experimental
        startup = max(LEAST_STARTUP, int(STARTUP * samples))
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=startup, constant_liar=True)
    study = optuna.create_study(sampler=sampler)
    others = [setting for setting in settings(default, knobs) if setting != default]
    # If there are few, all are tried.
    for first in [default, *others] if len(others) < samples else [default]:
        study.enqueue_trial({knob.field: knob.values.index(getattr(first, knob.field)) for knob in knobs})
    seconds: dict[Setting, float] = {}
    while len(seconds) < min(samples, 1 + len(others)):
        trial = study.ask()
        # By index rather than by value, so that neighbouring sizes are neighbours.
        places = {knob.field: trial.suggest_int(knob.field, 0, len(knob.values) - 1) for knob in knobs}
        changes = {knob.field: knob.values[places[knob.field]] for knob in knobs}
        setting = effective(replace(default, **changes), default, knobs)
        # Repeated proposals are left unfinished: the liar rates them bad, so the sampler moves away from them.
        if setting not in seconds:
            seconds[setting] = yield setting
            study.tell(trial, seconds[setting])
    return seconds


def finalists(seconds: dict[Setting, float], default: Setting) -> list[Setting]:
    """The fastest settings other than the default, fastest first."""
    others = [setting for setting in seconds if setting != default]
    return sorted(others, key=seconds.__getitem__)[:FINALISTS]


@dataclass(frozen=True)
class Rival:
    """A setting in the final comparison.

    Attributes:
        setting: The setting.
        seconds: Its median step time.
        gain: The fraction of the default's step time that it saves, the median over rounds; 0 for the default.
        beats_default: Whether that exceeds the noise.
    """

    setting: Setting
    seconds: float
    gain: float
    beats_default: bool


@dataclass(frozen=True)
class Verdict:
    """The outcome of the final comparison: the default and its rivals, and the one to keep."""

    rivals: tuple[Rival, ...]
    kept: Rival

    @property
    def default(self) -> Rival:
        """The default, which comes first."""
        return self.rivals[0]


def compare(
    default: Setting, candidates: Sequence[Setting], rounds: int = ROUNDS
) -> Generator[Setting, float, Verdict]:
    """Measures the default and the candidates in turn, in rounds that start with a different one each.

    Args:
        default: Kept unless a candidate beats it by more than the noise.
        candidates: Other settings.
        rounds: How often each is measured.

    Returns:
        The comparison; of the candidates that beat the default, it keeps the one that saves most.
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
    """The median gain of a candidate over rounds, and whether it exceeds their noise."""
    gains = [1 - mine / theirs for theirs, mine in zip(of_default, of_candidate, strict=True)]
    gain = statistics.median(gains)
    deviation = statistics.median(abs(each - gain) for each in gains)
    noise = _MEDIAN_ERROR * deviation / math.sqrt(len(gains))
    lost = sum(each <= 0 for each in gains)
    return gain, lost <= LOST_ROUNDS and gain > max(LEAST_GAIN, STANDARD_ERRORS * noise)
