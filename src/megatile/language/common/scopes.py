"""Which names a piece of Python assigns and reads, and whether it jumps; inner functions keep their own."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def stored(body: list[ast.stmt]) -> set[str]:
    """Names assigned in the statements (not inside functions, lambdas or comprehensions defined there)."""
    names: set[str] = set()
    for statement in body:
        for node in _same_scope(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
                names.add(node.id)
            elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                names.add(node.name)
            elif isinstance(node, ast.alias):
                names.add((node.asname or node.name).split(".")[0])
            elif isinstance(node, ast.ExceptHandler) and node.name:
                names.add(node.name)
    return names


def loaded(root: ast.AST, skip: ast.AST | None = None) -> set[str]:
    """Names read anywhere in ``root`` (also in inner functions), except inside ``skip``."""
    names: set[str] = set()
    pending = [root]
    while pending:
        node = pending.pop()
        if node is skip:
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            names.add(node.id)
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        pending.extend(ast.iter_child_nodes(node))
    return names


def always_jumps(body: list[ast.stmt]) -> bool:
    """Whether control never reaches the end of the statements."""
    if not body:
        return False
    last = body[-1]
    if isinstance(last, (ast.Return, ast.Break, ast.Continue, ast.Raise)):
        return True
    return isinstance(last, ast.If) and always_jumps(last.body) and always_jumps(last.orelse)


def jumps(node: ast.stmt) -> bool:
    """Whether a branch or loop may pass a jump on to what encloses it."""
    looping = isinstance(node, (ast.For, ast.While))
    for inner in _same_scope(node):
        if isinstance(inner, ast.Return):
            return True
        if isinstance(inner, (ast.Break, ast.Continue)) and not looping:
            return True
    return False


def _same_scope(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    if isinstance(node, (ast.FunctionDef, ast.Lambda, ast.ClassDef)):
        return
    if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
        return
    for child in ast.iter_child_nodes(node):
        yield from _same_scope(child)
