"""Who may ask a worker to drain."""

import json
import os

import pytest

from tfdist.data_service.server import drain_request
from tfdist.data_service.server.drain_request import LARGEST_BODY_BYTES, WINDOW_S, Gatekeeper, compose, read_key
from tfdist.errors import ConfigError

KEY = b"0123456789abcdef"
NOW = 5000.0
STARTED = 4000.0


def test_a_genuine_request_is_accepted_once():
    gate = Gatekeeper(KEY, "node:1", STARTED)
    body, proof = compose(KEY, "node:1", NOW)
    assert len(body) <= LARGEST_BODY_BYTES
    assert gate.refusal(body, proof, NOW) == ""
    assert "already used" in gate.refusal(body, proof, NOW + 1)
    assert gate.refusal(*compose(KEY, "node:1", NOW), NOW) == ""


def test_nonce_is_remembered_while_its_time_is_accepted():
    gate = Gatekeeper(KEY, "node:1", STARTED)
    early = compose(KEY, "node:1", NOW + WINDOW_S)
    assert gate.refusal(*early, NOW) == ""
    assert "already used" in gate.refusal(*early, NOW + 2 * WINDOW_S)


@pytest.mark.parametrize(
    ("worker", "time", "key", "text"),
    [
        ("node:2", NOW, KEY, "the request is for node:2; this is node:1"),
        ("node:1", NOW - WINDOW_S - 1, KEY, "61 s old"),
        ("node:1", NOW + WINDOW_S + 1, KEY, "-61 s old"),
        ("node:1", NOW, KEY + b"x", "same key file"),
    ],
)
def test_others_are_refused(worker, time, key, text):
    assert text in Gatekeeper(KEY, "node:1", STARTED).refusal(*compose(key, worker, time), NOW)


def test_what_was_sent_to_the_process_before_is_refused():
    """It knows nothing of the requests that its predecessor has accepted."""
    recorded = compose(KEY, "node:1", NOW)
    assert Gatekeeper(KEY, "node:1", NOW - 10).refusal(*recorded, NOW) == ""
    text = Gatekeeper(KEY, "node:1", NOW + 3).refusal(*recorded, NOW + 5)
    assert "made 3 s before this worker started" in text and "Send a new one" in text
    assert Gatekeeper(KEY, "node:1", NOW + 0.0004).refusal(*compose(KEY, "node:1", NOW + 0.0004), NOW) == ""


def test_every_change_of_the_body_is_refused():
    body, proof = compose(KEY, "node:1", NOW)
    assert set(json.loads(body)) == {"worker", "time", "nonce"}
    gate = Gatekeeper(KEY, "node:1", STARTED)
    for index in range(len(body)):
        changed = body[:index] + bytes([body[index] ^ 1]) + body[index + 1 :]
        assert "same key file" in gate.refusal(changed, proof, NOW)
    assert "same key file" in gate.refusal(body, "", NOW)
    assert "same key file" in gate.refusal(body, "\u00e9", NOW)


def test_a_key_file(tmp_path):
    path = tmp_path / "key"
    path.write_bytes(KEY + b"\n")
    path.chmod(0o600)
    assert read_key(str(path)) == KEY


@pytest.mark.parametrize(
    ("content", "mode", "text"),
    [
        (KEY, 0o640, "mode 0640; expected 0600"),
        (KEY, 0o604, "mode 0604"),
        (b"short", 0o600, "holds 5 bytes"),
        (b"x" * 5000, 0o600, "expected 16 to 4096"),
    ],
)
def test_a_bad_key_file_is_refused(tmp_path, content, mode, text):
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=text):
        read_key(str(path))


@pytest.mark.parametrize("owner", ["another", "root", "own"])
def test_a_key_file_of_another_user_is_refused(monkeypatch, tmp_path, owner):
    path = tmp_path / "key"
    path.write_bytes(KEY)
    path.chmod(0o600)
    here = path.stat()
    user = {"another": 4242, "root": 0, "own": here.st_uid}[owner]
    found = os.stat_result((here.st_mode, *here[1:4], user, *here[5:]))
    monkeypatch.setattr(drain_request.os, "fstat", lambda _: found)
    if owner != "another":
        assert read_key(str(path)) == KEY
        return
    with pytest.raises(ConfigError, match=r"belongs to user 4242; this process runs as user \d+"):
        read_key(str(path))


def test_no_key_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="none cannot be read: No such file"):
        read_key(str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="is not a regular file"):
        read_key(str(tmp_path))
