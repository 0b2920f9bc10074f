"""`KerasEstimator`: trains a model of Keras on a DataFrame of Spark, on several ranks."""

from __future__ import annotations

import json
import secrets
import sys
import time
import warnings
import zlib
from collections.abc import Sequence
from typing import Any

from pyspark.ml import Estimator
from pyspark.ml.util import MLReadable, MLWritable
from pyspark.sql import Column, DataFrame, functions

from tfdist.errors import ConfigError
from tfdist.spark import check, job
from tfdist.spark import store as place
from tfdist.spark.keras import columns, frozen, params, writing
from tfdist.spark.keras.model import KerasModel, input_shapes, output_shapes
from tfdist.spark.keras.params import DEFAULTS, NAME, declared
from tfdist.spark.keras.persistence import Reader, Writer
from tfdist.spark.keras.training import Run, Shape, Side, Work, train

# Weights that a message has.
_SHOWN = 4


@declared(DEFAULTS)
class KerasEstimator(Estimator, MLReadable, MLWritable):
    """Trains a model of Keras on a DataFrame, data-parallel on the executors: an Estimator of Spark ML.

    `fit(df)` writes the columns into the store as Parquet, trains on `num_proc` ranks that read their own row groups
    (`tfdist.spark.run` with `DataParallel`), removes the data, and returns a `KerasModel`. Each row counts once in an
    epoch, and the gradient is the mean over the rows of all ranks. The learning rate is as the optimizer has it.

    Each parameter has a getter and a setter, as in `setEpochs(3)` and `getEpochs()`. Those of Horovod that have no
    counterpart here are refused by name if they are given. `save` and `load` are as those of `KerasModel`.

    Args:
        num_proc: Number of ranks; default: the application's `defaultParallelism`.
        model: A model of Keras, which stays as it is. One input for each of `feature_cols`, in their order.
        store: A `tfdist.spark.store.Store`, or its path or address, which the driver and all executors reach.
        custom_objects: Classes and functions that the model needs, by name.
        optimizer: An optimizer of Keras, or its name; default: that of the model, which is then compiled.
        loss: A loss of Keras, its name, a function, or a list with one for each output; default: that of the model.
        loss_weights: A number for each output.
        sample_weight_col: Name of a column with the weight of each row.
        gradient_compression: A member of `tfdist.Compression`, or its name.
        metrics: A list, as `metrics` of `compile`.
        feature_cols: Names of columns: single values, arrays of one size, or vectors. Their values get the shape of
            the model's input.
        label_cols: Names of columns, one for each output.
        validation: A share of the rows, chosen at random; or the name of a column that is true for rows to validate
            with. A run that goes on chooses the same rows if the DataFrame has them in the same order and partitions.
        callbacks: Callbacks of Keras, which run on every rank.
        batch_size: Rows of each rank in a step; default 32.
        val_batch_size: Rows of each rank in a step of validation; default `batch_size`.
        epochs: Number of epochs; default 1.
        verbose: 0 prints nothing, 1 (the default) a line for each epoch, 2 also how the job is started.
        random_seed: Makes shuffling, the choice of rows for validation, and dropout the same in every run.
        shuffle_buffer_size: Rows that a rank shuffles at a time; default: as many as fit in 256 MiB; 0 does not
            shuffle.
        shuffle: Whether to shuffle rows in each epoch; default True.
        partitions_per_process: Parquet files for each rank; default 10.
        run_id: Name of a run in the store. If it has a checkpoint, training goes on from there, for `epochs` more; if
            it failed or was killed, from the end of its last epoch. The optimizer is then that of the checkpoint; a
            checkpoint of another model is an error.
        train_steps_per_epoch: Steps in an epoch; default: all rows.
        validation_steps_per_epoch: Steps of validation; default: all rows.
        label_shapes: Shape of a row of each label, if it is not that of the output.
        checkpoint_callback: A `ModelCheckpoint`, for all but its file, which is that of the store. With
            `save_best_only`, `fit` returns the best model. Default: one for each epoch.
        inmemory_cache_all: Whether ranks keep their rows in memory after the first epoch.
        backend_env: Environment variables for the ranks.
        use_gpu: Whether ranks use the GPUs of their task.
        **refused: `backend`, `transformation_fn`, `train_reader_num_workers`, `val_reader_num_workers`,
            `reader_pool_type`, `mp_start_method`, and others of Horovod; they must be None.

    Raises:
        ConfigError: Before training, if a parameter or a column cannot be used, there are nulls, arrays of different
            size, or fewer row groups than ranks.
        StoreError: If the store cannot be written.
        RankError: As `tfdist.spark.run`.

    Example:

    ```python
    estimator = tfdist.spark.keras.KerasEstimator(
        model=model,
        optimizer=keras.optimizers.Adam(1e-3),
        loss="sparse_categorical_crossentropy",
        store=Store.create("s3://bucket/digits"),
        feature_cols=["features"],
        label_cols=["digit"],
        num_proc=4,
        epochs=5,
    )
    predicted = estimator.fit(train).transform(test)
    ```
    """

    def __init__(self, **parameters: Any) -> None:
        super().__init__()
        self._setDefault(**DEFAULTS)
        self.setParams(**parameters)

    def setParams(self, **parameters: Any) -> KerasEstimator:  # noqa: N802  (Spark's name)
        """Sets parameters by name."""
        unknown = sorted(set(parameters) - set(DEFAULTS))
        if unknown:
            raise TypeError(f"{NAME} has no parameters {unknown}; it has {sorted(DEFAULTS)}")
        self._set(**parameters)
        return self

    def values(self) -> dict[str, Any]:
        """All parameters by name; one that is set to None has its default."""
        return params.values_of(self, DEFAULTS)

    def write(self) -> Writer:
        """A writer of Spark ML, as for `save`."""
        return Writer(self)

    @classmethod
    def read(cls) -> Reader:
        """A reader of Spark ML, as for `load`."""
        return Reader(cls)

    def _fit(self, dataset: DataFrame) -> KerasModel:
        values = self.values()
        params.check(values)
        values["store"] = place.opened(values["store"])
        ranks = check.ranks(NAME, check.application(NAME), values["num_proc"])
        fit = _Fit(values, ranks)
        recipe = fit.recipe()
        store: place.Store = values["store"]
        token = f"{fit.run_id}-{secrets.token_hex(4)}"
        folders = (f"{store.get_train_data_path()}/{token}", f"{store.get_val_data_path()}/{token}")
        try:
            for folder in folders:
                place.open_folder(folder)
            written = fit.write(dataset, folders)
            work = fit.work(recipe.with_model(b""), written, folders[0])
            place.write(recipe.model, work.start, place.add)
            verbose = values["verbose"]
            history = job.run(train, (work,), num_proc=ranks, env=values["backend_env"], verbose=verbose)[0]
            data = fit.trained(work)
        finally:
            _clear(folders)
        return KerasModel(
            model=recipe.going_on_from(data).build(),
            feature_columns=list(values["feature_cols"]),
            label_columns=list(values["label_cols"]),
            custom_objects=recipe.custom_objects,
            history=history,
            run_id=fit.run_id,
            batch_size=fit.validation_batch,
        )

    def _state(self) -> dict[str, Any]:
        values = self.values()
        model = values["model"]
        compiled = {name: values[name] for name in ("optimizer", "loss", "metrics")}
        values |= {"custom_objects": {**frozen.objects_in(compiled), **values["custom_objects"]}}
        kept = {name: frozen.freeze(value) for name, value in compiled.items()}
        return values | kept | {"model": None if model is None else frozen.Recipe.of(model, values["custom_objects"])}

    @classmethod
    def _restored(cls, values: dict[str, Any]) -> KerasEstimator:
        known, recipe = values["custom_objects"], values["model"]
        thawed = {name: frozen.thaw(values[name], known) for name in ("optimizer", "loss", "metrics")}
        return cls(**(values | thawed | {"model": None if recipe is None else recipe.build()}))


