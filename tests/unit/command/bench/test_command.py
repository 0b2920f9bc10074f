"""The way from words to a benchmark."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

from tfdist.command.bench import command, option
from tfdist.errors import ConfigError


@pytest.mark.parametrize("benchmark", ["allreduce", "train"])
def test_options_reach_the_benchmark_that_is_named(monkeypatch: pytest.MonkeyPatch, benchmark: str) -> None:
    seen: list[tuple[str, Any]] = []
    for name in ("allreduce", "train"):
        module: Any = types.ModuleType(name)
        module.run = lambda options, name=name: seen.append((name, options))
        monkeypatch.setitem(sys.modules, f"tfdist.command.bench.{name}.{name}", module)
    assert command.main([benchmark, "--threads", "3"]) == 0
    assert seen == [(benchmark, option.parse([benchmark, "--threads", "3"]))]


@pytest.mark.parametrize(
    ("words", "module"),
    [
        (["--record", "VGG16", "--output", "a.json"], "scale_record"),
        (["--step", "a.json", "--cluster", "c.json"], "scale"),
    ],
)
def test_each_form_of_scale_reaches_its_module(monkeypatch: pytest.MonkeyPatch, words: list[str], module: str) -> None:
    seen: list[Any] = []
    stand_in: Any = types.ModuleType(module)
    stand_in.run = seen.append
    monkeypatch.setitem(sys.modules, f"tfdist.command.bench.{module}", stand_in)
    assert command.main(["scale", *words]) == 0
    assert seen == [option.parse(["scale", *words])]


def test_starts_reach_a_module_that_does_not_train(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    stand_in: Any = types.ModuleType("start")
    stand_in.run = seen.append
    monkeypatch.setitem(sys.modules, "tfdist.command.bench.train.start", stand_in)
    assert command.main(["train", "--starts", "3"]) == 0
    assert seen == [option.parse(["train", "--starts", "3"])]


def test_bad_options_reach_none() -> None:
    with pytest.raises(ConfigError, match="'0' is not a size"):
        command.main(["allreduce", "--sizes", "0"])


@pytest.mark.parametrize("benchmark", ["allreduce", "train"])
def test_help_names_the_benchmark_and_how_to_start_it(benchmark: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main([benchmark, "--help"])
    assert caught.value.code == 0
    assert f"tfdistrun -np 2 tfdist bench {benchmark}" in capsys.readouterr().out
