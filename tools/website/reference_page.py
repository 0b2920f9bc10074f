"""The pages of the reference: the public names of each package, from which mkdocstrings takes the docstrings."""

from __future__ import annotations

import ast
from pathlib import Path

from website import source

PACKAGES = {
    "tfdist": "The names that every script may use.",
    "tfdist.callbacks": "Callbacks for `fit`.",
    "tfdist.data_service": "Preprocessing on other processes.",
    "tfdist.elastic": "Training that continues when a rank is lost.",
    "tfdist.errors": "Exceptions.",
    "tfdist.keras": "Horovod's names for Keras.",
    "tfdist.tensorflow": "Horovod's names for TensorFlow.",
    "tfdist.torch": "Horovod's names for PyTorch.",
    "tfdist.torch.elastic": "Training with PyTorch that continues when a rank is lost.",
    "tfdist.spark": "Jobs on the executors of Spark.",
    "tfdist.spark.keras": "Estimators on a DataFrame.",
    "tfdist.ray": "Jobs on the nodes of Ray.",
    "tfdist.testing": "Tests of distributed code.",
}


def names(package: str, root: Path = source.ROOT) -> tuple[list[str], list[str]]:
    """The public names of a package, without and with those that are modules.

    Returns:
        Classes, functions and values; modules.
    """
    tree = source.Module(package, source.path_of(package, root)).tree
    imported = _imported(tree)
    found = _listed(tree) or _loaded_later(tree) or [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    public = sorted({name for name in found if not name.startswith("_")}, key=str.lower)
    modules = [name for name in public if _is_module(imported.get(name, f"{package}.{name}"), root)]
    return [name for name in public if name not in modules], modules


def page(package: str, root: Path = source.ROOT) -> str:
    """Markdown with a directive of mkdocstrings for each name."""
    own, modules = names(package, root)
    lines = [
        f"# {package}",
        "",
        f"::: {package}",
        "    options:",
        "      members: false",
        "      show_root_heading: false",
    ]
    lines += ["      show_root_toc_entry: false"]
    if modules:
        known = [
            f"[`{package}.{one}`]({package}.{one}.md)" if f"{package}.{one}" in PACKAGES else f"`{package}.{one}`"
            for one in modules
        ]
        lines += ["", f"Modules: {', '.join(known)}."]
    if package in ("tfdist.keras", "tfdist.tensorflow"):
        shared, _ = names("tfdist.facade", root)
        lines += ["", f"The same as in [`tfdist`](tfdist.md): {', '.join(f'`{name}`' for name in shared)}."]
    for name in own:
        lines += ["", f"::: {package}.{name}"]
    return "\n".join(lines) + "\n"


def _listed(tree: ast.Module) -> list[str]:
    """`__all__`, if it is a list of texts."""
    for node in tree.body:
        if (
            isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) == "__all__"
            and isinstance(node.value, ast.List)
        ):
            return [str(ast.literal_eval(element)) for element in node.value.elts]
    return []


def _loaded_later(tree: ast.Module) -> list[str]:
    """What type checkers see of names that are loaded on first use."""
    return [name for node in tree.body if isinstance(node, ast.If) for name in _imported(ast.Module(node.body, []))]


def _imported(tree: ast.Module) -> dict[str, str]:
    """By name, what imports bind it to, those under `if TYPE_CHECKING` included."""
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def _is_module(name: str, root: Path) -> bool:
    try:
        return source.path_of(name, root).is_file()
    except ValueError:
        return False
