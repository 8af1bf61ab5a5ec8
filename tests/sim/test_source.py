"""What the source of the simulator does without: offsets, type errors that are ignored, and old tricks."""

from __future__ import annotations

import ast
from pathlib import Path

from megatile import sim
from megatile.sim import state as st

FOLDER = Path(sim.__file__).parent
SOURCES = {str(path.relative_to(FOLDER)): path.read_text(encoding="utf-8") for path in FOLDER.rglob("*.py")}
TREES = {name: ast.parse(text) for name, text in SOURCES.items()}
NODES = [(name, node) for name, tree in TREES.items() for node in ast.walk(tree)]


def test_no_raw_access_to_the_array() -> None:
    raw = [
        (name, node.lineno)
        for name, node in NODES
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "s"
    ]
    assert not raw


def test_types_are_checked_without_exceptions() -> None:
    assert not [name for name, text in SOURCES.items() if "type: ignore" in text]
    settings = (FOLDER.parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    overrides = settings.split("[[tool.mypy.overrides]]")[1:]
    assert not [part for part in overrides if "megatile" in part.split("\n[")[0]]


def test_the_engine_returns_for_five_reasons() -> None:
    functions = {n.name: n for n in ast.walk(TREES["engine/loop.py"]) if isinstance(n, ast.FunctionDef)}
    returned = {
        node.id
        for function in (functions["run"], functions["issue"])
        for statement in ast.walk(function)
        if isinstance(statement, ast.Return) and statement.value is not None
        for node in ast.walk(statement.value)
        if isinstance(node, ast.Name) and node.id.isupper()
    }
    assert returned - {"GO_ON"} == {"FINISHED", "PAUSED", "ENDED", "BUDGET", "STOPPED"}
    assert {getattr(st, name) for name in returned - {"GO_ON"}} == set(range(1, 6))


def test_no_function_is_assigned_to_an_object_and_none_emptied() -> None:
    for name, node in NODES:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
            assert not any(isinstance(target, ast.Attribute) for target in node.targets), (name, node.lineno)
        if isinstance(node, ast.Attribute):
            assert node.attr not in ("getrefcount", "__class__"), (name, node.lineno)
            emptied = node.attr == "clear" and isinstance(node.value, ast.Call)
            assert not emptied, (name, node.lineno)
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            modules = [alias.name for alias in node.names] + [getattr(node, "module", "")]
            assert "re" not in modules, name  # our own messages are not searched


def test_no_error_decides_what_runs_next() -> None:
    """Whoever catches one raises again or keeps it (apart from a missing extra, and re-timings that fail)."""
    for name, handler in NODES:
        if isinstance(handler, ast.ExceptHandler) and name not in ("compiled.py", "sensitivity.py"):
            inside = [node for statement in handler.body for node in ast.walk(statement)]
            kept = any(isinstance(node, ast.Name) and node.id == handler.name for node in inside)
            assert kept or any(isinstance(node, ast.Raise) for node in inside), (name, handler.lineno)
