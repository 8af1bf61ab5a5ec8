"""Mutants: one expression of one function changed, chosen by the hash of seed and change.

An edit of another function does not change which mutants a seed has, and a mutant keeps its name.
"""

from __future__ import annotations

import ast
import collections
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "megatile"
FOLDERS = ("sim", "lowering", "plan", "cost", "collectives", "runtime", "targets", "hda")

SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Add: ast.Sub,
    ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.And: ast.Or,
    ast.Or: ast.And,
}  # fmt: skip
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Mutant(NamedTuple):
    """One change of one line of one file."""

    file: str
    """Below ``src/megatile``."""
    function: str
    first_line: int
    """Where the innermost function begins, as code objects count."""
    line: int
    before: str
    after: str
    again: int
    """How many equal changes of the function come before it."""

    @property
    def key(self) -> str:
        """Its name, which edits elsewhere do not change."""
        number = f" ({self.again + 1})" if self.again else ""
        return f"{self.file} {self.function}: {self.before.strip()}  =>  {self.after.strip()}{number}"

    @property
    def folder(self) -> str:
        return self.file.partition("/")[0]

    @property
    def code(self) -> str:
        """The changed function as `tests.mutation.warm` writes it."""
        return f"{self.file}:{self.first_line}"

    def text(self) -> str:
        """The whole file with the change."""
        lines = (SOURCE / self.file).read_text(encoding="utf-8").splitlines(keepends=True)
        lines[self.line - 1] = self.after
        return "".join(lines)


def mutants(seed: int, count: int) -> list[Mutant]:
    """The first mutants of a seed among all changes of all folders, each as likely as any other."""
    every = (
        mutant
        for folder in FOLDERS
        for path in sorted((SOURCE / folder).rglob("*.py"))
        for mutant in mutants_of(path.relative_to(SOURCE).as_posix(), path.read_bytes().decode("utf-8"))
    )
    rank = lambda m: hashlib.sha256(f"{seed} {m.key}".encode()).digest()  # noqa: E731
    return sorted(every, key=rank)[:count]


def mutants_of(file: str, text: str) -> Iterator[Mutant]:
    """All mutants of a file, in the order of its lines."""
    tree = ast.parse(text)
    lines = text.splitlines(keepends=True)
    inside = _functions(tree)
    seen: collections.Counter[tuple[str, str, str]] = collections.Counter()
    for old, new in mutations(tree):
        line = lines[old.lineno - 1].encode()
        changed = line[: old.col_offset] + f"({ast.unparse(new)})".encode() + line[old.end_col_offset :]
        name, first = inside[id(old)]
        before, after = lines[old.lineno - 1], changed.decode()
        yield Mutant(file, name, first, old.lineno, before, after, seen[name, before, after])
        seen[name, before, after] += 1


def _functions(tree: ast.AST, name: str = "", first: int = 0) -> dict[int, tuple[str, int]]:
    """The innermost function around every node: its dotted name and first line, decorators included."""
    found: dict[int, tuple[str, int]] = {}
    for node in ast.iter_child_nodes(tree):
        here, begins = name, first
        if isinstance(node, Function | ast.ClassDef):
            here = f"{name}.{node.name}" if name else node.name
        if isinstance(node, Function):
            begins = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        found[id(node)] = here, begins
        found |= _functions(node, here, begins)
    return found


def mutations(tree: ast.AST) -> list[tuple[ast.expr, ast.expr]]:
    """Return expressions of functions, each with its replacement.

    Texts of messages stay, and so does ``strict=True``: it says that what is zipped has one length, so that
    nothing but a defect elsewhere could show the change.
    """
    found: list[tuple[ast.expr, ast.expr]] = []
    functions = [n for n in ast.walk(tree) if isinstance(n, Function)]
    inside = {id(n): n for f in functions for s in f.body for n in ast.walk(s)}
    for node in inside.values():
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in SWAPS:
            other = SWAPS[type(node.ops[0])]()
            found.append((node, ast.Compare(node.left, [other], node.comparators)))
        elif isinstance(node, ast.BinOp) and type(node.op) in SWAPS and not _text(node.left):
            found.append((node, ast.BinOp(node.left, SWAPS[type(node.op)](), node.right)))
        elif isinstance(node, ast.BoolOp):
            found.append((node, ast.BoolOp(SWAPS[type(node.op)](), node.values)))
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            found.append((node, node.operand))
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            found.append((node, ast.Constant(node.value + 1)))
        elif isinstance(node, ast.Constant) and type(node.value) is bool:
            found.append((node, ast.Constant(not node.value)))
        elif isinstance(node, ast.IfExp):
            found.append((node, ast.IfExp(node.test, node.orelse, node.body)))
    messages = {
        id(n) for r in ast.walk(tree) if isinstance(r, (ast.Raise, ast.JoinedStr)) for n in ast.walk(r)
    }
    strict = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.keyword) and n.arg == "strict"}
    kept = [(a, b) for a, b in found if not (id(a) in strict and a.value is True)]  # type: ignore[attr-defined]
    single = [(a, b) for a, b in kept if a.lineno == a.end_lineno and id(a) not in messages]
    return sorted(single, key=lambda pair: (pair[0].lineno, pair[0].col_offset, ast.dump(pair[1])))


def _text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
