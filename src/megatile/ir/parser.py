"""Text of a Program back to a Program: the inverse of ``megatile.ir.printer``."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any

from megatile.core import placement as lay
from megatile.core.errors import MegatileError, Place
from megatile.core.expr import Const, Expr, Table
from megatile.core.expr.typing import TypedReader
from megatile.ir import nodes as n
from megatile.ir.expr import AXES, Coord, Load, Pick, Rank
from megatile.ir.launch import Launch, LaunchScale, Param
from megatile.ir.program import Program, part_name

_STATEMENTS = {name.lower(): kind for name, kind in n.STATEMENTS.items()}
_LOOPS = ("serial", "unroll", "vectorized", "pipelined", "persistent", "bounded")


class ProgramSyntaxError(MegatileError, ValueError):
    """Text that is not a Program."""


def parse(text: str) -> Program:
    """Return the Program that prints as ``text``."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise ProgramSyntaxError(f"not a Program: {error.msg}", place=Place(line=error.lineno)) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ProgramSyntaxError(f"not a Program: {str(error) or 'nested too deeply'}") from None
    if len(tree.body) != 1 or not isinstance(tree.body[0], ast.FunctionDef):
        raise ProgramSyntaxError("a Program is one 'def'", place=Place(line=1))
    return _Parser().program(tree.body[0])


def _fail(node: ast.AST, what: str) -> ProgramSyntaxError:
    return ProgramSyntaxError(f"{what}: {ast.unparse(node)}", place=Place(line=getattr(node, "lineno", None)))


def _name_of(call: ast.Call) -> str:
    if not isinstance(call.func, ast.Name):
        raise _fail(call, "unknown statement")
    return call.func.id


