"""The exact import table of the package, held by reading every import statement of the tree.

`ALLOWED` names what each folder imports directly by design; what those import is allowed too.
Imports inside functions and under ``TYPE_CHECKING`` count: they are dependencies all the same.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "megatile"

ALLOWED = {
    "tilelang": "compat",
    "compat": "models attention tuning report",
    "models": "attention parallel sim cost timing plan hda report",
    "attention": "parallel runtime collectives sim cost plan hda",
    "parallel": "runtime collectives",
    "verdict": "lowering cost sim",
    "runtime": "lowering targets sim collectives plan",
    "tuning": "lowering targets sim cost",
    "targets": "lowering ir hda",
    "lowering": "ir collectives cost plan hda",
    "collectives": "language sim cost plan hda",
    "language": "ir cost plan",
    "sim": "timing plan hda trace report records",
    "cost": "sim timing plan hda",
    "timing": "plan hda",
    "report": "trace hda",
    "plan": "hda trace",
    "ir": "hda",
    "trace": "core",
    "records": "core",
    "hda": "core",
    "core": "",
}
ALLOWED["cli"] = " ".join(ALLOWED)


def reachable(folder: str) -> set[str]:
    """The folders that `folder` may import: those of the table and what they may import."""
    found: set[str] = {folder}
    waiting = [folder]
    while waiting:
        for name in ALLOWED[waiting.pop()].split():
            if name not in found:
                found.add(name)
                waiting.append(name)
    return found


def imported_modules(tree: ast.AST, package: str) -> Iterator[tuple[int, str]]:
    """Line and absolute dotted name of every import in `tree`, a module of `package`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, base] if base else parents)
            # `from megatile import x` may mean the folder x: name both parts.
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif (
            isinstance(node, ast.Call) and called_name(node) in ("import_module", "__import__") and node.args
        ):
            first = node.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield node.lineno, first.value


def called_name(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def violations(root: Path) -> list[str]:
    """Every import below the package folder `root` that the table does not allow, as sentences."""
    return [line for path in sorted(root.rglob("*.py")) for line in violations_of(path, root)]


def violations_of(path: Path, root: Path) -> Iterator[str]:
    relative = path.relative_to(root)
    folder = relative.parts[0] if len(relative.parts) > 1 else ""
    if folder not in ALLOWED:
        if relative.name == "__init__.py" and not folder:
            yield from eager_imports(path, root)
        elif relative.as_posix() != "__main__.py":
            yield f"{relative}: belongs to no folder of the table in tests/test_layers.py"
        return
    allowed = reachable(folder)
    package = ".".join([root.name, *relative.parent.parts])
    for line, name in imported_modules(ast.parse(path.read_text(encoding="utf-8")), package):
        parts = name.split(".")
        if parts[0] != root.name:
            continue
        if len(parts) == 1 or parts[1] not in ALLOWED:
            # The public names are lazy doors to every folder.
            yield f"{relative}:{line}: imports the package's public names; import from the folder"
        elif parts[1] not in allowed:
            yield f"{relative}:{line}: {folder} must not import {parts[1]}"


def eager_imports(path: Path, root: Path) -> Iterator[str]:
    """`megatile/__init__.py` may name every folder, but only inside functions or for type checkers."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    kept = [node for node in body if not isinstance(node, ast.FunctionDef) and not is_type_checking(node)]
    for line, name in imported_modules(ast.Module(kept, []), root.name):
        if name.split(".")[0] == root.name and not name.startswith(f"{root.name}.core.public."):
            yield f"{path.name}:{line}: imports {name} eagerly; public names are lazy"


def is_type_checking(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def test_the_package_follows_the_table() -> None:
    assert violations(PACKAGE) == []


def test_the_page_shows_the_table() -> None:
    page = PACKAGE.parents[1] / "docs" / "contributing" / "decisions" / "0001-layers.md"
    rows = re.findall(r"^\| `(\w+)` \| ([\w ]+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert {folder: below.strip() for folder, below in rows} == ALLOWED | {
        "cli": "everything",
        "core": "nothing",
    }


def test_the_tests_mirror_the_package() -> None:
    tests = Path(__file__).parent
    folders = {path.parent.relative_to(tests).as_posix() for path in tests.rglob("test_*.py")}
    besides = {".", "benchmarks", "differential", "docs", "fuzz", "mutation"}
    assert {name for name in folders - besides if not (PACKAGE / name).is_dir()} == set()
    assert {name for name in ALLOWED if not any((tests / name).rglob("test_*.py"))} == {"tilelang"}


def test_the_table_has_no_cycle() -> None:
    for folder in ALLOWED:
        below = reachable(folder) - {folder}
        assert all(folder not in reachable(name) for name in below), folder


@pytest.mark.parametrize(
    ("folder", "forbidden"),
    [("report", "plan"), ("ir", "plan"), ("sim", "cost"), ("plan", "ir"), ("ir", "trace")],
)
def test_what_the_design_keeps_apart(folder: str, forbidden: str) -> None:
    assert forbidden not in reachable(folder)


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("ir/a.py", "import megatile.plan.nodes", "ir/a.py:1: ir must not import plan"),
        ("ir/a.py", "from megatile.plan import Plan", "ir/a.py:1: ir must not import plan"),
        ("ir/a.py", "from megatile import plan", "ir/a.py:1: ir must not import plan"),
        ("ir/a.py", "from ..plan import Plan", "ir/a.py:1: ir must not import plan"),
        ("ir/deep/a.py", "from ...plan import Plan", "ir/deep/a.py:1: ir must not import plan"),
        ("ir/a.py", "def f():\n    from .. import plan", "ir/a.py:2: ir must not import plan"),
        ("ir/a.py", "import_module('megatile.plan')", "ir/a.py:1: ir must not import plan"),
        ("ir/a.py", "import megatile as mt", "public names"),
        ("ir/a.py", "from megatile import HDA", "public names"),
        ("odd/a.py", "", "belongs to no folder"),
        ("odd.py", "", "belongs to no folder"),
        ("__init__.py", "from megatile.hda import HDA", "lazy"),
    ],
)
def test_a_violation_is_found(tmp_path: Path, file: str, text: str, expected: str) -> None:
    (found,) = violations(write_package(tmp_path, file, text))
    assert expected in found


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (
            "ir/a.py",
            "from .b import node\nfrom ..hda import HDA\nfrom megatile.core.errors import Place\nimport plan",
        ),
        ("cli/a.py", "from megatile.report import table\nfrom megatile.attention import schedule"),
        ("__init__.py", "def __getattr__(name):\n    from megatile.hda import HDA"),
        ("__main__.py", "from megatile.cli.main import main"),
    ],
)
def test_what_is_allowed_passes(tmp_path: Path, file: str, text: str) -> None:
    assert violations(write_package(tmp_path, file, text)) == []


def write_package(parent: Path, file: str, text: str) -> Path:
    root = parent / "megatile"
    (root / file).parent.mkdir(parents=True)
    (root / file).write_text(text, encoding="utf-8")
    return root
