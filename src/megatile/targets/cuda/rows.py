"""Copies of several elements at once: 16, 8 or 4 bytes of a row, where addresses allow it."""

from __future__ import annotations

from contextlib import ExitStack

from megatile.core.dtypes import itemsize
from megatile.core.expr import Const, Expr, Symbol, constant, linear, simplify, symbols
from megatile.ir import nodes as n
from megatile.ir.expr import Load, Pick
from megatile.targets.common.allocation import Storage
from megatile.targets.common.elements import Value, converted, kind
from megatile.targets.common.scope import Axis
from megatile.targets.cuda.alignment import WIDEST, common_alignment, row_alignment
from megatile.targets.cuda.elements import Side, pairs_of, shared_out
from megatile.targets.cuda.layouts import Grid, Mma, unflattened
from megatile.targets.cuda.scope import DeviceScope

WIDTHS = (16, 8, 4)
"""Bytes that a thread moves at once."""
_GLOBAL = ("argument", "launch")
_WORDS = {"f32": "bits_of({}), bits_of({})", "i32": "(u32){}, (u32){}", "f16": "both_f16({}, {})",
          "bf16": "both_bf16({}, {})"}  # fmt: skip
"""Two neighbours of a row as words, by the dtype that they are stored in."""


def copy_rows(scope: DeviceScope, node: n.Copy, background: bool) -> bool:
    """The copy in parts of rows (``background``: with cp.async, where it can), unless that is impossible."""
    if node.src is not None or node.dst is not None:
        return False
    layout, to_layout = scope.layout(node.source.source), scope.layout(node.to.source)
    if to_layout is not None or isinstance(layout, Grid):
        grid = to_layout or layout
        both = layout is not None and to_layout is not None
        return isinstance(grid, Grid) and not both and _by_grid(scope, node, grid, to_layout is not None)
    if isinstance(layout, Mma):
        return _from_fragments(scope, node, layout)
    width, (_, to) = _width(scope, node), _storages(scope, node)
    behind = background and _is_load(scope, node)
    if not width or (width == itemsize(to.dtype) and not behind):
        return False
    _memory(scope, node, width, f"cp_async{width}" if behind else f"copy_row<{width}>")
    scope.hazards.copying |= behind
    return True


def copies_behind(scope: DeviceScope, node: n.Copy) -> bool:
    """Return whether all of a copy can be done by ``cp.async``."""
    if node.src is not None or node.dst is not None:
        return False
    held = scope.layout(node.source.source) or scope.layout(node.to.source)
    return held is None and _is_load(scope, node) and _width(scope, node) > 0


def _is_load(scope: DeviceScope, node: n.Copy) -> bool:
    source, to = _storages(scope, node)
    return to.home == "instance" and source.home in _GLOBAL


def _storages(scope: DeviceScope, node: n.Copy) -> tuple[Storage, Storage]:
    found = scope.gen.storages
    return found.storage(node.source.source), found.storage(node.to.source)


def _row(region: n.Region, storage: Storage) -> tuple[Expr, Expr, int] | None:
    """Start, extent and number of the last dimension of more than one element, if it is contiguous."""
    moved = [
        (dim.start, dim.extent, d)
        for d, dim in enumerate(region.dims)
        if dim.extent is not None and constant(dim.extent) != 1
    ]
    return moved[-1] if moved and storage.strides[moved[-1][2]] == 1 else None


def _begins_inside(scope: DeviceScope, start: Expr) -> bool:
    low = scope.bound(simplify(scope.own(start)))
    return low is not None and low[0] >= 0


def _width(scope: DeviceScope, node: n.Copy) -> int:
    """Bytes that can be moved at once from memory to memory, as they are; 0: none."""
    source, to = _storages(scope, node)
    rows = _row(node.source, source), _row(node.to, to)
    if not _alike(source, to) or rows[0] is None or rows[1] is None:
        return 0
    columns = constant(scope.own(rows[1][1]))
    if columns is None or not all(_begins_inside(scope, row[0]) for row in rows if row is not None):
        return 0
    width = min(row_alignment(scope, node.source), row_alignment(scope, node.to))
    while columns * itemsize(to.dtype) % width:
        width //= 2
    ends = [
        scope.is_inside(simplify(scope.own(row[0])), Const(columns), Const(storage.shape[row[2]]))
        for row, storage in zip(rows, (source, to), strict=True)
        if row is not None
    ]
    return width if width in WIDTHS and any(ends) else 0


