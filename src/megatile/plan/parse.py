"""Reads the text form of plans (see ``text.py``). Python's parser gives the tree; nothing is evaluated."""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import replace
from typing import Any

from megatile.core.errors import MegatileError, Place, did_you_mean
from megatile.core.expr import ONE, ZERO, ExprReader, expression, unit
from megatile.core.operations import OPERATIONS
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
    Level,
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

_READER = ExprReader()
tree_expr, tree_int = _READER.expr, _READER.number


def tree_literal(node: ast.expr) -> Any:
    """A number, string or bool; anything else is an expression."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        pass
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and ast.unparse(node.operand) == "inf":
        return float("-inf")
    if isinstance(node, ast.Name) and node.id in ("inf", "nan"):
        return float(node.id)
    return tree_expr(node)


WORK = ("flops", "bytes", "dtype")
COMMANDS: dict[str, tuple[str, ...]] = {
    "send": ("to", "member", *WORK),
    "free": (),
    "signal": ("to", "member", "amount"),
    "wait": ("value", "member"),
    "collective": ("read", "write", "reduction", "root", *WORK),
}
"""Every command that binds no name, with its keywords."""
BINDINGS: dict[str, tuple[str, ...]] = {
    "read_scalar": ("bound",),
    "receive": ("member", "into", *WORK),
    "receive_any": ("members", "into", *WORK),
}

__all__ = ["expression", "parse_plan"]


def parse_plan(text: str) -> Plan:
    """The plan of a text; errors name the line."""
    if not isinstance(text, str):
        raise PlanError(f"{text!r} is no text of a plan")
    if "\0" in text:  # SyntaxError in some Pythons, ValueError in others
        raise PlanError("cannot read the text: it contains null bytes")
    reader = _Reader(text)
    try:
        plan = reader.plan(ast.parse(text))
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


def note_library(path: Any, algorithm: Any) -> None:
    """Files from before 1.0 say which kernels of a library send; a plan no longer does."""
    warnings.warn(
        f"the plan names library kernels (path {path!r}, algorithm {algorithm!r}), which are no part of a "
        f"plan any more: give timing=Library({path!r}, {algorithm!r}) to simulate or price",
        stacklevel=2,
    )


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
        given = self.known(head, "scale", "grid", "place", "path", "kernels")
        grid = tuple(ast.literal_eval(given["grid"]))
        plan = Plan(
            ast.literal_eval(head.args[0]),
            ast.literal_eval(given["scale"]),
            grid,
            place=tree_expr(given["place"]) if "place" in given else unit,
        )
        if "path" in given:
            kernels = ast.literal_eval(given["kernels"]) if "kernels" in given else ("",)
            note_library(ast.literal_eval(given["path"]), kernels[0])
        declared: dict[str, list[Any]] = {"level": [], "tile": [], "channel": [], "flag": [], "group": []}
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
            levels=tuple(declared["level"]),
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

    def known(self, call: ast.Call, *allowed: str) -> dict[str, ast.expr]:
        """The keywords of a command; one that it does not have is an error."""
        given = self.keywords(call)
        for name in given:
            if name not in allowed:
                word = ast.unparse(call.func)
                error = self.error(call, f"'{word}' has no '{name}='")
                error.advice = did_you_mean(name, allowed, what="keywords") if allowed else None
                raise error
        return given

    def declaration(self, node: ast.Assign) -> tuple[str, Any]:
        call = node.value
        assert isinstance(call, ast.Call)
        name, kind = ast.unparse(node.targets[0]), ast.unparse(call.func)
        given = self.keywords(call)
        if kind == "level":
            return kind, Level(
                name,
                **{k: tree_expr(v) if k == "place" else ast.literal_eval(v) for k, v in given.items()},
            )
        if kind == "tile":
            options: dict[str, Any] = {
                k: tree_expr(v) if k == "owner" else ast.literal_eval(v) for k, v in given.items()
            }
            shape = tuple(ast.literal_eval(call.args[1]))
            return kind, Tile(name, shape, ast.unparse(call.args[0]), **options)
        if kind == "channel":
            options = {k: tree_expr(v) if k == "source" else ast.literal_eval(v) for k, v in given.items()}
            return kind, Channel(name, **({"members": 1} | options))
        if kind == "flag":
            given = self.known(call, "members", "level")
            return kind, Flag(name, tree_int(given["members"]), self.in_level(given))
        if kind == "group":
            given = self.known(call, "level")
            return kind, Group(name, tree_expr(call.args[0]), self.in_level(given))
        raise self.error(node, f"'{kind}' declares nothing")

    def stream(self, node: ast.With) -> Stream:
        call = node.items[0].context_expr
        if not (isinstance(call, ast.Call) and ast.unparse(call.func) == "units"):
            raise self.error(node, "a stream begins with 'with units(...)'")
        units = tuple(ast.literal_eval(a) for a in call.args)
        return Stream(units, self.block(node.body), self.in_level(self.known(call, "level")))

    def in_level(self, given: dict[str, ast.expr]) -> str | None:
        return ast.literal_eval(given["level"]) if "level" in given else None

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
                result.append(If(tree_expr(node.test), *sides, (), self.place(node)))
            elif isinstance(node, ast.Expr):
                self.expression(node, result)
            else:
                raise self.error(node, "not a statement of a plan")
        return tuple(result)

    def loop(self, node: ast.For) -> Loop:
        assert isinstance(node.iter, ast.Call)
        if node.orelse or ast.unparse(node.iter.func) != "range":
            raise self.error(node, "a loop is written 'for k in range(start, stop, step)'")
        start, stop, step = (tree_expr(a) for a in node.iter.args)
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
                carries.append(CarryInt(names[0], tree_expr(call.args[1]), tree_expr(call.args[2])))
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
            merge = MergeInt(name, tree_expr(call.args[1]), tree_expr(call.args[2]))
        result[-1] = replace(result[-1], merges=(*result[-1].merges, merge))

    def work(self, given: dict[str, ast.expr]) -> Work:
        flops, moved = given.pop("flops", None), given.pop("bytes", None)
        dtype = given.pop("dtype", None)
        return Work(
            tree_expr(flops) if flops else ZERO,
            tree_expr(moved) if moved else ZERO,
            ast.literal_eval(dtype) if dtype else "f32",
        )

    def command(self, word: str, call: ast.Call, node: ast.AST) -> Statement:
        if word not in COMMANDS:
            raise self.error(node, f"'{word}' is no command")
        given, place = self.known(call, *COMMANDS[word]), self.place(node)
        first = ast.unparse(call.args[0]) if call.args else ""
        member = tree_expr(given["member"]) if "member" in given else ZERO
        if word == "send":
            return Send(
                first, tree_expr(given["to"]), member, self.region(call.args[1]), self.work(given), place
            )
        if word == "free":
            return Free(tuple(ast.unparse(a) for a in call.args), place)
        if word == "signal":
            amount = tree_expr(given["amount"]) if "amount" in given else ONE
            return Signal(first, tree_expr(given["to"]), member, amount, place)
        if word == "wait":
            return Wait(first, tree_expr(given["value"]), member, place)
        read, write = (self.region(given[k]) if k in given else None for k in ("read", "write"))
        reduction = ast.literal_eval(given["reduction"]) if "reduction" in given else "sum"
        root = tree_expr(given["root"]) if "root" in given else ZERO
        kind, group = ast.literal_eval(call.args[0]), ast.unparse(call.args[1])
        return Collective(kind, group, read, write, reduction, root, self.work(given), place)

    def binding(self, targets: list[ast.expr], call: ast.Call, node: ast.AST) -> Statement:
        word = ast.unparse(call.func)
        fresh = word.startswith("fresh.")
        word = word.removeprefix("fresh.")
        given, place = self.keywords(call), self.place(node)
        if word in BINDINGS:
            given = self.known(call, *BINDINGS[word])
        if word == "read_scalar":
            return ReadScalar(
                ast.unparse(targets[0]), self.region(call.args[0]), tree_int(given["bound"]), place
            )
        if word in ("receive", "receive_any"):
            return self.receive(word, targets, call, given, fresh, place)
        if word not in OPERATIONS:
            raise self.error(node, f"'{word}' is no operation")
        work = self.work(given)
        engine = given.pop("engine", None)
        self.known(call, *WORK, "engine", *OPERATIONS[word].attributes)
        attributes = tuple(sorted((k, tree_literal(v)) for k, v in given.items()))
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
            tuple(tree_expr(e) for e in extents),
            ast.unparse(typed.value),
        )
        into = self.region(targets[0]) if "into" in given else None
        name = None if into else ast.unparse(targets[0])
        work = self.work(given)
        if word == "receive":
            member = tree_expr(given["member"]) if "member" in given else ZERO
            return Receive(channel, member, name, shape, dtype, into, fresh, work, place)
        members, chosen = tuple(ast.literal_eval(given["members"])), ast.unparse(targets[1])
        return ReceiveAny(channel, members, name, chosen, shape, dtype, into, fresh, work, place)

    def region(self, node: ast.expr) -> Region:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            return replace(self.region(node.left), at=tree_expr(node.right))
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
            start.append(tree_expr(span.lower))
            shape.append(tree_expr(upper.operand))
        return Region(ast.unparse(node.value), tuple(start), tuple(shape))
