"""Who may look into which room by Python imports, and what a bare import really loads."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Folders of the checkout and the packages they are installed as.
PACKAGES = {"tfdist": "tfdist", "callbacks": "tfdist.callbacks", "data_service": "tfdist.data_service"}
# What each room may look into besides itself. A line has only rooms of lines before it, so there are no circles. All
# see the rooms of BASE, each of which sees those before it; `tfdist` is the public names, loaded on first use.
_LAUNCH = "protocol launch.wire launch.job launch.host"
ROOMS = {
    "errors": "",
    "system": "",
    "system.network": "",
    "system.terminal": "system.network",
    "system.rank": "",
    "config": "",
    "storage": "",
    "protocol": "storage",
    "native": "",
    "autotune": "native storage",
    "observe": "native storage",
    "world": "native observe protocol",
    "ops.graph": "native world",
    "ops": "native world ops.graph",
    "training": "native world ops ops.graph",
    "input": "native world ops",
    "elastic": "native world ops ops.graph training input protocol storage",
    "data_service.inspection": "",
    "data_service.source": "native storage",
    "data_service.store": "data_service.source storage",
    "data_service.trainer": "native data_service.inspection",
    "data_service.server.journal": "data_service.inspection",
    "data_service.server": "native data_service.inspection data_service.source data_service.server.journal",
    "data_service.process": "data_service.inspection data_service.server",
    "data_service": "data_service.inspection data_service.source data_service.store data_service.trainer "
    "data_service.server data_service.process",
    "callbacks.store": "storage",
    "callbacks.fit": "native world ops ops.graph training input tfdist",
    "callbacks.rate": "native world training callbacks.fit tfdist",
    "callbacks": "native world ops ops.graph training elastic autotune data_service.trainer callbacks.fit "
    "callbacks.rate callbacks.store storage tfdist",
    "facade": "world observe ops training",
    "keras": "world ops training elastic callbacks facade",
    "tensorflow.data": "world ops data_service.inspection data_service.server data_service",
    "tensorflow": "world ops ops.graph training elastic facade tensorflow.data",
    "torch.collective": "native world ops ops.graph",
    "torch.training": "native world ops elastic torch.collective",
    "torch.elastic": "world elastic torch.collective torch.training",
    "torch": "world observe ops torch.collective torch.training torch.elastic",
    "launch.host": "",
    "launch.host.cluster": "launch.host",
    "launch.option": "launch.host launch.host.cluster",
    "launch.job": "launch.host",
    "launch.wire": "protocol launch.job",
    "launch.start": "launch.host launch.host.cluster launch.wire",
    "launch.supervisor": f"{_LAUNCH} launch.start",
    "launch.agent": f"{_LAUNCH} launch.start launch.supervisor",
    "launch.run": f"{_LAUNCH} storage launch.start launch.supervisor launch.agent",
    "launch": f"{_LAUNCH} storage launch.host.cluster launch.start launch.option launch.agent launch.run",
    "launch.function": "launch.wire launch.option launch.agent launch",
    "ray": "protocol launch.host launch.function tfdist",
    "spark": "protocol storage launch.host launch.function",
    "spark.keras": "storage world input data_service.source spark tfdist",
    "testing": "world tfdist",
    "alias": "native world ops torch tfdist",
    "alias.path": "alias",
    "command.bench.measure": "native tfdist",
    "command.bench.allreduce": "command.bench.measure testing tfdist",
    "command.bench.train": "world ops.graph callbacks command.bench.measure tfdist",
    "command.bench": "native command.bench.measure command.bench.allreduce command.bench.train",
    "command.chaos": "protocol",
    "command.doctor": "native launch.host launch.start tfdist",
    "command.environment": "native launch.host launch.start command.doctor tfdist",
    "command.image": "",
    "command.timeline": "",
    "command": "launch.option",
    "__main__": "command",
    "tfdist": "",
}
BASE = ("errors", "system", "system.terminal", "system.network", "system.rank", "config")
# What a launcher must not wait for, and what starts MPI when it is imported.
HEAVY = frozenset({"tensorflow", "keras", "numpy", "mpi4py"})
LIGHT_ROOMS = (
    "tfdist.system",
    "tfdist.protocol",
    "tfdist.launch",
    "tfdist.command.main",
    "tfdist.command.__main__",
    "tfdist.command.bench.command",
    "tfdist.command.chaos",
    "tfdist.command.doctor.command",
    "tfdist.command.environment",
    "tfdist.command.image",
    "tfdist.command.timeline",
    "tfdist.data_service.command",
    "tfdist.data_service.process.manager",
    "tfdist.data_service.inspection.survey",
)
SERIALIZERS = frozenset({"pickle", "cloudpickle", "dill", "shelve", "marshal", "multiprocessing"})
SOCKETS = frozenset({"socket", "socketserver", "selectors", "asyncio", "http", "urllib", "xmlrpc", "ssl"})
SETTING_PREFIXES = ("TFDIST_", "HOROVOD_")
# config reads the settings; launch, ray and spark set variables for their children, and launch and ray read back those
# of their own protocols; the room system.rank knows those that tell a rank its place, and which are not for what a
# rank starts.
ENVIRONMENT_ROOMS = (
    "tfdist.config",
    "tfdist.launch",
    "tfdist.protocol",
    "tfdist.ray",
    "tfdist.spark",
    "tfdist.system.rank",
)


@dataclass(frozen=True)
class Module:
    """One Python source of the product under the name it is installed as."""

    name: str
    text: str
    is_package: bool = False


@dataclass(frozen=True)
class Import:
    """One imported name, relative imports resolved. Lazy: inside a function."""

    target: str
    line: int
    lazy: bool


def product_modules() -> list[Module]:
    modules = []
    for folder, package in PACKAGES.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            name = ".".join((package, *(parts[:-1] if is_package else parts)))
            modules.append(Module(name, path.read_text(), is_package))
    return modules


def imports_of(module: Module) -> list[Import]:
    return list(_imports_in(ast.parse(module.text), module, lazy=False))


def _imports_in(tree: ast.AST, module: Module, lazy: bool) -> Iterator[Import]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for alternative in node.orelse:
                yield from _imports_in(alternative, module, lazy)
            continue
        for target in _targets(node, module):
            yield Import(target, node.lineno, lazy)  # type: ignore[attr-defined]
        inside = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        yield from _imports_in(node, module, lazy or inside)


def _targets(node: ast.AST, module: Module) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        origin = node.module or ""
        if node.level:
            parts = module.name.split(".")
            kept = len(parts) - node.level + module.is_package
            origin = ".".join([*parts[:kept], *([node.module] if node.module else [])])
        return [f"{origin}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called = ast.unparse(node.func).rpartition(".")[2]
        if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
            return [node.args[0].value]
    return []


def own_module(target: str, known: set[str]) -> str:
    """The module of ours that an imported name is, or is in; empty for a foreign one."""
    while target and target not in known:
        target = target.rpartition(".")[0]
    return target


def in_room(name: str, *rooms: str) -> bool:
    return any(name == room or name.startswith(f"{room}.") for room in rooms)


def check_light_rooms(modules: list[Module]) -> list[str]:
    """Launcher and driver reach nothing heavy, not even through another module."""
    by_name = {module.name: module for module in modules}
    problems = []
    for start in by_name:
        if not in_room(start, *LIGHT_ROOMS):
            continue
        chains = {start: [start]}
        queue = [start]
        while queue:
            name = queue.pop()
            for imported in imports_of(by_name[name]):
                if imported.lazy and by_name[name].is_package and not in_room(name, *LIGHT_ROOMS):
                    continue  # names that a package loads on first use
                chain = " -> ".join([*chains[name], imported.target])
                target = own_module(imported.target, set(by_name))
                public = imported.target.partition(".")[2]
                if imported.target.partition(".")[0] in HEAVY:
                    problems.append(f"{chain} (line {imported.line}): {start} must start without it")
                elif target == "tfdist" and public and not public.startswith("__"):
                    problems.append(f"{chain} (line {imported.line}): a lazy name of tfdist; import its module")
                parents = [target.rsplit(".", count)[0] for count in range(target.count(".") + 1)]
                for reached in set(filter(None, parents)) & set(by_name) - set(chains):
                    chains[reached] = [*chains[name], reached]
                    queue.append(reached)
    return problems


def room_of(name: str, packages: set[str]) -> str:
    """The room of a module, without "tfdist."; "tfdist" for that of the public names."""
    inside = name.removeprefix("tfdist").removeprefix(".")
    if inside in ROOMS or name in packages:
        return inside or "tfdist"
    return inside.rpartition(".")[0] or "tfdist"


def check_rooms(modules: list[Module]) -> list[str]:
    known = {module.name for module in modules}
    packages = {module.name for module in modules if module.is_package}
    problems = []
    for module in modules:
        room = room_of(module.name, packages)
        if room not in ROOMS:
            problems.append(f"{module.name}: stands in no room; give {room} a row in ROOMS")
            continue
        base = BASE[: BASE.index(room)] if room in BASE else BASE
        allowed = {room, *base, *ROOMS[room].split()}
        for imported in imports_of(module):
            if imported.target.partition(".")[0] in (
                "callbacks",
                "data_service",
                "examples",
                "benchmarks",
                "tests",
                "tools",
            ):
                problems.append(f"{module.name}:{imported.line} imports {imported.target}, which is not installed")
            target = own_module(imported.target, known)
            other = room_of(target, packages) if target else room
            version = imported.target == "tfdist.__version__"
            public = room == "tfdist" and imported.lazy
            if other not in allowed and not version and not public:
                problems.append(f"{module.name}:{imported.line} imports {imported.target}; {room} sees {ROOMS[room]}")
    return problems


def check_names(modules: list[Module]) -> list[str]:
    """What begins with an underscore is private to its module, a module of that name to its package."""
    problems = []
    for module in modules:
        package = module.name if module.is_package else module.name.rpartition(".")[0]
        for imported in imports_of(module):
            owner, _, private = imported.target.partition("._")
            if private and not private.startswith("_") and in_room(owner, "tfdist") and owner != package:
                problems.append(f"{module.name}:{imported.line} imports {imported.target}, which is private to {owner}")
    return problems


def check_serializers(modules: list[Module]) -> list[str]:
    """What comes from a socket is never unpickled: unpickling runs the sender's code."""
    return [
        f"{module.name}:{imported.line} imports {imported.target}; what crosses a socket is JSON or bytes"
        for module in modules
        if in_room(module.name, "tfdist.launch") and not in_room(module.name, "tfdist.launch.function")
        for imported in imports_of(module)
        if imported.target.partition(".")[0] in SERIALIZERS
    ] + [
        f"{module.name} imports {imported.target} and pickles; what has a socket may not unpickle"
        for module in modules
        if any(imported.target.partition(".")[0] in SERIALIZERS for imported in imports_of(module))
        for imported in imports_of(module)
        if imported.target.partition(".")[0] in SOCKETS or in_room(imported.target, "tfdist.launch.wire.channel")
    ]


