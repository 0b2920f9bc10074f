"""The examples that start jobs or lose ranks, and the notebook, keep what they promise."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tfdist.command.chaos.victim import ranks_below

pytestmark = [pytest.mark.usefixtures("all_packages"), pytest.mark.slice("examples")]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SECONDS = 300


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.Popen(
        words, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def output_of(job: subprocess.Popen[str], kill_at: str = "") -> str:
    """All that it prints; rank 1 is killed when the words `kill_at` come first."""
    said = ""
    deadline = threading.Timer(SECONDS, job.kill)
    deadline.start()
    with job:
        for line in job.stdout or ():
            if kill_at and kill_at in line and kill_at not in said:
                os.kill(ranks_below(job.pid)[1], signal.SIGKILL)
            said += line
    deadline.cancel()
    assert job.returncode == 0, said
    return said


def test_elastic_takes_the_same_steps_after_a_loss(tmp_path: Path) -> None:
    script = (sys.executable, str(EXAMPLES / "jobs" / "elastic.py"))
    end = r"steps: (\d+), validation accuracy: ([\d.]+)"
    alone = re.findall(end, output_of(start(tmp_path, *script)))
    launcher = str(Path(sys.executable).parent / "tfdistrun")
    said = output_of(start(tmp_path, launcher, "-np", "2", "--elastic", *script), kill_at="epoch 3: ranks 2")
    assert "epoch 10: ranks 1" in said
    together = re.findall(end, said)
    assert [steps for steps, _ in (*alone, *together)] == ["230", "230"]
    assert float(alone[0][1]) >= 0.9
    assert float(together[0][1]) == pytest.approx(float(alone[0][1]), abs=0.004)


def test_search_by_jobs_of_two_ranks(tmp_path: Path) -> None:
    words = (str(EXAMPLES / "jobs" / "search.py"), "--ranks", "2", "--trials", "1")
    said = output_of(start(tmp_path, sys.executable, *words))
    assert re.search(r"^best of 1: \{'rate': [\d.]+, 'width': \d+\}, validation accuracy: 0\.\d+$", said, re.MULTILINE)


def test_notebook_trains_and_plots(tmp_path: Path) -> None:
    notebook = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)
    assert not [cell for cell in notebook.cells if cell.get("outputs")], "clear the outputs before you commit it"
    done = NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": tmp_path}}).execute()
    outputs = [output for cell in done.cells for output in cell.get("outputs", ())]
    said = "".join(output.get("text", "") for output in outputs)
    assert set(re.findall(r"\[\d\] rank \d of 2 has trained 10 epochs", said)) == {
        f"[{rank}] rank {rank} of 2 has trained 10 epochs" for rank in range(2)
    }
    assert float(re.findall(r"validation accuracy: ([\d.]+); parameters: 4810", said)[0]) >= 0.9
    assert [output for output in outputs if "image/png" in output.get("data", {})]
