"""How long a command keeps a compute engine: a rule per operation, with every figure from the machine file.

    @rule("softmax")
    def softmax(c: Command) -> int:
        return c.startup_ps + max(serialise_ps(5 * c.flops, c.rate), c.memory_ps)

An operation without a rule of its own takes `roofline`: the longer of its work at the engine's rate and of
its operands' bytes at the bandwidth of the memories they lie in. Memories that stand no higher than the
engine (registers, scratchpads) are as fast as it, unless the machine file says ``roofline: true``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np

from megatile.core.cached import cached_in_owner
from megatile.core.dtypes import itemsize
from megatile.core.expr import Expr, constant, symbols
from megatile.core.registry import Registry
from megatile.hda.model import Engine
from megatile.plan import model as pm
from megatile.plan.statements import tile_flows
from megatile.timing.fabric import serialise_ps


@dataclass(frozen=True)
class Command:
    """What a rule knows: the operation with its work, the engine, and what its operands cost in memories."""

    operation: str
    flops: int
    dtype: str
    engine: Engine
    rate: float
    """Operations per second of all engines that a unit commands."""
    memory_ps: int
    """How long the operands' bytes take in their memories; 0 where these are as fast as the engine."""
    extents: tuple[int, ...] = ()
    """Of the result."""
    nbytes: int = 0
    operands: tuple[tuple[int, ...], ...] = ()
    """Extents of what is read, then of what is written, as they are in this run; () where nobody knows yet.
    Only for rules of a view. Runs of one statement with equal flops and bytes must have equal extents."""

    @property
    def startup_ps(self) -> int:
        return self.engine.startup_ps


BANKED = frozenset({"nest", "gemm", "gemm_add", "copy", "pad"})
"""Commands whose bytes are those that lanes take turns for in banks."""
MAX_OPERANDS = 1 << 40
"""Bytes and atomics of a command, whatever a Plan says."""
Rule = Callable[[Command], int]
RULES: Registry[Rule] = Registry("timing rules")


def rule(*operations: str) -> Callable[[Rule], Rule]:
    """Register ``f(command) -> picoseconds`` for operations."""

    def register(function: Rule) -> Rule:
        for name in operations:
            RULES.add(name, function)
        return function

    return register


def roofline(command: Command) -> int:
    return command.startup_ps + max(serialise_ps(command.flops, command.rate), command.memory_ps)


