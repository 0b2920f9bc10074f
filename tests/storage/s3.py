"""An S3 server that checks keys, behind a proxy that counts requests and can disturb each. No test of its own.

`from s3 import s3, s3_server` makes the fixtures of a folder.
"""

from __future__ import annotations

import http.client
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from child import serving

BUCKET = "training-data"
# Actions before the server begins to check keys: those that make the one user.
_MAKES_USER = 3
_SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
_ALL = '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}'
_REFUSALS = {"error": 503, "forbid": 403}
_OF_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade"}


class S3:
    """Use as a context manager. `disturb(number, method, path)` is called before each request, from 1 on.

    It may return "drop" to break the connection, "error" to answer with status 503, "forbid" with 403, or "lose" to do
    what was asked and break the connection before the answer.
    """

    def __init__(self) -> None:
        self.disturb: Callable[[int, str, str], str | None] = lambda *_: None
        self.requests: list[tuple[str, str]] = []
        self.sent_bytes = 0
        self._lock = threading.Lock()

    def __enter__(self) -> S3:
        self._server = ExitStack()
        self.port = self._server.enter_context(serving(_SERVER, {"INITIAL_NO_AUTH_ACTION_COUNT": str(_MAKES_USER)}))
        self._proxy = _Proxy(self)
        threading.Thread(target=self._proxy.serve_forever, daemon=True).start()
        self.endpoint = f"http://127.0.0.1:{self._proxy.server_port}"
        self._make_user()
        self.client().create_bucket(Bucket=BUCKET)
        return self

    def __exit__(self, *_: object) -> None:
        self._proxy.shutdown()
        self._proxy.server_close()
        self._server.close()

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to use it."""
        return {
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint,
        }

    def client(self, service: str = "s3") -> Any:
        """Of boto3, which goes past the proxy."""
        import boto3

        return boto3.client(
            service,
            endpoint_url=f"http://127.0.0.1:{self.port}",
            region_name="us-east-1",
            aws_access_key_id=self.key,
            aws_secret_access_key=self.secret,
        )

    def objects(self, address: str) -> dict[str, bytes]:
        """All in a folder, by their names below it."""
        client, prefix = self.client(), f"{address.partition(BUCKET)[2].strip('/')}/"
        found = client.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])
        names = [each["Key"] for each in found]
        return {name[len(prefix) :]: client.get_object(Bucket=BUCKET, Key=name)["Body"].read() for name in names}

    def put(self, address: str, data: bytes) -> None:
        self.client().put_object(Bucket=BUCKET, Key=address.partition(BUCKET)[2].strip("/"), Body=data)

    def folder(self) -> str:
        """The address of a new folder."""
        return f"s3://{BUCKET}/{uuid.uuid4().hex}"

    def calm(self) -> None:
        """Counts requests and bytes from the beginning, and disturbs none."""
        self.disturb = lambda *_: None
        self.requests, self.sent_bytes = [], 0

    def note(self, method: str, path: str) -> str | None:
        with self._lock:
            self.requests.append((method, path))
            number = len(self.requests)
        return self.disturb(number, method, path)

    def _make_user(self) -> None:
        self.key = self.secret = "nobody-yet"
        iam = self.client("iam")
        iam.create_user(UserName="tester")
        iam.put_user_policy(UserName="tester", PolicyName="all", PolicyDocument=_ALL)
        made = iam.create_access_key(UserName="tester")["AccessKey"]
        self.key, self.secret = made["AccessKeyId"], made["SecretAccessKey"]


class _Proxy(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, s3: S3) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.s3 = s3


class _Handler(BaseHTTPRequestHandler):
    server: _Proxy
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Prints nothing."""

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except ConnectionError:  # a client that was killed
            self.close_connection = True

    def _pass_on(self) -> None:
        body = self._body()
        what = self.server.s3.note(self.command, self.path)
        if what == "drop":
            self.close_connection = True
            return
        if what in _REFUSALS:
            self._answer(_REFUSALS[what], [], b"")
            return
        connection = http.client.HTTPConnection("127.0.0.1", self.server.s3.port, timeout=60)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _OF_CONNECTION}
        connection.request(self.command, self.path, body, headers)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        if what == "lose":
            self.close_connection = True
            return
        self._answer(answer.status, answer.getheaders(), data)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):  # whatever the method
            return self._pass_on
        raise AttributeError(name)

    def _body(self) -> bytes:
        if self.headers.get("Expect", "").lower() == "100-continue":
            self.send_response_only(100)
            self.end_headers()
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in {*_OF_CONNECTION, "content-length"}:
                self.send_header(name, value)
        size = next((value for name, value in headers if name.lower() == "content-length"), str(len(data)))
        self.send_header("Content-Length", size if self.command == "HEAD" else str(len(data)))
        self.end_headers()
        self.server.s3.sent_bytes += len(data)
        self.wfile.write(data)

    def handle_expect_100(self) -> bool:
        return True  # `_body` does it


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3]:
    with S3() as server:
        yield server


@pytest.fixture
def s3(s3_server: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    """The server, undisturbed, which this process and its children use."""
    import s3fs

    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()  # they have the variables of the test before
    s3_server.calm()
    return s3_server
