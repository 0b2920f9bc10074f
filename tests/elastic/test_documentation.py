"""docs/elastic.md: its scripts run as they stand, and whatever command, option or name it mentions is there."""

import importlib
import re
import shlex
from pathlib import Path

import pytest
from elastic_job import run

from tfdist.command.chaos import command as chaos
from tfdist.launch.option import option

pytestmark = pytest.mark.slice("docs")

TEXT = (Path(__file__).parent.parent.parent / "docs/elastic.md").read_text()
SHELL = [line.partition("#")[0] for line in TEXT.splitlines() if line.startswith(("tfdistrun -", "tfdist chaos -"))]
SCRIPT, *PARTS = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
# Of docker, and of docker compose.
FOREIGN = {"--shm-size", "--exit-code-from", "--alias"}


def options_of(parser):
    return {name for action in parser._actions for name in action.option_strings}


def start(folder, script, *options):
    """The first command of the page."""
    (folder / "train.py").write_text(script)
    name, *words = shlex.split(SHELL[0])
    assert name == "tfdistrun"
    done = run(folder, "-m", "tfdist.launch", *options, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not re.search(r"tfdist( rank \d+)?: ", done.stdout + done.stderr), "it is warned of nothing"


def test_the_example_runs_as_it_stands(tmp_path):
    assert f"`train.py`:\n\n```python\n{SCRIPT}" in TEXT
    start(tmp_path, SCRIPT)
    assert (tmp_path / "model.keras").stat().st_size > 1000


@pytest.mark.parametrize("part", PARTS)
def test_in_the_place_of_its_fit(tmp_path, part):
    """Data that a service brings need the names that stand on its page, and workers."""
    begin, options = SCRIPT.partition("model.fit(")[0], ()
    if "data_service" in part:
        begin += "import uuid\ntfdist.init()\njob = tfdist.broadcast_object(uuid.uuid4().hex)\n"
        options = ("--data-workers", "1")
    start(tmp_path, begin + part, *options)


@pytest.mark.parametrize("line", SHELL)
def test_a_command_is_understood(line):
    name, *words = shlex.split(line)
    if name == "tfdist":
        part, *words = words
        assert part == "chaos"
        words = words[words.index("--") + 2 :]
    known, command = option.parse(words)
    assert option.least(known) is not None
    assert command == ["python", "train.py"]


def test_options_and_variables_are_there():
    known = options_of(option.parser()) | options_of(chaos.parser()) | FOREIGN
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", TEXT))
    assert len(named) > 15
    assert named - known == set()
    settings = set(re.findall(r"TFDIST_\w+", TEXT))
    assert settings <= {row.variable for row in importlib.import_module("tfdist.config").SETTINGS}


def test_names_are_there():
    named = set(re.findall(r"\btfdist(?:\.\w+)+", TEXT))
    assert len(named) > 5
    for name in named:
        found = importlib.import_module("tfdist")
        for part in name.split(".")[1:]:
            found = getattr(found, part)


def test_links_lead_somewhere():
    page = Path(__file__).parent.parent.parent / "docs/elastic.md"
    links = re.findall(r"\]\(([^)#]+)(?:#([^)]*))?\)", TEXT)
    assert links
    for path, anchor in links:
        target = page.parent / path
        assert target.is_file(), path
        titles = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
        assert not anchor or anchor in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
