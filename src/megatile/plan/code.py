"""Streams as flat lists of instructions, which check, execute, launches and simulate all read.

Evaluators call the compiled expressions of an instruction (``functions``, ``reads``, ``ints``, …), which are
made when they are first asked for; ``simulate`` writes the expressions themselves into its tables.

Structure becomes jumps: ``enter`` (a loop's initial values), ``test`` (leave when done), ``again`` (carry,
count up, back to ``test``), ``branch`` (to ``target`` where the condition is 0), ``jump``, ``merge``,
``join`` (a good place for units to come together again), ``end``. All other kinds are the words of commands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from megatile.core.cached import cached_in_owner
from megatile.core.expr import Expr
from megatile.plan.cached_values import CachedValues
from megatile.plan.cohort import highest, lowest
from megatile.plan.model import Plan, Stream
from megatile.plan.spec import parts
from megatile.plan.statements import (
    Free,
    If,
    Loop,
    Region,
    Statement,
    binds,
    int_flows,
    reads_of,
    regions_of,
    tile_flows,
    write_of,
)

Function = Callable[[Any], Any]


class RegionCode:
    """A region with compiled start, shape and owner."""

    __slots__ = ("at", "shape", "span", "start", "tile", "whole")

    def __init__(self, region: Region, values: CachedValues):
        self.tile = region.tile
        self.whole = not region.start
        self.start = tuple(values.even(e) for e in region.start)
        self.shape = tuple(values.even(e) for e in region.shape)
        self.span = values.together("span", (*region.start, *region.shape), span_of)
        self.at = values.function(region.at) if region.at is not None else None


def span_of(values: list[Any]) -> tuple[Any, Any, Any]:
    """Return starts, extents, and per axis the limits (start, extent, end) of all units."""
    half = len(values) // 2
    start, shape = tuple(values[:half]), tuple(values[half:])
    limits = tuple(
        (lowest(low), lowest(length), highest(low + length)) for low, length in zip(start, shape, strict=True)
    )
    return start, shape, limits


@dataclass(eq=False)
class Instruction:
    """One step. ``target`` is where jumps go; ``tiles`` and ``numbers`` are what carried and merged names
    mean from here on, and ``ended`` the names that end here."""

    kind: str
    statement: Any
    values: CachedValues
    target: int = -1
    ended: tuple[str, ...] = ()
    tiles: tuple[tuple[str, str], ...] = ()
    numbers: tuple[tuple[str, Expr], ...] = ()
    number: int = 0
    ragged: bool = False

    @cached_property
    def functions(self) -> dict[str, Function]:
        """Its expressions by field name."""
        found = dict(self._fields("expr"))
        for _, work in self._fields("work"):
            found |= {"flops": work.flops, "bytes": work.bytes}
        return {name: self.values.function(value) for name, value in found.items()}

    @cached_property
    def reads(self) -> tuple[RegionCode, ...]:
        return tuple(RegionCode(r, self.values) for r in reads_of(self.statement))

    @cached_property
    def write(self) -> RegionCode | None:
        write = write_of(self.statement)
        return None if write is None else RegionCode(write, self.values)

    @property
    def regions(self) -> tuple[RegionCode, ...]:
        """What it reads and writes."""
        return self.reads if self.write is None else (*self.reads, self.write)

    @cached_property
    def ints(self) -> tuple[tuple[str, Function], ...]:
        return tuple((name, self.values.function(value)) for name, value in self.numbers)

    @cached_property
    def shape(self) -> tuple[Function, ...]:
        """The extents of a message."""
        return tuple(self.values.even(e) for _, extents in self._fields("typed") for e in extents)

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """Those that do not depend on integers; ``varying`` are the others."""
        return {key: value for key, value in self._attributes() if not isinstance(value, Expr)}

    @cached_property
    def varying(self) -> dict[str, Function]:
        return {key: self.values.function(e) for key, e in self._attributes() if isinstance(e, Expr)}

    def _attributes(self) -> list[tuple[str, Any]]:
        return [pair for _, pairs in self._fields("attributes") for pair in pairs]

    def _fields(self, kind: str) -> list[tuple[str, Any]]:
        """Return the fields of its statement that are of a kind (see ``spec``)."""
        return [
            (p.name, getattr(self.statement, p.name)) for p in parts(type(self.statement)) if p.kind == kind
        ]


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
    compiler = _Compiler(CachedValues(plan.instances(stream.level)))
    compiler.block(stream.body)
    compiler.emit("end", None)
    _mark_ragged(compiler.code)
    return Code(stream, compiler.code, compiler.values)


def _mark_ragged(code: list[Instruction]) -> None:
    """Receives of messages that are only used as a whole: units need not agree on their shape."""
    receives = [i for i in code if i.kind == "receive" and i.statement.name]
    if receives:
        cut = {name for i in code for pair in i.tiles for name in pair}
        cut |= {r.tile for i in code if i.statement is not None for r in regions_of(i.statement) if r.start}
        for instruction in receives:
            instruction.ragged = instruction.statement.name not in cut


class _Compiler:
    def __init__(self, values: CachedValues):
        self.code: list[Instruction] = []
        self.values = values

    def emit(self, kind: str, statement: Statement | None, **options: Any) -> Instruction:
        instruction = Instruction(kind, statement, self.values, number=len(self.code), **options)
        self.code.append(instruction)
        return instruction

    def block(self, body: tuple[Statement, ...]) -> tuple[str, ...]:
        """Write a body; the names that end with it."""
        known: list[str] = []
        for statement in body:
            if isinstance(statement, Loop):
                self.loop(statement)
            elif isinstance(statement, If):
                self.branch(statement)
            elif isinstance(statement, Free):
                self.emit(statement.word, statement, ended=statement.names)
            else:
                self.emit(statement.word, statement)
            for names in binds(statement):
                known += names
        return tuple(dict.fromkeys(known))

    def flows(self, statement: Statement, side: int) -> dict[str, Any]:
        """Return what carried and merged names mean: the first of their values, or the second."""
        return {
            "tiles": tuple([(f.name, f.values[side]) for f in tile_flows(statement)]),
            "numbers": tuple([(f.name, f.values[side]) for f in int_flows(statement)]),
        }

    def loop(self, loop: Loop) -> None:
        self.emit("enter", loop, ended=loop.frees, **self.flows(loop, 0))
        test = self.emit("test", loop)
        begin = len(self.code)
        ended = self.block(loop.body)
        self.emit("again", loop, target=begin - 1, ended=ended, **self.flows(loop, 1))
        test.target = len(self.code)
        self.emit("join", loop)

    def branch(self, branch: If) -> None:
        start = self.emit("branch", branch)
        self.side(branch, 0)
        jump = self.emit("jump", branch)
        start.target = len(self.code)
        self.side(branch, 1)
        jump.target = len(self.code)
        self.emit("join", branch)

    def side(self, branch: If, side: int) -> None:
        ended = self.block((branch.body, branch.orelse)[side])
        merged = self.flows(branch, side) | {"ended": ended}
        if any(merged.values()):
            self.emit("merge", branch, **merged)