def check_environment(modules: list[Module]) -> list[str]:
    problems = []
    for module in modules:
        if in_room(module.name, *ENVIRONMENT_ROOMS):
            continue
        for node in ast.walk(ast.parse(module.text)):
            if isinstance(node, ast.Constant) and _is_setting(node.value):
                problems.append(f"{module.name}:{node.lineno} names {node.value!r}; only tfdist.config reads settings")
            key = _environment_key(node)
            if key is not None and not isinstance(key, ast.Constant):
                text = ast.unparse(key)
                problems.append(f"{module.name}:{key.lineno} reads the variable {text}; ask tfdist.config for it")
    return problems


def _is_setting(value: object) -> bool:
    return isinstance(value, str) and value.startswith(SETTING_PREFIXES) and value.isidentifier()


def _environment_key(node: ast.AST) -> ast.expr | None:
    """The key with which a node reads the environment."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and _is_environment(node.value):
        return node.slice
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
        return node.left if _is_environment(node.comparators[0]) else None
    if isinstance(node, ast.Call) and node.args:
        function = node.func
        if ast.unparse(function) in ("os.getenv", "getenv"):
            return node.args[0]
        if isinstance(function, ast.Attribute) and function.attr in ("get", "pop", "setdefault"):
            return node.args[0] if _is_environment(function.value) else None
    return None


def _is_environment(node: ast.AST) -> bool:
    return ast.unparse(node) in ("os.environ", "environ")


PYTHON_CHECKS = (
    check_light_rooms,
    check_rooms,
    check_names,
    check_serializers,
    check_environment,
)


@pytest.mark.parametrize("check", PYTHON_CHECKS)
def test_python_rooms(check: Callable[[list[Module]], list[str]]) -> None:
    modules = product_modules()
    assert {"tfdist", "tfdist.launch", "tfdist.config", "tfdist.callbacks"} <= {module.name for module in modules}
    assert check(modules) == []


PACKAGE = Module(
    "tfdist",
    "def __getattr__(name):\n    from tfdist import callbacks; from tfdist.world import runtime\n",
    is_package=True,
)
RUNTIME = Module("tfdist.world.runtime", "def rank():\n    import tensorflow as tf\n")
CONFIG = Module("tfdist.config", "import os\nos.environ['TFDIST_A']\n")
GOOD = [
    PACKAGE,
    CONFIG,
    RUNTIME,
    Module("tfdist.launch", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import numpy\n", is_package=True),
    Module(
        "tfdist.launch.host.host", "import os\nfrom tfdist import config, __version__\nos.environ['TFDIST_JOB_ID']\n"
    ),
    Module("tfdist.data_service", "from tfdist import __version__, errors\nimport tfdist.config\n", True),
    Module("tfdist.errors", ""),
    Module("tfdist.data_service.process.node", "import tensorflow as tf\nimport os\nos.environ.get('PATH')\n"),
    Module("tfdist.callbacks", "import tfdist\nfrom tfdist.world import runtime\nfrom ._order import x\n", True),
    Module("tfdist.callbacks._order", "import keras\nx = 'TFDIST_A was not set'\n"),
]
BAD_PYTHON = [
    (check_light_rooms, "tfdist.launch.host.host", "import numpy as np"),
    (check_light_rooms, "tfdist.launch.host.host", "def f():\n    from keras import Model"),
    (check_light_rooms, "tfdist.launch.host.host", "from tfdist.world.runtime import rank"),
    (check_light_rooms, "tfdist.launch.host.host", "from ...world import runtime"),
    (check_light_rooms, "tfdist.launch.host.host", "import importlib\nimportlib.import_module('tensorflow.io')"),
    (check_light_rooms, "tfdist.launch.host.host", "from tfdist import rank"),
    (check_light_rooms, "tfdist.config", "import numpy"),
    (check_light_rooms, "tfdist.launch.run.generations", "try:\n    import tensorflow\nexcept ImportError:\n    pass"),
    (check_rooms, "tfdist.data_service.process.node", "from tfdist.world.runtime import rank"),
    (check_rooms, "tfdist.data_service.process.node", "from tfdist import rank"),
    (check_rooms, "tfdist.data_service.process.node", "from ...world.runtime import rank"),
    (check_rooms, "tfdist.data_service.source.order", "from tfdist.data_service.process import node"),
    (check_rooms, "tfdist.data_service.server.port", "from ..process import node"),
    (check_rooms, "tfdist.data_service.process.node", "import callbacks"),
    (check_rooms, "tfdist.world.runtime", "from tfdist.callbacks import DataParallel"),
    (check_rooms, "tfdist.world.runtime", "def f():\n    import tfdist.callbacks"),
    (check_rooms, "tfdist.world.runtime", "from examples import digits"),
    (check_rooms, "tfdist.ops.allreduce", "from tfdist.callbacks.fit import drift"),
    (check_rooms, "tfdist.system.process", "from tfdist import config"),
    (check_rooms, "tfdist.attic.box", "import os"),
    (check_names, "tfdist.callbacks.throughput", "from tfdist.world.runtime import _state"),
    (check_names, "tfdist.launch.host.host", "from tfdist.callbacks._order import x"),
    (check_serializers, "tfdist.launch.host.host", "import pickle"),
    (check_serializers, "tfdist.launch.run.launcher", "def f():\n    from cloudpickle import loads"),
    (check_serializers, "tfdist.launch.host.host", "from multiprocessing.connection import Listener"),
    (check_serializers, "tfdist.launch.function.parcel", "import pickle\nimport socket"),
    (
        check_serializers,
        "tfdist.launch.function.parcel",
        "import cloudpickle\nfrom tfdist.launch.wire.channel import Channel",
    ),
    (check_environment, "tfdist.world.runtime", "import os\nos.environ['TFDIST_A']"),
    (check_environment, "tfdist.world.runtime", "import os\nos.getenv('HOROVOD_TIMELINE')"),
    (check_environment, "tfdist.world.runtime", "import os\nNAME = 'TFDIST_A'\n'x' in os.environ"),
    (check_environment, "tfdist.world.runtime", "from os import environ\ndef f(name):\n    return environ.get(name)"),
]


def with_module(name: str, text: str) -> list[Module]:
    kept = [module for module in GOOD if module.name != name]
    return [*kept, Module(name, text)]


@pytest.mark.parametrize("check", PYTHON_CHECKS)
def test_python_checks_accept_what_is_allowed(check: Callable[[list[Module]], list[str]]) -> None:
    assert check(GOOD) == []


@pytest.mark.parametrize(("check", "name", "text"), BAD_PYTHON)
def test_python_checks_find_a_violation(check: Callable[[list[Module]], list[str]], name: str, text: str) -> None:
    problems = check(with_module(name, text))
    assert len(problems) >= 1
    assert all("tfdist" in problem for problem in problems)


def test_eager_import_of_callbacks_in_an_init_is_found() -> None:
    eager = Module("tfdist", "from tfdist import callbacks\n", is_package=True)
    (problem,) = check_rooms([eager, *GOOD[1:]])
    assert problem.startswith("tfdist:1 imports tfdist.callbacks; ")


def test_every_row_is_a_room_and_sees_only_rooms_before_it() -> None:
    modules = product_modules()
    packages = {module.name for module in modules if module.is_package}
    assert set(ROOMS) == {room_of(module.name, packages) for module in modules}
    before: list[str] = []
    for room, seen in ROOMS.items():
        assert set(seen.split()) <= {*before, "tfdist"}, room
        before.append(room)


def test_message_shows_the_chain_of_imports() -> None:
    (problem,) = check_light_rooms(with_module("tfdist.launch.host.host", "import tfdist.world.runtime"))
    assert problem.startswith("tfdist.launch.host.host -> tfdist.world.runtime -> tensorflow (line 2)")


@pytest.mark.parametrize(
    "module",
    [
        "tfdist",
        "tfdist.launch.command",
        "tfdist.command.main",
        "tfdist.command.bench.command",
        "tfdist.command.image.command",
        "tfdist.command.timeline.command",
        "tfdist.launch.function.function_job",
        "tfdist.config",
    ],
)
def test_import_loads_nothing_heavy(module: str) -> None:
    """The installed package, in a process of its own: what the checks above cannot see from the text."""
    script = f"import json, sys, {module}; print(json.dumps([tfdist.__file__, *sys.modules]))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    origin, *loaded = json.loads(done.stdout)
    assert not Path(origin).is_relative_to(ROOT / "tfdist")
    assert not HEAVY & {name.partition(".")[0] for name in loaded}
