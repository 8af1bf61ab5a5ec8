"""Reads the text form of plans (see ``text.py``). Python's parser gives the tree; nothing is evaluated."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import Any

from megatile.core.errors import MegatileError, Place
from megatile.core.operations import OPERATIONS
from megatile.plan.expr import (
    ONE,
    OPERATORS,
    ZERO,
    Expr,
    ExprError,
    Symbol,
    binary,
    constant,
    expr,
    select,
    table,
    unit,
)
from megatile.plan.fields import check_fields
from megatile.plan.model import (
    CarryInt,
    CarryTile,
    Channel,
    Collective,
    Compute,
    Flag,
    Free,
    Group,
    If,
    Loop,
    MergeInt,
    MergeTile,
    Plan,
    PlanError,
    ReadScalar,
    Receive,
    ReceiveAny,
    Region,
    Send,
    Signal,
    Statement,
    Stream,
    Tile,
    Wait,
    Work,
)

_BINARY = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.LShift: "<<",
    ast.RShift: ">>",
}
_COMPARE = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}


def expression(text: str) -> Expr:
    """An expression from its text."""
    if not isinstance(text, str):
        raise ExprError(f"{text!r} is no integer expression")
    try:
        return _expr(ast.parse(text, mode="eval").body)
    except SyntaxError as error:
        raise ExprError(f"cannot read '{text[:80]}': {error.msg}") from error
    except (RecursionError, MemoryError):
        raise ExprError(f"the expression '{text[:80]}' is nested too deeply") from None
    except ValueError as error:
        if isinstance(error, ExprError):
            raise
        raise ExprError(f"cannot read '{text[:80]}': {error}") from error


def _expr(node: ast.expr) -> Expr:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return expr(node.value)
    if isinstance(node, ast.Name):
        return Symbol(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_expr(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        left, right = _expr(node.left), _expr(node.right)
        if isinstance(node.op, (ast.LShift, ast.RShift)) and not 0 <= (constant(right) or 0) < 63:
            raise ExprError(f"'{ast.unparse(node)}' shifts too far", place=Place(line=node.lineno))
        return binary(_BINARY[type(node.op)], left, right)
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARE:
        return binary(_COMPARE[type(node.ops[0])], _expr(node.left), _expr(node.comparators[0]))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        word, count = node.func.id, len(node.args)
        if word == "select" and count == 3:
            return select(*(_expr(a) for a in node.args))
        if word == "table" and count == 2 and isinstance(node.args[0], ast.Tuple):
            return table([_int(v) for v in node.args[0].elts], _expr(node.args[1]))
        if word in OPERATORS and count == 2:
            return binary(word, _expr(node.args[0]), _expr(node.args[1]))
    raise ExprError(f"'{ast.unparse(node)}' is no integer expression", place=Place(line=node.lineno))


def _int(node: ast.expr) -> int:
    value = constant(_expr(node))
    if value is None:
        raise PlanError(f"'{ast.unparse(node)}' is not a number", place=Place(line=node.lineno))
    return value


def _literal(node: ast.expr) -> Any:
    """A number, string or bool; anything else is an expression."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        pass
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and ast.unparse(node.operand) == "inf":
        return float("-inf")
    if isinstance(node, ast.Name) and node.id in ("inf", "nan"):
        return float(node.id)
    return _expr(node)


def parse_plan(text: str) -> Plan:
    """The plan of a text; errors name the line."""
    if not isinstance(text, str):
        raise PlanError(f"{text!r} is no text of a plan")
    try:
        tree = ast.parse(text)
        reader = _Reader(text)
        plan = reader.plan(tree)
    except SyntaxError as error:
        raise PlanError(f"cannot read the text: {error.msg}", place=Place(line=error.lineno)) from error
    except (RecursionError, MemoryError):
        raise PlanError("the plan is nested too deeply") from None
    except MegatileError:
        raise
    except (KeyError, IndexError, TypeError, ValueError, AssertionError) as error:
        raise reader.error(reader.at, _reason(error)) from error
    check_fields(plan)
    return plan


