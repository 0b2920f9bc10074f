"""What each rank of an Estimator's job does: reads its own row groups, and trains."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfdist.spark import store
from tfdist.spark.keras import frozen
from tfdist.spark.keras.writing import File, name_of
from tfdist.system.local_path import address_of

# What shuffled row groups may take in a rank; three copies of a window are there at a time.
_WINDOW_BYTES = 256 << 20


@dataclass(frozen=True)
class Side:
    """The rows to train on, or to validate with.

    Attributes:
        shares: The files of each rank.
        batch_size: Rows of a rank in a step.
        steps: Steps of a rank in an epoch; None for all rows.
    """

    shares: tuple[tuple[File, ...], ...]
    batch_size: int
    steps: int | None


@dataclass(frozen=True)
class Shape:
    """A column as a model takes it: its number, and the shape of a row."""

    column: int
    row: tuple[int, ...]


@dataclass(frozen=True)
class Run:
    """Where what is kept of a run goes: its checkpoint, its backups, its logs and the best result, with how the
    checkpoint is made.
    """

    checkpoint: str
    backup: str
    logs: str
    best: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Work:
    """All that a rank needs. Its models are files in the store, since a message is limited.

    `recipe` is without the model, which is at `start`; after training it is at `trained`.
    """

    recipe: frozen.Recipe
    start: str
    trained: str
    floatx: str  # of Keras
    features: tuple[Shape, ...]
    labels: tuple[Shape, ...]
    weights: tuple[Shape, ...]  # one or none
    train: Side
    validation: Side | None
    run: Run | None
    callbacks: Sequence[Any]
    epochs: int
    verbose: int
    random_seed: int | None
    # Rows that are shuffled at a time; 0 for the order of the files, None for as many as fit.
    shuffle_rows: int | None
    cache: bool
    use_gpu: bool
    compression: Any


def train(work: Work) -> dict[str, list[float]] | None:
    """Trains; returns the history on rank 0, which has written the model, and None on the others."""
    import keras
    import tensorflow as tf

    import tfdist

    if not work.use_gpu:
        tf.config.set_visible_devices([], "GPU")
    keras.config.set_floatx(work.floatx)
    tfdist.init()
    if work.random_seed is not None:
        keras.utils.set_random_seed(work.random_seed)
    model = work.recipe.with_model(store.read(work.start)).build()
    rank = tfdist.rank()
    validation = None if work.validation is None else _dataset(work, work.validation, rank, shuffled=False)
    if not rank and work.run is not None and not work.run.settings.get("save_best_only"):
        # Of the checkpoint that this fit replaces.
        store.remove_file(work.run.best)
    history = model.fit(
        _dataset(work, work.train, rank, shuffled=True),
        epochs=work.epochs,
        steps_per_epoch=work.train.steps,
        validation_data=validation,
        shuffle=False,  # the data is
        verbose=min(2, 2 * work.verbose),  # a line for each epoch, since no terminal is there
        callbacks=_callbacks(work),
    )
    if rank:
        return None
    store.write(frozen.dump(model), work.trained, store.add)
    return history.history


def _keep_best(run: Run, best: float | None) -> None:
    """For what continues this run, also if it fails."""
    if best is None:
        return
    store.write(json.dumps({run.settings["monitor"]: float(best)}).encode(), run.best)


def _callbacks(work: Work) -> list[Any]:
    import keras

    import tfdist

    own: list[Any] = [tfdist.callbacks.DataParallel(compression=work.compression, scale_learning_rate=False)]
    if work.run is None:
        return [*own, *work.callbacks]
    own.append(tfdist.callbacks.BackupAndRestore(work.run.backup))
    logs = work.run.logs
    own.append(tfdist.callbacks.RankZero(lambda: keras.callbacks.CSVLogger(_log_file(logs))))
    run, checkpoint = work.run, tfdist.callbacks.ModelCheckpoint(work.run.checkpoint, **work.run.settings)
    own.append(checkpoint)
    if run.settings.get("save_best_only"):
        keeping = keras.callbacks.LambdaCallback(on_epoch_end=lambda _epoch, _logs: _keep_best(run, checkpoint.best))
        own.append(tfdist.callbacks.RankZero(lambda: keeping))
    return [*own[:1], *work.callbacks, *own[1:]]


def _log_file(folder: str) -> str:
    """A new file on the disk, which is in the folder of a store, or comes to it now and then and at the end."""
    from tfdist.storage import mirror

    local = Path(folder) if address_of(folder) is None else mirror.of(folder).folder
    local.mkdir(parents=True, exist_ok=True)
    return str(local / f"{time.strftime('%Y-%m-%d-%H-%M-%S')}.csv")


def _dataset(work: Work, side: Side, rank: int, shuffled: bool) -> Any:
    """The batches of this rank, which no other rank reads: (features, labels), or with weights."""
    import tensorflow as tf

    from tfdist.data_service.source.parquet import from_parquet
    from tfdist.input import mark
    from tfdist.world import lone_training

    files = side.shares[rank]
    rows = sum(file.rows for file in files)
    window = _window(work, files) if shuffled else 0
    endless = shuffled and side.steps is not None
    columns = {shape.column for shape in (*work.features, *work.labels, *work.weights)}
    data = from_parquet(
        [file.path for file in files],
        [name_of(column) for column in sorted(columns)],
        batch_size=side.batch_size,
        shuffle=0 if work.cache else window,
        seed=work.random_seed,
    )
    if work.cache:
        data = data.unbatch().cache()
        data = data.shuffle(work.shuffle_rows or rows, seed=work.random_seed) if window else data
        data = data.batch(side.batch_size)
    if endless:  # a batch may have the last rows of a pass and the first of the next, so that none is left out
        data = data.repeat().rebatch(side.batch_size, drop_remainder=True)
    elif side.steps is not None:
        data = data.repeat().take(side.steps)
    else:  # which Keras would find out with a warning
        data = data.apply(tf.data.experimental.assert_cardinality(-(-rows // side.batch_size)))
    lone_training.watch(mark.is_part)
    # Each row once in an epoch: ranks that have fewer wait for the others, and all rows weigh the same.
    return mark.put(data.map(_assembled(work)), "drop" if endless else "join").prefetch(2)


def _window(work: Work, files: Sequence[File]) -> int:
    """How many row groups are shuffled at a time."""
    groups, rows = sum(file.groups for file in files), sum(file.rows for file in files)
    if work.shuffle_rows is not None:
        return -(-work.shuffle_rows * groups // rows)
    return max(1, min(groups, _WINDOW_BYTES * groups // max(1, sum(file.bytes for file in files))))


def _assembled(work: Work) -> Any:
    import tensorflow as tf

    def cast(value: Any) -> Any:
        """Decimal numbers as Keras takes them from arrays."""
        return tf.cast(value, work.floatx) if value.dtype.is_floating else value

    def shaped(row: Mapping[str, Any], shapes: Sequence[Shape]) -> Any:
        values = [cast(tf.reshape(row[name_of(shape.column)], [-1, *shape.row])) for shape in shapes]
        return values[0] if len(values) == 1 else tuple(values)

    @tf.autograph.experimental.do_not_convert
    def assemble(row: Mapping[str, Any]) -> Any:
        return tuple(shaped(row, part) for part in (work.features, work.labels, work.weights) if part)

    return assemble
