"""What it means for training that the ranks called different collectives: the engine knows only their names."""

from __future__ import annotations

import re

# Names of the first collective of a `fit` and of that at the end of an epoch, before its number.
START_OF_FIT = "the start of fit"
END_OF_EPOCH = "the end of epoch"

_STEP = "the ranks are out of step: "
_DEED = r"(ranks? [\d, -]*\d) (?:called ([\w ]+?)(?: '(.*?)')?|(ha(?:s|ve) finished)[^,.]*)(?=, rank|\. |\.$| and \d)"
_START = rf"{START_OF_FIT}(/bytes)?"
_END = rf"{END_OF_EPOCH} (\d+)(?: (after \d+ batch(?:es)?))?"
EQUAL_BATCHES = (
    "Give all ranks the same number of batches: dataset = tfdist.shard(dataset) returns complete rounds, also from a "
    "generator's data (tf.data.Dataset.from_generator). Or let some ranks have one batch more with "
    'tfdist.shard(dataset, remainder="join"), if fit trains on what it returns or a tf.data pipeline built on that '
    "(not on a generator, saved data or arrays made from it). Or pass steps_per_epoch to fit."
)
_EQUAL_STOPS = "A callback that sets stop_training must do so on every rank."
_EQUAL_EPOCHS = (
    "Start all ranks at the same epoch: pass the same initial_epoch to fit, and resume with "
    "tfdist.callbacks.BackupAndRestore on every rank."
)
_FIT_EVERYWHERE = (
    "Call fit on every rank, and as often: not under a condition such as `if tfdist.rank() == 0:`. What only one rank "
    "may do, such as saving the model, comes after it, without collectives."
)


def explained(message: str) -> str:
    """The message of a mismatch, explained if a rank has come to the start of a `fit` or the end of an epoch."""
    if not message.startswith(_STEP):
        return message
    begun, ended, others = [], [], []
    for ranks, done, name, finished in re.findall(_DEED, message):
        plural = ranks.startswith("ranks")
        have = "have" if plural else "has"
        end = re.fullmatch(_END, name)
        if end is not None:
            after = f" {end[2]}" if end[2] else ""
            ended.append(f"{ranks} {have} ended epoch {end[1]}{after}")
        elif re.fullmatch(_START, name):
            begun.append(f"{ranks} {have} begun fit")
        elif finished:
            others.append(f"{ranks} {have} finished")
        elif name == "loss" or name.startswith("gradients"):
            others.append(f"{ranks} {'are' if plural else 'is'} still training ({done} '{name}')")
        else:
            others.append(f"{ranks} called {done} '{name}'")
    if ended:
        advice = f"{EQUAL_BATCHES} {_EQUAL_STOPS}" if others or begun else _EQUAL_EPOCHS
    elif begun:
        advice = _FIT_EVERYWHERE
    else:
        return message
    return f"{_STEP}{', '.join([*ended, *begun, *others])}. {advice}"