def _memory(scope: DeviceScope, node: n.Copy, width: int, word: str) -> None:
    """A loop over parts of ``width`` bytes of all rows, each by one thread."""
    with scope.text.block():
        here, there = Side(scope, node.to), Side(scope, node.source)
        pairs = pairs_of(scope, here, there)
        size = itemsize(here.storage.dtype)
        count = width // size
        extents = [a.extent for a, _ in pairs]
        extents[-1] = Const((constant(extents[-1]) or 0) // count)
        with shared_out(scope, extents) as indices:
            indices[-1] = f"{indices[-1]} * {count}"
            to, source = pairs[-1]
            bytes_ = _bytes(there, source, node.source, indices[-1], width)
            if to.clipped and not _exact(here, node.to, width):
                word, bytes_ = f"store_row<{width}>", _bytes(here, to, node.to, indices[-1], width)
            pointer, exists = _places(here, [a for a, _ in pairs], node.to, indices, width)
            origin, conditions = _places(there, [b for _, b in pairs], node.source, indices, width)
            if conditions:
                bytes_ = f"{' && '.join(conditions)} ? {bytes_} : 0"
            guard = f"if ({' && '.join(exists)}) " if exists else ""
            scope.text.add(f"{guard}{word}({pointer}, {origin}, {bytes_});")


# --- loops over elements that only move them ------------------------------------------------------


def move_rows(scope: DeviceScope, node: n.Parallel, background: bool) -> bool:
    """Write a loop ``a[i, j] = X[f(i), j]`` as copies of parts of rows, unless that is impossible."""
    store = node.body[0] if len(node.body) == 1 else None
    if not isinstance(store, n.Store) or not isinstance(store.value, Load):
        return False
    value, extents = store.value, [simplify(scope.own(e)) for e in node.extents]
    to, source = (scope.gen.storages.storage(name) for name in (store.target, value.source))
    held = scope.layout(store.target) or scope.layout(value.source)
    if held is not None or not _alike(source, to) or scope.crew.size == 1:
        return False
    names = [scope.gen.name(name) for name in node.vars]
    with ExitStack() as stack:
        for name, c_name, extent in zip(node.vars, names, extents, strict=True):
            stack.enter_context(scope.known(name, Value(c_name, "int"), scope.limits(extent)))
        sides = (store.target, store.index), (value.source, value.index)
        width = min(_row_width(scope, name, index, node.vars[-1]) for name, index in sides)
        count = width // itemsize(to.dtype)
        if width not in WIDTHS or count < 2 or (constant(extents[-1]) or 1) % count:
            return False
        extents[-1] = Const((constant(extents[-1]) or 0) // count)
        behind = background and to.home == "instance" and source.home in _GLOBAL
        with scope.text.block(), shared_out(scope, extents) as indices:
            indices[-1] = f"{indices[-1]} * {count}"
            for c_name, index in zip(names, indices, strict=True):
                scope.text.add(f"const long {c_name} = {index};")
            (_, target, _), (_, origin, _) = (scope.element(name, index) for name, index in sides)
            word = f"cp_async{width}" if behind else f"copy_row<{width}>"
            scope.text.add(f"{word}({target}, {origin}, {width});")
    scope.hazards.copying |= behind
    return True


def _alike(source: Storage, to: Storage) -> bool:
    """Whether elements of two memories of a team lie in the same way."""
    plain = all(s.home in (*_GLOBAL, "instance") and s.copies == 1 and not s.wide for s in (source, to))
    return plain and source.dtype == to.dtype and source.name != to.name


def _row_width(scope: DeviceScope, name: str, index: tuple[Expr, ...], var: str) -> int:
    """Bytes at which elements begin whose last index counts up with a variable; 0 where it does not, or where
    an element may not exist."""
    storage = scope.gen.storages.storage(name)
    at = [simplify(scope.own(i)) for i in index]
    if any(isinstance(i, Pick) for i in at) or storage.strides[-1] != 1:
        return 0
    terms, rest = linear(at[-1])
    if terms.pop(Symbol(var), 0) != 1 or any(var in symbols(other) for other in (*at[:-1], *terms)):
        return 0
    if not all(scope.is_inside(i, Const(1), Const(e)) for i, e in zip(at, storage.shape, strict=True)):
        return 0
    first, _, _ = scope.gen.storages.place(name, scope.path, scope.depth)
    places = [first, *(i * stride for i, stride in zip(at[:-1], storage.strides, strict=False))]
    return common_alignment(scope, places, [*terms.values(), rest], itemsize(storage.dtype))


def _exact(side: Side, region: n.Region, width: int) -> bool:
    """Whether rows that begin at multiples of ``width`` bytes end at such, too."""
    row = _row(region, side.storage)
    if row is None:
        return False
    limits = region.dims[row[2]].limits
    terms, rest = linear(simplify(limits[1] if limits is not None else Const(side.storage.shape[row[2]])))
    return not any(end * itemsize(side.storage.dtype) % width for end in (*terms.values(), rest))


def _bytes(side: Side, axis: Axis, region: n.Region, index: str, width: int) -> str:
    """How many bytes from an index on exist, at most ``width``."""
    if axis.high is None or _exact(side, region, width):
        return str(width)
    return f"lmin(lmax(({axis.high} - {index}) * {itemsize(side.storage.dtype)}, 0), {width})"


def _places(
    side: Side, axes: list[Axis], region: n.Region, indices: list[str], width: int
) -> tuple[str, list[str]]:
    """The pointer to a part of a row, and the conditions under which (some of) it exists."""
    last = axes[-1]
    low, last.low = last.low, None
    pointer, conditions = side.places(indices, axes)
    last.low = low
    if last.high is not None and _exact(side, region, width):
        conditions.append(f"{indices[-1]} < {last.high}")
    return pointer, conditions


# --- fragments ------------------------------------------------------------------------------------


def _from_fragments(scope: DeviceScope, node: n.Copy, layout: Mma) -> bool:
    """Accumulators to memory: lanes have two neighbours each, and exchange words to have 16 bytes."""
    source, to = _storages(scope, node)
    row = _row(node.to, to)
    suits = to.dtype in _WORDS and kind(to.dtype) == kind(source.dtype) and to.copies == 1 and not to.wide
    if not suits or to.home == "local" or row is None or not _begins_inside(scope, row[0]):
        return False
    size, width = itemsize(to.dtype), row_alignment(scope, node.to)
    if width == WIDEST and to.home in _GLOBAL and (size == 4 or layout.across % 2 == 0):
        _stored(scope, node, layout, size, WIDEST)
    elif width >= 2 * size:
        _stored(scope, node, layout, size, 2 * size)
    else:
        return False
    return True


def _stored(scope: DeviceScope, node: n.Copy, layout: Mma, size: int, width: int) -> None:
    text, exchanged = scope.text, width == WIDEST
    with text.block():
        side = Side(scope, node.to)
        name = scope.gen.name(node.source.source)
        with layout.tiles(text, scope.crew, 2 if exchanged and size == 2 else 1):
            first = f"{name} + (mi * {layout.across} + ni) * 4"
            text.add(f"const auto *const sums = {first};")
            words = _WORDS[side.storage.dtype]
            pairs = (0, 4, 2, 6) if exchanged and size == 2 else (0, 2)
            listed = ", ".join(words.format(f"sums[{q}]", f"sums[{q + 1}]") for q in pairs)
            text.add(f"u32 words[] = {{{listed}}};")
            if not exchanged:
                text.add("#pragma unroll")
                with text.block("for (int hi = 0; hi < 2; hi++)"):
                    place = "top + mi * 16 + hi * 8", "left + ni * 8 + lane % 4 * 2"
                    _store(scope, side, node.to, place, f"words + hi * {width // 4}", width)
            elif size == 2:
                text.add("exchange_quads(words);")
                place = "top + mi * 16 + lane % 4 / 2 * 8", "left + ni * 8 + lane % 2 * 8"
                _store(scope, side, node.to, place, "words", width)
            else:
                text.add("exchange_pairs(words);")
                place = "top + mi * 16 + lane % 2 * 8", "left + ni * 8 + lane % 4 / 2 * 4"
                _store(scope, side, node.to, place, "words", width)


def _store(
    scope: DeviceScope, side: Side, region: n.Region, place: tuple[str, str], words: str, width: int
) -> None:
    """``width`` bytes at an element (row, column) of a tile."""
    axes = side.axes
    scope.text.add(f"const long row = {place[0]}, column = {place[1]};")
    indices = ["row", "column"][2 - len(axes) :]
    bytes_ = _bytes(side, axes[-1], region, indices[-1], width)
    pointer, conditions = _places(side, axes, region, indices, width)
    guard = f"if ({' && '.join(conditions)}) " if conditions else ""
    scope.text.add(f"{guard}store_words<{width}>({pointer}, {words}, {bytes_});")


_ELEMENTS = {
    "f32": "float_of(words[{}])",
    "i32": "(int)words[{}]",
    "f16": "from_f16(words[{}] >> {} & 0xffff)",
    "bf16": "from_bf16(words[{}] >> {} & 0xffff)",
}
"""An element of words, by the dtype that it was stored in: its word, and for halves its first bit."""


def _by_grid(scope: DeviceScope, node: n.Copy, layout: Grid, load: bool) -> bool:
    """Registers to or from memory: each thread moves the neighbours of a row that it has."""
    region = node.source if load else node.to
    held = scope.gen.storages.table[(node.to if load else node.source).source]
    memory = scope.gen.storages.storage(region.source)
    row, size = _row(region, memory), itemsize(memory.dtype)
    width = min(layout.vector * size, row_alignment(scope, region))
    suits = memory.dtype in _WORDS and kind(memory.dtype) == kind(held.dtype) and memory.copies == 1
    if not suits or memory.home == "local" or memory.wide or row is None or width <= max(size, 2):
        return False
    if not _begins_inside(scope, row[0]):
        return False
    count, text, name = width // size, scope.text, scope.gen.name(held.name)
    with text.block():
        to, source = Side(scope, node.to), Side(scope, node.source)
        pairs_of(scope, to, source)
        side = source if load else to
        with layout.parts(text, scope.crew, count):
            every = [*unflattened("row", held.shape[:-1]), "column"]
            indices = [i for i, extent in zip(every, held.shape, strict=True) if extent != 1]
            bytes_ = _bytes(side, side.axes[-1], region, "column", width)
            pointer, conditions = _places(side, side.axes, region, indices, width)
            exists = " && ".join(conditions)
            text.add(f"{held.c_type} *const mine = {name} + ri * {layout.across} + ci;")
            if load:
                bytes_ = f"{exists} ? {bytes_} : 0" if exists else bytes_
                text.add(f"u32 words[{width // 4}];", f"load_words<{width}>(words, {pointer}, {bytes_});")
                for q in range(count):
                    element = _ELEMENTS[memory.dtype].format(q * size // 4, q % 2 * 16)
                    text.add(f"mine[{q}] = {converted(Value(element, memory.dtype), held.dtype).text};")
            else:
                words = _WORDS[memory.dtype]
                parts = ", ".join(words.format(f"mine[{q}]", f"mine[{q + 1}]") for q in range(0, count, 2))
                text.add(f"const u32 words[] = {{{parts}}};")
                where = "" if memory.home in _GLOBAL else ", false"
                guard = f"if ({exists}) " if exists else ""
                text.add(f"{guard}store_words<{width}{where}>({pointer}, words, {bytes_});")
    return True
