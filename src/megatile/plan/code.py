"""Streams as flat lists of instructions with compiled expressions: what evaluators that follow many units at
once run.

Structure becomes jumps: ``enter`` (a loop's initial values), ``test`` (leave when done), ``again`` (carry,
count up, back to ``test``), ``branch`` (to ``target`` where the condition is 0), ``jump``, ``merge``,
``leave`` (names end), ``join`` (a good place for units to come together again). All other kinds are the
statements themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from megatile.core.cached import cached_in_owner
from megatile.core.expr import Expr, constant
from megatile.plan.cached_values import CachedValues
from megatile.plan.cohort import highest, lowest
from megatile.plan.liveness import slot_names
from megatile.plan.model import Plan, PlanError, Stream
from megatile.plan.spec import parts
from megatile.plan.statements import (
    If,
    Loop,
    Region,
    Statement,
    Work,
    binds,
    int_flows,
    reads_of,
    tile_flows,
    write_of,
)

Function = Callable[[Any], Any]


class RegionCode:
    """A region with compiled start, shape and owner; constants are found out once."""

    __slots__ = ("at", "constant", "shape", "span", "start", "tile", "whole")

    def __init__(self, region: Region, values: CachedValues):
        self.tile = region.tile
        self.whole = not region.start
        self.start = tuple(values.even(e) for e in region.start)
        self.shape = tuple(values.even(e) for e in region.shape)
        self.span = values.together("span", (*region.start, *region.shape), span_of)
        self.at = values.function(region.at) if region.at is not None else None
        numbers = [constant(e) for e in (*region.start, *region.shape)]
        known = None if None in numbers else tuple(n for n in numbers if n is not None)
        half = len(region.start)
        self.constant = None if known is None else (known[:half], known[half:])


def span_of(values: list[Any]) -> tuple[Any, Any, Any]:
    """Starts, extents, and per axis the limits (start, extent, end) of all units."""
    half = len(values) // 2
    start, shape = tuple(values[:half]), tuple(values[half:])
    limits = tuple(
        (lowest(low), lowest(length), highest(low + length)) for low, length in zip(start, shape, strict=True)
    )
    return start, shape, limits


@dataclass(eq=False)
class Instruction:
    """One step. ``target`` is where jumps go; ``functions`` are the compiled expressions by field name."""

    kind: str
    statement: Any
    target: int = -1
    functions: dict[str, Function] = field(default_factory=dict)
    reads: tuple[RegionCode, ...] = ()
    write: RegionCode | None = None
    names: tuple[str, ...] = ()
    tiles: tuple[tuple[str, str], ...] = ()
    ints: tuple[tuple[str, Function], ...] = ()
    shape: tuple[Function, ...] = ()
    number: int = 0
    attributes: dict[str, Any] = field(default_factory=dict)
    varying: dict[str, Function] = field(default_factory=dict)
    ended: tuple[str, ...] = ()
    ragged: bool = False

    @property
    def regions(self) -> tuple[RegionCode, ...]:
        """What it reads and writes."""
        return self.reads if self.write is None else (*self.reads, self.write)


@dataclass(eq=False)
class Code:
    """The instructions of one stream; ``body`` index ranges of loops are in their ``again`` instructions."""

    stream: Stream
    instructions: list[Instruction]
    values: CachedValues


@cached_in_owner
def compile_plan(plan: Plan) -> tuple[Code, ...]:
    """Return the streams of a plan as instructions, which all who follow it share."""
    return tuple(_compile_stream(plan, stream) for stream in plan.streams)


def _compile_stream(plan: Plan, stream: Stream) -> Code:
    compiler = _Compiler(slot_names(stream.body), CachedValues(plan.instances(stream.level)))
    compiler.block(stream.body)
    compiler.emit("end", None)
    declared = {tile.name for tile in plan.tiles}
    for number, instruction in enumerate(compiler.code):
        instruction.number = number
        for code in instruction.regions:
            if code.tile not in declared and code.tile not in compiler.bound:
                place = instruction.statement.source if instruction.statement else None
                raise PlanError(f"there is no tile '{code.tile}' here", place=place)
    _mark_ragged(compiler.code)
    return Code(stream, compiler.code, compiler.values)


def _mark_ragged(code: list[Instruction]) -> None:
    """Receives of messages that are only used as a whole: units need not agree on their shape."""
    cut = {name for i in code for pair in i.tiles for name in pair}
    cut |= {r.tile for i in code for r in i.regions if not r.whole}
    for instruction in code:
        if instruction.kind == "receive":
            name = instruction.statement.name
            instruction.ragged = bool(name) and name not in cut


class _Compiler:
    def __init__(self, slots: frozenset[str], values: CachedValues):
        self.code: list[Instruction] = []
        self.values = values
        self.slots = slots
        self.bound: set[str] = set()

    def emit(self, kind: str, statement: Statement | None, **options: Any) -> Instruction:
        instruction = Instruction(kind, statement, **options)
        self.code.append(instruction)
        return instruction

    def block(self, body: tuple[Statement, ...]) -> None:
        for statement in body:
            if isinstance(statement, Loop):
                self.loop(statement)
            elif isinstance(statement, If):
                self.branch(statement)
            else:
                self.simple(statement)

    def simple(self, statement: Any) -> None:
        instruction = self.emit(statement.word, statement)
        instruction.reads = tuple(RegionCode(r, self.values) for r in reads_of(statement))
        write = write_of(statement)
        instruction.write = RegionCode(write, self.values) if write is not None else None
        self.bound |= set(binds(statement)[0])
        for p in parts(type(statement)):
            compile_field = _COMPILE.get(p.kind)
            if compile_field is not None:
                compile_field(self.values, instruction, p.name, getattr(statement, p.name))

    def scope(self, body: tuple[Statement, ...]) -> dict[str, tuple[str, ...]]:
        """Names that end with this body: all (``ended``), and those that may hold slots (``names``)."""
        unique = tuple(dict.fromkeys(name for s in body for names in binds(s) for name in names))
        return {"ended": unique, "names": tuple(n for n in unique if n in self.slots)}

    def flows(self, statement: Statement, side: int) -> dict[str, Any]:
        """What carried and merged names mean: the first of their values, or the second."""
        ints = tuple((f.name, self.values.function(f.values[side])) for f in int_flows(statement))
        return {"tiles": tuple((f.name, f.values[side]) for f in tile_flows(statement)), "ints": ints}

    def loop(self, loop: Loop) -> None:
        self.bound |= set(binds(loop)[0])
        bounds = {"start": loop.start, "stop": loop.stop, "step": loop.step}
        functions = {key: self.values.function(value) for key, value in bounds.items()}
        self.emit("enter", loop, functions=functions, names=loop.frees, **self.flows(loop, 0))
        test = self.emit("test", loop)
        begin = len(self.code)
        self.block(loop.body)
        self.emit("again", loop, target=begin - 1, **self.flows(loop, 1), **self.scope(loop.body))
        test.target = len(self.code)
        self.emit("join", loop)

    def branch(self, branch: If) -> None:
        start = self.emit("branch", branch, functions={"condition": self.values.function(branch.condition)})
        self.side(branch, 0)
        jump = self.emit("jump", branch)
        start.target = len(self.code)
        self.side(branch, 1)
        jump.target = len(self.code)
        self.bound |= set(binds(branch)[0])
        self.emit("join", branch)

    def side(self, branch: If, side: int) -> None:
        body = (branch.body, branch.orelse)[side]
        self.block(body)
        merged = self.flows(branch, side) | self.scope(body)
        if any(merged.values()):
            self.emit("merge", branch, **merged)


def _expr(values: CachedValues, instruction: Instruction, name: str, value: Expr) -> None:
    instruction.functions[name] = values.function(value)


def _typed(values: CachedValues, instruction: Instruction, name: str, value: tuple[Expr, ...]) -> None:
    instruction.shape = tuple(values.even(e) for e in value)


def _words(values: CachedValues, instruction: Instruction, name: str, value: tuple[str, ...]) -> None:
    instruction.names = value


def _attributes(values: CachedValues, instruction: Instruction, name: str, value: Any) -> None:
    for key, attribute in value:
        if isinstance(attribute, Expr):
            instruction.varying[key] = values.function(attribute)
        else:
            instruction.attributes[key] = attribute


def _work(values: CachedValues, instruction: Instruction, name: str, value: Work) -> None:
    instruction.functions |= {"flops": values.function(value.flops), "bytes": values.function(value.bytes)}


_COMPILE: dict[str, Callable[[CachedValues, Instruction, str, Any], None]] = {
    "expr": _expr,
    "typed": _typed,
    "words": _words,
    "attributes": _attributes,
    "work": _work,
}
"""What becomes of a command's fields, by kind."""
