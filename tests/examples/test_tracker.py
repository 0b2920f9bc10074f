"""The recipes of docs/trackers.md as they are, on two ranks: one run each, with the logs of all epochs over all ranks.

make test-docs installs the trackers (the extra test-trackers).
"""

import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.usefixtures("all_packages"), pytest.mark.slice("docs")]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "trackers.md"
TENSORBOARD, WANDB, MLFLOW = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
SECONDS = 600  # MLflow makes its tables step by step
EPOCHS = 3


def losses(folder, text):
    """Runs a script on two ranks; `loss` and `val_loss` of each epoch, which both ranks must print."""
    (folder / "track.py").write_text(text)
    command = ["tfdistrun", "-np", "2", sys.executable, "track.py"]
    # None may ask the network for anything.
    environment = os.environ | {"WANDB_ERROR_REPORTING": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    told = re.findall(r"^\[\d\] losses: (\[.*\]) (\[.*\])$", done.stdout, re.MULTILINE)
    assert len(told) == 2 and len(set(told)) == 1, "their data differ, so that only averages are equal"
    found = {"loss": json.loads(told[0][0]), "val_loss": json.loads(told[0][1])}
    assert all(len(set(values)) == EPOCHS for values in found.values())
    return found


def numbered(values):
    """As (epoch, value)."""
    return [(epoch, pytest.approx(value, rel=1e-6)) for epoch, value in enumerate(values)]


def test_tensorboard(tmp_path):
    import tensorflow as tf
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    expected = losses(tmp_path, TENSORBOARD)
    for part, name in (("train", "loss"), ("validation", "val_loss")):
        (file,) = (tmp_path / "logs" / part).iterdir()
        events = EventAccumulator(str(file)).Reload().Tensors("epoch_loss")
        assert [(each.step, float(tf.make_ndarray(each.tensor_proto))) for each in events] == numbered(expected[name])


def records(data):
    """The records of an offline run's file, which is a log of LevelDB after a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    block, head = 32768, 7
    place, whole = head, b""
    while place < len(data):
        left = block - place % block
        if left < head:
            place += left
            continue
        size, kind = struct.unpack_from("<HB", data, place + 4)
        whole += data[place + head : place + head + size]
        place += head + size
        if kind in (1, 4):  # a whole one, or the last part of one
            yield Record.FromString(whole)
            whole = b""


def test_wandb_offline(tmp_path):
    expected = losses(tmp_path, WANDB)
    (file,) = (tmp_path / "wandb").glob("*run-*/*.wandb")
    found = list(records(file.read_bytes()))
    rows = [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in each.history.item}
        for each in found
        if each.HasField("history")
    ]
    for name, values in expected.items():
        assert [(row["epoch/epoch"], row[f"epoch/{name}"]) for row in rows] == numbered(values)
    (run,) = (each.run for each in found if each.HasField("run"))
    settings = {each.key: each.value_json for each in run.config.update}
    assert (settings["ranks"], settings["batch"]) == ("2", "16")
    assert [each.exit.exit_code for each in found if each.HasField("exit")] == [0]


def test_mlflow_in_a_file(tmp_path):
    from mlflow.tracking import MlflowClient

    expected = losses(tmp_path, MLFLOW)
    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    (run,) = client.search_runs([each.experiment_id for each in client.search_experiments()])
    assert run.info.status == "FINISHED"
    assert run.data.params.items() >= {"ranks": "2", "batch": "16"}.items()
    for name, values in expected.items():
        found = client.get_metric_history(run.info.run_id, name)
        assert sorted((each.step, each.value) for each in found) == numbered(values)
