"""Other machines cannot reach a closed port. Another machine is played by a network namespace with a link to ours."""

import os
import shutil
import socket
import subprocess
import sys

import pytest

from tfdist import data_service
from tfdist.data_service.server import loopback
from tfdist.data_service.server.port import take
from tfdist.errors import ConfigError

HERE, THERE = "198.18.77.1", "198.18.77.2"
CONNECT = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), 1.5) as connection:
        connection.sendall(b"x")
        connection.settimeout(1.5)
        print("open")
except OSError as error:
    print(type(error).__name__)
"""


@pytest.fixture(scope="module")
def elsewhere():
    """Runs a connection attempt to (address, port) on the other machine; what became of it."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None:
        pytest.skip("needs root, ip and unshare to play another machine")
    holder = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo made; exec cat"], stdin=-1, stdout=-1)
    assert holder.stdout.readline() == b"made\n"
    inside = ["nsenter", f"--net=/proc/{holder.pid}/ns/net"]
    link = f"tfd{os.getpid() % 100000}"
    try:
        made = subprocess.run(
            ["ip", "link", "add", link, "type", "veth", "peer", "name", "far", "netns", str(holder.pid)],
            capture_output=True,
            text=True,
        )
        if made.returncode != 0:
            pytest.skip(f"no virtual network link can be made here: {made.stderr.strip()}")
        for words in (
            ["ip", "address", "add", f"{HERE}/30", "dev", link],
            ["ip", "link", "set", link, "up"],
            [*inside, "ip", "address", "add", f"{THERE}/30", "dev", "far"],
            [*inside, "ip", "link", "set", "far", "up"],
        ):
            subprocess.run(words, check=True)

        def attempt(port):
            words = [*inside, sys.executable, "-I", "-c", CONNECT, HERE, str(port)]
            return subprocess.run(words, capture_output=True, text=True, check=True, timeout=30).stdout.strip()

        yield attempt
    finally:
        subprocess.run(["ip", "link", "delete", link], capture_output=True)
        holder.communicate(timeout=10)


def test_others_reach_an_open_port_and_not_a_closed_one(elsewhere):
    with socket.create_server(("", 0)) as listener:
        port = listener.getsockname()[1]
        assert elsewhere(port) == "open"
        loopback.close_off(port)
        assert elsewhere(port) == "TimeoutError"
        socket.create_connection(("127.0.0.1", port), 5).close()


def test_only_a_dispatcher_on_loopback_is_closed(elsewhere):
    with data_service.Dispatcher(data_service.DispatcherConfig(host="127.0.0.1")) as closed:
        assert elsewhere(closed.service.port) == "TimeoutError"
        assert elsewhere(closed.service.control_port) == "ConnectionRefusedError"
        assert data_service.survey(str(closed.service)).dispatcher.state == "ready"
    with data_service.Dispatcher(data_service.DispatcherConfig(host=HERE)) as served:
        assert elsewhere(served.service.port) == "open"
        assert elsewhere(served.service.control_port) == "open"


def test_it_cannot_be_taken_away():
    with socket.create_server(("", 0)) as listener:
        loopback.close_off(listener.getsockname()[1])
        with pytest.raises(PermissionError):
            listener.setsockopt(socket.SOL_SOCKET, 27, 0)  # SO_DETACH_FILTER


def test_a_port_that_is_not_ours_is_named():
    pair = take(0, None, "127.0.0.1")
    pair.close()
    with (
        pair.listener,
        pytest.raises(ConfigError, match=f"port {pair.port} .*: no socket of this process listens on it"),
    ):
        loopback.close_off(pair.port)


@pytest.mark.parametrize(
    ("address", "expected"),
    [("127.0.0.1", True), ("::ffff:127.0.0.1", True), ("::1", True), ("10.0.0.1", False), ("::ffff:10.0.0.1", False)],
)
def test_local_addresses(address, expected):
    assert loopback._is_local(address) is expected
