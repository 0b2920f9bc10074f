r"""Trains on a table in Parquet files, which workers of a data service read and prepare.

    python examples/tabular/parquet.py                           # one process, which reads the files itself
    tfdistrun -np 2 --data-workers 1 python examples/tabular/parquet.py --data-service job    # two, and a worker
    CODE=$PWD/examples COMMAND="python tabular/parquet.py --folder /data/table" EXTRA_PACKAGES="scikit-learn pyarrow" \
        docker compose -f compose/train.yaml up --build --exit-code-from launcher    # two containers

    CODE=$PWD/examples EXTRA_PACKAGES="scikit-learn pyarrow" \
        DATA_COMMAND="python tabular/parquet.py --folder /data/table --data-service dispatcher:5050" \
        docker compose -f compose/data-service.yaml up --build --exit-code-from trainer    # a trainer and two workers

The table has 569 rows of measurements of tumors, which scikit-learn contains. The script ends with the accuracy on rows
that it has not trained on: 0.9 or more, wherever the data is prepared.
The lines marked with <-- are what training on several processes takes; the one with <-- 2 moves the preparation.
"""

import argparse
import uuid
from pathlib import Path

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf
from sklearn.datasets import load_breast_cancer

import tfdist

BATCH = 32
FILES = 4


def split(table):
    """Every fifth row is for validation."""
    held = np.arange(len(table)) % 5 == 0
    return table[~held], table[held]


def write_files(table, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(FILES):
        part = pa.Table.from_pandas(table[number::FILES], preserve_index=False)
        pq.write_table(part, folder / f"{number}.parquet", row_group_size=32)


def build_model(features):
    normalize = keras.layers.Normalization()
    normalize.adapt(features)  # to all rows on every rank
    layers = [keras.Input((features.shape[1],)), normalize, keras.layers.Dense(16, activation="relu")]
    model = keras.Sequential([*layers, keras.layers.Dense(1, activation="sigmoid")])
    model.compile(keras.optimizers.Adam(5e-3), "binary_crossentropy", metrics=["accuracy"])
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data-service", metavar="WHERE", help="HOST:PORT, or job for that of tfdistrun; default: none"
    )
    parser.add_argument("--folder", type=Path, default=Path("table"), help="where the files are written")
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()

    tfdist.init()
    keras.utils.set_random_seed(1)
    table, held = split(load_breast_cancer(as_frame=True).frame.astype("float32"))
    names = [name for name in table.columns if name != "target"]
    folder = options.folder.resolve()  # the trainers and all workers find it under this path
    if tfdist.rank() == 0:
        write_files(table, folder)
    tfdist.barrier()

    def prepare(row):
        return tf.stack([row[name] for name in names], axis=1), row["target"]

    data = tfdist.data_service.from_parquet(folder, batch_size=BATCH, shuffle=4, seed=1).map(prepare).repeat()
    if options.data_service is not None:
        job = tfdist.broadcast_object(uuid.uuid4().hex)  # the same on all ranks, and never used before
        where = None if options.data_service == "job" else options.data_service
        data = tfdist.data_service.distribute(data, where, job_name=job)  # <-- 2: what stands above runs on the workers
    data = tfdist.shard(data)  # <-- 1: this process's part
    model = build_model(table[names].to_numpy())
    history = model.fit(
        data,
        validation_data=(held[names].to_numpy(), held["target"].to_numpy()),
        steps_per_epoch=len(table) // BATCH // tfdist.size(),
        epochs=options.epochs,
        verbose=2,
        callbacks=[tfdist.callbacks.DataParallel()],  # <-- 3: train together
    ).history
    if tfdist.rank() == 0:
        print(f"validation accuracy: {history['val_accuracy'][-1]:.3f}")


if __name__ == "__main__":
    main()
