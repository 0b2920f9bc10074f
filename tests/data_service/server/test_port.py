"""Two ports that are nobody else's."""

import socket

import pytest
import tensorflow as tf

from tfdist.data_service.server import port as module
from tfdist.data_service.server.port import take
from tfdist.errors import ConfigError


def bind(port):
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("", port))


@pytest.fixture
def pair():
    made = take(0, None, "127.0.0.1")
    yield made
    made.release()


def test_they_are_adjacent_and_taken(pair):
    assert pair.control_port == pair.port + 1
    for port in (pair.port, pair.control_port):
        with pytest.raises(OSError, match="in use"):
            bind(port)


def test_they_are_not_among_those_of_outgoing_connections(pair):
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        begin, end = map(int, file.read().split())
    assert not begin <= pair.port <= end


def let_go(made):
    made.release()
    return made.port


def test_port_left_by_an_ended_server_is_taken_by_name_only(monkeypatch):
    """Another socket that does not mind either could be bound to it beside ours."""
    left, free = (let_go(take(0, None, "127.0.0.1")) for _ in range(2))
    with socket.create_server(("127.0.0.1", left)) as server, socket.create_connection(("127.0.0.1", left)) as client:
        server.accept()[0].close()  # who closes first keeps the port
        assert client.recv(1) == b""
    with pytest.raises(OSError, match="in use"), socket.socket() as other:
        other.bind(("", left))
    monkeypatch.setattr(module, "_candidates", lambda: [left, free])
    assert let_go(take(0, None, "127.0.0.1")) == free
    assert let_go(take(left, None, "127.0.0.1")) == left


def test_a_taken_port_is_named(pair):
    with pytest.raises(ConfigError, match=f"port {pair.port} cannot be used .*in use.*ss -ltnp"):
        take(pair.port, 0, "127.0.0.1")


def test_a_taken_control_port_is_named_and_the_other_let_go(pair):
    free = take(0, 0, "127.0.0.1")
    free.release()
    with pytest.raises(ConfigError, match=f"port {pair.control_port} cannot be used on 127.0.0.1"):
        take(free.port, pair.control_port, "127.0.0.1")
    bind(free.port)


def test_taken_port_is_refused_where_grpc_would_share_it():
    service = tf.data.experimental.service
    first = service.DispatchServer(service.DispatcherConfig(port=0, protocol="grpc"))
    port = int(first.target.rpartition(":")[2])
    second = service.DispatchServer(service.DispatcherConfig(port=port, protocol="grpc"))
    with pytest.raises(ConfigError, match=f"port {port} cannot be used"):
        take(port, 0, "")
    second.stop()
    first.stop()


def test_grpc_takes_it_over_without_a_moment_in_which_it_is_free(pair):
    service = tf.data.experimental.service
    server = service.DispatchServer(service.DispatcherConfig(port=pair.port, protocol="grpc"))
    pair.close()
    with pytest.raises(OSError, match="in use"):
        bind(pair.port)
    server.stop()