class _Fit:
    """One call of `fit`."""

    def __init__(self, values: dict[str, Any], ranks: int) -> None:
        self._values, self._ranks = values, ranks
        self._store: place.Store = values["store"]
        self.run_id: str = values["run_id"] or f"keras_{int(time.time())}_{secrets.token_hex(4)}"
        self.validation_batch: int = values["val_batch_size"] or values["batch_size"]
        self._inputs = input_shapes(values["model"], len(values["feature_cols"]))
        self._outputs = output_shapes(values["model"], len(values["label_cols"]))
        self._settings = _checkpoint_settings(values["checkpoint_callback"], bool(values["validation"]))
        unused = next((name for name in ("run_id", "checkpoint_callback") if values[name] is not None), None)
        if unused is not None and not self._store.saving_runs():
            raise ConfigError(
                f"{NAME}: {unused} is given, and the store has save_runs=False, so that nothing of the run is kept. "
                f"Let it save runs, or omit {unused}."
            )

    def recipe(self) -> frozen.Recipe:
        """The model to begin with: that of the run's checkpoint, or the one that was given."""
        values, model = self._values, self._values["model"]
        given = {name: values[name] for name in ("optimizer", "loss", "loss_weights", "metrics") if values[name]}
        recipe = frozen.Recipe.of(model, values["custom_objects"], given)
        for name in ("optimizer", "loss"):
            if recipe.compiled.get(name) is None:
                raise ConfigError(f"{NAME}: {name} is needed, here or in a model that is compiled; received None.")
        # Here as well as on the ranks, so that what Keras does not know is an error before anything is written.
        fresh = recipe.build()
        path = self._store.get_checkpoint_path(self.run_id)
        if not self._store.saving_runs() or values["run_id"] is None or not self._store.exists(path):
            return recipe
        going_on = recipe.going_on_from(self._store.read(path))
        found = going_on.build()
        shapes = [[tuple(weight.shape) for weight in each.weights] for each in (found, fresh)]
        is_same = type(found.optimizer) is type(fresh.optimizer) and (shapes[0] == shapes[1] or not fresh.built)
        more = _difference(found, fresh)
        if more or not is_same:
            raise ConfigError(
                f"{NAME}: run_id {self.run_id!r} has a checkpoint of {_described(found)}, from which training would go "
                f"on; received {_described(fresh)}{more}. Choose another run_id, or remove {path}."
            )
        self._say(f"training goes on from {path}, with the optimizer that it has")
        return going_on

    def write(self, frame: DataFrame, folders: tuple[str, str]) -> writing.Written:
        """Writes all columns that are needed into the store. Raises ConfigError."""
        chosen = [
            (f"{NAME}: {what}: column {name!r}", columns.expression(frame, f"{NAME}: {what}", name))
            for what, name in self._chosen()
        ]
        self._check_text(frame)
        parts, validation = self._ranks * self._values["partitions_per_process"], self._validation(frame)
        self._say(f"writing {len(chosen)} columns to {self._store.prefix_path}")
        written = writing.write(frame, chosen, validation, folders, parts)
        self._check_files(written)
        return written

    def work(self, recipe: frozen.Recipe, written: writing.Written, folder: str) -> Work:
        """What each rank gets, with a folder for models. Raises ConfigError if columns do not fit the model."""
        import keras

        values = self._values
        chosen = self._chosen()
        wanted = [*self._inputs, *self._label_shapes(written.shapes), *([()] if values["sample_weight_col"] else [])]
        shapes = tuple(
            Shape(number, columns.fitted(f"{NAME}: {what}", name, written.shapes[number], wanted[number]))
            for number, (what, name) in enumerate(chosen)
        )
        features, labels = len(values["feature_cols"]), len(values["label_cols"])
        steps, validation_steps = values["train_steps_per_epoch"], values["validation_steps_per_epoch"]
        train_side = Side(self._shares(written.train), values["batch_size"], steps)
        validation = None
        if written.validation:
            validation = Side(self._shares(written.validation), self.validation_batch, validation_steps)
        return Work(
            recipe=recipe,
            start=f"{folder}/start.keras",
            trained=f"{folder}/trained.keras",
            floatx=keras.config.floatx(),
            features=shapes[:features],
            labels=shapes[features : features + labels],
            weights=shapes[features + labels :],
            train=train_side,
            validation=validation,
            run=self._run(),
            callbacks=values["callbacks"],
            epochs=values["epochs"],
            verbose=values["verbose"],
            random_seed=values["random_seed"],
            shuffle_rows=values["shuffle_buffer_size"] if values["shuffle"] else 0,
            cache=values["inmemory_cache_all"],
            use_gpu=values["use_gpu"],
            compression=values["gradient_compression"],
        )

    def trained(self, work: Work) -> bytes:
        """The model that `fit` returns: the best of the run, if only that is saved, or the last."""
        if work.run is None or not self._settings.get("save_best_only"):
            return place.read(work.trained)
        if self._store.exists(work.run.checkpoint):
            return place.read(work.run.checkpoint)
        warnings.warn(
            f"{NAME}: checkpoint_callback has saved no model: none was better by {self._settings['monitor']!r} than "
            f"its threshold, no save_freq was reached, or it could not be written to {work.run.checkpoint}. fit "
            "returns the model as it was after the last epoch.",
            stacklevel=4,
        )
        return place.read(work.trained)

    def _check_text(self, frame: DataFrame) -> None:
        """Raises ConfigError for text where the model takes numbers."""
        inputs = getattr(self._values["model"], "inputs", None) or [None] * len(self._values["feature_cols"])
        takes_text = [tensor is None or tensor.dtype == "string" for tensor in inputs]
        takes_text += [False] * (len(self._chosen()) - len(inputs))
        for (what, name), text in zip(self._chosen(), takes_text, strict=True):
            if not text and columns.field_type(frame, what, name).simpleString() in ("string", "binary"):
                raise ConfigError(
                    f"{NAME}: {what}: column {name!r} has text, and the model takes numbers there. Make numbers of it, "
                    "as with pyspark.ml.feature.StringIndexer."
                )

    def _chosen(self) -> list[tuple[str, str]]:
        """The columns to read, each with the parameter that names it."""
        values = self._values
        found = [("feature_cols", name) for name in values["feature_cols"]]
        found += [("label_cols", name) for name in values["label_cols"]]
        return found + ([("sample_weight_col", values["sample_weight_col"])] if values["sample_weight_col"] else [])

    def _validation(self, frame: DataFrame) -> Column:
        """Whether a row is for validation."""
        validation = self._values["validation"]
        if not validation:
            return functions.lit(False)
        if not isinstance(validation, str):
            seed = self._values["random_seed"]
            # Whoever goes on with a run must not validate with rows that it was trained on.
            return functions.rand(zlib.crc32(self.run_id.encode()) if seed is None else seed) < validation
        kind = columns.field_type(frame, f"{NAME}: validation", validation).simpleString()
        if kind not in ("boolean", "tinyint", "smallint", "int", "bigint"):
            raise ConfigError(
                f"{NAME}: validation: column {validation!r} must have booleans, or 0 and 1; it is of type {kind}."
            )
        refusal = f"{NAME}: validation: a null in column {validation!r}; expected true or false in each row"
        column = frame[columns.quoted(validation)]
        return functions.when(column.isNull(), functions.raise_error(functions.lit(refusal))).otherwise(
            column.cast("boolean")
        )

    def _label_shapes(self, rows: Sequence[tuple[int, ...]]) -> list[tuple[int | None, ...] | None]:
        """What the labels become: what the user says, or the shape of the output if it has as many values."""
        given = self._values["label_shapes"]
        first = len(self._values["feature_cols"])
        if given is not None:
            if len(given) != len(self._outputs):
                raise ConfigError(
                    f"{NAME}: label_shapes needs {len(self._outputs)} shapes, one for each label; received {given!r}."
                )
            return [(each,) if isinstance(each, int) else tuple(each) for each in given]
        pairs = zip(self._outputs, rows[first : first + len(self._outputs)], strict=True)
        return [output if output and columns.same_count(row, output) else None for output, row in pairs]

    def _check_files(self, written: writing.Written) -> None:
        sides = {"train on": written.train}
        if self._values["validation"]:
            sides["validate with"] = written.validation
        for doing, files in sides.items():
            if len(files) < self._ranks:
                rows, groups = sum(file.rows for file in files), sum(file.groups for file in files)
                raise ConfigError(
                    f"{NAME}: the DataFrame has {rows} rows to {doing}, in {groups} row groups of {len(files)} files, "
                    f"and each of {self._ranks} ranks needs one of its own. Give it more rows, or ask for fewer ranks "
                    "with num_proc."
                )
        path = written.train[0].path
        if not self._store.exists(path):
            raise ConfigError(
                f"{NAME}: {path}, which an executor has written, is not there for the driver. The store must be a "
                "place that the driver and all executors reach: a shared file system, or an object store."
            )

    def _shares(self, files: Sequence[writing.File]) -> tuple[tuple[writing.File, ...], ...]:
        """The files of each rank, about as many rows for each."""
        shares: list[list[writing.File]] = [[] for _ in range(self._ranks)]
        for file in sorted(files, key=lambda file: (-file.rows, file.path)):
            min(shares, key=lambda share: sum(each.rows for each in share)).append(file)
        return tuple(map(tuple, shares))

    def _run(self) -> Run | None:
        if not self._store.saving_runs():
            return None
        store, run_id, settings = self._store, self.run_id, self._settings
        run = store.get_run_path(run_id)
        best = f"{run}/best.json"
        if settings.get("save_best_only") and store.exists(best):  # of fits before, whose best one is the checkpoint
            known = json.loads(store.read(best)).get(settings["monitor"])
            settings = settings if known is None else {**settings, "initial_value_threshold": known}
        return Run(store.get_checkpoint_path(run_id), f"{run}/backup", store.get_logs_path(run_id), best, settings)

    def _say(self, text: str) -> None:
        if self._values["verbose"]:
            print(f"{NAME}: {text}", file=sys.stderr, flush=True)  # noqa: T201


