"""Reads the text form of plans (see ``text.py``). Python's parser gives the tree; nothing is evaluated."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, replace
from itertools import takewhile
from typing import Any

from megatile.core.errors import MegatileError, Place, did_you_mean
from megatile.core.expr import ExprReader
from megatile.core.operations import OPERATIONS
from megatile.core.quantities import format_bytes
from megatile.plan.fields import check_fields
from megatile.plan.model import DECLARED, FORMS, Plan, PlanError, Stream, Transport, with_transport
from megatile.plan.spec import ALWAYS, ARGUMENT, HIDDEN, KEYWORD, TARGET, FieldSpec, parts
from megatile.plan.statements import (
    COMMANDS,
    CarryInt,
    CarryTile,
    Compute,
    If,
    Loop,
    MergeInt,
    MergeTile,
    Region,
    Statement,
    Work,
)

MAX_TEXT_BYTES = 16 << 20
"""Bytes of a Plan as text; JSON may be larger."""
_READER = ExprReader()
tree_expr = _READER.expr


def tree_literal(node: ast.expr) -> Any:
    """Return a number, string or bool; anything else is an expression."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        pass
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and ast.unparse(node.operand) == "inf":
        return float("-inf")
    if isinstance(node, ast.Name) and node.id in ("inf", "nan"):
        return float(node.id)
    return tree_expr(node)


def parse_plan(text: str) -> Plan:
    """Return the plan of a text; errors name the line."""
    if not isinstance(text, str):
        raise PlanError(f"{text!r} is not the text of a Plan")
    if len(text) > MAX_TEXT_BYTES:
        raise PlanError(f"the text has more than {format_bytes(MAX_TEXT_BYTES)}", advice="save it as JSON")
    for mark, what, least in (("\n", "lines", 8), (",", "values", 4)):
        if text.count(mark) > 20_000 + len(text) // least:  # each takes 2 kB of memory
            raise PlanError(f"the text has too many short {what}: {text.count(mark)} in {len(text)} letters")
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
    """Return what is wrong with a statement, from the error that reading it made."""
    if isinstance(error, KeyError):
        return f"'{error.args[0]}=' is missing"
    if isinstance(error, TypeError) and "argument" in str(error):
        return str(error).replace("__init__() ", "")
    return "something is missing, too much, or not of the form that plans are written in"


PROTOCOLS = {"small": "LL", "line": "LL128", "bulk": "Simple", "switch": "NVLS"}
"""Protocols by the names that plans of before give them."""


