"""Training that writes to an object store: what its ranks say when that is not possible, and that they go on."""

import contextlib
import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.starter("as given"), pytest.mark.slice("launch")]

TRAIN = """
import pathlib
import keras, numpy as np, tfdist
from tfdist.callbacks import BackupAndRestore, BestModelCheckpoint, DataParallel, ModelCheckpoint
from tfdist.callbacks.store import writer

tfdist.init()
keras.utils.set_random_seed(1)
x = np.random.default_rng(1).normal(size=(8, 2)).astype("float32")
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", loss="mse")
x, y = tfdist.shard((x, x[:, :1]))
made = {
    "backup": lambda place: BackupAndRestore(place, delete_checkpoint=False),
    "checkpoint": lambda place: ModelCheckpoint(place + "/model-{epoch:02d}.keras"),
    "best": lambda place: BestModelCheckpoint(pathlib.Path(place) / "best.keras", monitor="number", mode="min"),
}
# What is written in a thread is written before the next epoch; the first epoch is the best.
between = keras.callbacks.LambdaCallback(
    on_epoch_begin=lambda epoch, logs: writer.wait_for_all(),
    on_epoch_end=lambda epoch, logs: logs.update(number=epoch),
)
callbacks = [made[name](sys.argv[1]) for name in sys.argv[2:]]
begin = time.monotonic()
try:
    model.fit(x, y, epochs=4, batch_size=4, verbose=0, callbacks=[DataParallel(), between, *callbacks])
except tfdist.errors.TfdistError as error:
    print("refused:", int(time.monotonic() - begin < 10), error, flush=True)
    sys.exit(3)
"""


def run(launch, place, *names, size=2, variables=None):
    script = launch.script(TRAIN)
    return launch.run("-np", str(size), sys.executable, script, place, *names, variables=variables)


@pytest.mark.parametrize("name", ["backup", "checkpoint", "best"])
@pytest.mark.parametrize("wrong", ["bucket", "key", "endpoint"])
def test_refused_on_every_rank_before_the_first_step(launch, s3, name, wrong):
    """Within ten seconds, and no local folder has the name of a scheme."""
    variables = {"key": {"AWS_SECRET_ACCESS_KEY": "wrong"}, "endpoint": {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}}
    place = "s3://no-such-bucket/run" if wrong == "bucket" else s3.folder()
    done = run(launch, place, name, variables=variables.get(wrong))
    assert done.code == 3, done.stderr
    said = re.findall(r"^\[(\d)\] refused: (\d) (.*)$", done.stdout, re.MULTILINE)
    assert sorted(rank for rank, _, _ in said) == ["0", "1"], done.stdout
    parts = {
        "bucket": "create s3://no-such-bucket first",
        "key": "Check the credentials of this process",
        "endpoint": "Check the network and the endpoint of the store (s3://: AWS_ENDPOINT_URL)",
    }
    for _, is_soon, text in said:
        assert is_soon == "1"
        assert f"could not write to {place}" in text
        assert parts[wrong] in text
    assert not [path for path in launch.files("**/*") if ":" in path.name]


def test_training_goes_on_when_the_store_fails(launch, s3):
    """Epochs 2 and 3 cannot be written: one error for each kind, and the next ones are there."""

    def refuse(_, method, path):
        return "forbid" if method == "PUT" and re.search(r"model-0[23]|epoch-00000[23]", path) else None

    s3.disturb = refuse
    place = s3.folder()
    done = run(launch, place, "backup", "checkpoint")
    assert done.code == 0, done.stderr
    for kind, first, last in (
        ("backups", "backup of epoch 2, batch 0", "backup of epoch 4, batch 0"),
        ("checkpoints", f"checkpoint {place}/model-02.keras", f"checkpoint {place}/model-04.keras"),
    ):
        errors = re.findall(rf"could not write the {first.split()[0]} .*", done.stderr)
        assert len(errors) == 1, done.stderr
        assert errors[0].startswith(f"could not write the {first} to {place}: StoreError: could not write ")
        assert "Check the credentials of this process" in errors[0]
        assert "Training continues, and the next one will be tried as usual." in errors[0]
        assert f"{kind} can be written again: wrote the {last} (2 failed before it)" in done.stderr
    names = s3.objects(place)
    assert {"model-01.keras", "model-04.keras"} <= names.keys()
    assert not {"model-02.keras", "model-03.keras"} & names.keys()
    assert [name for name in names if re.fullmatch(r"epoch-000004-.*\.json", name)]


def test_best_of_what_is_written(launch, s3):
    """The best model cannot be written: the best of those that can be is."""
    s3.disturb = lambda number, method, path: "forbid" if method == "PUT" and "best.keras" in path and first() else None
    before = []

    def first():
        before.append(None)
        return len(before) == 1

    place = s3.folder()
    done = run(launch, place, "best")
    assert done.code == 0, done.stderr
    assert (
        f"checkpoints can be written again: wrote the checkpoint {place}/best.keras (1 failed before it)" in done.stderr
    )
    assert list(s3.objects(place)) == ["best.keras"]
    assert len(before) == 2, "the third and the fourth epoch are worse than the second"


