"""The command `tfdist timeline`: options, files that are refused, what it writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from recording import source, span, write

from tfdist.command.timeline import command
from tfdist.errors import ConfigError


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    events = [[*source(rank), span("call", "barrier x", 1, 2 + rank, rank=rank)] for rank in (0, 1)]
    return [str(write(tmp_path / f"run.{rank}.json", events[rank])) for rank in (0, 1)]


def test_merge_writes_one_file(files: list[str], tmp_path: Path, capsys: Any) -> None:
    target = tmp_path / "made" / "all.json"
    assert command.main(["merge", *files, "-o", str(target)]) == 0
    assert {event["pid"] for event in json.loads(target.read_text())["traceEvents"]} == {0, 1}
    assert capsys.readouterr().out == f"{target}: 2 ranks, 8 events\n"


def test_summary_shows_a_table_or_json(files: list[str], capsys: Any) -> None:
    assert command.main(["summary", *files]) == 0
    assert capsys.readouterr().out.startswith("rank  wall s")
    assert command.main(["summary", "--json", *files]) == 0
    assert [share["rank"] for share in json.loads(capsys.readouterr().out)["ranks"]] == [0, 1]


def test_summary_draws_a_picture(files: list[str], tmp_path: Path, capsys: Any) -> None:
    target = tmp_path / "shares.png"
    assert command.main(["summary", *files, "--png", str(target)]) == 0
    assert target.read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out.startswith("rank  wall s")


def test_what_cannot_be_done_is_said(files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = [
        ([], "merge|summary"),
        (["merge", *files], "-o/--output"),
        (["merge", "-o", "x"], "FILES"),
        (["merge", *files, "-o", files[0]], "is one of the files to merge"),
        (["merge", *files, "-o", str(tmp_path)], "cannot be written: .*is a folder"),
        (["summary", *files, "--png", "x.jpg"], "ends in .png"),
        (["summary", *files, "--png", f"{files[0]}/x.png"], "cannot be written"),
        (["summary", str(tmp_path / "no.json")], "no.json cannot be read"),
    ]
    for words, problem in refused:
        with pytest.raises(ConfigError, match=problem):
            command.main(words)
    monkeypatch.setattr(command.plot.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install matplotlib"):
        command.main(["summary", *files, "--png", "x.png"])
