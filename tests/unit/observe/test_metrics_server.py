"""`/metrics` over HTTP: on request only, on loopback, one port a rank."""

import http.client
import socket

import pytest

from tfdist import config, errors
from tfdist.observe import metrics_server

SERVED = """
import tfdist, urllib.error, urllib.request
from tfdist.observe import metrics_server
ports = []
start = metrics_server.start
def started(*arguments):
    ports.append(start(*arguments))
    return ports[-1]
metrics_server.start = started
tfdist.init()
tfdist.barrier()
place = f"http://127.0.0.1:{ports[0]}"
def ask(path, **headers):
    request = urllib.request.Request(place + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, "", error.read().decode()
code, kind, text = ask("/metrics")
assert code == 200 and kind == "text/plain; version=0.0.4; charset=utf-8"
assert 'tfdist_collective_calls_total{rank="0",operation="barrier"} 1\\n' in text, text
assert ask("/")[0] == 404
assert ask("/metrics", Host="evil.example")[0] == 421
tfdist.shutdown()
try:
    ask("/metrics")
except urllib.error.URLError as error:
    assert isinstance(error.reason, ConnectionRefusedError)
else:
    raise AssertionError("still there after shutdown")
"""
NOT_ASKED = """
import sys, tfdist
tfdist.init()
assert "tfdist.observe.metrics_server" not in sys.modules
"""
TAKEN = """
import pytest, tfdist
with pytest.raises(tfdist.errors.ConfigError, match="TFDIST_METRICS_PORT"):
    tfdist.init()
assert not tfdist.is_initialized()
"""


def test_served_where_asked_for(run_script):
    run_script(SERVED, TFDIST_METRICS_PORT="0")


def test_not_served_where_not_asked_for(run_script):
    run_script(NOT_ASKED)


def test_init_ends_where_the_port_is_taken(run_script):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        run_script(TAKEN, TFDIST_METRICS_PORT=str(taken.getsockname()[1]))


def test_each_rank_takes_the_port_above(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(errors.ConfigError, match=f"local rank 2 cannot be served on 127.0.0.1, port {port} "):
            metrics_server.start("127.0.0.1", port - 2, 2)
    assert metrics_server.start("127.0.0.1", port - 2, 2) == port
    metrics_server.stop()
    metrics_server.stop()  # does nothing


@pytest.mark.parametrize("host", ["no name" * 50, "256.1.1.1"])
def test_an_address_that_is_none_is_named(host):
    with pytest.raises(errors.ConfigError, match=f"^TFDIST_METRICS_HOST={host} cannot be used: .*0.0.0.0 for all"):
        metrics_server.start(host, 0, 0)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "LOCALHOST"])
def test_on_loopback_a_foreign_name_is_refused(host):
    port = metrics_server.start(host, 0, 0)
    try:
        connection = http.client.HTTPConnection(host, port, timeout=30)
        connection.request("GET", "/", headers={"Host": "evil.example"})
        assert connection.getresponse().status == 421
        connection.close()
        connection.request("GET", "/", headers={"Host": f"{host}:{port}"})
        assert connection.getresponse().status == 404
        connection.close()
    finally:
        metrics_server.stop()


def test_ports_end():
    with pytest.raises(errors.ConfigError, match=r"port 65536 .*the largest port is 65535"):
        metrics_server.start("127.0.0.1", 65535, 1)


def test_settings():
    assert config.read({}).metrics_port is None
    assert config.read({}).metrics_host == "127.0.0.1"
    assert config.read({"TFDIST_METRICS_PORT": "9400"}).metrics_port == 9400
    for wrong in ("-1", "65536", "http"):
        with pytest.raises(errors.ConfigError, match="TFDIST_METRICS_PORT"):
            config.read({"TFDIST_METRICS_PORT": wrong})