LOGGED = """
import numpy as np, tfdist
tfdist.init()
print("rank", rank, "begins", flush=True)
tfdist.allreduce(np.ones(4, "float32"), name="only")
tfdist.barrier()
"""


def test_timelines_and_output_are_there_at_the_end(launch, s3):
    place, script = s3.folder(), launch.script(LOGGED)
    words = ("-np", "2", "--output-filename", f"{place}/logs", "--timeline-filename", f"{place}/traces/run.json")
    done = launch.run(*words, sys.executable, script)
    assert done.code == 0, done.stderr
    found = s3.objects(place)
    assert sorted(found) == [
        *(f"logs/rank.{rank}/{stream}" for rank in (0, 1) for stream in ("stderr", "stdout")),
        "traces/run.0.json",
        "traces/run.1.json",
    ]
    for rank in (0, 1):
        assert found[f"logs/rank.{rank}/stdout"] == b"rank %d begins\n" % rank
        names = [event.get("name") for event in json.loads(found[f"traces/run.{rank}.json"])]
        assert "allreduce only" in names
    assert not [path for path in launch.files("**/*") if ":" in path.name]


def test_a_last_upload_that_fails_is_told(launch, s3):
    s3.disturb = lambda number, method, path: "forbid" if "run.0.json" in path else None
    place = s3.folder()
    done = launch.run("-np", "1", "--timeline-filename", f"{place}/run.json", sys.executable, launch.script(LOGGED))
    assert done.code == 0, done.stderr
    (kept,) = re.findall(rf"the last upload to {place} has failed, the files are in (.*?): could not", done.stderr)
    assert "allreduce only" in (Path(kept) / "run.0.json").read_text()
    assert "Check the credentials of this process" in done.stderr
    assert s3.objects(place) == {}


def test_a_timeline_that_is_stopped_is_there_at_once(launch, s3):
    place = s3.folder()
    stopped = LOGGED.replace("tfdist.allreduce", "tfdist.start_timeline(sys.argv[1])\ntfdist.allreduce")
    script = launch.script(stopped + "tfdist.stop_timeline()\nos.kill(os.getpid(), signal.SIGKILL)\n")
    done = launch.run("-np", "1", sys.executable, script, f"{place}/run.json")
    assert done.code == 137, done.stderr
    assert "allreduce only" in s3.objects(place)["run.0.json"].decode()


def test_a_job_that_is_killed_leaves_what_was_uploaded_last(launch, s3, wait_until):
    place = s3.folder()
    script = launch.script(LOGGED + "time.sleep(600)\n")
    words = ("-np", "2", "--upload-seconds", "0.2", "--output-filename", f"{place}/logs")
    launcher = launch.start(*words, "--timeline-filename", f"{place}/run.json", sys.executable, script)

    def is_there():
        try:
            found = s3.objects(place)
        except s3.client().exceptions.NoSuchKey:  # what a process tries the store with comes and goes
            return False
        return all(
            b"begins" in found.get(f"logs/rank.{rank}/stdout", b"") and b"only" in found.get(f"run.{rank}.json", b"")
            for rank in (0, 1)
        )

    wait_until(is_there, seconds=120, what="the first uploads")
    for process in launch.processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    launcher.kill()
    launch.end(launcher)
    assert is_there()


@pytest.mark.parametrize("option", ["--output-filename", "--timeline-filename", "--elastic --backup-dir"])
def test_a_key_that_is_refused_is_told_before_anything_runs(launch, s3, option):
    script, wrong = launch.script(LOGGED), {"AWS_SECRET_ACCESS_KEY": "wrong"}
    done = launch.run("-np", "2", *option.split(), f"{s3.folder()}/run.json", sys.executable, script, variables=wrong)
    assert done.code == 2 and "begins" not in done.stdout
    (line,) = done.stderr.splitlines()
    assert "Check the credentials of this process" in line


def test_the_log_of_autotuning(launch, s3):
    place, tuned = s3.folder(), launch.script(TUNED)
    words = ("-np", "2", "--autotune", "--autotune-log-file", f"{place}/tuning.csv")
    done = launch.run(*words, sys.executable, tuned)
    assert done.code == 0, done.stderr
    head, *rows = s3.objects(place)["tuning.csv"].decode().splitlines()
    assert head.startswith("sample,phase,") and len(rows) > 1


TUNED = """
import keras, numpy as np, tensorflow as tf, tfdist
tfdist.init()
x = np.ones((8, 4), "float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
data = tfdist.shard(tf.data.Dataset.from_tensor_slices((x, x[:, :1])).repeat()).batch(2)
model.fit(data, steps_per_epoch=600, verbose=0, callbacks=[tfdist.callbacks.DataParallel()])
"""