def _clear(folders: Sequence[str]) -> None:
    """Removes the data; what cannot be removed is told, since the model counts more."""
    for folder in folders:
        try:
            place.remove(folder)
        except OSError as error:
            warnings.warn(f"{NAME}: {folder} is left in the store: {error}", stacklevel=4)


def _described(model: Any) -> str:
    weights = model.weights
    shown = ", ".join(str(tuple(weight.shape)) for weight in weights[:_SHOWN]) + (", ..." if weights[_SHOWN:] else "")
    return f"a model with {len(weights)} weights ({shown}) and the optimizer {type(model.optimizer).__name__}"


def _difference(found: Any, fresh: Any) -> str:
    """The first layer that is configured otherwise; empty if none is."""
    pairs = zip(_layers(found), _layers(fresh), strict=False)
    return next((f"; a layer was {one} and is {other}" for one, other in pairs if one != other), "")


def _layers(model: Any) -> list[str]:
    """The layers, those of models in it included, as they are configured but for names."""
    found: list[str] = []
    for layer in model.layers:
        found += _layers(layer) if hasattr(layer, "layers") else [_configured(layer)]
    return found


def _configured(layer: Any) -> str:
    def nameless(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: nameless(each) for key, each in value.items() if key not in ("name", "build_config")}
        return [nameless(each) for each in value] if isinstance(value, (list, tuple)) else value

    try:
        configuration = nameless(layer.get_config())
    except NotImplementedError:  # of a class without one
        configuration = ""
    return f"{type(layer).__name__} {configuration}"


def _checkpoint_settings(callback: Any, validates: bool) -> dict[str, Any]:
    """How the checkpoint is written, from a callback of Keras. Raises ConfigError."""
    import keras

    if callback is None:
        return {}
    if not isinstance(callback, keras.callbacks.ModelCheckpoint) or callback.save_weights_only:
        raise ConfigError(
            f"{NAME}: checkpoint_callback must be a keras.callbacks.ModelCheckpoint that saves whole models; received "
            f"{callback!r}."
        )
    if callback.save_best_only and callback.monitor.startswith("val_") and not validates:
        raise ConfigError(
            f"{NAME}: checkpoint_callback saves the best {callback.monitor!r} only, and there is no validation. Give "
            "validation, or another monitor."
        )
    taken = ("monitor", "mode", "verbose", "save_best_only", "save_freq")
    return {**{name: getattr(callback, name) for name in taken}, "initial_value_threshold": callback.best}
