"""Elementwise code: all iterations of a T.Parallel at once, each statement on whole arrays.

Indices that are a loop variable plus something constant become slices; anything else, and everything under a
condition, works on explicit index arrays ("lanes").
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from megatile.core.elementwise import ATOMICS
from megatile.core.expr import Const, Expr, Symbol, applied, linear, simplify, symbols
from megatile.core.operations import cast
from megatile.core.placement import compose, share_length
from megatile.ir import nodes as n
from megatile.ir.expr import Load, has_loads
from megatile.targets.interpret.errors import (
    DeviceAssertionError,
    OutOfBoundsError,
    RunError,
)
from megatile.targets.interpret.expressions import unflatten
from megatile.targets.interpret.history import ATOMIC, READ, WRITE
from megatile.targets.interpret.independent import (
    ITERATIONS,
    Touch,
    Wording,
    check_independent,
    check_unique,
    watched,
    wording,
)
from megatile.targets.interpret.resolve import Target
from megatile.targets.interpret.storage import Arrivals
from megatile.targets.interpret.units import Unit, describe

if TYPE_CHECKING:
    from megatile.targets.interpret.machine import Interpreter


@dataclass
class Iterations:
    """The iterations of a parallel loop, or those of them for which a condition holds (``lanes``)."""

    unit: Unit
    names: tuple[str, ...]
    extents: tuple[int, ...]
    vars: dict[str, Any]
    lanes: np.ndarray | None = None
    touched: list[Touch] = field(default_factory=list)
    words: Wording = ITERATIONS
    path: tuple[Any, ...] = ()
    in_step: bool = False

    def __post_init__(self) -> None:
        self.path = self.path or self.unit.path

    @property
    def shape(self) -> tuple[int, ...]:
        return self.extents if self.lanes is None else self.lanes.shape

    def numbers(self) -> np.ndarray:
        """Return the number of each iteration."""
        return np.arange(int(np.prod(self.extents))) if self.lanes is None else self.lanes

    def where(self, wanted: np.ndarray) -> Iterations:
        """Return the iterations for which a condition (one truth each) holds."""
        chosen = np.flatnonzero(wanted)
        variables = {}
        for name, value in self.vars.items():
            if isinstance(value, np.ndarray) and value.ndim:
                value = np.broadcast_to(value, self.shape).reshape(-1)[chosen]
            variables[name] = value
        path = tuple(p[chosen] if isinstance(p, np.ndarray) else p for p in self.path)
        return Iterations(
            self.unit, self.names, self.extents, variables, self.numbers()[chosen], self.touched, self.words,
            path, self.in_step,
        )  # fmt: skip

    def divided(self, condition: Any, *sides: Any) -> list[np.ndarray]:
        """Return each side computed where the condition holds, or does not, and zero elsewhere."""
        flat = np.broadcast_to(np.asarray(condition, bool), self.shape).reshape(-1)
        results = []
        for wanted, side in zip((flat, ~flat), sides, strict=True):
            value = np.asarray(side(self.where(wanted))) if wanted.any() else np.zeros(())
            result = np.zeros(len(flat), value.dtype)
            if wanted.any():
                result[wanted] = value.reshape(-1) if value.ndim else value
            results.append(result.reshape(self.shape))
        return results


@dataclass(frozen=True)
class Slices:
    """How an index tuple is a box: its region, and the loop variable of each of the region's dimensions."""

    region: n.Region
    order: tuple[int, ...]


MAX_ITERATIONS = 1 << 28
"""Iterations of one T.Parallel; their arrays must fit memory."""


