"""tools/website: the pages that are made of the sources have what the sources have."""

from __future__ import annotations

from pathlib import Path

import pytest

import tfdist
from tfdist import callbacks, config, data_service, errors
from website import error_page, reference_page, setting_page, source

RAISING = """
from tfdist import errors
from tfdist.errors import ConfigError

_ADVICE = "Install it again."

def check(place, hosts, size):
    where = f"rank {place.rank}"
    if size:
        raise ConfigError(f"{where} has {size!r} slots on {', '.join(hosts)}; " + "expected 1 or more.")
    if hosts:
        raise errors.BuildError("the library is missing. " + _ADVICE, place)
    raise ValueError("not one of these classes at all")

class Store:
    def open(self, path):
        raise ConfigError(_text(path))
"""


def test_messages_of_a_module(tmp_path: Path) -> None:
    (tmp_path / "check.py").write_text(RAISING)
    found = error_page.messages(source.Module("tfdist.check", tmp_path / "check.py"), {"ConfigError", "BuildError"})
    assert {(message.kind, message.text) for message in found} == {
        ("ConfigError", "rank {rank} has {size} slots on {hosts}; expected 1 or more."),
        ("BuildError", "the library is missing. Install it again."),
    }


def test_errors_page_has_the_classes_and_a_known_message() -> None:
    page = error_page.page()
    kinds = [
        value for value in vars(errors).values() if isinstance(value, type) and value.__module__ == "tfdist.errors"
    ]
    assert kinds
    assert [kind.__name__ for kind in kinds if f"\n## {kind.__name__}\n" not in page] == []
    assert "Write tfdist.shard((X, Y)), with double parentheses." in page
    assert page.count("\n- `` ") > 500


def test_settings_page_has_every_setting() -> None:
    page = setting_page.page(config).replace("\\_<wbr>", "_")
    assert [one.variable for one in config.SETTINGS if f"\n## {one.variable}\n" not in page] == []
    assert "Default: `8388608`; accepts: 0 or more; Horovod's name: `HOROVOD_FUSION_THRESHOLD`." in page
    assert "Default: `~/.cache/tfdist`" in page
    assert "accepts: one of nccl, mpi" in page
    assert all(f"| `{name}` |" in page for name in config.IDLE_OF_HOROVOD)


@pytest.mark.parametrize("package", [tfdist, callbacks, data_service])
def test_reference_has_every_public_name(package) -> None:
    own, modules = reference_page.names(package.__name__)
    assert {*own, *modules} == {name for name in package.__all__ if not name.startswith("_")}
    page = reference_page.page(package.__name__)
    assert [name for name in own if f"\n::: {package.__name__}.{name}\n" not in page] == []


def test_every_package_has_names() -> None:
    assert [package for package in reference_page.PACKAGES if not reference_page.names(package)[0]] == []
