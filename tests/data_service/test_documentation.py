"""The blocks of docs/data-service.md, and of the page on operation beside it, run as they stand."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from pyarrow import parquet

import tfdist
from tfdist.data_service.server import port

pytestmark = pytest.mark.slice("docs")

PAGES = ("data-service.md", "data-service-operation.md")
DOCS = Path(__file__).resolve().parents[2] / "docs"
ROWS = 40


def blocks() -> list[tuple[str, str]]:
    """Section and text of each block of Python."""
    found = []
    for section in re.split(r"^## ", (DOCS / PAGES[0]).read_text(), flags=re.MULTILINE)[1:]:
        title = section.partition("\n")[0]
        found += [(title, block) for block in re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)]
    return found


FOUND = blocks()
# Parts of scripts; the others begin with their name.
BLOCKS = [(title, text) for title, text in FOUND if not text.startswith("# ")]
((_, SCRIPT),) = [block for block in FOUND if block not in BLOCKS]


class Reader:
    """Plays a model for elements that no layer takes: it reads some of them."""

    def fit(self, dataset: Any, steps_per_epoch: int, callbacks: Any = ()) -> None:
        assert len(list(dataset.take(min(steps_per_epoch, 6)))) == min(steps_per_epoch, 6)


def regression() -> keras.Model:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def pairs() -> tf.data.Dataset:
    values = np.arange(ROWS, dtype=np.float32)[:, np.newaxis]
    return tf.data.Dataset.from_tensor_slices((values / ROWS, values))


def sentences() -> tf.data.Dataset:
    return tf.data.Dataset.range(1 << 20).map(lambda number: tf.range(1 + number * 7 % 90))


def write_files(folder: Path) -> None:
    """A few of each kind that the page reads, under the names that it has."""
    for label in ("rose", "tulip"):
        (folder / "flowers" / label).mkdir(parents=True)
        for number in range(2):
            image = tf.fill([8, 8, 3], tf.cast(60 * number + 10, tf.uint8))
            (folder / "flowers" / label / f"{number}.png").write_bytes(tf.io.encode_png(image).numpy())
    (folder / "houses").mkdir()
    table = pa.table({"rooms": list(range(ROWS)), "price": [2.0 * row for row in range(ROWS)], "town": ["x"] * ROWS})
    parquet.write_table(table, folder / "houses" / "0.parquet", row_group_size=10)
    (folder / "texts").mkdir()
    with tf.io.TFRecordWriter(str(folder / "texts" / "0.tfrecord")) as writer:
        for number in range(3):
            text = tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"text %d" % number]))
            label = tf.train.Feature(int64_list=tf.train.Int64List(value=[number]))
            features = tf.train.Features(feature={"text": text, "label": label})
            writer.write(tf.train.Example(features=features).SerializeToString())


def names_for(title: str, text: str) -> dict[str, Any]:
    """What stood in the script before such a block."""
    names = {"tfdist": tfdist, "tf": tf, "keras": keras, "uuid": uuid, "job": uuid.uuid4().hex}
    if title == "Trainers that read together":
        return names | {"dataset": sentences(), "model": Reader()}
    batched = "steps_per_epoch" in text or "measure_wait" in text
    return names | {"dataset": pairs().batch(8) if batched else pairs(), "model": regression()}


def run(title: str, text: str, service: str, folder: Path) -> dict[str, Any]:
    names = names_for(title, text)
    exec(text.replace("data-0:5050", service).replace("/shared", str(folder)), names)
    return names


@pytest.fixture
def named(service_of_two: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TFDIST_DATA_SERVICE", service_of_two)
    return service_of_two


def labels_of(dataset: tf.data.Dataset) -> list[float]:
    return sorted(float(label) for _, (label,) in dataset)


def check_sources(names: dict[str, Any], said: str) -> None:
    assert names["flowers"].class_names == ["rose", "tulip"] and len(list(names["flowers"])) == 1
    assert sorted(int(label) for label in next(iter(names["texts"]))["label"]) == [0, 1, 2]
    read = [(int(rooms), float(price)) for rooms, price in names["dataset"].unbatch()]
    assert sorted(read) == [(row, 2.0 * row) for row in range(ROWS)]


def check_stores(names: dict[str, Any], said: str) -> None:
    for kept in ("saved", "dealt", "kept"):
        assert labels_of(names[kept]) == list(range(ROWS))
    assert f"{ROWS} elements of 8 bytes (by their type)" in said


def check_batches(names: dict[str, Any], said: str) -> None:
    assert len(next(iter(names["one"]))[0]) == 10
    assert len(list(names["two"])) == ROWS // 10
    assert ROWS // 10 - 1 <= len(list(names["three"])) <= ROWS // 10


def check_report(names: dict[str, Any], said: str) -> None:
    assert "4,000 expected, 4,000 seen, 0 lost, 0 doubled (counted by id)" in said
    assert len(list(names["batches"])) >= 125
    found = tfdist.data_service.visitation(names["batches"])
    assert (found.expected, found.lost, found.doubled) == (4000, 0, 0)


def check_registered(names: dict[str, Any], said: str) -> None:
    assert labels_of(names["dataset"]) == list(range(ROWS))
    assert said.strip() == names["dataset_id"]


# By a name that only this block sets. The others train, which is their check.
CHECKS = {
    "flowers": check_sources,
    "saved": check_stores,
    "three": check_batches,
    "batches": check_report,
    "dataset_id": check_registered,
}


@pytest.mark.parametrize("number", range(len(BLOCKS)), ids=[f"{title}-{n}" for n, (title, _) in enumerate(BLOCKS)])
def test_a_block_runs(number: int, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    title, text = BLOCKS[number]
    write_files(tmp_path)
    names = run(title, text, named, tmp_path)
    said = capsys.readouterr().out
    for name in CHECKS.keys() & names.keys():
        CHECKS[name](names, said)


def lines_of(page: str, words: str) -> list[str]:
    """Commands in blocks of bash that begin with these words."""
    bash = "".join(re.findall(r"^```bash\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL))
    return re.findall(rf"^{words}.*", bash, re.MULTILINE)


class Job:
    """A line in a shell, in a folder that has the page's script."""

    def __init__(self, folder: Path, line: str) -> None:
        (folder / "train.py").write_text(SCRIPT)
        self.log = folder / f"{uuid.uuid4().hex}.log"
        environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        with self.log.open("w") as log:  # bash becomes its only command
            self.process = subprocess.Popen(["bash", "-c", line], cwd=folder, env=environment, stdout=log, stderr=log)

    def ends(self) -> str:
        try:
            assert self.process.wait(200) == 0, self.log.read_text()
        finally:
            self.stop()
        return self.log.read_text()

    def stop(self) -> None:
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        self.process.terminate()  # a worker that holds elements of endless data ends at the second one
        self.process.wait(60)


