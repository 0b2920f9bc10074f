"""What a journal tells: of records that are written here, and of those that TensorFlow writes."""

import os

import pytest
import tensorflow as tf

from tfdist import data_service
from tfdist.data_service.inspection import passes
from tfdist.data_service.inspection.control_client import fetch
from tfdist.data_service.inspection.survey import survey
from tfdist.data_service.server.journal import journal
from tfdist.data_service.server.journal.ledger import _MESSAGES, Ledger


def update(**kind):
    return _MESSAGES.Update(**kind).SerializeToString()


def dataset(name):
    return update(register_dataset={"dataset_id": name})


def job(number, name):
    return update(create_job={"job_id": number, "job_name": name})


def begun(number, of, repetition):
    return update(create_iteration={"iteration_id": number, "job_id": of, "repetition": repetition})


def forgotten(number):
    # Its bytes: the test with TensorFlow has no such record.
    return bytes([12 << 3 | 2, 3, 1 << 3, number & 127 | 128, number >> 7])


def task(number, of):
    return update(create_task={"task_id": number, "iteration_id": of})


def ended(number):
    return update(finish_task={"task_id": number})


SPLIT = bytes([8 << 3 | 2, 4, 8, 7, 16, 0])


@pytest.fixture
def write(tmp_path):
    """Appends records to a file of a journal."""

    def append(file, *records):
        path = tmp_path / journal.FOLDER / f"journal_{file}"
        path.parent.mkdir(exist_ok=True)
        with tf.io.TFRecordWriter(str(tmp_path / "new")) as writer:
            for record in records:
                writer.write(record)
        with path.open("ab") as out:
            out.write((tmp_path / "new").read_bytes())
        return path

    return append


def test_datasets_and_jobs_are_followed(tmp_path, write):
    ledger = Ledger(str(tmp_path))
    assert ledger.look() == (0, {}) and ledger.size_bytes == 0
    write(0, dataset("1000"), job(5000, "train"), begun(2000, 5000, 1), SPLIT, SPLIT)
    assert ledger.look() == (1, {2000: ("train", 1)})
    assert ledger.look() == (1, {2000: ("train", 1)})
    write(0, dataset("1001"), begun(2001, 5000, 2))
    write(1, dataset("1001"), job(5001, "valid"), begun(2002, 5001, 0), forgotten(2000))
    assert ledger.look() == (2, {2001: ("train", 2), 2002: ("valid", 0)})
    assert ledger.size_bytes == sum(path.stat().st_size for path in journal.files(str(tmp_path)))


def test_a_pass_has_ended_when_its_tasks_have(tmp_path, write):
    ledger = Ledger(str(tmp_path))

    def look(*records):
        write(0, *records)
        ledger.look()
        return ledger.ended

    assert look(job(5000, "train"), begun(2000, 5000, 1), begun(2001, 5000, 2)) == set()
    assert look(task(4000, 2000), task(4001, 2000), task(4002, 2001), ended(4001)) == set()
    assert look(ended(4000)) == {2000}
    assert look(ended(4000), ended(9999), ended(4002)) == {2000, 2001}
    assert look(forgotten(2000)) == {2001}
    assert look(begun(2002, 5000, 1), task(4003, 2002), forgotten(2002), ended(4003)) == {2001}


def test_a_record_that_is_being_written_is_read_when_it_is_whole(tmp_path, write):
    path = write(0, dataset("1000"), dataset("1001"))
    whole = path.read_bytes()
    ledger = Ledger(str(tmp_path))
    seen = []
    for stop in range(len(whole) + 1):
        path.write_bytes(whole[:stop])
        seen.append(ledger.look()[0])
    assert seen == sorted(seen) and set(seen) == {0, 1, 2} and seen[-2:] == [1, 2]
    assert ledger.size_bytes == len(whole)


def test_what_is_read_is_not_read_again(tmp_path, write):
    path = write(0, dataset("1000"))
    ledger = Ledger(str(tmp_path))
    ledger.look()
    path.write_bytes(b"\xff" * path.stat().st_size)
    write(0, dataset("1001"))
    assert ledger.look()[0] == 2


def test_a_journal_that_cannot_be_read_is_told_once(tmp_path, write, caplog):
    write(0, dataset("1000"))
    ledger = Ledger(str(tmp_path))
    ledger.look()
    os.mkdir(tmp_path / journal.FOLDER / "journal_1")
    assert [ledger.look()[0] for _ in range(3)] == [1, 1, 1]
    assert [record.getMessage().startswith("tfdist: data service: ") for record in caplog.records] == [True]
    os.rmdir(tmp_path / journal.FOLDER / "journal_1")
    write(1, dataset("1001"))
    assert ledger.look()[0] == 2


def test_a_record_that_is_none_is_told_and_passed_over(tmp_path, write, caplog):
    ledger = Ledger(str(tmp_path))
    write(0, dataset("1000"), dataset("1001")[:-1], dataset("1002"))
    assert [ledger.look()[0] for _ in range(3)] == [1, 2, 2]
    assert [record.getMessage().startswith("tfdist: data service: ") for record in caplog.records] == [True]


def test_what_tensorflow_writes(tmp_path, worker_of):
    config = data_service.DispatcherConfig(host="127.0.0.1", work_dir=str(tmp_path), fault_tolerant=True)
    with data_service.Dispatcher(config) as dispatcher:
        worker_of(dispatcher)
        service = str(dispatcher.service)
        read = data_service.distribute(tf.data.Dataset.range(3), service, job_name="train")
        seen = []
        for _ in range(2):
            assert sorted(int(number) for number in read) == [0, 1, 2]
            told = fetch(dispatcher.service, 5)
            seen.append(max(told.jobs.items(), key=lambda item: int(item[0]))[1])
            assert [str(number) for number in told.ended] == list(told.jobs)
        endless = iter(data_service.distribute(tf.data.Dataset.range(1 << 40), service, job_name="valid"))
        next(endless)
        assert seen == [("train", 1), ("train", 2)]
        assert len(fetch(dispatcher.service, 5).ended) == len(seen)
        found = survey(dispatcher.service)
        assert found.dispatcher.status.counters["datasets"] == 2
        jobs = {one.job for one in passes.read(found, dispatcher.service, 5).passes}
        assert "valid" in jobs and jobs <= {"train", "valid"}
