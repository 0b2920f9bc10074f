"""The HTTP side of a server, by real requests to a server that is none."""

import contextlib
import http.client
import io
import socket
import threading
import time

import pytest

from tfdist.data_service.inspection import wait_report
from tfdist.data_service.inspection.status import Status, parse
from tfdist.data_service.inspection.wait_report import TrainerWait
from tfdist.data_service.server.control import ControlServer, Source
from tfdist.data_service.server.drain_request import HEADER, Gatekeeper, compose
from tfdist.data_service.server.wait_book import WaitBook
from tfdist.system.network import http_server

KEY = b"0123456789abcdef"
STATUS = Status("worker", "node:5050", 5051, "0.1.0", "2.21.0", "3.11.7", 12, 1000.5, "ready")


class Served:
    def __init__(self, key=KEY, drains=True, waits=None, name=""):
        self.obstacle = ""
        self.drained = threading.Event()
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        source = Source(
            lambda: STATUS,
            lambda: self.obstacle,
            self.drained.set if drains else None,
            Gatekeeper(key, STATUS.address, 0.0) if key else None,
            waits,
            name=name,
        )
        self.server = ControlServer(listener, source)

    def ask(self, method, path, body=None, headers=None):
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)) as connection:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def send(self, data):
        """What comes back for raw bytes, until the other side closes."""
        with socket.create_connection(("127.0.0.1", self.port), 20) as connection:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(data)
            got = b""
            with contextlib.suppress(ConnectionResetError):
                while piece := connection.recv(1 << 16):
                    got += piece
        return got


@pytest.fixture
def serve():
    made = []

    def start(**settings):
        made.append(Served(**settings))
        return made[-1]

    yield start
    for item in made:
        item.server.stop()


def test_get(serve):
    served = serve()
    assert served.ask("GET", "/healthz") == (200, "alive\n")
    assert parse(served.ask("GET", "/status")[1].encode()) == STATUS
    assert "tfdist_data_service_ready" in served.ask("GET", "/metrics")[1]
    code, text = served.ask("GET", "/etc/passwd")
    assert code == 404 and "/healthz" in text


def test_readiness_says_what_is_in_the_way(serve):
    served = serve()
    assert served.ask("GET", "/readyz") == (200, "ready\n")
    served.obstacle = "no dispatcher"
    assert served.ask("GET", "/readyz") == (503, "no dispatcher\n")


def test_a_genuine_request_drains_once(serve):
    served = serve()
    body, proof = compose(KEY, STATUS.address, time.time())
    assert served.ask("POST", "/drain", body, {HEADER: proof}) == (202, "drains\n")
    assert served.drained.is_set()
    code, text = served.ask("POST", "/drain", body, {HEADER: proof})
    assert code == 403 and "already used" in text


@pytest.mark.parametrize(
    ("settings", "headers", "code", "text"),
    [
        ({}, {}, 403, "the signature does not match"),
        ({}, {HEADER: "0" * 64}, 403, "the signature does not match"),
        ({"key": None}, {}, 403, "started without a key file"),
        ({"drains": False}, {}, 404, "available: POST /drain"),
    ],
)
def test_others_do_not_drain(serve, settings, headers, code, text):
    served = serve(**settings)
    body, _ = compose(KEY, STATUS.address, time.time())
    got, said = served.ask("POST", "/drain", body, headers)
    assert got == code and text in said
    assert not served.drained.is_set()


@pytest.mark.parametrize("path", ["/drain", "/wait"])
@pytest.mark.parametrize("length", ["", "x", "-1", "0", "513", "9" * 30])
def test_a_body_of_another_size_is_not_read(serve, length, path):
    head = f"POST {path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n".encode()
    assert b" 413 " in serve(waits=WaitBook()).send(head)


def test_a_report_of_waiting_is_noted(serve):
    book = WaitBook()
    served = serve(waits=book)
    wait = TrainerWait("node:7:ab", 0.25, "input")
    assert served.ask("POST", "/wait", wait_report.compose(wait)) == (200, "noted\n")
    assert [(told.trainer, told.share) for told in book.read(time.monotonic())] == [("node:7:ab", 0.25)]


