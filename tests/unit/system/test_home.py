"""Tests of tfdist.system.home."""

from __future__ import annotations

import os
import pwd

import pytest

from tfdist.system import home


def test_home_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    home.fill()
    assert os.environ["HOME"] == pwd.getpwuid(os.getuid()).pw_dir
    monkeypatch.setenv("HOME", "/mine")
    home.fill()
    assert os.environ["HOME"] == "/mine"
    assert home.variables({"HOME": ""}) == {}


def test_user_whom_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 987654)
    assert home.variables({}) == {"HOME": "/"}
