"""What the process keeps: all of it in one object, from before `init` until after `shutdown`."""

import ast
from pathlib import Path

import pytest

ROOM = Path(__file__).resolve().parents[3] / "tfdist" / "world"
LIFE = """
import dataclasses, tfdist
from tfdist.world.session import Session, session
from tfdist.world import tuning
assert session == Session()
odd = tfdist.ProcessSet([0])
tfdist.init(process_sets=[odd])
assert session.started and session.watches_exit and session.place == (0, 1)
assert (session.first_rank, session.arguments) == (0, (None, [odd]))
assert session.process_sets == {odd.process_set_id: odd} and not session.dynamic
assert session.tuning is None
tuning.apply(dataclasses.replace(tuning.current(), fusion_threshold=7, chunk=0))
assert session.tuning.fusion_threshold == tuning.current().fusion_threshold == 7
tfdist.shutdown()
assert session.process_sets == {} and session.tuning is None and odd.process_set_id is None
"""


def test_from_before_init_until_after_shutdown(run_script):
    run_script(LIFE)


def cells_of(text):
    """The names of a module that functions could keep something in."""
    containers = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp, ast.Call)
    tree = ast.parse(text)
    rebound = {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}
    assigned = [node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
    targets = [(target, node.value) for node in assigned for target in getattr(node, "targets", None) or [node.target]]
    return rebound | {target.id for target, value in targets if isinstance(value, containers)}


@pytest.mark.parametrize("path", sorted(ROOM.glob("*.py")), ids=lambda path: path.stem)
def test_no_other_module_of_the_room_keeps_anything(path):
    expected = {name: {"_logger"} for name in ("lone_training", "runtime", "sockets", "rendezvous")}
    expected |= {"process_sets": {"global_process_set"}, "session": {"session"}}
    assert cells_of(path.read_text()) == expected.get(path.stem, set())


@pytest.mark.parametrize("text", ["_sets = {}", "_state: list[int] = [0]", "a = b = set()", "def f():\n    global a"])
def test_what_would_keep_something_is_found(text):
    assert cells_of(text)