def with_library(plan: Plan, path: Any, algorithm: Any) -> Plan:
    """Return a plan of before, which names a path and algorithm of a library, with that transport."""
    protocol = PROTOCOLS.get(path, "") if isinstance(path, str) else ""
    transport = Transport("kernel", algorithm=str(algorithm), protocol=protocol, name="library")
    nbytes = max((tile.nbytes for tile in plan.tiles), default=0)
    return with_transport(plan, transport, plan.name.partition(" ")[0], plan.units, nbytes)


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
        first: Any = tree.body[0] if tree.body else None
        if not _word(first):
            raise PlanError("a plan begins with plan(...)", place=Place(line=1))
        self.at = first
        if _word(first) != "plan":
            raise self.error(first, "a plan begins with plan(...)")
        plan, given = self.construct(Plan, first.value, beside=("path", "kernels"))
        declared: dict[str, list[Any]] = {word: [] for word in DECLARED}
        streams: list[Stream] = []
        for node in tree.body[1:]:
            self.at = node
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                word = ast.unparse(node.value.func)
                if word not in declared:
                    raise self.error(node, f"'{word}' declares nothing")
                made, _ = self.construct(DECLARED[word], node.value, name=ast.unparse(node.targets[0]))
                declared[word].append(made)
            elif isinstance(node, ast.With):
                streams.append(self.stream(node))
            else:
                raise self.error(node, "neither a declaration nor a stream")
        things = {f"{word}s": tuple(made) for word, made in declared.items()}
        plan = replace(plan, streams=tuple(streams), **things)
        if "path" not in given:
            return plan
        kernels = ast.literal_eval(given["kernels"]) if "kernels" in given else ("",)
        return with_library(plan, ast.literal_eval(given["path"]), kernels[0])

    def keywords(self, call: ast.Call) -> dict[str, ast.expr]:
        if any(k.arg is None for k in call.keywords):
            raise self.error(call, "'**' is not part of a Plan")
        return {k.arg: k.value for k in call.keywords if k.arg}

    def construct(
        self,
        kind: type,
        call: ast.Call,
        targets: Sequence[ast.expr] = (),
        beside: tuple[str, ...] = (),
        **given: Any,
    ) -> tuple[Any, dict[str, ast.expr]]:
        """Return a part of the plan from its call, as its fields are declared; and the keywords ``beside``
        them."""
        keywords = self.keywords(call)
        if kind is Compute and given["operation"] not in OPERATIONS:
            raise self.error(call, f"'{given['operation']}' is not an operation")
        allowed = [*beside, *self.allowed(kind, given)]
        for name in keywords:
            if name not in allowed:
                error = self.error(call, f"'{ast.unparse(call.func)}' has no '{name}='")
                error.advice = did_you_mean(name, allowed, what="keywords") if allowed else None
                raise error
        arguments = list(call.args)
        for p in parts(kind):
            if p.name in given or p.shown == HIDDEN:
                continue
            if p.shown == TARGET:
                # Of two alternatives, the one that may be left out is marked by a keyword.
                marked = any(
                    q.name in keywords for q in parts(kind) if (q.shown, q.order) == (TARGET, p.order)
                )
                mine = marked == (p.omit is None)
                given[p.name] = _READ[p.kind](self, targets[p.order]) if mine else None
            elif p.shown == ARGUMENT and p.kind in _MANY:
                given[p.name], arguments = tuple(_MANY[p.kind](self, a) for a in arguments), []
            elif p.shown == ARGUMENT:
                given |= self.argument(p, arguments.pop(0))
            elif p.kind in _KEYWORDS:
                given[p.name] = _KEYWORDS[p.kind](self, keywords, given)
            elif p.name in keywords:
                given[p.name] = _READ[p.kind](self, keywords[p.name])
            elif p.kind == "engine":
                given[p.name] = OPERATIONS[given["operation"]].engine
            elif p.omit is MISSING:
                raise KeyError(p.name)
            elif p.omit is not ALWAYS:
                given[p.name] = p.omit
        if arguments:
            raise self.error(call, "too many arguments")
        return kind(**given), keywords

    def allowed(self, kind: type, given: dict[str, Any]) -> Iterator[str]:
        """Yield the keywords that a part of a plan has."""
        for p in parts(kind):
            if p.kind == "work":
                yield from WORK
            elif p.kind == "attributes":
                yield from OPERATIONS[given["operation"]].attributes
            elif p.shown == KEYWORD or (p.shown == TARGET and p.omit is None):
                yield p.name

    def argument(self, p: FieldSpec, node: ast.expr) -> dict[str, Any]:
        if p.kind != "typed":
            return {p.name: _READ[p.kind](self, node)}
        assert isinstance(node, ast.Subscript)
        extents = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return {p.name: tuple(map(tree_expr, extents)), "dtype": ast.unparse(node.value)}

    def stream(self, node: ast.With) -> Stream:
        call = node.items[0].context_expr
        if not (isinstance(call, ast.Call) and ast.unparse(call.func) == "units"):
            raise self.error(node, "a stream begins with 'with units(...)'")
        return self.construct(Stream, call, body=self.block(node.body))[0]

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
        head: Any = list(takewhile(lambda inner: _word(inner) in ("carry", "carry_int", "frees"), node.body))
        ends = [inner for inner in head if _word(inner) == "frees"]
        carries = tuple(self.flow(i.value, CarryTile, CarryInt) for i in head if i not in ends)
        frees = tuple(ast.unparse(name) for inner in ends[-1:] for name in inner.value.args)
        body = self.block(node.body[len(head) :])
        return Loop(ast.unparse(node.target), start, stop, body, step, carries, frees, self.place(node))

    def expression(self, node: ast.Expr, result: list[Statement]) -> None:
        targets, call = self.arrow(node.value)
        if call is None:
            raise self.error(node, "not a statement of a plan")
        word = ast.unparse(call.func)
        if word in ("merge", "merge_int") and not targets:
            self.merge(call, result)
        else:
            result.append(self.command(word, call, node, targets))

    def arrow(self, value: ast.expr) -> tuple[list[ast.expr], ast.Call | None]:
        """``a <- f()`` is ``a < -f()`` to Python; ``a, b <- f()`` is a tuple ending in one."""
        if isinstance(value, ast.Call):
            return [], value
        targets = list(value.elts) if isinstance(value, ast.Tuple) else [value]
        last = targets[-1]
        if isinstance(last, ast.Compare) and isinstance(last.ops[0], ast.Lt):
            right = last.comparators[0]
            if isinstance(right, ast.UnaryOp) and isinstance(right.operand, ast.Call):
                return [*targets[:-1], last.left], right.operand
        return targets, None

    def merge(self, call: ast.Call, result: list[Statement]) -> None:
        if not result or not isinstance(result[-1], If):
            raise self.error(call, "a merge is listed after its if")
        result[-1] = replace(result[-1], merges=(*result[-1].merges, self.flow(call, MergeTile, MergeInt)))

    def flow(self, call: ast.Call, of_tile: Any, of_int: Any) -> Any:
        """Return what a loop carries or a branch merges."""
        name, *values = call.args
        if ast.unparse(call.func).endswith("_int"):
            return of_int(ast.unparse(name), *map(tree_expr, values))
        return of_tile(*map(ast.unparse, call.args))

    def command(self, word: str, call: ast.Call, node: ast.AST, targets: Sequence[ast.expr]) -> Statement:
        plain = word.removeprefix("fresh.")
        kind = COMMANDS.get(plain)
        binding = kind is None or any(p.shown == TARGET for p in parts(kind))
        if binding != bool(targets) or plain == Compute.word:
            raise self.error(node, f"'{word}' is not {'an operation' if targets else 'a command'}")
        given: dict[str, Any] = {"fresh": True} if plain != word else {}
        if kind is None:
            kind, given["operation"] = Compute, plain
        return self.construct(kind, call, targets, source=self.place(node), **given)[0]

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


