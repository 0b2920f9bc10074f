"""docs/storage.md: its lines and its command run as they stand, on folders of the S3 server."""

import os
import re
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist

pytestmark = pytest.mark.slice("docs")

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "storage.md").read_text()
WRITES, READS = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
(COMMAND,) = re.findall(r"^```bash\n(.*)\n```", TEXT, re.MULTILINE)


@pytest.fixture
def place(s3, monkeypatch):
    """A folder, in the place of the page's bucket."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return s3.folder()


def run(text, place):
    names = {"tf": tf, "tfdist": tfdist}
    exec(text.replace("s3://bucket", place), names)
    return names


def test_checkpoints_and_backups(s3, place):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", loss="mse")
    x = np.ones((1100, 2), "float32")
    model.fit(x, x[:, :1], batch_size=1, epochs=2, verbose=0, callbacks=run(WRITES, place)["callbacks"])
    assert set(s3.objects(f"{place}/run-7")) == {"model-01.keras", "model-02.keras"}
    assert any(method == "PUT" and "/run-7/backup/" in path for method, path in s3.requests), "and removed at the end"


def test_records_and_images(s3, place, tmp_path):
    x = tf.train.Feature(float_list=tf.train.FloatList(value=range(8)))
    y = tf.train.Feature(int64_list=tf.train.Int64List(value=[3]))
    with tf.io.TFRecordWriter(str(tmp_path / "rows")) as writer:
        writer.write(tf.train.Example(features=tf.train.Features(feature={"x": x, "y": y})).SerializeToString())
    s3.put(f"{place}/data/0.tfrecord", (tmp_path / "rows").read_bytes())
    for number, kind in enumerate(("rose", "tulip")):
        image = tf.io.encode_png(tf.fill([8, 8, 3], tf.cast(9 * number, tf.uint8))).numpy()
        s3.put(f"{place}/flowers/{kind}/0.png", image)
    names = run(READS, place)
    (row,) = names["rows"]
    assert row["x"].numpy().tolist() == [list(range(8))] and row["y"].numpy().ravel().tolist() == [3]
    ((images, labels),) = names["flowers"]
    assert images.shape == (2, 224, 224, 3) and sorted(labels.numpy()) == [0, 1]


def test_output_and_timelines(s3, place, tmp_path):
    (tmp_path / "train.py").write_text("import tfdist\ntfdist.init()\nprint('rank', tfdist.rank())\n")
    done = subprocess.run(
        ["bash", "-c", COMMAND.replace("s3://bucket", place)],
        cwd=tmp_path,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found = s3.objects(f"{place}/run-7")
    assert {"run.0.json", "run.1.json"} <= set(found)
    assert [found[f"logs/rank.{rank}/stdout"] for rank in (0, 1)] == [b"rank 0\n", b"rank 1\n"]
