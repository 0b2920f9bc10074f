"""Names that a package loads on first use are those that editors and type checkers see."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest

import tfdist
from tfdist import data_service


def seen_by_checkers(package):
    """By name, what an import under `if TYPE_CHECKING` binds it to."""
    tree = ast.parse(Path(inspect.getfile(package)).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    return {
        alias.asname: f"{node.module}.{alias.name}"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_names_of_tfdist():
    loaded = {name: f"{home}.{name}" for name, home in tfdist._NAMES.items()} | tfdist._MODULES
    assert seen_by_checkers(tfdist) == loaded
    assert {*loaded, "__version__"} == set(tfdist.__all__)


def test_names_of_the_data_service():
    homes = {name: f"tfdist.data_service.{home}.{name}" for name, home in data_service._HOMES.items()}
    assert seen_by_checkers(data_service) == homes


@pytest.mark.parametrize("package", ["tfdist", "tfdist.data_service", "tfdist.keras", "tfdist.tensorflow"])
def test_a_name_that_is_not_there_is_an_error_for_checkers_too(package):
    """A `__getattr__` that they see would make any name one."""
    module = importlib.import_module(package)
    tree = ast.parse(Path(inspect.getfile(module)).read_text())
    assert "__getattr__" not in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    with pytest.raises(AttributeError, match="no_such_name"):
        module.no_such_name  # noqa: B018
