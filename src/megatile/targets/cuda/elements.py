"""Loops over elements that a team shares out, and what happens to each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from megatile.core.dtypes import itemsize
from megatile.core.expr import Const, Expr, constant, simplify
from megatile.ir import nodes as n
from megatile.targets.common.allocation import Storage
from megatile.targets.common.elements import NARROW, Value, changed, converted, held, kind, loaded, stored
from megatile.targets.common.errors import CompileError
from megatile.targets.common.expressions import whole, write
from megatile.targets.common.peers import peer
from megatile.targets.common.scalars import C_NUMBER, Scalars, Steps, lets, meets_itself
from megatile.targets.common.scope import Axis, Box, Pair, Peer, matched, offset, refuse_parts, single
from megatile.targets.cuda.layouts import SharedLayout, unflattened
from megatile.targets.cuda.scope import DeviceScope


def change(
    scope: DeviceScope,
    storage: Storage,
    pointer: str,
    op: str,
    new: Value,
    wanted: Value | None = None,
    result: str | None = None,
) -> None:
    """One element indivisibly combined with a value."""
    if storage.dtype == "bool":
        raise CompileError("an atomic on bool cannot be compiled yet", advice="use i32")
    ctype, lies = storage.c_type, held(storage.dtype, storage.wide)
    if op == "add" and lies in ("f32", "i32"):
        call = f"atomicAdd({pointer}, ({ctype})({new.text}))"
    else:
        old = loaded(lies, False, "&old", False).text
        value = {
            "exchange": new.text,
            "cas": f"({old} == {wanted.text if wanted else ''} ? {new.text} : {old})",
        }
        text = value.get(op) or changed(op, storage.dtype, old, f"({new.text})").text
        text = f"to_{lies}({text})" if lies in NARROW else text
        call = f"atomically({pointer}, [=]({ctype} old) {{ return ({ctype})({text}); }})"
    if result is None:
        scope.text.add(f"{call};")
    else:
        scope.text.add(f"const {ctype} was = {call};")
        scope.text.add(f"{result} = {loaded(lies, False, '&was', False).text};")


UNROLLED = 16
"""Steps of a loop over elements that are written out."""


# --- loops ----------------------------------------------------------------------------------------


@contextmanager
def shared_out(scope: DeviceScope, extents: list[Expr]) -> Iterator[list[str]]:
    """A loop over all elements of a box, each done by one thread of the team; gives their indices."""
    gen, team = scope.gen, scope.crew
    extents = [simplify(e) for e in extents]
    if not extents:
        with scope.text.block(f"if ({team.index} == 0)" if team.size > 1 else ""):
            yield []
        return
    names = [gen.fresh("i") for _ in extents]
    if team.size == 1:
        with ExitStack() as stack:
            for name, extent in zip(names, extents, strict=True):
                stack.enter_context(scope.loop(name, "0", whole(extent, scope)))
            yield names
        return
    sizes = [whole(e, scope) for e in extents]
    counts = [constant(e) or 0 for e in extents]
    below = math.prod(counts[1:])
    if len(names) > 1 and below and team.size % below == 0:
        # In every step a thread has the same columns.
        split(scope, f"{team.index} % {below}", names[1:], sizes[1:])
        first, by = f"{team.index} / {below}", team.size // below
        with _rows(scope, names[0], first, sizes[0], counts[0], by):
            yield names
        return
    number = names[0] if len(names) == 1 else gen.fresh("e")
    with _rows(scope, number, team.index, " * ".join(sizes), math.prod(counts), team.size):
        if len(names) > 1:
            split(scope, number, names, sizes)
        yield names


@contextmanager
def _rows(scope: DeviceScope, name: str, first: str, stop: str, count: int, by: int) -> Iterator[None]:
    """A loop from ``first``, which is less than ``by``, in steps of that to ``stop``; if that is a number
    (``count``, else 0), without a condition where all threads do as many steps."""
    if 0 < count <= by:
        with scope.text.block(f"if ({first} < {stop})" if count < by else ""):
            scope.text.add(f"const long {name} = {first};")
            yield
        return
    if not count or count % by:
        with scope.text.block(f"for (long {name} = {first}; {name} < {stop}; {name} += {by})"):
            yield
        return
    step = scope.gen.fresh("step")
    scope.text.add(f"#pragma unroll {min(count // by, UNROLLED)}")
    with scope.text.block(f"for (int {step} = 0; {step} < {count // by}; {step}++)"):
        scope.text.add(f"const long {name} = {first} + {step} * {by};")
        yield


def split(scope: DeviceScope, number: str, names: list[str], sizes: list[str]) -> None:
    """The indices of an element of a box, from its number there."""
    for at, name in enumerate(names):
        below = " * ".join(sizes[at + 1 :])
        part = f"{number} / {f'({below})' if at + 2 < len(sizes) else below}" if below else number
        scope.text.add(f"const long {name} = {part}{f' % {sizes[at]}' if at else ''};")


@contextmanager
def registers(
    scope: DeviceScope, layout: SharedLayout, shape: tuple[int, ...]
) -> Iterator[tuple[list[str], str]]:
    """A loop over the elements of tiles in registers, each by the thread that has it."""
    with layout.each(scope.text, scope.crew, shape) as (indices, register):
        before = scope.owned
        held_so = scope.gen.storages.fragments.layouts
        scope.owned = {name: register for name, one in held_so.items() if one == layout}
        yield indices, register
        scope.owned = before


def parallel(scope: DeviceScope, node: n.Parallel) -> None:
    if node.in_step and meets_itself(node):
        in_step(scope, node)
        return
    gen = scope.gen
    extents = [simplify(scope.own(e)) for e in node.extents]
    touched = {r.source for one in n.walk(node.body) for _, r in n.regions(one)}
    layout = next((found for name in sorted(touched) if (found := scope.layout(name)) is not None), None)
    with ExitStack() as stack:
        if layout is None:
            indices = stack.enter_context(shared_out(scope, extents))
        else:
            shape = tuple(constant(e) or 1 for e in extents)
            indices, _ = stack.enter_context(registers(scope, layout, shape))
        for name, index, extent in zip(node.vars, indices, extents, strict=True):
            c_name = gen.name(name)
            scope.text.add(f"const long {c_name} = {index};")
            stack.enter_context(scope.known(name, Value(c_name, "int"), scope.limits(extent)))
        Scalars(scope).body(node.body)


def in_step(scope: DeviceScope, node: n.Parallel) -> None:
    """Every statement is done by all iterations before the next begins: one iteration per thread."""
    steps = _Threads(scope, node)
    shape = tuple(constant(e) or 0 for e in steps.extents)
    count, index = math.prod(shape), scope.gen.fresh("step")
    if not 0 < count <= scope.crew.size:
        raise CompileError(
            "more T.Parallel iterations in lockstep than threads of the block cannot be written as CUDA yet",
            advice="use one thread per iteration",
        )
    with scope.text.block(), ExitStack() as stack:
        scope.text.add(f"const long {index} = {scope.crew.index};")
        for name, extent, part in zip(node.vars, shape, unflattened(index, shape), strict=True):
            c_name = scope.gen.name(name)
            scope.text.add(f"const long {c_name} = {part};")
            stack.enter_context(scope.known(name, Value(c_name, "int"), (0, extent - 1)))
        for name, dtype in lets(node.body).items():
            made = scope.gen.name(name)
            scope.text.add(f"{C_NUMBER[kind(dtype)]} {made} = 0;")
            stack.enter_context(scope.known(name, Value(made, dtype), None))
        steps.body(node.body, () if count == scope.crew.size else (f"{index} < {count}",))


class _Threads(Steps):
    """One iteration per thread: all meet after each statement."""

    scope: DeviceScope

    @contextmanager
    def every(self, guards: tuple[str, ...]) -> Iterator[Scalars]:
        with self.scope.text.block(f"if ({' && '.join(guards)})" if guards else ""):
            yield Scalars(self.scope)
        self.scope.sync()

    def precomputed(self, dtype: str, guards: tuple[str, ...], value: Callable[[Scalars], Value]) -> Value:
        name = self.scope.gen.fresh("kept")
        self.scope.text.add(f"{C_NUMBER[kind(dtype)]} {name} = 0;")
        with self.every(guards) as one:
            self.scope.text.add(f"{name} = {converted(value(one), dtype).text};")
        return Value(name, dtype)


# --- regions --------------------------------------------------------------------------------------


class Side:
    """One side of a statement on regions: a box in memory, or a tile in registers."""

    def __init__(self, scope: DeviceScope, region: n.Region, peer: Peer | None = None):
        self.scope, self.layout = scope, scope.layout(region.source)
        if self.layout is None:
            self.box = scope.box(region, peer)
        else:
            storage = scope.gen.storages.table[region.source]
            self.box = Box(storage, region.source, [Axis(Const(extent), 1) for extent in storage.shape])
        self.storage, self.name = self.box.storage, region.source

    def places(self, indices: list[str], along: list[Axis]) -> tuple[str, list[str]]:
        """The pointer to an element (its dimensions of more than one element given), and its conditions."""
        if self.layout is not None:
            return f"&{self.scope.gen.name(self.name)}[{self.scope.owned[self.name]}]", []
        pointer, conditions = single(self.box)
        for axis, index in zip(along, indices, strict=True):
            pointer += offset(axis, index)
            if axis.low is not None:
                conditions.append(f"{index} >= {axis.low} && {index} < {axis.high}")
        return pointer, conditions

    def load(self, indices: list[str], along: list[Axis]) -> Value:
        """An element; zero where it does not exist."""
        pointer, conditions = self.places(indices, along)
        value = loaded(self.storage.dtype, self.storage.wide, pointer, False)
        return Value(f"({' && '.join(conditions)} ? {value.text} : 0)", value.dtype) if conditions else value

    def store(self, indices: list[str], along: list[Axis], value: Value) -> None:
        pointer, conditions = self.places(indices, along)
        with ExitStack() as stack:
            if self.box.copies > 1:
                stack.enter_context(self.scope.loop("copy", "0", str(self.box.copies)))
                pointer += f" + copy * {self.box.copy_stride}"
            guard = f"if ({' && '.join(conditions)}) " if conditions else ""
            self.scope.text.add(guard + stored(self.storage.dtype, self.storage.wide, pointer, value))

    def as_bits(self) -> None:
        """Elements are only moved: narrow floats are not looked into."""
        bits = {2: "u16", 1: "u8"}.get(itemsize(self.storage.dtype), self.storage.dtype)
        if self.storage.dtype in NARROW:
            self.storage = replace(self.storage, dtype=bits)

    @property
    def axes(self) -> list[Axis]:
        return [a for a in self.box.axes if constant(a.extent) != 1]


@contextmanager
def over(scope: DeviceScope, sides: list[Side]) -> Iterator[list[str]]:
    """A loop over the elements of regions of equal extents: the index in each dimension of more than one."""
    held_side = next((s for s in sides if s.layout is not None), None)
    if held_side is None:
        with shared_out(scope, [a.extent for a in sides[0].axes]) as indices:
            yield indices
        return
    assert held_side.layout is not None
    with registers(scope, held_side.layout, held_side.storage.shape) as (every, _):
        yield [i for i, size in zip(every, held_side.storage.shape, strict=True) if size != 1]


def pairs_of(scope: DeviceScope, to: Side, source: Side) -> list[Pair]:
    """The dimensions of two sides that belong together."""
    refuse_parts(source.box)
    return matched(scope, to.box, source.box)


def copy(scope: DeviceScope, node: n.Copy) -> None:
    with scope.text.block():
        there, here = peer(scope, node.src, node), peer(scope, node.dst, node)
        source, to = Side(scope, node.source, there), Side(scope, node.to, here)
        pairs = pairs_of(scope, to, source)
        if to.storage.dtype == source.storage.dtype and not (to.storage.wide or source.storage.wide):
            to.as_bits()
            source.as_bits()
        names = scope.gen.storages.names
        if names[node.source.source].base == names[node.to.source].base:
            _copy_inside(scope, to, source)
            return
        with over(scope, [to, source]) as indices:
            value = converted(source.load(indices, [b for _, b in pairs]), to.storage.dtype)
            to.store(indices, [a for a, _ in pairs], value)


def _copy_inside(scope: DeviceScope, to: Side, source: Side) -> None:
    """Within one tile: everything is read before anything is written."""
    each = -(-math.prod(scope.most(axis.extent) for axis in to.axes) // scope.crew.size)
    scope.text.add(f"{C_NUMBER[kind(to.storage.dtype)]} kept[{each}];", "int at = 0;")
    with over(scope, [to, source]) as indices:
        value = converted(source.load(indices, source.axes), to.storage.dtype)
        scope.text.add(f"kept[at++] = {value.text};")
    scope.sync()
    scope.text.add("at = 0;")
    with over(scope, [to, source]) as indices:
        to.store(indices, to.axes, Value("kept[at++]", to.storage.dtype))
    scope.hazards.add([(to.storage.name, True)])


def fill(scope: DeviceScope, node: n.Fill) -> None:
    with scope.text.block():
        to = Side(scope, node.to)
        value = converted(write(scope.own(node.value), scope), to.storage.dtype)
        with over(scope, [to]) as indices:
            to.store(indices, to.axes, value)


def atomic_region(scope: DeviceScope, node: n.AtomicRegion) -> None:
    with scope.text.block():
        source, to = Side(scope, node.source), Side(scope, node.to)
        pairs = matched(scope, to.box, source.box)
        with over(scope, [source, to]) as indices:
            pointer, conditions = to.places(indices, [a for a, _ in pairs])
            value = converted(source.load(indices, [b for _, b in pairs]), to.storage.dtype)
            with scope.text.block(f"if ({' && '.join(conditions)})" if conditions else ""):
                change(scope, to.storage, pointer, node.op, value)
