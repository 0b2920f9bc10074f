"""The random state of a model, different in each process. Not the seeds of TensorFlow, NumPy and Python.

A single seed in a script, needed for the same data order on all ranks, would give all ranks the same dropout masks and
augmentation. So a number unique among all past and present processes of the job is folded into the states of Keras'
seed generators.
"""

from __future__ import annotations

import hashlib
from typing import Any

import keras
import numpy as np

from tfdist.native import keras_version
from tfdist.world import runtime
from tfdist.world.session import session

_MODULUS = 2**31 - 1
# A golden section of the modulus: multiples of it lie as far apart as can be, so that neither equal seeds nor seeds
# such as 1, 2, 3 meet those of another rank.
_STRIDE = 1_327_217_885
_FOLDED = "_tfdist_folded"
_GLOBAL = "global seed"


def folded(state: np.ndarray[Any, Any], process: int, resumed_at: int = 0) -> np.ndarray[Any, Any]:
    """The state of a seed generator, a seed and a count, for one process.

    Args:
        state: The state set by the script, the same in each process.
        process: The rank that the process started with; 0 changes nothing.
        resumed_at: The progress of earlier processes; 0 changes nothing.
    """
    seed, count = (int(number) for number in state)
    if resumed_at:
        digest = hashlib.sha256(f"{seed} {resumed_at}".encode()).digest()
        seed = int.from_bytes(digest[:8], "big") % _MODULUS
    if process:
        seed = (seed + process * _STRIDE) % _MODULUS
    return np.array([seed, count], state.dtype)


def fold(model: keras.Model) -> None:
    """Makes the random state of a model specific to this process; states already folded or restored stay."""
    process, resumed_at = runtime.first_rank(), session.resumed_at
    for generator in _generators(model, make=bool(process or resumed_at)):
        if _FOLDED not in vars(generator):
            vars(generator)[_FOLDED] = True
            if process or resumed_at:
                generator.state.assign(folded(np.asarray(generator.state), process, resumed_at))


def fold_again(model: keras.Model, number: int) -> None:
    """Makes a model whose random state was not saved draw different numbers than it has drawn so far."""
    for generator in _generators(model, make=False):
        generator.state.assign(folded(np.asarray(generator.state), 0, number))


def state_of_process() -> dict[str, Any]:
    """What a backup saves in addition to the states of a model: that of Keras' own generator, if it was used."""
    generator = keras_version.global_seed_generator(make=False)
    return {} if generator is None else {_GLOBAL: generator.state.numpy()}


def restored(model: keras.Model, state: dict[str, Any]) -> None:
    """Restores what `state_of_process` returned. The states in the model, which were restored too, are unchanged."""
    if _GLOBAL in state:
        generator: Any = keras_version.global_seed_generator(make=True)
        generator.state.assign(state[_GLOBAL])
        vars(generator)[_FOLDED] = True
    for generator in keras_version.seed_generators_of(model):
        vars(generator)[_FOLDED] = True


def _generators(model: keras.Model, make: bool) -> list[Any]:
    own = keras_version.global_seed_generator(make)
    return [*keras_version.seed_generators_of(model), *([] if own is None else [own])]
