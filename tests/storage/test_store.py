"""A folder of objects: what each operation does, and what is said when it cannot."""

import re
import socket
import sys
import threading
import time
import uuid

import pytest
import tensorflow as tf

from tfdist.callbacks.store.checkpoint_place import InStore
from tfdist.errors import ConfigError, StoreError
from tfdist.storage import store as store_module
from tfdist.storage.store import Store, remedy

assert tf  # it knows ram://


@pytest.fixture(params=["s3", "gs", "memory", "ram"])
def store(request):
    """By fsspec, on servers and in this process; by TensorFlow."""
    if request.param in ("s3", "gs"):
        return Store(request.getfixturevalue({"s3": "s3", "gs": "gcs"}[request.param]).folder())
    return Store(f"{request.param}://{uuid.uuid4().hex}/run")


def test_what_is_put_can_be_had(store, tmp_path):
    source = tmp_path / "source"
    source.write_bytes(b"weights" * 1000)
    assert store.sizes() == {}
    store.put(source, "a.snapshot")
    source.write_bytes(b"small")
    store.put(source, "b")
    assert store.sizes() == {"a.snapshot": 7000, "b": 5}
    assert store.read("a.snapshot") == b"weights" * 1000
    assert store.read("a.snapshot", 3, 10) == b"ghtswei"
    if store.address.startswith("ram://"):  # TensorFlow appends there, which must not go unseen
        with pytest.raises(StoreError, match="has 7005 bytes of 5"):
            store.put(source, "a.snapshot")
    else:
        store.put(source, "a.snapshot")
        assert store.read("a.snapshot") == b"small"
    for _ in range(2):
        store.remove("a.snapshot")
    assert store.sizes() == {"b": 5}
    with pytest.raises(StoreError, match=r"could not read a\.snapshot from .*NotFound"):
        store.read("a.snapshot")


def test_a_check_leaves_nothing(store):
    store.check()
    assert store.sizes() == {}


def test_only_objects_of_the_folder_itself(s3):
    store = Store(s3.folder())
    for name in ("one", "below/two"):
        s3.put(f"{store}/{name}", b"x")
    s3.put(f"{store}-other/three", b"x")
    assert store.sizes() == {"one": 1}


def _said_within(seconds, address):
    begin = time.monotonic()
    with pytest.raises(StoreError) as caught:
        Store(address).check()
    assert time.monotonic() - begin < seconds
    return str(caught.value)


def test_bucket_that_is_not_there(s3):
    said = _said_within(10, "s3://no-such-bucket/run")
    assert "could not write to s3://no-such-bucket/run: FileNotFoundError: " in said
    assert said.endswith("Check the name, and create s3://no-such-bucket first: tfdist creates no bucket")


def test_bucket_of_google_that_is_not_there(gcs):
    assert _said_within(10, "gs://no-such-bucket/run").endswith(
        "and create gs://no-such-bucket first: tfdist creates no bucket"
    )


@pytest.mark.parametrize("variable", ["AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"])
def test_wrong_key(s3, monkeypatch, variable):
    monkeypatch.setenv(variable, "wrong")
    said = _said_within(10, s3.folder())
    assert "PermissionError: " in said
    assert "Check the credentials of this process (s3://: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in said
    assert len(s3.requests) == 1, "another try would not help"


