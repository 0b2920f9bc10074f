"""The page of errors: the classes of tfdist/errors.py, and each message that the Python sources can raise with one.

A message is read from the call that makes the error: texts and f-strings, joined by + or by position, also by way of a
variable of the function or the module. A value in it is shown as the name of what is inserted.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from website import source

HEAD = """# Every error

Made from the sources: the classes of errors, and for each the messages that the Python code can raise with it, with the
modules in brackets. Words in braces stand for values. The remedy is in the message. Search this page for a part of the
text that you see; more about frequent ones is in [errors, warnings and the log](messages.md).

Not listed: messages of the C++ engine, which name ranks, hosts and tensors and reach a script as `MismatchError`,
`PeerLostError`, `StallError` or `ConfigError`, and those whose whole text comes from another function.
"""
# A class that is only there to be caught, or whose message comes from elsewhere, has no row.
_SHORTEST = 12


@dataclass(frozen=True)
class Kind:
    """A class of tfdist/errors.py."""

    name: str
    bases: tuple[str, ...]
    doc: str


@dataclass(frozen=True, order=True)
class Message:
    """A text with its values in braces."""

    text: str
    kind: str
    module: str


def kinds(tree: ast.Module) -> list[Kind]:
    """The public classes, in their order."""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    return [
        Kind(each.name, tuple(ast.unparse(base) for base in each.bases), ast.get_docstring(each) or "")
        for each in classes
    ]


def messages(module: source.Module, names: set[str]) -> set[Message]:
    """What the module can raise with one of these classes, as far as the text is in the module."""
    constants = _assigned(module.tree.body)
    found = set()
    for scope in [module.tree, *(node for node in ast.walk(module.tree) if isinstance(node, ast.FunctionDef))]:
        own = constants | _assigned(list(ast.walk(scope)) if isinstance(scope, ast.FunctionDef) else [])
        for node in ast.walk(scope):
            if isinstance(node, ast.Call) and node.args and _class_of(node) in names:
                text = " ".join(_text(node.args[0], own).split())
                if len(re.sub(r"\{[^}]*\}", "", text)) >= _SHORTEST:
                    found.add(Message(text, _class_of(node), module.name))
    # The module's scope sees each call too, without the variables of its function: the longer text has them.
    return {one for one in found if not any(_is_part(one, other) for other in found)}


def page(root: Path = source.ROOT) -> str:
    classes = kinds(source.Module("tfdist.errors", source.path_of("tfdist.errors", root)).tree)
    names = {kind.name for kind in classes}
    by_kind: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for module in source.modules(root):
        for message in messages(module, names):
            by_kind[message.kind][message.text].append(module.name)
    lines = [HEAD]
    for kind in classes:
        lines += [f"## {kind.name}", "", f"Is also: {', '.join(f'`{base}`' for base in kind.bases)}", "", kind.doc, ""]
        for text, modules in sorted(by_kind[kind.name].items(), key=lambda item: item[0].lower()):
            lines.append(f"- `` {text} `` ({', '.join(sorted(modules))})")
        lines.append("")
    return "\n".join(lines)


def _class_of(call: ast.Call) -> str:
    """The name of the called class: `ConfigError(...)` and `errors.ConfigError(...)`."""
    return getattr(call.func, "id", "") or getattr(call.func, "attr", "")


def _assigned(nodes: list[ast.stmt] | list[ast.AST]) -> dict[str, ast.expr]:
    """What each name is assigned, if that happens once."""
    found: dict[str, list[ast.expr]] = defaultdict(list)
    for node in nodes:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id].append(node.value)
    return {name: values[0] for name, values in found.items() if len(values) == 1}


def _text(node: ast.expr, assigned: dict[str, ast.expr]) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part, assigned) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return _text(node.value, assigned)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left, assigned) + _text(node.right, assigned)
    if isinstance(node, ast.Name) and node.id in assigned:
        others = {name: value for name, value in assigned.items() if name != node.id}
        text = _text(assigned[node.id], others)
        return f"{{{node.id}}}" if text.startswith("{") else text
    if isinstance(node, ast.IfExp):
        return _choice(_text(node.body, assigned), _text(node.orelse, assigned))
    return f"{{{_name(node)}}}"


def _choice(one: str, other: str) -> str:
    if one.startswith("{") or other.startswith("{"):
        return "{...}"
    return " / ".join(filter(None, (one, other)))


def _name(node: ast.expr) -> str:
    """The last name in an expression, such as `rank` of `self.place.rank` and `hosts` of `', '.join(hosts)`."""
    while (
        isinstance(node, ast.Call)
        and node.args
        and getattr(node.func, "attr", getattr(node.func, "id", ""))
        in (
            "join",
            "repr",
            "str",
            "len",
            "sorted",
            "type",
        )
    ):
        node = node.args[0]
    words = re.findall(r"[A-Za-z_]\w*", ast.unparse(node.func if isinstance(node, ast.Call) else node))
    return words[-1].strip("_") if words and words != ["self"] else "..."


def _is_part(one: Message, other: Message) -> bool:
    """Whether the other is the same message with more of its text known."""
    pattern = r".+".join(re.escape(part) for part in re.split(r"\{[^}]*\}", one.text))
    return one != other and one.kind == other.kind and "{" in one.text and bool(re.fullmatch(pattern, other.text))
