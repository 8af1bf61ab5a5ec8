"""A module with behaviour of its own has a test file of its name, so that everybody knows where to look.

A module has behaviour of its own if it decides something (`MIN_BRANCHES`) and another folder imports it. What
only its own folder imports is a part of that folder, and is tested through what the folder offers.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "megatile"
MIN_BRANCHES = 5
"""Branches, loops and conditions below which a module is data, names of other modules, or a dispatch."""
BRANCHES = (ast.If, ast.For, ast.While, ast.Try, ast.IfExp, ast.comprehension, ast.BoolOp)
ELSEWHERE = {
    "attention": "named by feature: most start groups of processes, once for many cases",
    "compat": "other people's scripts run as they are, and are named as they name them",
    "targets/common targets/cuda": "C and CUDA text is tested by what it computes: cpu/, cuda/",
    "collectives/phases collectives/writer": "proved with every algorithm: collectives/test_matrix.py",
    "lowering/buffers lowering/commands lowering/levels": "Plans: lowering/test_lowered.py",
    "runtime/failures": "needs processes: attention/test_wrong_use.py, test_timeouts.py",
    "sim/launch_rows sim/sharing sim/simulation": "one reader of Plans: sim/test_judge.py",
}
"""Modules and folders whose tests have another name, and which."""


def read(path: Path) -> tuple[int, set[str]]:
    """Return the branches of a module, and the names that it imports from the package, as paths."""
    branches, names = 0, set[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        branches += isinstance(node, BRANCHES)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("megatile."):
            module = (node.module or "").removeprefix("megatile.").replace(".", "/")
            names |= {module, *(f"{module}/{alias.name}" for alias in node.names)}
    return branches, names


@cache
def own() -> tuple[str, ...]:
    """Return the modules with behaviour of their own, as paths without a suffix."""
    known = {p.relative_to(SOURCE).with_suffix("").as_posix(): read(p) for p in sorted(SOURCE.rglob("*.py"))}
    used = {
        module
        for user, (_, names) in known.items()
        for name in names
        for module in (name, f"{name}/__init__")
        if folder(module) != folder(user)
    }
    return tuple(name for name, (branches, _) in known.items() if name in used and branches >= MIN_BRANCHES)


def folder(module: str) -> str:
    return module.rpartition("/")[0]


def file_of(module: str) -> Path:
    """Return the test file of a module; that of a package lies beside its folder."""
    path = TESTS / module.removesuffix("/__init__")
    return path.with_name(f"test_{path.name}.py")


def elsewhere(module: str) -> bool:
    return any(f"{module}/".startswith(f"{one}/") for names in ELSEWHERE for one in names.split())


def test_modules_with_behaviour_of_their_own_have_a_test_file() -> None:
    missing = [module for module in own() if not file_of(module).exists() and not elsewhere(module)]
    assert missing == [], "move their tests into a file of their name, or write one"


def test_what_is_tested_elsewhere_exists_and_has_no_file() -> None:
    stale = [
        one
        for names in ELSEWHERE
        for one in names.split()
        if not any(f"{module}/".startswith(f"{one}/") and not file_of(module).exists() for module in own())
    ]
    assert stale == []
