from __future__ import annotations

import pytest

from tfdist.system.network import endpoint


@pytest.mark.parametrize(
    ("address", "written"), [(("10.0.0.1", 80), "10.0.0.1:80"), (("fd00::1", 80), "[fd00::1]:80"), (("a", 1), "a:1")]
)
def test_addresses_as_text(address: endpoint.Address, written: str) -> None:
    assert endpoint.text(address) == written
    assert endpoint.parse(written) == address


@pytest.mark.parametrize("wrong", ["a", "a:", "a:0", "a:65536", "a:-1", "", "a:b", "fd00::1:80", "[]:1", "a:\u0661"])
def test_texts_that_are_no_addresses(wrong: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        endpoint.parse(wrong)
