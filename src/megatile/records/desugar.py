"""Records in functions become accesses to one array.

Functions are written with rows of tables; what runs, as plain Python or as machine code, is the same syntax
tree without them: a row is the place where it begins.

    queue = s.queues[unit.queue]        queue = s[42] + s[unit + 7] * 14
    queue.sent += 1                     s[queue] += 1
    queue.update(sent=0, taken=0)       s[queue] = 0; s[queue + 1] = 0
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

from megatile.records.arena import ArenaLayout
from megatile.records.rows import Row, Words


class Names:
    """What names in functions mean: constants, records, and the layout of the array."""

    def __init__(self, names: Mapping[str, Any], layout: ArenaLayout) -> None:
        self.layout = layout
        self.constants = {name: value for name, value in names.items() if isinstance(value, (int, float))}
        self.records: dict[str, type[Row]] = {
            name: kind for name, kind in names.items() if isinstance(kind, type) and issubclass(kind, Row)
        }

    def kind(self, annotation: ast.expr | None) -> Any:
        """Return what an integer refers to by its annotation: a row, or a run of words."""
        name = getattr(annotation, "id", "")
        return Words if name == "Words" else self.records.get(name)


def functions(sources: Iterable[tuple[str, str]], names: Names) -> list[tuple[str, ast.FunctionDef]]:
    """Return the marked functions of modules (path and text of each), without records; each with its path."""
    found = [
        (path, node)
        for path, text in sources
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef) and node.decorator_list
    ]
    returned = {node.name: names.kind(node.returns) for _, node in found}
    return [(path, _Desugar(node, returned, names).function) for path, node in found]


class _Desugar(ast.NodeTransformer):
    """One function. ``kinds`` says of names and expressions what record they stand for, if any."""

    def __init__(self, node: ast.FunctionDef, returned: dict[str, Any], names: Names) -> None:
        self.returned, self.records, self.constants = returned, names.records, names.constants
        self.layout = names.layout
        self.kinds = {a.arg: names.kind(a.annotation) for a in node.args.args}
        self.name = node.name
        for argument in node.args.args:
            argument.annotation = None
        node.returns = None
        self.generic_visit(node)
        self.function = ast.fix_missing_locations(node)

    def visit(self, node: ast.AST) -> Any:
        made = super().visit(node)
        for each in made if isinstance(made, list) else [made]:
            if each is not node:
                ast.copy_location(each, node)
        return made

    def fail(self, node: ast.AST) -> Exception:
        return SyntaxError(f"{self.name}, line {getattr(node, 'lineno', '?')}: {ast.unparse(node)}")

    def kind(self, node: ast.expr) -> Any:
        """Return the record (or Words, or State) that an expression refers to; None: an integer."""
        if isinstance(node, ast.Name):
            return self.kinds.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = self.kind(node.value)
            if owner is not None and node.attr in owner.fields:
                found = owner.fields[node.attr].kind
                return Words if found == "Words" else found if found.startswith("Table[") else None
        if isinstance(node, ast.Subscript):
            owner = self.kind(node.value)
            return self.records[owner[6:-1]] if isinstance(owner, str) else None
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute):
                owner = node.func.value
                return self.records[owner.id] if node.func.attr == "of" else self.kind(owner)  # type: ignore[attr-defined]
            return self.returned.get(getattr(node.func, "id", ""))
        return None

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        if isinstance(node.targets[0], ast.Name):
            self.kinds[node.targets[0].id] = self.kind(node.value)
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> Any:
        """Set the fields of ``row.update(field=value, …)`` one after another; none may need another."""
        call = node.value
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "update":
            made, known = [], set[str]()
            for field in call.keywords:
                target = ast.Attribute(deepcopy(call.func.value), str(field.arg), ast.Store())
                if known & {ast.unparse(n) for n in ast.walk(field.value)}:
                    raise self.fail(node)
                known.add(ast.unparse(target))
                made.append(self.visit(ast.Assign([target], field.value)))
            return made
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Constant(self.constants[node.id]) if node.id in self.constants else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if isinstance(node.value, ast.Name) and node.value.id in self.records:
            return ast.Constant(self.records[node.value.id].fields[node.attr].at)
        owner = self.kind(node.value)
        if node.attr == "size" and isinstance(node.value, ast.Attribute):
            return _head(self.layout.rooms[node.value.attr], node.ctx)
        if owner is None or owner is Words or node.attr not in owner.fields:
            raise self.fail(node)
        field = owner.fields[node.attr]
        if owner is self.layout.state:
            return _head(field.at, node.ctx, table=field.kind != "int")
        place = _add(self.visit(node.value), ast.Constant(field.at))
        if field.kind == "Words":
            return place
        if field.kind == "float":
            return ast.Call(ast.Name("load_float", ast.Load()), [ast.Name("s", ast.Load()), place], [])
        return _word(place, node.ctx)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        kind, index = self.kind(node.value), self.visit(node.slice)
        if kind is Words:
            return _word(_add(self.visit(node.value), index), node.ctx)
        if not isinstance(kind, str):
            raise self.fail(node)
        width: ast.expr = ast.Constant(self.records[kind[6:-1]].width)
        if isinstance(node.value, ast.Attribute) and node.value.attr in self.layout.widths:
            width = _head(self.layout.widths[node.value.attr], ast.Load(), table=True)
        base = self.visit(node.value)
        if isinstance(index, ast.Constant) and index.value == 0:
            return base
        return ast.BinOp(base, ast.Add(), ast.BinOp(index, ast.Mult(), width))

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Attribute):
            (argument,) = node.args
            if node.func.attr == "of":
                return self.visit(argument)
            kind, index = self.kind(node.func.value), self.visit(argument)
            if kind is not Words and isinstance(index, ast.Constant):
                index = ast.Constant(index.value * kind.width)
            elif kind is not Words:
                raise self.fail(node)
            return _add(self.visit(node.func.value), index)
        node.args = [self.visit(argument) for argument in node.args]
        return node


def _word(place: ast.expr, context: ast.expr_context) -> ast.Subscript:
    return ast.Subscript(ast.Name("s", ast.Load()), place, context)


def _head(at: int, context: ast.expr_context, table: bool = False) -> ast.expr:
    """Return a number at the head of the array; that of a table does not change while the engine runs."""
    node = _word(ast.Constant(at), context)
    node.head = f"table {at}" if table else f"total {at}"  # type: ignore[attr-defined]
    return node


def _add(place: ast.expr, index: ast.expr) -> ast.expr:
    """Return ``place + index``, as a sum from left to right."""
    if isinstance(index, ast.Constant) and index.value == 0:
        return place
    if isinstance(index, ast.BinOp) and isinstance(index.op, ast.Add):
        return ast.BinOp(_add(place, index.left), ast.Add(), index.right)
    return ast.BinOp(place, ast.Add(), index)