def test_workers_beside_the_ranks(tmp_path: Path) -> None:
    (line,) = re.findall(r"^tfdistrun .*", (DOCS / PAGES[0]).read_text(), re.MULTILINE)
    assert "100/100" in Job(tmp_path, line).ends()


def test_a_service_that_is_started_by_hand(tmp_path: Path, wait_until: Callable[..., None]) -> None:
    """On this machine, and for two ranks."""
    pair = port.take(0, None, "")
    pair.release()
    (block,) = re.findall(r"^```bash\n(.*?)^```", (DOCS / PAGES[1]).read_text(), re.MULTILINE | re.DOTALL)
    changes = {"data-0:5050": f"localhost:{pair.port}", "--port 5050": f"--port {pair.port}", "/shared": str(tmp_path)}
    changes |= {"data-0": "localhost", "data-1": "localhost", "-np 8 -H one:4,two:4": "-np 2"}
    for old, new in changes.items():
        assert old in block
        block = block.replace(old, new)
    *servers, status, train = block.splitlines()
    assert len(servers) == 2
    with contextlib.ExitStack() as stack:
        for line in servers:
            server = Job(tmp_path, line)
            stack.callback(server.stop)
            wait_until(lambda log=server.log: "ready at" in log.read_text(), seconds=90, what=line)
        assert re.search(r"^worker +localhost:\d+ +ready ", Job(tmp_path, status).ends(), re.MULTILINE)
        assert "100/100" in Job(tmp_path, train).ends()


def test_every_check_has_its_block() -> None:
    assert all(any(re.search(rf"^{name} = ", text, re.MULTILINE) for _, text in BLOCKS) for name in CHECKS)


def test_a_job_name_that_was_read_brings_nothing(named: str) -> None:
    """As the page says."""
    job = uuid.uuid4().hex
    lengths = [len(list(tfdist.data_service.distribute(pairs(), job_name=job))) for _ in range(2)]
    assert lengths == [ROWS, 0]


def test_there_are_blocks() -> None:
    """What is run above would be nothing if the page were read wrongly."""
    assert len(FOUND) >= 9
    assert all("tfdist." in text for _, text in FOUND)


def anchors(page: str) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", (DOCS / page).read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES)
def test_links_between_the_pages_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", (DOCS / page).read_text())
    assert links
    for other, anchor in links:
        assert not other or (DOCS / other).is_file(), other
        if anchor:
            assert anchor in anchors(other or page), (other, anchor)


def test_every_public_name_stands_on_a_page() -> None:
    """Apart from those of a server in one's own process, which the room's own text is about."""
    text = "".join((DOCS / page).read_text() for page in PAGES)
    own = {"Dispatcher", "DispatcherConfig", "Worker", "WorkerConfig", "Survey", "survey"}
    results = {"Footprint", "Visitation", "Waited"}
    absent = [name for name in tfdist.data_service.__all__ if not re.search(rf"\b{name}\b", text)]
    assert set(absent) <= own | results