class _Parser(TypedReader):
    """Keeps the types of names while reading from top to bottom."""

    def program(self, tree: ast.FunctionDef) -> Program:
        params = tuple(self.param(a) for a in tree.args.args)
        machine, symbols, launch, padded = "", (), None, False
        rest = list(tree.body)
        while rest and isinstance(rest[0], ast.Expr) and isinstance(rest[0].value, ast.Call):
            call = rest[0].value
            head = _name_of(call)
            if head == "machine":
                machine = ast.literal_eval(call.args[0])
            elif head == "symbols":
                symbols = tuple(a.id for a in call.args)  # type: ignore[attr-defined]
            elif head == "padded":
                padded = True
            elif head == "launch":
                launch = self.launch(call)
            else:
                break
            rest.pop(0)
        if launch is None:
            raise _fail(tree.body[0], "a Program begins with launch(...)")
        return Program(tree.name, params, launch, self.body(rest), machine, symbols, padded)

    def param(self, arg: ast.arg) -> Param:
        annotation, parts, home = arg.annotation, tuple[n.Chain, ...](), None
        while isinstance(annotation, ast.BinOp):  # dtype[shape] @ part(...) @ home(...)
            right, annotation = annotation.right, annotation.left
            if isinstance(right, ast.Call) and _name_of(right) == "home":
                home = tuple(map(self.value, right.args))
            else:
                parts = (self.value(right), *parts)
        is_input = isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "input"
        if is_input:
            annotation = annotation.slice  # type: ignore[union-attr]
        if not isinstance(annotation, ast.Subscript) or not isinstance(annotation.value, ast.Name):
            raise _fail(arg, "a parameter is written name: dtype[shape]")
        inner = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        shape = tuple(e.id if isinstance(e, ast.Name) else ast.literal_eval(e) for e in inner)
        self.declare(arg.arg, annotation.value.id, parts)
        return Param(arg.arg, shape, annotation.value.id, is_input, parts, home)

    def declare(self, name: str, dtype: str, parts: tuple[n.Chain, ...]) -> None:
        self.types[name] = dtype
        for chain in parts:
            self.types[part_name(name, chain)] = dtype

    def launch(self, call: ast.Call) -> Launch:
        scales, rest = [], {}
        for keyword in call.keywords:
            value, named = keyword.value, True
            if keyword.arg in ("dispatch", "slots", "host", "resident", "device_scale"):
                rest[keyword.arg] = ast.literal_eval(value)
                continue
            if isinstance(value, ast.Call):
                value, named = value.args[0], False
            extents = ast.literal_eval(value)
            extents = extents if isinstance(extents, tuple) else (extents,)
            scales.append(LaunchScale(str(keyword.arg), extents, named))
        rest.setdefault("device_scale", rest.get("host", "device"))
        return Launch(tuple(scales), **rest)

    def body(self, statements: list[ast.stmt]) -> tuple[n.Node, ...]:
        return tuple(self.statement(s) for s in statements if not isinstance(s, ast.Pass))

    def statement(self, tree: ast.stmt) -> n.Node:
        read = _READERS.get(type(tree))
        if read is None:
            raise _fail(tree, "unknown statement")
        return read(self, tree)

    def call(self, call: ast.Call, **given: Any) -> n.Node:
        kind = _STATEMENTS.get(_name_of(call))
        if kind is None:
            raise _fail(call, "unknown statement")
        required = [f.name for f in fields(kind) if f.default is MISSING and f.name not in given]
        values = dict(zip(required, (self.value(a) for a in call.args), strict=True))
        values.update({str(k.arg): self.value(k.value) for k in call.keywords})
        types = {f.name: str(f.type) for f in fields(kind)}
        raw = {name: self.raw(value, types[name]) for name, value in values.items()}
        if raw.get("result") is not None:
            self.types[raw["result"]] = self.types.get(raw["target"], "int")
        return kind(**given, **raw)

    @staticmethod
    def raw(value: Any, annotation: str) -> Any:
        """Numbers are constants of expressions unless the field is a plain number."""
        if "Expr" in annotation:
            return value
        if isinstance(value, Const):
            return value.value
        if isinstance(value, tuple):
            return tuple(v.value if isinstance(v, Const) else v for v in value)
        if isinstance(value, Load):  # an index-only region, as in print(x[i])
            return n.Region(value.source, tuple(n.Dim(i) for i in value.index))
        return value

    def assign(self, tree: ast.Assign) -> n.Node:
        target = tree.targets[0]
        if isinstance(target, ast.Subscript):
            index = tuple(self.expr(i) for i in self.items(target.slice))
            return n.Store(ast.unparse(target.value), index, self.expr(tree.value))
        name = ast.unparse(target)
        call = tree.value
        if isinstance(call, ast.Call) and _name_of(call) in ("alloc", "view", "reshape", "readscalar"):
            node = self.call(call, name=name)
            self.declare(name, self.declared(node), getattr(node, "parts", ()))
            return node
        value = self.expr(tree.value)
        self.types.setdefault(name, value.dtype)
        return n.Let(name, value)

    def declared(self, node: n.Node) -> str:
        if isinstance(node, (n.Alloc, n.Reshape)):
            return node.dtype
        return self.types.get(node.source, "f32") if isinstance(node, n.View) else "int"

    def loop(self, tree: ast.For) -> n.Node:
        assert isinstance(tree.iter, ast.Call)
        head = _name_of(tree.iter)
        names = tuple(ast.unparse(t) for t in self.items(tree.target))
        for name in names:
            self.types[name] = "int"
        arguments = tuple(self.expr(a) for a in tree.iter.args)
        if head in ("parallel", "in_step"):
            return n.Parallel(names, arguments, self.body(tree.body), head == "in_step")
        if head not in _LOOPS:
            raise _fail(tree.iter, "unknown loop")
        given = {str(k.arg): ast.literal_eval(k.value) for k in tree.iter.keywords}
        start, stop, step = arguments
        return n.Loop(head, names[0], start, stop, step, body=self.body(tree.body), **given)

    def branch(self, tree: ast.If) -> n.Node:
        return n.If(self.expr(tree.test), self.body(tree.body), self.body(tree.orelse))

    def scale(self, tree: ast.With) -> n.Node:
        call = tree.items[0].context_expr
        assert isinstance(call, ast.Call)
        given = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
        return n.ScaleRegion(ast.literal_eval(call.args[0]), self.body(tree.body), **given)

    def value(self, tree: ast.expr) -> Any:
        """Return a field's value: text, None, tuple, layout, region, merge or expression."""
        if isinstance(tree, ast.Constant) and (tree.value is None or isinstance(tree.value, str)):
            return tree.value
        if isinstance(tree, ast.Tuple):
            return tuple(self.value(e) for e in tree.elts)
        if isinstance(tree, ast.Call) and _name_of(tree) in _VALUES:
            return _VALUES[_name_of(tree)](self, tree)
        if isinstance(tree, ast.Subscript) and self.is_region(tree):
            return self.region(tree)
        return self.expr(tree)

    def is_region(self, tree: ast.Subscript) -> bool:
        return any(
            isinstance(i, ast.Slice) or (isinstance(i, ast.Call) and _name_of(i) in ("anchor", "clip"))
            for i in self.items(tree.slice)
        )

    def region(self, tree: ast.Subscript) -> n.Region:
        return n.Region(ast.unparse(tree.value), tuple(self.dim(i) for i in self.items(tree.slice)))

    def dim(self, tree: ast.expr) -> n.Dim:
        if isinstance(tree, ast.Slice):
            assert tree.lower is not None
            assert tree.step is not None
            return n.Dim(self.expr(tree.lower), self.expr(tree.step))
        if isinstance(tree, ast.Call) and _name_of(tree) == "anchor":
            if len(tree.args) != 2:
                raise _fail(tree, "an anchor has a start and an extent")
            return n.Dim(self.expr(tree.args[0]), self.expr(tree.args[1]), True)
        if isinstance(tree, ast.Call) and _name_of(tree) == "clip":
            if len(tree.args) != 4:
                raise _fail(tree, "clip has a start, an extent and two limits")
            start, extent, low, high = map(self.expr, tree.args)
            return n.Dim(start, extent, True, (low, high))
        return n.Dim(self.expr(tree))

    def part(self, call: ast.Call) -> n.Chain:
        given = [self.value(a) for a in call.args]
        return tuple(
            n.View("", "", layout, scale) for scale, layout in zip(given[::2], given[1::2], strict=True)
        )

    def along(self, call: ast.Call) -> n.Region:
        assert isinstance(call.args[0], ast.Subscript)
        region = self.region(call.args[0])
        return n.Region(region.source, region.dims, ast.unparse(call.args[1]))

    def merge(self, call: ast.Call) -> n.Merge:
        results = call.args[1]
        types = {f"{side}{number}": "f32" for side in "ab" for number in range(8)}
        self.types, outer = {**types, **self.types}, self.types
        merged = n.Merge(ast.literal_eval(call.args[0]), tuple(self.expr(e) for e in self.items(results)))
        self.types = outer
        return merged

    def expr(self, tree: ast.expr) -> Any:
        if isinstance(tree, ast.Attribute) and isinstance(tree.value, ast.Name) and tree.attr in tuple(AXES):
            return Coord(tree.value.id, AXES.index(tree.attr))
        return super().expr(tree)

    def fail(self, tree: ast.AST, what: str = "unknown expression") -> Exception:
        return _fail(tree, what)

    def function(self, tree: ast.Call) -> Expr:
        head = _name_of(tree)
        if head in ("coord", "rank"):
            return {"coord": Coord, "rank": Rank}[head](*(ast.literal_eval(a) for a in tree.args))
        if head == "table":
            return Table(tuple(ast.literal_eval(tree.args[0])), self.expr(tree.args[1]))
        if head == "pick":
            sets = tuple(map(tuple, ast.literal_eval(tree.args[2])))
            return Pick(self.expr(tree.args[0]), self.expr(tree.args[1]), sets)
        return super().function(tree)