def _word(node: ast.AST) -> str:
    """Return what a statement calls."""
    call = node.value if isinstance(node, ast.Expr) else None
    return ast.unparse(call.func) if isinstance(call, ast.Call) else ""


WORK = {"flops": tree_expr, "bytes": tree_expr} | dict.fromkeys(
    ("dtype", "fetched", "atomics"), ast.literal_eval
)


def _work(reader: _Reader, keywords: dict[str, ast.expr], given: dict[str, Any]) -> Work:
    return Work(**{name: read(keywords[name]) for name, read in WORK.items() if name in keywords})


def _attributes(reader: _Reader, keywords: dict[str, ast.expr], given: dict[str, Any]) -> Any:
    known = OPERATIONS[given["operation"]].attributes
    return tuple(sorted((k, tree_literal(v)) for k, v in keywords.items() if k in known))


_READ: dict[str, Callable[[_Reader, ast.expr], Any]] = {
    "word": lambda reader, node: ast.unparse(node),
    "expr": lambda reader, node: tree_expr(node),
    "region": lambda reader, node: reader.region(node),
    **dict.fromkeys(("text", "texts", "literal", "engine"), lambda reader, node: ast.literal_eval(node)),
}
_MANY = {"words": _READ["word"], "literals": _READ["literal"], "regions": _READ["region"]}
_KEYWORDS = {"work": _work, "attributes": _attributes}

FORMS["from_text"] = parse_plan
