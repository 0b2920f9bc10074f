"""Which settings to try, and whether one beats the default. Generators: they yield a setting and get its seconds."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

from tfdist import errors
from tfdist.native.knobs import Knob, Setting, effective, settings

SEED = 1
# The part of the samples, and how many at least, after which the sampler decides; the default is one of them.
STARTUP = 0.3
LEAST_STARTUP = 4
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
    """Tries settings, each one once: the default, some at random, then what optuna's TPE sampler proposes.

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
        # By places and not by values, so that neighbouring sizes are neighbours.
        places = {knob.field: trial.suggest_int(knob.field, 0, len(knob.values) - 1) for knob in knobs}
        changes = {knob.field: knob.values[places[knob.field]] for knob in knobs}
        setting = effective(replace(default, **changes), default, knobs)
        # The liar takes a trial without a time for a bad one, so the sampler turns away from what it proposed before.
        if setting not in seconds:
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
