"""Copies and fills of boxes, row by row; and atomics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from megatile.core.dtypes import itemsize
from megatile.core.expr import Const, Expr, constant
from megatile.ir import nodes as n
from megatile.targets.common.allocation import Storage, row_major
from megatile.targets.common.elements import (
    LANES,
    Value,
    c_type,
    changed,
    converted,
    held,
    kind,
    loaded,
    stored,
)
from megatile.targets.common.errors import CompileError
from megatile.targets.common.expressions import whole, write
from megatile.targets.common.peers import peer
from megatile.targets.common.scope import Axis, Box, Pair, Scope, matched, offset, refuse_parts, single


def in_lanes(source: str, target: str) -> bool:
    """Return whether vectors of one dtype become vectors of another."""
    if target == "i16":
        return source in ("i8", "u8", "i16")
    if source not in LANES or target not in LANES:
        return False
    return target not in ("i8", "u8") or source == target


def rows(
    scope: Scope, start: str, stop: str, length: int | None, body: Callable[[str, str | None], None]
) -> None:
    """A loop over ``start`` to ``stop`` by vectors; the body gets the index and, for the rest, how many."""
    width, index = scope.gen.width, scope.gen.fresh("j")
    if length is not None and start == "0":
        full = length // width * width
        if full == width:
            body("0", None)
        elif full:
            with scope.text.block(f"for (long {index} = 0; {index} < {full}; {index} += W)"):
                body(index, None)
        if length > full:
            body(str(full), str(length - full))
        return
    scope.text.add(f"long {index} = {start};")
    with scope.text.block(f"for (; {index} + W <= {stop}; {index} += W)"):
        body(index, None)
    with scope.text.block(f"if ({index} < {stop})"):
        body(index, f"({stop} - {index})")


def along(scope: Scope, axis: Axis, body: Callable[[str, str | None], None]) -> None:
    """``rows`` of the elements of a dimension that exist."""
    length = constant(axis.extent) if axis.low is None else None
    rows(scope, axis.low or "0", axis.high or whole(axis.extent, scope), length, body)


@contextmanager
def over(scope: Scope, to: Box, pairs: list[Pair], origin: str = "") -> Iterator[tuple[str, str, list[str]]]:
    """Writing to a box: only if it exists, to all copies, in loops over some of its dimensions and those of a
    source that belong to them. Gives the pointers to both, and the indices."""
    pointer, conditions = single(to)
    indices = []
    with ExitStack() as stack:
        if conditions:
            stack.enter_context(scope.text.block(f"if ({' && '.join(conditions)})"))
        if to.copies > 1:
            copy = scope.gen.fresh("copy")
            stack.enter_context(scope.loop(copy, "0", str(to.copies)))
            pointer += f" + {copy} * {to.copy_stride}"
        for a, b in pairs:
            i = scope.gen.fresh("i")
            stack.enter_context(scope.loop(i, a.low or "0", a.high or whole(a.extent, scope)))
            pointer, origin = pointer + offset(a, i), origin + offset(b, i)
            indices.append(i)
        yield pointer, origin, indices


def copy(scope: Scope, to: Box, source: Box) -> None:
    """Elements to elements, converted; what the source has over its edge is zero."""
    refuse_parts(source)
    pairs = matched(scope, to, source)
    pointer, conditions = single(to)
    origin, present = single(source)
    turned = _turned(scope, to, source, pairs)
    if turned is not None and not conditions and not present and to.copies == 1:
        _turn(scope, pairs, turned, pointer, origin)
        return
    inner = _innermost(pairs)
    outer = [pair for pair in pairs if pair is not inner]
    with over(scope, to, outer, origin) as (target, origin, indices):
        for i, (_, b) in zip(indices, outer, strict=True):
            if b.low is not None:
                present.append(f"{i} >= {b.low} && {i} < {b.high}")
        _row(scope, to, source, inner or (Axis(Const(1), 1), Axis(Const(1), 1)), target, origin, present)


def _turned(scope: Scope, to: Box, source: Box, pairs: list[Pair]) -> tuple[Pair, Pair] | None:
    """Return the two dimensions of a copy that lie one way in the source and the other way in the result."""
    same = held(to.storage.dtype, to.storage.wide) == held(source.storage.dtype, source.storage.wide) == "f32"
    first = next((p for p in pairs if p[0].stride == 1), None)
    second = next((p for p in pairs if p[1].stride == 1), None)
    exact = to.storage.dtype == source.storage.dtype or source.storage.dtype != "f32"
    if not same or not exact or first is None or second is None or first is second:
        return None
    for pair in pairs:
        if any(a.table or a.clipped for a in pair) or constant(pair[0].extent) is None:
            return None
    if any((constant(p[0].extent) or 1) % scope.gen.width for p in (first, second)):
        return None
    return first, second


def _turn(scope: Scope, pairs: list[Pair], turned: tuple[Pair, Pair], target: str, origin: str) -> None:
    with ExitStack() as stack:
        for pair in pairs:
            i = scope.gen.fresh("i")
            step = "W" if pair in turned else "1"
            head = f"for (long {i} = 0; {i} < {constant(pair[0].extent)}; {i} += {step})"
            stack.enter_context(scope.text.block(head))
            target += offset(pair[0], i)
            origin += offset(pair[1], i)
        first, second = turned
        scope.text.add(f"turn({target}, {second[0].stride}, {origin}, {first[1].stride});")


def _innermost(pairs: list[Pair]) -> Pair | None:
    for good in (lambda p: p[0].stride == 1 and p[1].stride == 1, lambda p: p[0].stride == 1, lambda p: True):
        for pair in reversed(pairs):
            if good(pair):
                return pair
    return None


def _row(
    scope: Scope, to: Box, source: Box, inner: Pair, target: str, origin: str, present: list[str]
) -> None:
    (a, b), lanes = inner, in_lanes(source.storage.dtype, to.storage.dtype)
    start, stop = a.low or "0", a.high or whole(a.extent, scope)
    length = constant(a.extent) if a.low is None else None
    if present or b.low is not None:
        first, last = scope.gen.fresh("from"), scope.gen.fresh("to")
        exists = " && ".join(present) or "1"
        low, high = (f"lmax({b.low}, {start})", f"lmin({b.high}, {stop})") if b.low else (start, stop)
        scope.text.add(
            f"const long {last} = {exists} ? lmax({high}, {start}) : {stop}, "
            f"{first} = {exists} ? lmin({low}, {last}) : {stop};"
        )
        if a.stride == 1 and a.table is None:
            size = f"sizeof({to.storage.c_type})"
            scope.text.add(
                f"memset({target} + {start}, 0, ({first} - {start}) * {size});",
                f"memset({target} + {last}, 0, ({stop} - {last}) * {size});",
            )
        else:
            for low, high in ((start, first), (last, stop)):
                i = scope.gen.fresh("i")
                with scope.loop(i, low, high):
                    scope.text.add(f"*({target}{offset(a, i)}) = 0;")
        start, stop, length = first, last, None
    if lanes and a.stride == 1 and b.stride == 1 and a.table is None and b.table is None:

        def body(j: str, count: str | None) -> None:
            value = load_element(source.storage, f"{origin}{offset(b, j)}", True, count)
            value = converted(value, to.storage.dtype)
            scope.text.add(store_element(to.storage, f"{target}{offset(a, j)}", value, count))

        with scope.text.block():
            rows(scope, start, stop, length, body)
        return
    same = held(source.storage.dtype, source.storage.wide) == held(to.storage.dtype, to.storage.wide)
    if (
        same
        and source.storage.dtype == to.storage.dtype
        and all(x.stride == 1 and not x.table for x in inner)
    ):
        size = f"sizeof({to.storage.c_type})"
        scope.text.add(f"memcpy({target} + {start}, {origin} + {start}, ({stop} - {start}) * {size});")
        return
    i = scope.gen.fresh("i")
    with scope.loop(i, start, stop):
        value = converted(load_element(source.storage, f"{origin}{offset(b, i)}", False), to.storage.dtype)
        scope.text.add(store_element(to.storage, f"{target}{offset(a, i)}", value))


def load_element(storage: Storage, pointer: str, vector: bool, count: str | None = None) -> Value:
    return loaded(storage.dtype, storage.wide, pointer, vector, count)


def store_element(storage: Storage, pointer: str, value: Value, count: str | None = None) -> str:
    return stored(storage.dtype, storage.wide, pointer, value, count)


def scratch(scope: Scope, extents: list[Expr], dtype: str, wide: bool = False) -> Box:
    """Return a dense box in the memory of the worker, large enough for the largest extents."""
    storage = Storage("scratch", dtype, tuple(map(scope.most, extents)), 1, "scratch", wide=wide)
    lies = held(dtype, wide)
    pointer = scope.gen.scratch(storage.size * itemsize(lies), c_type(lies))
    return Box(storage, pointer, [Axis(e, s) for e, s in zip(extents, row_major(storage.shape), strict=True)])


def dense(scope: Scope, box: Box, dtype: str | None = None) -> Box:
    """Return the box itself if all its elements exist and lie plainly, else a copy of it (as ``dtype``)."""
    refuse_parts(box)
    lies = held(box.storage.dtype, box.storage.wide)
    if not box.clipped and (dtype is None or lies == dtype):
        return box
    made = scratch(scope, [a.extent for a in box.axes], dtype or box.storage.dtype, wide=dtype is None)
    copy(scope, made, box)
    return made


def fill(scope: Scope, to: Box, value: Value) -> None:
    axes = [a for a in to.axes if constant(a.extent) != 1]
    inner = next((a for a in reversed(axes) if a.stride == 1 and a.table is None), None)
    value = converted(value, to.storage.dtype)
    lanes = to.storage.dtype in LANES and inner is not None
    with scope.text.block():
        name = scope.gen.fresh("v")
        if lanes:
            shape, start = ("vf", "vset") if value.kind == "f" else ("vi", "viset")
            scope.text.add(f"const {shape} {name} = {start}({value.text});")
        else:
            ctype = {"f": "float", "d": "double"}.get(value.kind, "long")
            scope.text.add(f"const {ctype} {name} = {value.text};")
        outer = [(a, a) for a in axes if not lanes or a is not inner]
        with over(scope, to, outer) as (target, _, _):
            if not lanes:
                scope.text.add(store_element(to.storage, target, Value(name, to.storage.dtype)))
                return
            assert inner is not None
            each = Value(f"-{name}" if value.kind == "b" else name, to.storage.dtype, True)

            def body(j: str, count: str | None) -> None:
                scope.text.add(store_element(to.storage, f"{target}{offset(inner, j)}", each, count))

            along(scope, inner, body)


def fill_statement(scope: Scope, node: n.Fill) -> None:
    with scope.text.block():
        fill(scope, scope.box(node.to), write(scope.own(node.value), scope))


def copy_statement(scope: Scope, node: n.Copy) -> None:
    names = scope.gen.storages.names
    with scope.text.block():
        there, here = peer(scope, node.src, node), peer(scope, node.dst, node)
        source, to = scope.box(node.source, there), scope.box(node.to, here)
        if names[node.source.source].base == names[node.to.source].base:
            made = scratch(scope, [a.extent for a in source.axes], source.storage.dtype, wide=True)
            copy(scope, made, source)
            source = made
        copy(scope, to, source)


# --- elements that several units change: one after the other, whole -------------------------------

_BITS = {"float": "u32", "int": "u32", "long": "u64", "double": "u64", "short": "u16", "signed char": "u8"}
_NUMBER = {"f": "float", "d": "double", "l": "long", "b": "long"}


def change(
    scope: Scope,
    storage: Storage,
    pointer: str,
    op: str,
    new: Value,
    wanted: Value | None = None,
    result: str | None = None,
) -> None:
    """The new element from the old one; another unit's change in between makes it begin again."""
    if storage.dtype == "bool":
        raise CompileError("an atomic on bool cannot be compiled yet", advice="use i32")
    ctype, lies = storage.c_type, held(storage.dtype, storage.wide)
    bits, number = _BITS.get(ctype, ctype), _NUMBER[kind(storage.dtype)]
    add = scope.text.add
    add(f"{ctype} *at_ = {pointer}, old_, next_;", f"const {number} new_ = {new.text};")
    if wanted is not None:
        add(f"const {number} wanted_ = {wanted.text};")
    add(f"{bits} seen_ = __atomic_load_n(({bits} *)at_, __ATOMIC_RELAXED), then_;")
    old = loaded(lies, False, "&old_", False).text
    with scope.text.block("for (;;)"):
        add("memcpy(&old_, &seen_, sizeof old_);")
        text = {"exchange": "new_", "cas": f"({old} == wanted_ ? new_ : {old})"}.get(op)
        text = text or changed(op, storage.dtype, old, "new_").text
        add(stored(lies, False, "&next_", Value(text, lies)), "memcpy(&then_, &next_, sizeof then_);")
        add(
            f"if (__atomic_compare_exchange_n(({bits} *)at_, &seen_, then_, 1, __ATOMIC_SEQ_CST, "
            "__ATOMIC_SEQ_CST)) break;"
        )
    if result is not None:
        add(f"{result} = {old};")


def atomic_region(scope: Scope, node: n.AtomicRegion) -> None:
    """Every element of a region with its element of another."""
    with scope.text.block():
        at = peer(scope, node.dst, node)
        source, to = dense(scope, scope.box(node.source)), scope.box(node.to, at)
        with over(scope, to, matched(scope, to, source), source.pointer) as (target, origin, _):
            value = loaded(source.storage.dtype, source.storage.wide, origin, False)
            change(scope, to.storage, target, node.op, converted(value, to.storage.dtype))
