"""benchmarks/compare.py without running anything: reading recorded results, tables, and the section of the document."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

SAMPLE = Path(__file__).parent / "sample"
HOROVOD_STEP = (
    '{"model": "digits", "image_size": 8, "batch_size": 2, "compression": "fp16", "ranks": %d, "median_ms": %s, '
    '"min_ms": %s, "horovod": "0.28.1", "tensorflow": "2.13.1"}'
)


@pytest.fixture
def compare(script: Any) -> Any:
    return script("compare")


def recorded(name: str) -> dict[str, Any]:
    return json.loads((SAMPLE / f"{name}.json").read_text())  # type: ignore[no-any-return]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def slower(document: dict[str, Any], name: str, factor: float) -> dict[str, Any]:
    """The same document with all times multiplied."""
    for row in document["rows"]:
        for key in (f"median_{name}", f"min_{name}"):
            row[key] *= factor
    return document


def test_allreduce_beside_horovod(compare: Any) -> None:
    """The median of three runs is the one in the middle, and the least is that of all."""
    case, results = compare.Reduction.parse("4KB/160"), compare.Results()
    for factor in (1.0, 3.0, 2.0):
        results.add_reduction(case, slower(recorded("allreduce"), "us", factor))
    results.add_horovod(case, (SAMPLE / "horovod.txt").read_text())
    lines = compare.reduction_table(results, [case], ["none", "fp16"]).splitlines()
    assert len(cells(lines[0])) == 11
    none, fp16 = map(cells, lines[2:])
    assert none[:5] == ["4KB, 160 tensors", "none", "3", f"{2 * 787.7184998505982:.1f}", "730.1"]
    assert none[5:9] == ["716.8", "660.2", f"{2 * 787.7184998505982 / 716.8325000748155:.2f}", "1.11"]
    assert none[9:] == ["7.7", f"{2 * 787.7184998505982 / 7.699001798755489:.2f}"]
    assert fp16[5:7] == ["713.4", "633.7"]
    assert results.horovod == "0.28.1 on TensorFlow 2.13.1"


def test_training_beside_horovod(compare: Any) -> None:
    case, results = compare.Training.parse("digits/8/2"), compare.Results()
    results.add_training(case, recorded("train"))
    for ranks, median, least in ((1, 2.0, 1.5), (2, 4.0, 2.0)):
        results.add_horovod(case, HOROVOD_STEP % (ranks, median, least))
    ours, theirs = map(cells, compare.training_table(results, [case], ["fp16"], 2).splitlines()[2:])
    assert ours == ["digits, 8 px, batch 2", "fp16", "1", "tfdist", "1.1", "0.9", "1.4", "1.1", "0.75", "0.81"]
    assert theirs == ["digits, 8 px, batch 2", "fp16", "1", "Horovod", "2.0", "1.5", "4.0", "2.0", "0.50", "0.75"]


def test_cells_without_horovod_are_empty_with_the_reason(compare: Any) -> None:
    case, results = compare.Reduction.parse("4KB/160"), compare.Results()
    results.add_reduction(case, recorded("allreduce"))
    row = cells(compare.reduction_table(results, [case], ["none"]).splitlines()[2])
    assert row[5:9] == ["–"] * 4
    text = compare.section(results, ["a table"], "2026-01-02", "how")
    assert compare.SKIPPED in text and "TFDIST_BENCH_HOROVOD_PYTHON" in compare.SKIPPED


def test_section_has_machine_commands_date_and_tables(compare: Any) -> None:
    results = compare.Results(horovod="0.28.1 on TensorFlow 2.13.1", commands=["first", "second"])
    results.add_training(compare.Training.parse("digits/8/2"), recorded("train"))
    text = compare.section(results, ["| a |", "| b |"], "2026-01-02", "3 rounds")
    headings = [line for line in text.splitlines() if line.startswith("### ")]
    assert headings == ["### Machine", "### Commands", "### Date", "### Tables"]
    for part in ("- cores: 2", "- memory gib: 24", "first\nsecond", "2026-01-02", "\n\n| a |\n\n| b |", "0.28.1 on"):
        assert part in text
    assert compare.SKIPPED not in text


def test_horovod_that_printed_nothing_is_an_error(compare: Any) -> None:
    with pytest.raises(ValueError, match=r"no result for 4KB, 1 tensor; it printed: no such thing"):
        compare.Results().add_horovod(compare.Reduction.parse("4KB/1"), "no such thing\n")


def test_defaults_are_the_cases_of_the_document(compare: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compare.VARIABLE, "")
    arguments = compare.parse([])
    assert [(case.size_bytes, case.tensors) for case in arguments.allreduce] == [
        (4096, 1),
        (1 << 20, 160),
        (100 << 20, 160),
    ]
    assert [str(case) for case in arguments.train] == [
        "ResNet50, 96 px, batch 8",
        "VGG16, 64 px, batch 8",
        "MobileNetV2, 96 px, batch 8",
        "ResNet50, 96 px, batch 8, XLA",
    ]
    assert (arguments.compressions, arguments.ranks, arguments.rounds) == (["none", "fp16"], 2, 3)
    assert compare.parse(["--train", "none", "--allreduce", "4KB/1"]).train == []


def test_runs_alternate_and_every_command_is_told_once(
    compare: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And after each case the document has what was measured, and nothing yet of what was not."""
    arguments = compare.parse("--horovod-python x/python --allreduce 4KB/160 --train digits/8/2 --rounds 2".split())
    arguments.compressions, arguments.document = ["fp16"], tmp_path / "performance.md"
    arguments.document.write_text("<!-- compare: begin -->\n<!-- compare: end -->\n")
    order, rows = list[str](), list[list[str]]()

    def save(results: Any) -> None:
        compare.save(arguments, results)
        lines = arguments.document.read_text().splitlines()
        rows.append([" ".join(cells(line)[:3]) for line in lines if line.startswith("|") and "fp16" in line])

    runner = compare.Runner(arguments, save)

    def output(command: list[str], environment: dict[str, str]) -> str:
        assert "core" in command or "--bind-to core" in command
        assert command.count("-np") == 1
        ranks = int(command[command.index("-np") + 1])
        if "--json" in command:
            benchmark = "allreduce" if "allreduce" in command else "train"
            order.append(f"tfdist {benchmark} {ranks}")
            Path(command[-1]).write_text((SAMPLE / f"{benchmark}.json").read_text())
            return ""
        assert command[0] == "x/mpirun" and "PYTHONPATH" not in environment and environment["OMP_NUM_THREADS"] == "1"
        script = Path(next(word for word in command if word.endswith(".py"))).stem
        order.append(f"horovod {script} {ranks}")
        return (SAMPLE / "horovod.txt").read_text() if script == "allreduce" else HOROVOD_STEP % (ranks, 2.0, 1.0)

    monkeypatch.setenv("PYTHONPATH", "somewhere")
    monkeypatch.setattr(compare, "_output", output)
    runner.run()
    reduction, training = (
        ["tfdist allreduce 2", "horovod allreduce 2"],
        ["tfdist train 2", "horovod train 1", "horovod train 2"],
    )
    assert order == [*reduction, *training, *reduction, *training]
    step = "digits, 8 px, batch 2 fp16"
    assert rows == [
        ["4KB, 160 tensors fp16 1"],
        ["4KB, 160 tensors fp16 1", f"{step} 1", f"{step} 1"],
        ["4KB, 160 tensors fp16 2", f"{step} 1", f"{step} 1"],
        ["4KB, 160 tensors fp16 2", f"{step} 2", f"{step} 2"],
    ]
    assert len(runner.results.commands) == 5
    assert not any(
        str(compare.HERE.parent) in command or sys.executable in command for command in runner.results.commands
    )


def test_failed_run_ends_the_comparison_with_its_last_lines(compare: Any) -> None:
    script = "import sys; print('hello'); sys.exit('the reason')"
    with pytest.raises(SystemExit) as caught:
        compare._output([sys.executable, "-c", script], {})
    assert "ended with 1" in str(caught.value) and "hello\nthe reason" in str(caught.value)


def test_what_cannot_work_is_told_before_anything_runs(compare: Any, tmp_path: Path) -> None:
    (tmp_path / "empty.md").write_text("nothing\n")
    with pytest.raises(SystemExit, match="must have one line"):
        compare.check(compare.parse(["--document", str(tmp_path / "empty.md")]))
    with pytest.raises(SystemExit, match="python is not an executable file"):
        compare.check(compare.parse(["--horovod-python", str(tmp_path / "python")]))
