"""What is told of files that cannot be written."""

import errno
import os
import resource

import pytest

from tfdist.callbacks.store.failure_series import FailureSeries, advice, disk_error


def error_of(number):
    return OSError(number, os.strerror(number))


@pytest.fixture
def series():
    made = FailureSeries("backups")
    made.begin()
    yield made
    made.end()


def test_once_for_a_series_and_again_at_its_end(series, caplog, tmp_path):
    series.succeeded("backup of epoch 1, batch 0")
    for epoch in (2, 3, 4):
        series.failed(f"backup of epoch {epoch}, batch 0", error_of(errno.ENOSPC), tmp_path, 1 << 60)
    series.end()
    series.end()
    first, last = caplog.messages
    assert first.startswith(
        f"tfdist: could not write the backup of epoch 2, batch 0 to {tmp_path}: OSError: [Errno 28] No space left on "
        "device. It needs 1152921504606.8 MB, and "
    )
    assert first.endswith(
        " MB are missing. Free up space there, or use another folder at the next start. Training continues, and the "
        "next one will be tried as usual. The newest complete one is the backup of epoch 1, batch 0."
    )
    assert last == (
        "tfdist: training has ended, and 3 of its backups could not be written, starting with the backup of epoch 2, "
        "batch 0. Last error: OSError: [Errno 28] No space left on device. The newest complete one is the backup of "
        "epoch 1, batch 0."
    )
    assert {record.levelname for record in caplog.records} == {"ERROR"}


def test_a_success_ends_a_series(series, caplog, tmp_path):
    for name in ("a", "b"):
        series.failed(name, error_of(errno.EIO), tmp_path, 1)
    series.succeeded("c")
    assert caplog.messages[1:] == ["tfdist: backups can be written again: wrote the c (2 failed before it)"]
    series.end()
    assert len(caplog.messages) == 2
    series.failed("d", error_of(errno.EIO), tmp_path, 1)
    assert caplog.messages[2].endswith("The newest complete one is the c.")


def test_without_any(series, caplog, tmp_path):
    series.failed("a", error_of(errno.EIO), tmp_path, 1)
    assert caplog.messages[0].endswith("None has been written so far.")


def test_a_new_training_begins_anew(series, caplog, tmp_path):
    series.failed("a", error_of(errno.EIO), tmp_path, 1)
    series.begin()
    series.failed("b", error_of(errno.EIO), tmp_path, 1)
    assert [message.split(" to ")[0] for message in caplog.messages] == [
        "tfdist: could not write the a",
        "tfdist: could not write the b",
    ]


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.EDQUOT, "It needs 2.0 kB, more than is left of this user's quota."),
        (errno.EROFS, "Make the folder writable"),
        (errno.EACCES, "Make the folder writable"),
        (errno.EIO, "Check the folder and its disk"),
        (errno.ENOSPC, " are free there now; the disk may be out of inodes. Free up space there"),
        (errno.EFBIG, "It needs 2.0 kB, but a file may have no more than the file system allows."),
    ],
)
def test_what_to_do(tmp_path, number, text):
    assert text in advice(error_of(number), tmp_path, 2000)


def test_a_limit_of_file_sizes(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, before[1]))
    try:
        text = advice(error_of(errno.EFBIG), tmp_path, 5_000_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert text.startswith("It needs 5.0 MB, but a file may have no more than 3.0 MB, the limit of ulimit -f.")


def test_a_folder_that_is_not_there(tmp_path):
    assert "are free there" in advice(error_of(errno.ENOSPC), tmp_path / "a" / "b", 1)


def test_room_that_cannot_be_told(tmp_path, monkeypatch):
    def fails(path):
        raise error_of(errno.ESTALE)

    monkeypatch.setattr("shutil.disk_usage", fails)
    text = advice(error_of(errno.ENOSPC), tmp_path, 1)
    assert "the free space there is unknown: [Errno 116]" in text


def caused(cause, error, direct=True):
    error.__cause__, error.__context__ = cause if direct else None, cause
    return error


def test_the_error_of_a_disk_inside_another():
    """Such as those of libraries that close a file which they could not fill."""
    cause = error_of(errno.ENOSPC)
    assert disk_error(cause) is cause
    assert disk_error(caused(cause, RuntimeError("close"))) is cause
    assert disk_error(caused(cause, RuntimeError("close"), direct=False)) is cause
    assert disk_error(ValueError("no disk")) is None


AT_EXIT = """
import pathlib, sys
from tfdist.callbacks.store.failure_series import FailureSeries
for kind in ("backups", "checkpoints"):
    series = FailureSeries(kind)
    series.begin()
    series.failed("a", OSError(5, "Input/output error"), pathlib.Path("."), 1)
series.succeeded("b")
"""


def test_an_exception_ends_the_training(run_script):
    """Which nobody tells a callback, so it is told when the interpreter exits."""
    told = [line for line in run_script(AT_EXIT).splitlines() if "has ended" in line]
    assert len(told) == 1
    assert "training has ended, and 1 of its backups could not be written, starting with the a." in told[0]
