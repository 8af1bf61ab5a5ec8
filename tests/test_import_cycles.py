"""No two modules import each other, however far round; imports inside functions count.

Imports under ``TYPE_CHECKING`` are left out: they name a type and load nothing.
"""

import ast
from pathlib import Path

import networkx as nx
import pytest
from tests.test_layers import PACKAGE, imported_modules, is_type_checking, write_package


class WithoutTypes(ast.NodeTransformer):
    def visit_If(self, node: ast.If) -> ast.AST:
        return ast.Pass() if is_type_checking(node) else self.generic_visit(node)


def graph(root: Path) -> "nx.DiGraph[str]":
    """Modules of the package folder ``root``, each with an arrow to every module it imports."""
    modules = {dotted(path, root): path for path in sorted(root.rglob("*.py"))}
    arrows: nx.DiGraph[str] = nx.DiGraph()
    for name, path in modules.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        tree = WithoutTypes().visit(ast.parse(path.read_text(encoding="utf-8")))
        for _, wanted in imported_modules(tree, package):
            while wanted and wanted not in modules:
                wanted = wanted.rpartition(".")[0]
            if wanted and wanted not in (root.name, name):  # the root's names are lazy
                arrows.add_edge(name, wanted)
    return arrows


def dotted(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__")


def cycles(root: Path) -> set[str]:
    """Every group of modules that import each other, without those whose package is in the group too."""
    groups = (set(g) for g in nx.strongly_connected_components(graph(root)) if len(g) > 1)
    return {" ".join(sorted(n[len(root.name) + 1 :] for n in g if not inside(n, g))) for g in groups}


def inside(name: str, group: set[str]) -> bool:
    return name.rpartition(".")[0] in group


def test_modules_do_not_import_each_other() -> None:
    assert cycles(PACKAGE) == set()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from megatile.ir.b import x", {"ir.a ir.b"}),
        ("def f():\n    from .b import x", {"ir.a ir.b"}),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .b import x", set()),
        ("from .c import x", set()),
    ],
)
def test_a_cycle_is_found(tmp_path: Path, text: str, expected: set[str]) -> None:
    root = write_package(tmp_path, "ir/a.py", text)
    (root / "ir/b.py").write_text("import megatile.ir.a", encoding="utf-8")
    assert cycles(root) == expected
