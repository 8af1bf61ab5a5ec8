"""Reading and writing regions, with every check on the way: bounds, initialisation, copies, races."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from megatile.core.expr import constant, walk
from megatile.core.forkjoin import Agent, is_ordered
from megatile.core.operations import cast
from megatile.core.placement import numpy_index
from megatile.ir import nodes as n
from megatile.ir.expr import Load
from megatile.ir.program import Program
from megatile.targets.interpret.errors import (
    DataRaceError,
    PartialError,
    ReplicaMismatchError,
    UninitialisedReadError,
)
from megatile.targets.interpret.group import END_ADVICE
from megatile.targets.interpret.history import ATOMIC, READ, WRITE, Conflict
from megatile.targets.interpret.places import Name
from megatile.targets.interpret.resolve import Resolver, Target
from megatile.targets.interpret.storage import StoredArray
from megatile.targets.interpret.units import Unit, describe

_DONE = {READ: "read", WRITE: "written", ATOMIC: "changed atomically"}


class Accessor(Resolver):
    """Reads and writes regions of names, for units."""

    def read(self, target: Target, unit: Unit, agent: Agent | None = None) -> np.ndarray:
        """Return the elements of a region; over the edge zeros."""
        storage = target.storage
        if target.is_empty:
            return np.zeros(target.shape, storage.array.dtype)
        index = target.index
        if self.machine.checks:
            self.order(target, READ, unit, agent or unit)
            self.check_written(target, index, unit)
        data = self._one_copy(target, storage.array[index])
        if target.dropped:
            data = data.reshape(target.valid_shape)
        if target.inner is None:
            return data
        full = np.zeros(target.shape, data.dtype)
        full[numpy_index(target.inner)] = data
        return full

    def _one_copy(self, target: Target, block: np.ndarray) -> np.ndarray:
        storage = target.storage
        if len(block) == 1:
            return block[0]
        if storage.scattered is not None or target.name.valid is not None:
            index = numpy_index(target.items)
            return assembled(storage, target.name, range(*target.copies), index)[index]
        if storage.partial and self.machine.checks:
            raise PartialError(
                f"'{storage.name}' holds partial terms, one per {target.name.copy_scale}, and is read as "
                f"a whole",
                advice="reduce it first: T.allreduce (or T.reduce_scatter) on its view",
            )
        if self.machine.checks:
            for copy in range(1, len(block)):
                if not same(block[0], block[copy]):
                    raise self.mismatch(target, block, copy)
        return block[0]

    def mismatch(self, target: Target, block: np.ndarray, copy: int) -> ReplicaMismatchError:
        where = np.argwhere(~_equal(block[0], block[copy]))[0]
        low = target.copies[0]
        scale = target.name.copy_scale
        first, second = block[0][tuple(where)], block[copy][tuple(where)]
        return ReplicaMismatchError(
            f"the copies of '{target.storage.name}' differ: element {tuple(int(w) for w in where)} is "
            f"{first} on "
            f"{scale} {low} and {second} on {scale} {low + copy}",
            advice="every unit must write the same: a T.allreduce or T.allgather on the view is missing, "
            "or each unit "
            "should write its own part on all copies (T.copy with dst=) before a T.barrier",
        )

    def check_written(self, target: Target, index: tuple[Any, ...], unit: Unit) -> None:
        written = target.storage.written
        if written is not None and not written[index].all():
            self.unwritten(target, unit, index)

    def unwritten(self, target: Target, unit: Unit, index: tuple[Any, ...]) -> None:
        """An element is read that was never written. Another unit may be about to: that is a race, so go on,
        with NaN, to see."""
        error = self.uninitialised(target, unit, index)
        if target.name.base in self.machine.sharing.raceless:
            raise error
        if self.machine.suspicion is None:
            error.place = unit.node.place if unit.node is not None else None
            self.machine.suspicion = error

    def uninitialised(self, target: Target, unit: Unit, index: tuple[Any, ...]) -> UninitialisedReadError:
        written = target.storage.written
        assert written is not None
        element = tuple(int(w) for w in np.argwhere(~written[index])[0][1:])
        new = any(p.name == target.name.base for p in self.machine.program.params)
        advice = "write it first (T.clear, T.fill or T.copy)"
        if new:
            advice = "new tensors hold no zeros: fill it in a launch before, or give it as an argument"
        if not new and target.name.base not in self.machine.sharing.raceless:
            advice += ", or wait for the unit that does (T.barrier, T.wait)"
        node = unit.node
        if getattr(node, "to", None) is not None and not written.any():
            advice += "; T.copy takes the destination first: T.copy(to, source)"
        return UninitialisedReadError(
            f"'{target.name.name}' is read before it is written: element {element} of the region, by "
            f"{describe(unit, self.machine.launch)}",
            advice=advice,
        )

    def write(self, target: Target, data: np.ndarray, unit: Unit, agent: Agent | None = None) -> None:
        """Store elements, converted; what an anchor has over the edge is dropped. All copies below a unit
        get them."""
        storage = target.storage
        if target.is_empty:
            return
        index = target.index
        if self.machine.checks:
            self.order(target, WRITE, unit, agent or unit)
        data = cast(data, storage.dtype)
        if target.inner is not None and data.ndim:
            data = data[numpy_index(target.inner)]
        if data.ndim:
            data = data.reshape(target.stored_shape)
        storage.array[index] = data
        self.wrote(target, index, unit)

    def combine(
        self, target: Target, function: Any, data: np.ndarray, unit: Unit, peer: Unit | None = None
    ) -> None:
        """Change elements indivisibly (when that arrives at ``peer``); what an anchor has over the edge is
        dropped."""
        storage = target.storage
        if target.is_empty:
            return
        index = target.index
        if self.machine.checks:
            self.order(target, ATOMIC, unit, unit if peer is None else unit.puts_to(peer))
            self.check_written(target, index, unit)
        if target.inner is not None:
            data = data[numpy_index(target.inner)]

        def arrive() -> None:
            storage.array[index] = function(storage.array[index], data.reshape(target.stored_shape))
            self.wrote(target, index, unit)

        if peer is None:
            arrive()
        else:
            self.machine.post(unit, peer, arrive)

    def wrote(self, target: Target, index: tuple[Any, ...], unit: Unit) -> None:
        storage = target.storage
        storage.mark(index, math.prod(target.stored_shape))
        whole = target.copies == (0, storage.copies)
        if target.name.is_partial and not whole:
            storage.partial, storage.scattered = True, None
        elif whole and storage.copies > 1 and math.prod(target.stored_shape) >= math.prod(storage.shape):
            storage.partial, storage.scattered = False, None
        if self.machine.recorder is not None:
            storage.note_writer(index, self.machine.recorder.entry(unit))

    def order(self, target: Target, kind: int, unit: Unit, agent: Agent, points: Any = None) -> None:
        """Report an earlier access that conflicts with this one and is not ordered before it."""
        storage = target.storage
        if target.name.base in self.machine.sharing.raceless:
            return
        row, history = target.row(), storage.history
        if target.name.base in self.machine.places.aliased:
            row, history = storage.bytes_of(row, points), storage.root.by_bytes
            points = None
        conflict = history.check(row, kind, agent, unit, points)
        span = unit.node.span if unit.node is not None else None
        if conflict is not None:
            raise self._race(target, kind, unit, agent, conflict)
        history.add(row, kind, agent, span, points)

    def check_end(self, unit: Unit, names: dict[str, Name]) -> None:
        """The tiles of a unit end with it: what others did to them must be ordered before."""
        for name in names.values():
            storage = unit.frame.get((name.base, unit.path[: name.owner_depth]))
            if name.owner_depth != unit.depth or storage is None:
                continue
            for row in (*storage.history.rows, *storage.root.by_bytes.rows):
                if row.agent is unit or is_ordered(row.agent, row.time, unit):
                    continue
                launch, span = self.machine.launch, row.span
                raise DataRaceError(
                    f"data race on '{name.name}': {describe(unit, launch)} ends, and its tile may still be"
                    f" {_DONE[row.kind]} by {describe(row.agent, launch)}, with nothing that orders the two",
                    place=span.place() if span is not None else None,
                    advice=END_ADVICE,
                )

    def _race(self, target: Target, kind: int, unit: Unit, agent: Agent, earlier: Conflict) -> DataRaceError:
        launch = self.machine.launch
        line = f" at line {earlier.span.line}" if earlier.span is not None else ""
        scale = launch.scales[unit.depth - 1].name if unit.depth else "launch"
        other = earlier.agent
        while other.ended and isinstance(other.parent, Unit) and other.parent.depth >= unit.depth:
            other = other.parent
        same = unit.node is not None and unit.node.span == earlier.span and _unit(other) is not _unit(agent)
        if {kind, earlier.kind} == {READ, WRITE} and _updates(self.machine.program, unit.node, earlier.span):
            advice = (
                f"each unit reads an element, changes it and writes it back, and units of scale '{scale}' "
                "share it: use T.atomic_add (or T.atomic_max, T.atomic_min), or give each a part of its own "
                "and reduce them"
            )
        elif same and kind == earlier.kind == WRITE:  # no barrier can part them
            to = getattr(unit.node, "to", None)
            parts = isinstance(to, n.Region) and any(constant(d.start) is None for d in to.dims)
            advice = f"several units of scale '{scale}' write the same element in one statement: " + (
                "give each a part of its own, with steps as long as the parts, or add with T.atomic_add"
                if parts
                else "use T.atomic_add, or give each a part of its own and reduce them"
            )
        else:
            advice = (
                f"put a T.barrier() of scale '{scale}' (or a T.signal and T.wait) between them, or end the "
                "region" + _waits_in_vain(self.machine.program, unit.node, not isinstance(other, Unit))
            )
        return DataRaceError(
            f"data race on '{target.name.name}': {_DONE[kind]} by {describe(agent, launch)} here and "
            f"{_DONE[earlier.kind]} by {describe(other, launch)}{line}, with nothing that orders the two",
            advice=advice,
        )


def _waits_in_vain(program: Program, node: n.Node | None, put: bool) -> str:
    """Return what to look at where a wait stands before a statement and does not order it."""
    if node is None or node.span is None:
        return ""
    lines = [w.span.line for w in n.each(n.Wait, program.body) if w.span and w.span.line < node.span.line]
    if not lines:
        return ""
    fence = "; a put that another unit signals needs a T.fence() after it" if put else ""
    return f". The T.wait of line {max(lines)} does not order them: look at its flag, rank and value{fence}"


def _updates(program: Program, node: n.Node | None, other: n.Span | None) -> bool:
    """Return whether a statement and the one of another line read elements and write the same ones back: in
    one statement, or by a load and a store of one tile."""
    if isinstance(node, n.Copy):
        tensors = {p.name for p in program.params}
        pairs = [(node, m) for m in n.each(n.Copy, program.body) if m.span == other]
        loads = [pair if pair[0].source.source in tensors else pair[::-1] for pair in pairs]
        return any(
            (load.to, load.source) == (store.source, store.to) and _line(load) < _line(store)
            for load, store in loads
        )
    stores = [m for m in n.walk((node,)) if isinstance(m, n.Store)] if node is not None else []
    return any(
        isinstance(part, Load) and (part.source, part.index) == (store.target, store.index)
        for store in stores
        for part in walk(store.value)
        if store.span == other or (node is not None and node.span == other)
    )


def _line(node: n.Node) -> int:
    return 0 if node.span is None else node.span.line


def _unit(agent: Agent) -> Agent | None:
    """Return the unit that an agent works for."""
    found: Agent | None = agent
    while found is not None and not isinstance(found, Unit):
        found = found.parent
    return found


def assembled(storage: StoredArray, name: Name, copies: range, index: Any = ...) -> np.ndarray:
    """Return a tile whose copies hold parts of it, put together; where several hold an element of ``index``
    they must agree."""
    whole = np.zeros(storage.shape, storage.array.dtype)
    filled = np.zeros(storage.shape, bool)
    wanted = np.zeros(storage.shape, bool)
    wanted[index] = True
    parts = storage.scattered or name.valid or []
    for copy in copies:
        part = parts[copy]
        mine = storage.array[copy][part]
        differs = filled[part] & wanted[part] & ~_equal(whole[part], mine)
        if differs.any():
            raise ReplicaMismatchError(
                f"the copies of '{storage.name}' differ: {name.copy_scale} {copy} has {mine[differs][0]} "
                f"where another "
                f"has {whole[part][differs][0]}",
                advice="units that hold the same elements must write the same: a reduction along that "
                "axis is missing",
            )
        whole[part], filled[part] = mine, True
    return whole


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(_equal(a, b).all())


def _equal(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a == b) | ((a != a) & (b != b))