def _owner(parser: _Parser, call: ast.Call) -> lay.Owner:
    return lay.Owner(tuple(tuple(_index_set(s) for s in unit.elts) for unit in call.args))  # type: ignore[attr-defined]


def _index_set(tree: ast.expr) -> tuple[int, ...]:
    if isinstance(tree, ast.Call):
        return tuple(range(*(ast.literal_eval(a) for a in tree.args)))
    return tuple(ast.literal_eval(tree))


def _numbers(call: ast.Call) -> list[Any]:
    return [ast.literal_eval(a) for a in call.args]


_VALUES: dict[str, Callable[[_Parser, ast.Call], Any]] = {
    "shard": lambda p, c: lay.Shard(*_numbers(c)),
    "replica": lambda p, c: lay.Replicate(),
    "partial": lambda p, c: lay.Partial(*_numbers(c)),
    "mesh": lambda p, c: lay.Mesh(tuple(p.value(a) for a in c.args)),
    "owner": _owner,
    "along": lambda p, c: p.along(c),
    "merge": lambda p, c: p.merge(c),
    "part": lambda p, c: p.part(c),
}
_READERS: dict[type, Callable[[_Parser, Any], n.Node]] = {
    ast.Assign: _Parser.assign,
    ast.For: _Parser.loop,
    ast.If: _Parser.branch,
    ast.With: _Parser.scale,
    ast.Expr: lambda p, s: p.call(s.value),
    ast.Break: lambda p, s: n.Break(),
    ast.Continue: lambda p, s: n.Continue(),
    ast.Return: lambda p, s: n.Return(),
}