def _reason(error: Exception) -> str:
    """What is wrong with a statement, from the error that reading it made."""
    if isinstance(error, KeyError):
        return f"'{error.args[0]}=' is missing"
    if isinstance(error, TypeError) and "argument" in str(error):
        return str(error).replace("__init__() ", "")
    return "something is missing, too much, or not of the form that plans are written in"


class _Reader:
    def __init__(self, text: str):
        self.lines = text.splitlines()
        self.at: ast.AST = ast.Pass()
        """The statement being read."""

    def error(self, node: ast.AST, message: str) -> PlanError:
        line = getattr(node, "lineno", 1)
        return PlanError(message, place=Place(line=line, snippet=self.lines[line - 1].strip()))

    def place(self, node: ast.AST) -> Place | None:
        match = re.search(r"#\s+(\S.*):(\d+)\s*$", self.lines[getattr(node, "lineno", 1) - 1])
        return Place(match[1], int(match[2])) if match else None

    # --- declarations ----------------------------------------------------------------------------

    def plan(self, tree: ast.Module) -> Plan:
        first = tree.body[0] if tree.body else None
        if not (isinstance(first, ast.Expr) and isinstance(first.value, ast.Call)):
            raise PlanError("a plan begins with plan(...)", place=Place(line=1))
        head, self.at = first.value, first
        if ast.unparse(head.func) != "plan":
            raise self.error(first, "a plan begins with plan(...)")
        given = self.keywords(head)
        grid = tuple(ast.literal_eval(given["grid"]))
        plan = Plan(
            ast.literal_eval(head.args[0]),
            ast.literal_eval(given["scale"]),
            grid,
            place=_expr(given["place"]) if "place" in given else unit,
        )
        declared: dict[str, list[Any]] = {"tile": [], "channel": [], "flag": [], "group": []}
        streams: list[Stream] = []
        for node in tree.body[1:]:
            self.at = node
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                kind, thing = self.declaration(node)
                declared[kind].append(thing)
            elif isinstance(node, ast.With):
                streams.append(self.stream(node))
            else:
                raise self.error(node, "neither a declaration nor a stream")
        return replace(
            plan,
            tiles=tuple(declared["tile"]),
            channels=tuple(declared["channel"]),
            flags=tuple(declared["flag"]),
            groups=tuple(declared["group"]),
            streams=tuple(streams),
        )

    def keywords(self, call: ast.Call) -> dict[str, ast.expr]:
        if any(k.arg is None for k in call.keywords):
            raise self.error(call, "'**' is no part of a plan")
        return {k.arg: k.value for k in call.keywords if k.arg}

    def declaration(self, node: ast.Assign) -> tuple[str, Any]:
        call = node.value
        assert isinstance(call, ast.Call)
        name, kind = ast.unparse(node.targets[0]), ast.unparse(call.func)
        given = self.keywords(call)
        if kind == "tile":
            options: dict[str, Any] = {
                k: _expr(v) if k == "owner" else ast.literal_eval(v) for k, v in given.items()
            }
            shape = tuple(ast.literal_eval(call.args[1]))
            return kind, Tile(name, shape, ast.unparse(call.args[0]), **options)
        if kind == "channel":
            options = {k: _expr(v) if k == "source" else ast.literal_eval(v) for k, v in given.items()}
            return kind, Channel(name, **({"members": 1} | options))
        if kind == "flag":
            return kind, Flag(name, _int(given["members"]))
        if kind == "group":
            return kind, Group(name, _expr(call.args[0]))
        raise self.error(node, f"'{kind}' declares nothing")

    def stream(self, node: ast.With) -> Stream:
        call = node.items[0].context_expr
        if not (isinstance(call, ast.Call) and ast.unparse(call.func) == "units"):
            raise self.error(node, "a stream begins with 'with units(...)'")
        units = tuple(ast.literal_eval(a) for a in call.args)
        return Stream(units, self.block(node.body))

    # --- statements ------------------------------------------------------------------------------

    def block(self, body: list[ast.stmt]) -> tuple[Statement, ...]:
        result: list[Statement] = []
        for node in body:
            self.at = node
            if isinstance(node, ast.Pass):
                continue
            if isinstance(node, ast.For):
                result.append(self.loop(node))
            elif isinstance(node, ast.If):
                sides = self.block(node.body), self.block(node.orelse)
                result.append(If(_expr(node.test), *sides, (), self.place(node)))
            elif isinstance(node, ast.Expr):
                self.expression(node, result)
            else:
                raise self.error(node, "not a statement of a plan")
        return tuple(result)

    def loop(self, node: ast.For) -> Loop:
        assert isinstance(node.iter, ast.Call)
        if node.orelse or ast.unparse(node.iter.func) != "range":
            raise self.error(node, "a loop is written 'for k in range(start, stop, step)'")
        start, stop, step = (_expr(a) for a in node.iter.args)
        carries: list[CarryTile | CarryInt] = []
        frees: tuple[str, ...] = ()
        at = 0
        for at, inner in enumerate([*node.body, None]):  # noqa: B007
            call = inner.value if isinstance(inner, ast.Expr) else None
            word = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
            if word not in ("carry", "carry_int", "frees"):
                break
            assert isinstance(call, ast.Call)
            names = [ast.unparse(a) for a in call.args]
            if word == "frees":
                frees = tuple(names)
            elif word == "carry":
                carries.append(CarryTile(*names))
            else:
                carries.append(CarryInt(names[0], _expr(call.args[1]), _expr(call.args[2])))
        body = self.block(node.body[at:])
        index = ast.unparse(node.target)
        return Loop(index, start, stop, body, step, tuple(carries), frees, self.place(node))

    def expression(self, node: ast.Expr, result: list[Statement]) -> None:
        value = node.value
        if isinstance(value, ast.Call):
            word = ast.unparse(value.func)
            if word in ("merge", "merge_int"):
                self.merge(word, value, result)
                return
            result.append(self.command(word, value, node))
            return
        targets, call = self.arrow(value)
        if call is None:
            raise self.error(node, "not a statement of a plan")
        result.append(self.binding(targets, call, node))

    def arrow(self, value: ast.expr) -> tuple[list[ast.expr], ast.Call | None]:
        """``a <- f()`` is ``a < -f()`` to Python; ``a, b <- f()`` is a tuple ending in one."""
        targets = list(value.elts) if isinstance(value, ast.Tuple) else [value]
        last = targets[-1]
        if isinstance(last, ast.Compare) and isinstance(last.ops[0], ast.Lt):
            right = last.comparators[0]
            if isinstance(right, ast.UnaryOp) and isinstance(right.operand, ast.Call):
                return [*targets[:-1], last.left], right.operand
        return targets, None

    def merge(self, word: str, call: ast.Call, result: list[Statement]) -> None:
        if not result or not isinstance(result[-1], If):
            raise self.error(call, "a merge stands after its if")
        name = ast.unparse(call.args[0])
        merge: MergeTile | MergeInt
        if word == "merge":
            merge = MergeTile(name, ast.unparse(call.args[1]), ast.unparse(call.args[2]))
        else:
            merge = MergeInt(name, _expr(call.args[1]), _expr(call.args[2]))
        result[-1] = replace(result[-1], merges=(*result[-1].merges, merge))

    def work(self, given: dict[str, ast.expr]) -> Work:
        flops, moved = given.pop("flops", None), given.pop("bytes", None)
        dtype = given.pop("dtype", None)
        return Work(
            _expr(flops) if flops else ZERO,
            _expr(moved) if moved else ZERO,
            ast.literal_eval(dtype) if dtype else "f32",
        )

    def command(self, word: str, call: ast.Call, node: ast.AST) -> Statement:
        given, place = self.keywords(call), self.place(node)
        first = ast.unparse(call.args[0]) if call.args else ""
        member = _expr(given["member"]) if "member" in given else ZERO
        if word == "send":
            return Send(first, _expr(given["to"]), member, self.region(call.args[1]), self.work(given), place)
        if word == "free":
            return Free(tuple(ast.unparse(a) for a in call.args), place)
        if word == "signal":
            amount = _expr(given["amount"]) if "amount" in given else ONE
            return Signal(first, _expr(given["to"]), member, amount, place)
        if word == "wait":
            return Wait(first, _expr(given["value"]), member, place)
        if word == "collective":
            read, write = (self.region(given[k]) if k in given else None for k in ("read", "write"))
            reduction = ast.literal_eval(given["reduction"]) if "reduction" in given else "sum"
            root = _expr(given["root"]) if "root" in given else ZERO
            kind, group = ast.literal_eval(call.args[0]), ast.unparse(call.args[1])
            return Collective(kind, group, read, write, reduction, root, self.work(given), place)
        raise self.error(node, f"'{word}' is no command")

    def binding(self, targets: list[ast.expr], call: ast.Call, node: ast.AST) -> Statement:
        word = ast.unparse(call.func)
        fresh = word.startswith("fresh.")
        word = word.removeprefix("fresh.")
        given, place = self.keywords(call), self.place(node)
        if word == "read_scalar":
            return ReadScalar(ast.unparse(targets[0]), self.region(call.args[0]), _int(given["bound"]), place)
        if word in ("receive", "receive_any"):
            return self.receive(word, targets, call, given, fresh, place)
        if word not in OPERATIONS:
            raise self.error(node, f"'{word}' is no operation")
        work = self.work(given)
        engine = given.pop("engine", None)
        attributes = tuple(sorted((k, _literal(v)) for k, v in given.items()))
        reads = tuple(self.region(a) for a in call.args)
        name = ast.literal_eval(engine) if engine else OPERATIONS[word].engine
        return Compute(word, self.region(targets[0]), reads, attributes, name, work, fresh, place)

    def receive(
        self,
        word: str,
        targets: list[ast.expr],
        call: ast.Call,
        given: dict[str, ast.expr],
        fresh: bool,
        place: Place | None,
    ) -> Statement:
        typed = call.args[1]
        assert isinstance(typed, ast.Subscript)
        extents = typed.slice.elts if isinstance(typed.slice, ast.Tuple) else [typed.slice]
        channel, shape, dtype = (
            ast.unparse(call.args[0]),
            tuple(_expr(e) for e in extents),
            ast.unparse(typed.value),
        )
        into = self.region(targets[0]) if "into" in given else None
        name = None if into else ast.unparse(targets[0])
        work = self.work(given)
        if word == "receive":
            member = _expr(given["member"]) if "member" in given else ZERO
            return Receive(channel, member, name, shape, dtype, into, fresh, work, place)
        members, chosen = tuple(ast.literal_eval(given["members"])), ast.unparse(targets[1])
        return ReceiveAny(channel, members, name, chosen, shape, dtype, into, fresh, work, place)

    def region(self, node: ast.expr) -> Region:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            return replace(self.region(node.left), at=_expr(node.right))
        if isinstance(node, ast.Name):
            return Region(node.id)
        if not isinstance(node, ast.Subscript):
            raise self.error(node, "not a region")
        spans = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        start, shape = [], []
        for span in spans:
            upper = span.upper if isinstance(span, ast.Slice) else None
            if not (isinstance(span, ast.Slice) and span.lower and isinstance(upper, ast.UnaryOp)):
                raise self.error(node, "a region is written tile[start:+extent, ...]")
            start.append(_expr(span.lower))
            shape.append(_expr(upper.operand))
        return Region(ast.unparse(node.value), tuple(start), tuple(shape))
