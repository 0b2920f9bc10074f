"""docs/torch.md: its scripts run as they stand on 2 ranks, and print what it shows."""

import re
from pathlib import Path

import pytest

import tfdist.torch as hvd

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "torch.md").read_text()
SCRIPTS = dict(re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
# The gradients are 8 and 16 for each of 4 weights, and 8 for the bias: their averages are 12 and 8.
SHOWN = re.findall(r"^\[0\] .+$", PAGE, re.MULTILINE)
PRINTED = {"train.py": SHOWN[:1], "clip.py": ["[0] the norm was 25.30"], "elastic.py": SHOWN[1:]}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_on_2_ranks(launch, tmp_path, name):
    (options,) = re.findall(rf"^tfdistrun -np 2 (.*)python {name}$", PAGE, re.MULTILINE)
    (tmp_path / name).write_text(SCRIPTS[name])
    done = launch(2, name, options=options.split())
    assert done.returncode == 0, done.stdout
    assert PRINTED[name] and set(PRINTED[name]) <= set(done.stdout.splitlines()), done.stdout


def test_every_option_of_the_optimizer_is_there():
    section = PAGE.partition("## Options of the optimizer")[2].partition("```python")[0]
    listed = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.+?) \|", section, re.MULTILINE)))
    code = hvd.DistributedOptimizer.__code__
    assert sorted([*listed, "optimizer"]) == sorted(code.co_varnames[: code.co_argcount])
