"""Tests of tfdist.protocol.handshake: who is let in, and what an attacker may try."""

from __future__ import annotations

import os

import pytest

from tfdist.protocol.handshake import Acceptor, Dialer, Handshake, RefusedError, derived

KEY, CONTEXT = b"k" * 32, b"job|1|0"


def exchange(dialer: Handshake, acceptor: Handshake) -> list[bytes]:
    """Runs both ends to the end; returns what was sent, dialer's messages first."""
    sent, data, ends = [dialer.unsent], dialer.unsent, (acceptor, dialer)
    while data:
        receiver = ends[0]
        data = receiver.feed(data)
        sent.append(data)
        ends = (ends[1], ends[0])
    return sent


def test_both_ends_know_each_other() -> None:
    dialer, acceptor = Dialer(KEY, CONTEXT, 3, 1), Acceptor(KEY, CONTEXT, 1)
    exchange(dialer, acceptor)
    assert dialer.done and acceptor.done
    assert (dialer.peer, acceptor.peer) == (1, 3)
    assert dialer.secret == acceptor.secret


def test_secret_differs_for_each_connection() -> None:
    secrets = set()
    for _ in range(3):
        dialer, acceptor = Dialer(KEY, CONTEXT, 1, 0), Acceptor(KEY, CONTEXT, 0)
        exchange(dialer, acceptor)
        secrets.add(dialer.secret)
    assert len(secrets) == 3


def test_bytes_may_come_one_by_one() -> None:
    dialer, acceptor = Dialer(KEY, CONTEXT, 1, 0), Acceptor(KEY, CONTEXT, 0)
    data, ends = dialer.unsent, (acceptor, dialer)
    while data:
        answer = b""
        for place in range(len(data)):
            assert ends[0].wanted == len(data) - place
            answer += ends[0].feed(data[place : place + 1])
        data, ends = answer, (ends[1], ends[0])
    assert dialer.done and acceptor.done


@pytest.mark.parametrize(
    ("key", "context", "number", "reason"),
    [
        (b"x" * 32, CONTEXT, 0, "does not have this job's key"),
        (KEY, b"job|2|0", 0, "does not have this job's key"),
        (KEY, CONTEXT, 5, "looks for number 0, and this is 5"),
    ],
)
def test_other_keys_contexts_and_numbers_are_refused(key: bytes, context: bytes, number: int, reason: str) -> None:
    dialer, acceptor = Dialer(KEY, CONTEXT, 1, 0), Acceptor(key, context, number)
    with pytest.raises(RefusedError, match=reason):
        exchange(dialer, acceptor)
    assert not dialer.done and not acceptor.done


def test_recorded_messages_open_no_second_connection() -> None:
    recorded = exchange(Dialer(KEY, CONTEXT, 1, 0), Acceptor(KEY, CONTEXT, 0))
    acceptor = Acceptor(KEY, CONTEXT, 0)
    acceptor.feed(recorded[0])
    with pytest.raises(RefusedError, match="key"):
        acceptor.feed(recorded[2])
    dialer = Dialer(KEY, CONTEXT, 1, 0)
    with pytest.raises(RefusedError, match="key"):
        dialer.feed(recorded[1])


def test_reflected_messages_are_refused() -> None:
    """An attacker without the key sends each end its own words, or lets one answer the other's challenge."""
    dialer = Dialer(KEY, CONTEXT, 0, 0)
    with pytest.raises(RefusedError, match="key"):
        dialer.feed(dialer.unsent[-32:] + os.urandom(32))
    first, second = Dialer(KEY, CONTEXT, 0, 0), Acceptor(KEY, CONTEXT, 0)
    answer = second.feed(first.unsent)
    with pytest.raises(RefusedError, match="key"):
        second.feed(answer[-32:])


def test_each_bit_of_a_proof_counts() -> None:
    dialer, acceptor = Dialer(KEY, CONTEXT, 1, 0), Acceptor(KEY, CONTEXT, 0)
    proof = bytearray(dialer.feed(acceptor.feed(dialer.unsent)))
    proof[7] ^= 1
    with pytest.raises(RefusedError, match="key"):
        acceptor.feed(bytes(proof))


def test_other_protocols_are_refused() -> None:
    acceptor = Acceptor(KEY, CONTEXT, 0)
    with pytest.raises(RefusedError, match="does not speak this protocol"):
        acceptor.feed(b"GET / HTTP/1.1\r\n".ljust(acceptor.wanted))


def test_derived_keys_differ() -> None:
    assert len({derived(KEY, "ranks"), derived(KEY, "agents"), derived(b"y" * 32, "ranks"), KEY}) == 4
