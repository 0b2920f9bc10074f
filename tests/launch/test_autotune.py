"""The page docs/autotuning.md as it stands: its script and its commands, in shorter searches."""

from __future__ import annotations

import csv
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "autotuning.md").read_text()
COMMANDS = [
    line for block in re.findall(r"^```bash\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL) for line in block.splitlines()
]
SHORT = {"TFDIST_AUTOTUNE_SAMPLES": "4", "TFDIST_AUTOTUNE_STEPS": "2", "TF_CPP_MIN_LOG_LEVEL": "3"}
COLUMNS = "sample phase fusion_threshold chunk compression thread hierarchy step_ms".split()


def run(launch: Any, line: str, **more: str) -> Any:
    """One line of the page, with variables beside SHORT."""
    words = shlex.split(line)
    variables = SHORT | more
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        variables[name] = value
    assert words.pop(0) == "tfdistrun"
    done = launch.run(*words, variables=variables)
    assert done.code == 0, done.stderr
    return done


@pytest.fixture(autouse=True)
def _script(launch: Any) -> None:
    (script,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (launch.folder / "train.py").write_text(script)


@pytest.mark.slice("launch")
def test_the_page_shows_all_commands() -> None:
    assert COMMANDS[0].startswith("pip install '.[cpu,autotune]'")
    assert len(COMMANDS) == 5
    for column in COLUMNS[:2] + COLUMNS[-1:]:
        assert f"`{column}`" in PAGE


@pytest.mark.slice("launch")
def test_log_and_report(launch: Any) -> None:
    done = run(launch, COMMANDS[1])
    with (launch.folder / "autotune.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == COLUMNS
    assert [row["phase"] for row in rows[:5]] == ["explore"] * 4 + ["compare"]
    assert {row["compression"] for row in rows} == {"none"}
    assert "[0] tfdist: autotune: " in done.stderr
    assert "fusion KiB" in done.stderr
    assert "[1] tfdist: autotune" not in done.stderr


@pytest.mark.slice("launch")
def test_chunks_larger_than_the_default_have_room(launch: Any) -> None:
    """The engine was started with room for them."""
    launch.script(
        "import tfdist\nfrom tfdist.world import tuning\ntfdist.init()\n"
        "assert tuning.current().chunk == 128 << 10\n"
        "assert tuning.most_chunk_bytes() == 512 << 10\n"
    )
    assert launch.run("-np", "2", "--autotune", "python", "rank.py", variables=SHORT).code == 0


@pytest.mark.slice("launch")
def test_a_result_is_used_by_the_next_job(launch: Any) -> None:
    first = run(launch, COMMANDS[2])
    # With samples so long that the job ends before it could find that their times drift.
    second = run(launch, COMMANDS[3], TFDIST_AUTOTUNE_STEPS="10")
    assert json.loads((launch.folder / "autotune.json").read_text())["job"]["size"] == 2
    assert "fusion KiB" in first.stderr
    assert "without a search" in second.stderr
    assert "fusion KiB" not in second.stderr


@pytest.mark.slice("launch")
def test_lossy_tries_16_bits(launch: Any) -> None:
    done = run(launch, f"TFDIST_AUTOTUNE_LOG=lossy.csv {COMMANDS[4]}")
    with (launch.folder / "lossy.csv").open(newline="") as file:
        assert {row["compression"] for row in csv.DictReader(file)} == {"none", "fp16"}
    assert "fusion KiB" in done.stderr


def test_ranks_that_are_set_differently_do_not_start(launch: Any) -> None:
    launch.script("os.environ['TFDIST_AUTOTUNE'] = str(rank)\nimport tfdist\ntfdist.init()\n")
    done = launch.run("-np", "2", "python", "rank.py", variables=SHORT)
    assert done.code != 0
    assert "Set TFDIST_SHARED_MEMORY and TFDIST_AUTOTUNE to the same values on all ranks" in done.stderr


@pytest.mark.slice("launch")
def test_a_script_that_cannot_be_tuned_is_told(launch: Any) -> None:
    launch.script("import tfdist\ntfdist.init()\n")
    done = launch.run("-np", "2", "--autotune", "python", "rank.py", variables=SHORT)
    assert done.code == 0
    assert "TFDIST_AUTOTUNE=1 is set, but nothing was tuned" in done.stderr
    assert "tfdist.callbacks.DataParallel()" in done.stderr


@pytest.mark.slice("launch")
def test_optuna_that_is_missing_ends_the_job_with_its_remedy(launch: Any) -> None:
    text = (launch.folder / "train.py").read_text()
    (launch.folder / "train.py").write_text("import sys\nsys.modules['optuna'] = None\n" + text)
    done = launch.run("-np", "2", "--autotune", "python", "train.py", variables=SHORT)
    assert done.code != 0
    assert "autotuning needs optuna, which cannot be imported" in done.stderr
