"""What `make wheels` builds for, and what it says where it cannot."""

from __future__ import annotations

import pytest

import wheels
from tfdist.command.image import version


def test_the_wheel_is_for_each_tensorflow_that_images_are_for() -> None:
    assert set(wheels.TENSORFLOWS) == {release.minor for release in version.RELEASES}
    for minor, releases in wheels.TENSORFLOWS.items():
        assert list(releases) == sorted(releases) and all(each.startswith(f"{minor}.") for each in releases)


@pytest.mark.parametrize(
    ("target", "value", "message"),
    [
        ("platform.machine", lambda: "pdp11", "builds on x86_64; this machine is pdp11"),
        ("os.geteuid", lambda: 1000, "needs root rights: run it as root"),
        ("shutil.which", lambda name: None, "apt-get install debootstrap"),
    ],
)
def test_what_is_missing_is_said_first(
    monkeypatch: pytest.MonkeyPatch, target: str, value: object, message: str
) -> None:
    monkeypatch.setattr(wheels.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(wheels.os, "geteuid", lambda: 0)
    monkeypatch.setattr(f"wheels.{target}", value)
    with pytest.raises(SystemExit, match=message):
        wheels.main([])