@pytest.mark.parametrize(
    ("body", "code", "text"),
    [
        (b"{", 400, "not a valid report of waiting"),
        (b'{"trainer": "a", "share": NaN, "measured_at": "input"}', 400, "share is nan"),
        (b'{"trainer": "a", "share": 7, "measured_at": "input"}', 400, "from 0 to 1"),
        (b'{"trainer": "a", "share": 0.5, "measured_at": "input"}', 503, "too many trainers"),
        (b"[" * 512, 400, "not a valid report"),
    ],
)
def test_other_reports_are_not(serve, body, code, text):
    book = WaitBook(most=0)
    got, said = serve(waits=book).ask("POST", "/wait", body)
    assert got == code and text in said
    assert book.read(time.monotonic()) == ()


def test_a_server_that_trainers_do_not_tell_says_so(serve):
    code, text = serve().ask("POST", "/wait", b"{}")
    assert code == 404 and "POST /wait on a dispatcher" in text


def test_a_head_without_end_is_cut(serve):
    served = serve()
    line = b"X: " + b"y" * 1019 + b"\r\n"
    head = b"GET /status HTTP/1.0\r\n" + line * (http_server.LARGEST_HEAD_BYTES // len(line))
    # As much as is read, and not its end. Without the limit the server would wait for that, and cut the connection.
    got = served.send(head[: http_server.LARGEST_HEAD_BYTES - 2] + b"\r\n")
    assert got.startswith(b"HTTP/1.0 200") and b'"schema"' in got
    assert served.ask("GET", "/healthz")[0] == 200


def test_no_more_of_a_head_is_read_than_its_limit():
    lines = [b"X-%d: %s\r\n" % (i, b"y" * 1000) for i in range(90)]
    reader = http_server.LimitedReader(io.BytesIO(b"".join(lines)))
    read = b"".join(iter(reader.readline, b""))
    assert len(read) == http_server.LARGEST_HEAD_BYTES
    assert reader.readline() == b""


@pytest.mark.parametrize(
    ("host", "code"),
    [
        ("127.0.0.1:5051", 200),
        ("[::1]:5051", 200),
        ("localhost", 200),
        ("Node:5051", 200),
        ("", 200),
        ("evil.example:5051", 421),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
    ],
)
def test_a_server_of_this_machine_is_not_asked_by_a_foreign_name(serve, host, code):
    """A page in a browser here may have its own name lead to us, and read what we answer."""
    for name, expected in (("node", code), ("", 200)):
        got, text = serve(name=name).ask("GET", "/healthz", headers={"Host": host})
        assert got == expected
        assert ("for this machine only" in text) == (expected == 421)


@pytest.mark.parametrize("data", [b"", b"\0" * 100, b"GET\r\n\r\n", b"BREW /status HTTP/1.0\r\n\r\n", b"\r\n" * 50])
def test_nonsense_does_not_harm(serve, data):
    served = serve()
    with socket.create_connection(("127.0.0.1", served.port), 10) as connection:
        connection.sendall(data)
    assert served.ask("GET", "/healthz")[0] == 200


def test_silent_connections_are_cut_and_others_answered_again(serve, wait_until):
    served = serve()
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(socket.create_connection(("127.0.0.1", served.port), 10))

        def answered():
            with contextlib.suppress(OSError, http.client.HTTPException):
                return served.ask("GET", "/healthz")[0] == 200

        wait_until(answered, seconds=20, what="an answer")


def test_stopped_server_leaves_the_port(serve):
    served = serve()
    served.server.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", served.port), 5)


def test_it_ticks_while_nobody_asks(wait_until):
    ticks = []
    server = ControlServer(
        socket.create_server(("127.0.0.1", 0)), Source(lambda: STATUS, lambda: "", tick=lambda: ticks.append(1))
    )
    wait_until(lambda: len(ticks) >= 3, what="three ticks")
    server.stop()
