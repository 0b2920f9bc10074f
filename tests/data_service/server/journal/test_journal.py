"""The last record of a journal, cut at every byte of it: what is repaired, and what TensorFlow is left to judge."""

import shutil
from pathlib import Path

import pytest
import tensorflow as tf

from tfdist import data_service
from tfdist.data_service.server.journal import journal
from tfdist.data_service.server.journal.journal import Cut, cut_unfinished, files
from tfdist.errors import ConfigError

RECORDS = [b"first", b"", b"the third one is the longest", b"last one"]
HEAD_BYTES, FRAME_BYTES = 12, 16


def journal_of(folder, *contents):
    """A journal with so many files; the bytes of each."""
    made = []
    for number, records in enumerate(contents):
        path = folder / journal.FOLDER / f"journal_{number}"
        path.parent.mkdir(exist_ok=True)
        with tf.io.TFRecordWriter(str(path)) as writer:
            for record in records:
                writer.write(record)
        made.append(path)
    return made


def read(path):
    return [record.numpy() for record in tf.data.TFRecordDataset(str(path))]


def test_a_whole_journal_is_left_alone(tmp_path):
    (path,) = journal_of(tmp_path, RECORDS)
    before = path.read_bytes()
    assert cut_unfinished(str(tmp_path)) is None
    assert path.read_bytes() == before and files(str(tmp_path)) == (path,)


def test_no_journal_is_none(tmp_path):
    assert cut_unfinished(str(tmp_path)) is None
    assert files(str(tmp_path)) == ()


def test_a_record_that_breaks_off_is_cut_at_every_byte(tmp_path):
    (path,) = journal_of(tmp_path, RECORDS)
    whole = path.read_bytes()
    start = len(whole) - FRAME_BYTES - len(RECORDS[-1])
    for left in range(len(whole) - start):
        path.write_bytes(whole[: start + left])
        cut = cut_unfinished(str(tmp_path))
        assert cut == (Cut(path, start, left) if left >= HEAD_BYTES else None)
        assert path.read_bytes() == whole[: start + left if left < HEAD_BYTES else start]
        if left >= HEAD_BYTES or left == 0:
            assert read(path) == RECORDS[:-1]


def test_only_the_last_file_is_cut_and_ten_comes_after_nine(tmp_path):
    made = journal_of(tmp_path, *[[b"%d" % number, b"more"] for number in range(11)])
    (tmp_path / journal.FOLDER / "journal_old.bak").write_bytes(b"x")
    assert files(str(tmp_path)) == tuple(made)
    for path in (made[9], made[10]):
        path.write_bytes(path.read_bytes()[:-1])
    assert cut_unfinished(str(tmp_path)) == Cut(made[10], FRAME_BYTES + 2, FRAME_BYTES + 3)
    assert read(made[10]) == [b"10"]
    assert len(made[9].read_bytes()) == 2 * FRAME_BYTES + 1 + 4 - 1


@pytest.mark.parametrize("at", range(HEAD_BYTES))
def test_a_damaged_length_is_no_unfinished_record(tmp_path, at):
    """Else a flipped bit in the middle would cut off all that comes behind it."""
    (path,) = journal_of(tmp_path, RECORDS)
    damaged = bytearray(path.read_bytes())
    damaged[at] ^= 0x80
    path.write_bytes(damaged)
    assert cut_unfinished(str(tmp_path)) is None
    assert path.read_bytes() == damaged


def test_a_journal_that_cannot_be_opened_is_named(tmp_path):
    (tmp_path / journal.FOLDER / "journal_0").mkdir(parents=True)
    with pytest.raises(ConfigError, match="journal_0 cannot be used: Is a directory"):
        cut_unfinished(str(tmp_path))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The work dir of a dispatcher that has three datasets, and where its last record begins."""
    folder = tmp_path_factory.mktemp("written")
    with start(folder) as dispatcher:
        target = f"grpc://{dispatcher.address}"
        for number in range(3):
            dataset = tf.data.Dataset.range(number)
            tf.data.experimental.service.register_dataset(target, dataset, dataset_id=f"dataset {number}")
    (path,) = files(str(folder))
    whole = path.read_bytes()
    at = len(whole) - len(read(path)[-1]) - FRAME_BYTES
    return folder, at, len(whole)


def start(folder):
    return data_service.Dispatcher(
        data_service.DispatcherConfig(host="127.0.0.1", work_dir=str(folder), fault_tolerant=True)
    )


def knows(dispatcher, number):
    try:
        data_service.from_id(f"dataset {number}", str(dispatcher.service))
    except ConfigError:
        return False
    return True


def test_tensorflow_refuses_what_is_cut(written, tmp_path):
    """If it ever takes it, this module has done its work."""
    folder, at, _ = written
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (path,) = files(str(tmp_path))
    path.write_bytes(path.read_bytes()[: at + HEAD_BYTES])
    config = tf.data.experimental.service.DispatcherConfig(work_dir=str(tmp_path), fault_tolerant_mode=True)
    with pytest.raises(RuntimeError, match="truncated record"):
        tf.data.experimental.service.DispatchServer(config)


def test_dispatcher_starts_from_a_journal_cut_at_any_byte(written, tmp_path, caplog):
    folder, at, end = written
    for stop in range(at, end + 1):
        here = tmp_path / str(stop)
        shutil.copytree(folder, here)
        path = Path(files(str(here))[0])
        path.write_bytes(path.read_bytes()[:stop])
        caplog.clear()
        with start(here) as dispatcher:
            told = [
                record.getMessage()
                for record in caplog.records
                if "ended in the middle of a record" in record.getMessage()
            ]
            assert len(told) == (at + HEAD_BYTES <= stop < end)
            assert all(f"the last {stop - at} bytes, from byte {at} on" in line for line in told)
            if stop in (at, at + HEAD_BYTES - 1, at + HEAD_BYTES, end - 1, end):
                assert knows(dispatcher, 1)
                assert knows(dispatcher, 2) == (stop == end)
        shutil.rmtree(here)


def test_what_is_registered_after_a_cut_is_kept(written, tmp_path):
    folder, _, end = written
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    path = files(str(tmp_path))[0]
    path.write_bytes(path.read_bytes()[: end - 1])
    with start(tmp_path) as dispatcher:
        tf.data.experimental.service.register_dataset(
            f"grpc://{dispatcher.address}", tf.data.Dataset.range(9), dataset_id="dataset 9"
        )
    with start(tmp_path) as dispatcher:
        assert knows(dispatcher, 9) and knows(dispatcher, 0) and not knows(dispatcher, 2)