def test_no_key(s3, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    said = _said_within(10, s3.folder())
    assert "NoCredentialsError: " in said
    assert "Check the credentials" in said


def test_nobody_listens_at_the_endpoint(s3, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    said = _said_within(10, s3.folder())
    assert said.endswith("Check the network and the endpoint of the store (s3://: AWS_ENDPOINT_URL)")


def test_endpoint_that_does_not_answer(s3, monkeypatch):
    monkeypatch.setattr(store_module, "CHECK_S", 0.5)
    free = threading.Event()
    s3.disturb = lambda *_: free.wait(30) and None
    try:
        said = _said_within(5, s3.folder())
    finally:
        free.set()
    assert "NoAnswerError: no answer within 0.5 s" in said
    assert "Check the network" in said


def test_unknown_scheme():
    with pytest.raises(
        ConfigError, match=r"nothing that is installed knows nonsense://\. fsspec says: .* Expected the"
    ):
        Store("nonsense://bucket/run")


@pytest.mark.parametrize("make", [lambda: Store("s3:///run"), lambda: Store("gs://"), lambda: InStore("s3://x.keras")])
def test_no_bucket(make):
    with pytest.raises(ConfigError, match=r"names no bucket\. Expected \w\w://bucket/folder"):
        make()


def test_a_store_that_has_failed_is_given_less_time(s3, monkeypatch, tmp_path):
    """So that training is not held up by each of many checkpoints while it is away."""
    store, free = Store(s3.folder()), threading.Event()
    (tmp_path / "file").write_bytes(b"x")
    store.check()
    monkeypatch.setattr(store_module, "CHECK_S", 0.5)
    monkeypatch.setattr(store_module, "OPERATION_S", 3.0)
    s3.disturb = lambda *_: free.wait(30) and None
    try:
        for seconds in (3, 0.5, 0.5):
            with pytest.raises(StoreError, match=f"no answer within {seconds} s"):
                store.put(tmp_path / "file", f"name-{seconds}-{len(s3.requests)}")
            assert store.is_struggling
    finally:
        free.set()
        s3.calm()
    monkeypatch.setattr(store_module, "CHECK_S", 30.0)
    store.put(tmp_path / "file", "name")
    assert not store.is_struggling


@pytest.mark.parametrize("operation", ["put", "remove"])
def test_what_was_given_up_changes_nothing_later(tmp_path, monkeypatch, operation):
    """It goes on in its thread, and would be the last to change the object."""
    address, free = f"memory://{uuid.uuid4().hex}/run", threading.Event()
    store, another = Store(address), Store(address + "/")
    change = getattr(store._files, operation)

    def late(*args):
        assert free.wait(60)
        change(*args)

    monkeypatch.setattr(store._files, operation, late)
    for name in ("old", "new"):
        (tmp_path / name).write_text(name)
    monkeypatch.setattr(store_module, "CHECK_S", 0.3)
    with pytest.raises(StoreError, match=r"NoAnswerError: no answer within 0\.3 s"):
        store.put(tmp_path / "old", "name") if operation == "put" else store.remove("name")
    for each in (another, store):
        with pytest.raises(
            StoreError, match=r"could not write name to .*: an earlier operation on it has had no answer"
        ):
            each.put(tmp_path / "new", "name")
    another.put(tmp_path / "new", "other")
    assert another.sizes() == {"other": 3}
    monkeypatch.setattr(store_module, "OPERATION_S", 30.0)
    threading.Timer(0.3, free.set).start()
    another.put(tmp_path / "new", "name")
    assert another.read("name") == b"new"
    another.settle()


def test_a_password_in_an_address_is_refused_and_not_repeated():
    with pytest.raises(ConfigError, match="has a password, which would be in logs") as caught:
        Store("sftp://me:secret@host/run")
    assert "secret" not in str(caught.value)


def test_fsspec_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ConfigError, match=r"fsspec is not installed: pip install 'tfdist\[storage\]'"):
        Store("s3://bucket/run")
    assert Store("ram://folder").sizes() == {}, "TensorFlow knows it"


@pytest.mark.parametrize("what", ["drop", "error", "lose"])
def test_requests_that_fail_are_tried_again(s3, what, tmp_path):
    store = Store(s3.folder())
    (tmp_path / "file").write_bytes(b"contents")
    for action in (
        lambda: store.put(tmp_path / "file", "name"),
        lambda: store.read("name"),
        store.sizes,
        lambda: store.remove("name"),
    ):
        s3.calm()
        s3.disturb = lambda number, *_: what if number == 1 else None
        action()
        assert len(s3.requests) >= 2
    assert store.sizes() == {}


@pytest.mark.parametrize(
    ("error", "failures", "calls"),
    [(OSError, 3, 4), (OSError, 9, 4), (PermissionError, 9, 1), (ValueError, 9, 1)],
)
def test_tries_where_the_library_makes_none(tmp_path, error, failures, calls):
    store, called = Store(f"memory://{uuid.uuid4().hex}"), []
    put = store._files.put

    def fail_at_first(*args):
        called.append(args)
        if len(called) <= failures:
            raise error("once more")
        put(*args)

    store._files.put = fail_at_first
    (tmp_path / "file").write_bytes(b"contents")
    if failures < calls:
        store.put(tmp_path / "file", "name")
        assert store.sizes() == {"name": 8}
    else:
        tries = f" ({calls} tries)" if calls > 1 else ""
        with pytest.raises(StoreError, match=re.escape(f"{tries}: {error.__name__}: once more")):
            store.put(tmp_path / "file", "name")
    assert len(called) == calls


def test_a_thread_is_not_kept_for_what_has_answered(s3):
    before = set(threading.enumerate())  # some of other tests still wait for an answer
    store = Store(s3.folder())
    store.check()
    assert "tfdist-store" not in [thread.name for thread in set(threading.enumerate()) - before]


@pytest.mark.parametrize(
    ("error", "part"),
    [
        (OSError("403 Forbidden"), "credentials"),
        (OSError("getaddrinfo: cannot resolve host"), "network"),
        (OSError("IncompleteBody"), "the store's own status"),
    ],
)
def test_remedies(error, part):
    assert part in remedy(error, "s3://bucket/run/x")
    assert "s3://bucket/run" not in remedy(error, "s3://bucket/run/x")


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("s3://tokens/run", 'Could not connect to the endpoint URL: "http://127.0.0.1:9000/tokens/run/x"'),
        ("s3://data/forbidden", "no answer about forbidden of data"),
        ("s3://data/run", "ConnectionError at b1403a.example"),
    ],
)
def test_a_name_that_looks_like_a_reason(address, text):
    assert "Check the network" in remedy(OSError(text), address)


def test_a_name_within_a_reason():
    assert "Check the credentials" in remedy(OSError("ExpiredToken for token"), "s3://token/run")