@rule("gemm", "gemm_add")
def product(command: Command) -> int:
    """Return a product: every extent rounded up to what the engine works on, at the rate that lasts under
    load."""
    engine, flops = command.engine, float(command.flops)
    rows, columns = command.extents[-2:] if len(command.extents) > 1 else (0, 0)
    if engine.tile is not None and len(engine.tile) == 3 and rows * columns and flops:
        whole = (rows, columns, max(1, round(flops / (2 * rows * columns))))
        flops = 2.0 * prod(-(-size // step) * step for size, step in zip(whole, engine.tile, strict=True))
    rate = command.rate * engine.sustained
    return command.startup_ps + max(serialise_ps(flops, rate), command.memory_ps)


def rule_of(operation: str) -> Rule:
    return RULES.get(operation, roofline)


class Operands(NamedTuple):
    """Bytes of a command's operands by memory, for so many floating point operations."""

    bytes: dict[str, int]
    flops: int
    extents: tuple[int, ...] = ()
    """Of the result."""
    banked: int = 0
    """Bytes that pass through banks of a memory while lanes that meet in one take turns."""
    fetched: int = 0
    """Bytes of memories above the engine, where these are not those of the operands."""
    atomics: int = 0
    """Atomics in a row on one address of `target`."""
    target: str = ""
    changed: int = 0
    """Bytes that atomics change, each counted."""
    addresses: Any = ()
    """Of every unit in turn, a number of the address where its atomics begin."""

    def scaled(self, memory: str, flops: int) -> float:
        """Where extents vary (the last block of a loop), bytes go with the work."""
        return self.part(self.bytes[memory], flops)

    def part(self, amount: int, flops: int) -> float:
        return amount * (flops / self.flops if self.flops else 1)


@cached_in_owner
def operands(plan: pm.Plan) -> dict[int, Operands]:
    """Return the operands of every compute command of a plan, by the statement's identity."""
    found: dict[int, Operands] = {}
    tiles = {t.name: (t.memory, t.shape, t.dtype) for t in plan.tiles}
    for stream in plan.streams:
        names: dict[str, tuple[str, tuple[Any, ...], str]] = dict(tiles)
        _walk(plan, stream, stream.body, names, found)
    return found


def _walk(
    plan: pm.Plan, stream: pm.Stream, body: Any, names: dict[str, Any], found: dict[int, Operands]
) -> None:
    for s in body:
        if isinstance(s, (pm.Receive, pm.ReceiveAny)) and s.name:
            names[s.name] = (plan.channel(s.channel).memory, s.shape, s.dtype)
        elif isinstance(s, pm.Loop):
            names |= {c.name: names[c.values[0]] for c in tile_flows(s) if c.values[0] in names}
            _walk(plan, stream, s.body, names, found)
        elif isinstance(s, pm.If):
            _walk(plan, stream, (*s.body, *s.orelse), names, found)
            names |= {m.name: names[m.values[0]] for m in tile_flows(s) if m.values[0] in names}
        elif isinstance(s, pm.Compute) and s.engine != "dma":
            shape = s.write.shape or names.get(s.write.tile, ("", (), ""))[1]
            extents = tuple(_sample(extent) for extent in shape)
            banked = _sample(s.work.bytes) if s.operation in BANKED else 0
            fetched, atomics = (min(max(0, n), MAX_OPERANDS) for n in (s.work.fetched, s.work.atomics))
            target, _, dtype = names.get(s.write.tile, ("", (), ""))
            flops, changed, addresses = _sample(s.work.flops), 0, ()
            if atomics:  # of elements that data choose no more than there are operations
                changed = min(prod(extents) * atomics, max(1, flops), MAX_OPERANDS) * itemsize(dtype)
                addresses = _addresses(s.write, stream)
            found[id(s)] = Operands(
                _sizes(s, names), flops, extents, banked, fetched, atomics, target, changed, addresses
            )


def _addresses(region: pm.Region, stream: pm.Stream) -> Any:
    """Of every unit of a stream, a number of the element where its region begins."""
    units = np.concatenate([np.arange(*each) for each in stream.units])
    starts = [_starts(start, units) for start in region.start]
    rows = np.stack(starts) if starts else np.zeros((1, len(units)), np.int64)
    return np.unique(rows, axis=1, return_inverse=True)[1].reshape(-1)


def meeting(addresses: Any, together: int) -> float:
    """Return how many of the units that run together change one address, on average over all that come in
    turn."""
    together = max(1, min(together, len(addresses)))
    turns = np.arange(len(addresses)) // together
    of_each, counts = np.unique(np.stack([turns, addresses]), axis=1, return_counts=True)
    most = np.zeros(max(1, -(-len(addresses) // together)))
    np.maximum.at(most, of_each[0], counts)
    return max(1.0, float(most.sum()) * together / max(1, len(addresses)))


def _starts(start: Expr, units: Any) -> Any:
    names = dict.fromkeys(symbols(start) - {"unit"}, 0)
    try:
        return np.broadcast_to(start.evaluate({**names, "unit": units}), units.shape)
    except (ZeroDivisionError, IndexError, ValueError):
        return units


def _sizes(command: pm.Compute, names: dict[str, Any]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for region in (*dict.fromkeys(command.reads), command.write):
        if region.tile in names:
            memory, shape, dtype = names[region.tile]
            extents = [_sample(extent) for extent in region.shape or shape]
            sizes[memory] = sizes.get(memory, 0) + prod(extents) * itemsize(dtype)
    return sizes


def _sample(value: Any) -> int:
    """Return an extent with every symbol that it depends on at 0: in the first round of a loop blocks are
    full."""
    if (known := constant(value)) is not None:
        return max(0, known) if isinstance(value, Expr) else known
    for guess in (0, 1):  # 1 where something is divided by a symbol
        try:
            return max(0, int(value.evaluate(dict.fromkeys(symbols(value), guess))))
        except (ZeroDivisionError, IndexError, ValueError):
            continue
    return 0
