"""The examples in folders keep what their heads promise, alone and on two ranks, by the commands that stand there."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

pytestmark = [pytest.mark.usefixtures("all_packages"), pytest.mark.slice("examples")]

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
IN_FOLDERS = sorted(EXAMPLES.glob("*/*.py"))
HEADED = [*IN_FOLDERS, EXAMPLES / "data_service.py", EXAMPLES / "digits.py"]
LINES_AT_MOST = 100
SECONDS = 300
# What a script prints at its end, what is promised of these numbers, and by how much they may differ between one rank
# and two: None is where ranks draw random numbers of their own, or take other steps.
PROMISES: dict[str, tuple[str, Callable[..., bool], float | None]] = {
    "custom_training/gan.py": (r"circle: (\d+)%, in (\d) of 8", lambda near, parts: near >= 80 and parts >= 6, None),
    "custom_training/loop.py": (
        r"epoch 1: loss ([\d.]+)[\s\S]*epoch 10: loss ([\d.]+)[\s\S]*accuracy: ([\d.]+)",
        lambda first, last, accuracy: last < first / 3 and accuracy >= 0.9,
        0.001,
    ),
    "custom_training/vae.py": (
        r"error: ([\d.]+); of the mean image: ([\d.]+)",
        lambda ours, of_mean: ours < of_mean / 2,
        None,
    ),
    "jobs/search.py": (
        r"best of (\d): \{'rate': ([\d.]+), 'width': (\d+)\}, validation accuracy: ([\d.]+)",
        lambda trials, rate, width, accuracy: (
            trials == 3 and 0.01 <= rate <= 0.3 and 16 <= width <= 64 and accuracy >= 0.9
        ),
        0.004,
    ),
    "tabular/parquet.py": (r"validation accuracy: ([\d.]+)", lambda accuracy: accuracy >= 0.9, None),
    "text/transformer.py": (
        r"accuracy: ([\d.]+)\n.*per step: (\d+) bytes; the embedding has (\d+)",
        lambda accuracy, reduced, table: accuracy >= 0.9 and 0 < reduced < table / 8,
        None,
    ),
    "vision/fine_tuning.py": (
        r"backbone: ([\d.]+)\n.*fine-tuning: ([\d.]+)",
        lambda frozen, tuned: 0.6 <= frozen < tuned and tuned >= 0.85,
        0.004,
    ),
    "vision/image_files.py": (r"validation accuracy: ([\d.]+)", lambda accuracy: accuracy >= 0.9, None),
}


def head(script: Path) -> str:
    return ast.get_docstring(ast.parse(script.read_text()), clean=False) or ""


def commands(script: Path) -> list[list[str]]:
    """The words of the commands in the head."""
    lines = re.findall(r"^    (\S.*)$", re.sub(r"\\\n", "", head(script)), re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


def run(words: list[str], folder: Path) -> str:
    """What a command prints, in a folder where examples/ is."""
    if not (folder / "examples").exists():
        (folder / "examples").symlink_to(EXAMPLES)
    here = {"python": sys.executable, "tfdistrun": str(Path(sys.executable).parent / "tfdistrun")}
    words = [here.get(word, word) for word in words]
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "tfdist.shard" not in done.stderr, "the ranks read different data"
    return done.stdout


def numbers(pattern: str, output: str) -> list[float]:
    """Those that the groups of the pattern found, once and by rank 0."""
    found = re.findall(pattern, output)
    assert len(found) == 1, output
    return [float(number) for number in ([found[0]] if isinstance(found[0], str) else found[0])]


@pytest.mark.parametrize("name", PROMISES)
def test_keeps_its_promise(name: str, tmp_path: Path) -> None:
    pattern, promise, tolerance = PROMISES[name]
    alone, together = (numbers(pattern, run(words, tmp_path)) for words in commands(EXAMPLES / name)[:2])
    assert promise(*alone), alone
    assert promise(*together), together
    if tolerance is not None:
        assert together == pytest.approx(alone, rel=0, abs=tolerance)


def test_resnet50_continues_on_two_ranks(tmp_path: Path) -> None:
    alone, together = commands(EXAMPLES / "vision" / "resnet50.py")[:2]
    end = r"epochs of this run: ([\d, ]+); steps in all: (\d+); rate: ([\d.]+)\n"
    assert re.findall(end, run([*alone, "--epochs", "2"], tmp_path)) == [("1, 2", "4", "0.0010")]
    assert re.findall(end, run(together, tmp_path)) == [("3", "6", "0.0010")]


@pytest.mark.parametrize("script", HEADED, ids=lambda path: path.relative_to(EXAMPLES).as_posix())
def test_head_has_the_same_three_commands(script: Path) -> None:
    """Alone, on two ranks, and in containers, of which compose knows every variable and the script is in CODE."""
    name = script.relative_to(EXAMPLES).as_posix()
    alone, together, contained = commands(script)[:3]
    assert alone == ["python", f"examples/{name}"]
    assert together[:3] == ["tfdistrun", "-np", "2"] and f"examples/{name}" in together
    variables = dict(word.split("=", 1) for word in contained[: contained.index("docker")])
    file = ROOT / contained[contained.index("-f") + 1]
    assert contained[contained.index("docker") :][:3] == ["docker", "compose", "-f"] and yaml.safe_load(
        file.read_text()
    )
    known = re.findall(r"^(\w+)=", (ROOT / "compose" / ".env").read_text(), re.MULTILINE)
    assert set(variables) <= set(known)
    assert variables["CODE"] == "$PWD/examples"
    assert any(value.startswith(f"python {name}") for value in variables.values())


@pytest.mark.parametrize("script", IN_FOLDERS, ids=lambda path: path.relative_to(EXAMPLES).as_posix())
def test_is_short_and_marks_its_lines(script: Path) -> None:
    text = script.read_text()
    assert text.count("\n") <= LINES_AT_MOST
    assert "# <--" in text and "The line" in head(script)


def test_readme_names_every_example() -> None:
    readme = (EXAMPLES / "README.md").read_text()
    files = [path for kind in ("py", "ipynb", "sbatch") for path in EXAMPLES.rglob(f"*.{kind}")]
    assert [path.name for path in files if f"`{path.relative_to(EXAMPLES).as_posix()}`" not in readme] == []
