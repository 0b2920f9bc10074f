"""How a service is written."""

import pytest

from tfdist.data_service.inspection.address import ServiceAddress, is_loopback
from tfdist.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "host", "port", "control"),
    [
        ("node:5050", "node", 5050, 5051),
        ("node:5050/5051", "node", 5050, 5051),
        ("10.0.0.7:1/9000", "10.0.0.7", 1, 9000),
        ("[::1]:5050", "[::1]", 5050, 5051),
        ("h:65535/80", "h", 65535, 80),
    ],
)
def test_parse(text, host, port, control):
    assert ServiceAddress.parse(text) == ServiceAddress(host, port, control)


@pytest.mark.parametrize("text", ["node:5050", "node:5050/80", "[::1]:5050"])
def test_text_and_back(text):
    assert str(ServiceAddress.parse(text)) == text


def test_parts():
    address = ServiceAddress.parse("node:5050/80")
    assert (address.grpc, address.control) == ("node:5050", "node:80")
    assert "--metrics-port" in address.elsewhere and address.elsewhere.endswith(" write node:5050/CONTROL")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "node",
        "node:",
        ":5050",
        "node:x",
        "node:0",
        "node:65536",
        "node:5050/",
        "node:5050/0",
        "::1:50",
        "a b:1",
        "a\x1b[2J:1",
        "a\u202eb:1",
    ],
)
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ConfigError, match="HOST:PORT"):
        ServiceAddress.parse(text)


def test_the_last_port_leaves_none_for_control():
    with pytest.raises(ConfigError, match="no port above"):
        ServiceAddress.parse("h:65535")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("[::1]", True),
        ("LOCALHOST", True),
        ("0.0.0.0", False),
        ("node", False),
        ("127.example.com", False),
        ("10.0.0.1", False),
    ],
)
def test_loopback(host, expected):
    assert is_loopback(host) is expected