class Elementwise:
    """Executes parallel loops."""

    def __init__(self, machine: Interpreter):
        self.machine = machine
        self.plans: dict[tuple[int, tuple[int, ...]], Slices | None] = {}
        self.watched: set[int] = set()
        self.prepared: set[int] = set()

    # --- statements -------------------------------------------------------------------------------

    def run(self, node: n.Parallel, unit: Unit) -> None:
        extents = tuple(_extent(self.machine.compile(e)(unit)) for e in node.extents)
        if any(e < 0 for e in extents):
            raise RunError(f"T.Parallel over extents {extents}", advice="extents are at least 0: T.max(n, 0)")
        if (iterations := math.prod(extents)) > MAX_ITERATIONS:
            raise RunError(
                f"T.Parallel of {iterations} iterations: at most {MAX_ITERATIONS} are run at once",
                advice="divide them over blocks, or over T.serial",
            )
        if 0 in extents:
            return
        rank = len(extents)
        variables = dict(unit.vars)
        for d, (name, extent) in enumerate(zip(node.vars, extents, strict=True)):
            variables[name] = np.arange(extent).reshape((1,) * d + (extent,) + (1,) * (rank - d - 1))
        self._apart(node, Iterations(unit, node.vars, extents, variables, in_step=node.in_step))

    def _apart(self, node: n.Parallel | n.ScaleRegion, each: Iterations) -> None:
        """Run a body for all iterations, which must not depend on each other."""
        if id(node) not in self.prepared and not each.in_step:
            self.prepared.add(id(node))
            self.watched |= watched(node, self.machine.places.names)
        self.body(node.body, each)
        if each.touched and self.machine.checks:
            check_independent(each.touched, each.extents, each.words)

    @contextmanager
    def places_of(self, unit: Unit) -> Iterator[None]:
        """Errors get the place of the statement inside that caused them."""
        outer = unit.node
        try:
            yield
        except RunError as error:
            inner = unit.node
            if error.place is None and inner is not None and inner.span is not None:
                error.place = inner.span.place()
            raise
        finally:
            unit.node = outer

    def run_units(self, node: n.ScaleRegion, unit: Unit, counts: list[int]) -> None:
        """Run all units of a region below ``unit`` at once."""
        ranks = np.arange(math.prod(counts))
        path, words = (*unit.path, *unflatten(ranks, counts)), wording(node.scale)
        self._apart(node, Iterations(unit, (), (len(ranks),), dict(unit.vars), ranks, [], words, path))

    def body(self, body: tuple[n.Node, ...], iterations: Iterations) -> None:
        for node in body:
            iterations.unit.node = node
            _STATEMENTS[type(node)](self, node, iterations)

    def store(self, node: n.Store, at: Iterations) -> None:
        value = self.machine.compile(node.value)(at)
        slices = self._slices(node, node.target, node.index, at)
        if slices is not None and self._covers(slices, at):
            target = self.machine.access.resolve(slices.region, at.unit, context=at)
            data = np.broadcast_to(np.asarray(value), at.shape)
            data = self._to_region(data, slices, at)
            self.machine.access.write(target, data, at.unit)
            return
        at, value = self._inside(node.target, node.index, at, value)
        if 0 in at.shape:
            return
        target, index, points = self._lanes(node.target, node.index, at)
        flat = np.broadcast_to(np.asarray(value), at.shape).reshape(-1)
        numbers = self._element_numbers(target, points)
        if self.machine.checks and not at.in_step:
            check_unique(node.target, target.storage.shape, numbers, at.words)
        self.touch(node, target, numbers, at, "write")
        if self.machine.checks:
            self.machine.access.order(target, WRITE, at.unit, at.unit, points)
        for copy in range(*target.copies):
            target.storage.array[in_copy(copy, index)] = cast(flat, target.storage.dtype)
            if target.storage.written is not None:
                target.storage.written[in_copy(copy, index)] = True
        self._wrote(target, index, at.unit)

    def atomic(self, node: n.Atomic, at: Iterations, peer: Unit | None = None) -> None:
        """Elements of this unit, or of ``peer``, which then change when that arrives (fetched: at once)."""
        value = self.machine.compile(node.value)(at)
        at, value = self._inside(node.target, node.index, at, value)
        if 0 in at.shape:
            return
        target, index, points = self._lanes(node.target, node.index, at, peer)
        storage = target.storage
        sent = peer if node.result is None else None
        flat = cast(np.broadcast_to(np.asarray(value), at.shape).reshape(-1), storage.dtype)
        if self.machine.checks:
            agent = at.unit if sent is None else at.unit.puts_to(sent)
            self.machine.access.order(target, ATOMIC, at.unit, agent, points)
            self.machine.access.check_written(target, (slice(*target.copies), *index), at.unit)

        def arrive() -> None:
            for copy in range(*target.copies):
                ATOMICS[node.op].at(storage.array[copy], index, flat)

        if node.result is not None:
            at.vars[node.result] = self._fetched(node, at, storage, (target.copies[0], index), flat)
        elif sent is not None:
            self.machine.post(at.unit, sent, arrive)
        else:
            arrive()
        self._wrote(target, index, at.unit)

    def _wrote(self, target: Target, index: tuple[Any, ...], unit: Unit) -> None:
        if target.name.is_partial:
            target.storage.partial = True
        if self.machine.recorder is not None:
            for copy in range(*target.copies):
                target.storage.note_writer((copy, *index), self.machine.recorder.entry(unit))

    def _fetched(self, node: n.Atomic, at: Iterations, storage: Any, where: Any, values: np.ndarray) -> Any:
        """Return the old values; iterations come one after the other, in their order."""
        copy, index = where
        array, old = storage.array[copy], np.empty_like(values)
        expected = 0 if node.expected is None else self.machine.compile(node.expected)(at)
        wanted = np.broadcast_to(np.asarray(expected), at.shape).reshape(-1)
        for lane, element in enumerate(zip(*index, strict=True)):
            old[lane] = array[element]
            if node.op in ATOMICS:
                array[element] = ATOMICS[node.op](old[lane], values[lane])
            elif node.op == "exchange" or old[lane] == wanted[lane]:
                array[element] = values[lane]
            if at.lanes is None:  # units, not iterations, are ordered by it
                place = (copy, *element)
                clock = storage.ordered.setdefault(place, {})
                arrivals = storage.arrivals.setdefault(place, Arrivals(old[lane]))
                waits = node.op == "add" and node.expected is not None
                known = arrivals.certain(wanted[lane]) if waits else None
                for one in [clock] if known is None else known:
                    at.unit.acquire(one)
                released = at.unit.release()
                if not waits:
                    clock.update(released)
                    arrivals.note(node.op, values[lane], id(at.unit), released)
        return old.item() if not at.shape and old.dtype.kind in "iub" else old.reshape(at.shape)

    def let(self, node: n.Let, at: Iterations) -> None:
        value = self.machine.compile(node.value)(at)
        at.vars[node.name] = (
            value.copy() if isinstance(value, np.ndarray) else value
        )  # not a window on the tile

    def branch(self, node: n.If, at: Iterations) -> None:
        condition = np.asarray(self.machine.compile(node.condition)(at))
        if condition.ndim == 0:
            self.body(node.body if condition else node.orelse, at)
            return
        flat = np.broadcast_to(condition, at.shape).reshape(-1).astype(bool)
        results: list[Iterations] = []
        for wanted, body in ((flat, node.body), (~flat, node.orelse)):
            inner = at.where(wanted)
            if body and wanted.any():
                self.body(body, inner)
            results.append(inner)
        self._merge(at, flat, results)

    def _merge(self, at: Iterations, flat: np.ndarray, results: list[Iterations]) -> None:
        """Variables set under the condition, or against it, as arrays over all iterations."""
        for name in {v for inner in results for v in inner.vars} - set(at.names):
            before = at.vars.get(name)
            parts = [inner.vars.get(name) for inner in results]
            if all(part is before or part is None for part in parts):
                continue
            merged = np.zeros(len(flat), next(np.asarray(p) for p in parts if p is not None).dtype)
            for part, wanted in zip(parts, (flat, ~flat), strict=True):
                if part is not None and wanted.any():
                    merged[wanted] = part
            at.vars[name] = merged.reshape(at.shape)

    def loop(self, node: n.Loop, at: Iterations) -> None:
        bounds = [self.machine.compile(e)(at) for e in (node.start, node.stop, node.step)]
        if any(isinstance(b, np.ndarray) and b.size > 1 for b in bounds):
            if at.in_step:
                self._uneven(node, at, bounds)
                return
            raise RunError(
                "a loop inside T.Parallel has a different trip count in each iteration",
                advice="loop to the largest count and guard the body with an 'if'",
            )
        for value in range(*(int(b) for b in bounds)):
            at.vars[node.var] = value
            self.body(node.body, at)

    def _uneven(self, node: n.Loop, at: Iterations, bounds: list[Any]) -> None:
        """Threads in step go round a loop as often as each has to; those that are done wait."""
        start, stop, step = (np.broadcast_to(np.asarray(b), at.shape).reshape(-1) for b in bounds)
        trips = np.maximum(-((start - stop) // step), 0)
        for turn in range(int(trips.max(initial=0))):
            going = trips > turn
            inner = at.where(going)
            inner.vars[node.var] = (start + turn * step)[going]
            self.body(node.body, inner)
            self._merge(at, going, [inner, at.where(~going)])

    def check_assert(self, node: n.Check, at: Iterations) -> None:
        held = np.broadcast_to(np.asarray(self.machine.compile(node.condition)(at)), at.shape).reshape(-1)
        if held.all():
            return
        number = int(at.numbers()[int(np.flatnonzero(~held)[0])])
        iteration = tuple(int(i) for i in np.unravel_index(number, at.extents))
        text = f": {node.text}" if node.text else ""
        raise DeviceAssertionError(
            f"assertion failed{text} (iteration {iteration} of {describe(at.unit, self.machine.launch)})",
            advice="look at the values there: T.print, T.breakpoint, or mt.run(..., record=True)",
        )

    def show(self, node: n.Print, at: Iterations) -> None:
        values = [str(np.asarray(self.machine.compile(v)(at)).tolist()) for v in node.values]  # type: ignore[arg-type]
        self.machine.say(at.unit, filled(node.text, values))

    # --- loads ------------------------------------------------------------------------------------

    def load(self, expr: Load, at: Iterations) -> np.ndarray:
        """Return the elements all iterations read, ready to be broadcast against each other."""
        slices = self._slices(expr, expr.source, expr.index, at)
        if slices is not None:
            target = self.machine.access.resolve(slices.region, at.unit, context=at)
            return self._from_region(self.machine.access.read(target, at.unit), slices, at)
        inner, lanes = self._inside(expr.source, expr.index, at, None)
        if lanes is not None:
            result = np.zeros(len(at.numbers()), self.machine.places.storage(
                self.machine.places.names[expr.source], at.unit).array.dtype)  # fmt: skip
            if lanes.any():
                result[lanes] = self.load(expr, inner).reshape(-1)
            return result.reshape(at.shape)
        target, index, points = self._lanes(expr.source, expr.index, at)
        self.touch(expr, target, self._element_numbers(target, points), at, "read")
        if self.machine.checks:
            self.machine.access.order(target, READ, at.unit, at.unit, points)
            self.machine.access.check_written(target, (slice(*target.copies), *index), at.unit)
        storage = target.storage
        if target.copies[1] - target.copies[0] > 1:
            block = storage.array[in_copy(slice(*target.copies), index)]
            return self.machine.access._one_copy(target, block).reshape(at.shape)
        return storage.array[in_copy(target.copies[0], index)].reshape(at.shape)

    # --- indices as boxes -------------------------------------------------------------------------

    def _slices(self, key: Any, source: str, index: tuple[Expr, ...], at: Iterations) -> Slices | None:
        if at.lanes is not None or id(key) in self.watched:
            return None
        place = (id(key), at.extents)  # extents may differ between units
        if place not in self.plans:
            self.plans[place] = self._plan_slices(source, index, at)
            self.machine.keep.append(key)
        return self.plans[place]

    def _plan_slices(self, source: str, index: tuple[Expr, ...], at: Iterations) -> Slices | None:
        dims, order = [], []
        arrays = {name for name, value in at.vars.items() if isinstance(value, np.ndarray) and value.ndim}
        for expr in index:
            used = symbols(expr) & arrays
            if has_loads(expr):
                return None
            if not used:
                dims.append(n.Dim(expr))
                continue
            parts, _ = linear(expr)
            found = [v for v in parts if isinstance(v, Symbol) and v.name in at.names]
            if (
                len(used) != 1
                or len(found) != 1
                or parts[found[0]] != 1
                or at.names.index(found[0].name) in order
            ):
                return None
            if any(symbols(v) & arrays for v in parts if v is not found[0]):
                return None
            number = at.names.index(found[0].name)
            dims.append(n.Dim(simplify(applied("-", (expr, found[0]))), Const(at.extents[number])))
            order.append(number)
        return Slices(n.Region(source, tuple(dims)), tuple(order))

    def _covers(self, slices: Slices, at: Iterations) -> bool:
        """Return whether every iteration writes an element of its own."""
        return all(extent == 1 or d in slices.order for d, extent in enumerate(at.extents)) and all(
            d.extent is None or d.extent.value == at.extents[o]  # type: ignore[attr-defined]
            for d, o in zip(
                (d for d in slices.region.dims if d.extent is not None), slices.order, strict=True
            )
        )

    def _from_region(self, data: np.ndarray, slices: Slices, at: Iterations) -> np.ndarray:
        order = slices.order
        if sorted(order) != list(order):
            data = data.transpose(np.argsort(order))
        return data.reshape([at.extents[d] if d in order else 1 for d in range(len(at.extents))])

    def _to_region(self, data: np.ndarray, slices: Slices, at: Iterations) -> np.ndarray:
        missing = tuple(d for d in range(len(at.extents)) if d not in slices.order)
        data = data.reshape([e for d, e in enumerate(at.extents) if d not in missing])
        kept = sorted(slices.order)
        return data.transpose([kept.index(o) for o in slices.order])

    # --- indices as arrays ------------------------------------------------------------------------

    def _lanes(
        self, source: str, index: tuple[Expr, ...], at: Iterations, peer: Unit | None = None
    ) -> tuple[Target, Any, np.ndarray]:
        machine, owner = self.machine, peer or at.unit
        name = machine.places.names[source]
        storage = machine.places.storage(name, owner)
        shares = machine.places.share(name, owner)
        columns = []
        for d, expr in enumerate(index):
            values = (
                np.broadcast_to(np.asarray(machine.compile(expr)(at)), at.shape).reshape(-1).astype(np.int64)
            )
            share = shares[d] if shares is not None else (0, storage.shape[d])
            length = share_length(share)
            if values.size and (np.min(values) < 0 or np.max(values) >= length):
                wrong = int(values[(values < 0) | (values >= length)][0])
                raise OutOfBoundsError(
                    f"'{source}[{wrong}]' is out of bounds: dimension {d} has {length} elements",
                    advice="guard it: if i < n, or T.if_then_else with a clamped index",
                )
            columns.append(np.asarray(compose(share, values)))
        copies = machine.places.copies(name, owner)
        items = [(int(np.min(c)), int(np.max(c)) + 1) if c.size else (0, 0) for c in columns]
        points = np.column_stack([np.full(len(columns[0]), copies[0]), *columns]) if columns else None
        target = Target(name, storage, copies, items, at.shape)
        target = target if peer else machine.access.at_home(target, at.unit)
        return target, tuple(columns), points  # type: ignore[return-value]

    def _inside(
        self, source: str, index: tuple[Expr, ...], at: Iterations, value: Any
    ) -> tuple[Iterations, Any]:
        """Return the iterations whose element of a padded tensor exists, with their values (or, for a load,
        which they are)."""
        if source not in self.machine.padded:
            return at, value
        inside = np.ones(at.shape, bool)
        for expr, extent in zip(index, self.machine.places.names[source].binding.shape, strict=True):
            number = np.asarray(self.machine.compile(expr)(at))
            inside &= (number >= 0) & (number < extent)
        if inside.all():
            return at, value
        flat = inside.reshape(-1)
        if value is None:
            return at.where(flat), flat
        return at.where(flat), np.broadcast_to(np.asarray(value), at.shape).reshape(-1)[flat]

    def _element_numbers(self, target: Target, points: np.ndarray) -> np.ndarray:
        return np.ravel_multi_index(tuple(points[:, 1:].T), target.storage.shape)

    def touch(self, key: Any, target: Target, elements: np.ndarray, at: Iterations, kind: str) -> None:
        """Note an access that is watched for dependence."""
        if id(key) in self.watched:
            at.touched.append(Touch(kind, target.name.name, id(target.storage), elements, at.numbers()))


def in_copy(copy: Any, index: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the index of elements in one copy (or a slice of copies) of a storage."""
    return (copy, *index)


def filled(text: str, values: list[str]) -> str:
    """Return each ``{}`` replaced in turn; other braces are the user's own."""
    pieces = text.split("{}")
    rest = "{}".join(pieces[len(values) + 1 :])
    return "".join(a + b for a, b in zip(pieces, [*values, ""], strict=False)) + rest


_STATEMENTS: dict[type[n.Node], Any] = {
    n.Store: Elementwise.store,
    n.Atomic: Elementwise.atomic,
    n.Let: Elementwise.let,
    n.If: Elementwise.branch,
    n.Loop: Elementwise.loop,
    n.Check: Elementwise.check_assert,
    n.Print: Elementwise.show,
}


def _extent(value: Any) -> int:
    if not np.isfinite(value):
        raise RunError(f"{value} is not an extent of T.Parallel", advice="give a whole number")
    return int(value)
