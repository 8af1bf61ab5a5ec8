"""Loops of products over tiles of two tensors, as one long product.

``fill(c); for k: copy(a, A[i, k * bK]); copy(b, B[k * bK, j]); gemm(a, b, c); copy(C[i, j], c)`` needs no
tiles: ``B`` is packed into panels once, before the phase, and the micro-kernel goes over all of ``k`` with a
piece of ``c`` in its registers. ``A`` is read where it lies (in another dtype than that of the product's kind
it is converted first). Lengths along ``k`` are counted in words of that kind.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from megatile.core.dtypes import accumulator
from megatile.core.expr import ZERO, Const, Expr, Symbol, binary, constant, linear, simplify, symbols
from megatile.ir import nodes as n
from megatile.targets.common.allocation import Storage, rounded, row_major
from megatile.targets.common.elements import Value
from megatile.targets.common.expressions import whole
from megatile.targets.common.scope import Axis, Box, Scope, Text
from megatile.targets.cpu.dots import WEAVES, Dot, as_words, dot_of, weave
from megatile.targets.cpu.gemm import strips
from megatile.targets.cpu.moving import copy, scratch

CHUNK = 2048
"""Steps of k between two visits of a piece of the result."""
ALIAS = 4096
"""Rows that many bytes apart fall into the same sets of a first cache: they are copied further apart."""
STEP = 64
"""Rows of a tensor that are packed into one panel before the next."""
PADDING = 16
"""Elements between rows of widened operands, so that rows do not fall into the same sets of a cache."""


@dataclass
class Operand:
    """One side of the product: the tensor's region at step 0, and which of its last two dimensions is k."""

    region: n.Region
    along: int
    storage: Storage

    @property
    def across(self) -> int:
        return 1 - self.along

    def dim(self, number: int) -> n.Dim:
        return self.region.dims[-2:][number]

    def extent(self, number: int) -> int:
        return self.storage.shape[-2:][number]


@dataclass
class Product:
    """A loop that was recognised."""

    a: Operand
    b: Operand
    c: n.Region
    dot: Dot
    depth: int
    clear: bool
    out: n.Copy | None = None
    used: int = 1


@dataclass(frozen=True)
class Pack:
    """A tensor packed before the phase: its name, which dimension is k, as panels or as rows, for which kind
    of product."""

    tensor: str
    along: int
    panels: bool
    dot: Dot


# --- recognising ----------------------------------------------------------------------------------


def recognised(scope: Scope, body: tuple[n.Node, ...], at: int) -> Product | None:
    """Return the product that begins with statement ``at``: a fill with zero, or the loop itself."""
    if scope.gen.packs is None or scope.frame is not None:
        return None
    fill = body[at]
    first = at + 1 if isinstance(fill, n.Fill) else at
    if first >= len(body) or not isinstance(body[first], n.Loop):
        return None
    found = _loop(scope, body[first])
    if found is None:
        return None
    if isinstance(fill, n.Fill):
        if fill.to != found.c or constant(fill.value) != 0:
            return None
        found.clear, found.used = True, 2
    after = at + found.used
    if found.clear and after < len(body) and _is_output(scope, found, body[after]):
        found.out, found.used = body[after], found.used + 1  # type: ignore[assignment]
    return found


def _loop(scope: Scope, node: n.Node) -> Product | None:
    assert isinstance(node, n.Loop)
    copies = [x for x in node.body if isinstance(x, n.Copy)]
    gemms = [x for x in node.body if isinstance(x, n.Gemm)]
    steps = constant(simplify(scope.own(node.stop)))
    if len(node.body) != 3 or len(copies) != 2 or len(gemms) != 1 or node.body[-1] is not gemms[0]:
        return None
    if node.kind == "bounded" or node.start != ZERO or node.step != Const(1) or not steps or gemms[0].clear:
        return None
    gemm = gemms[0]
    by_tile = {c.to.source: c for c in copies if c.dst is None and c.src is None}
    if set(by_tile) != {gemm.a.source, gemm.b.source} or len(by_tile) != 2:
        return None
    if not all(_is_tile(scope, r) for r in (gemm.a, gemm.b, gemm.c, *(c.to for c in copies))):
        return None
    if not _only_here(scope, node, set(by_tile)):
        return None
    a = _operand(scope, by_tile[gemm.a.source].source, 0 if gemm.transpose_a else 1, node.var)
    b = _operand(scope, by_tile[gemm.b.source].source, 1 if gemm.transpose_b else 0, node.var)
    if a is None or b is None or a.extent(a.along) != b.extent(b.along):
        return None
    depth = min(steps * _size(a.dim(a.along)), a.extent(a.along))
    dot = _kind(scope, a, b, scope.gen.storages.storage(gemm.c.source).dtype, depth)
    if dot is None:
        return None
    wide = 2 * dot.lanes(scope.gen.width)
    columns = _size(b.dim(b.across))
    if columns % wide or any(t % wide for t in _terms(scope.own(b.dim(b.across).start))):
        return None
    return Product(a, b, gemm.c, dot, depth // dot.group, False)


def _kind(scope: Scope, a: Operand, b: Operand, total: str, depth: int) -> Dot | None:
    """Return how the micro-kernel multiplies: by words, where they fill k."""
    left, right = a.storage.dtype, b.storage.dtype
    if accumulator(left) != total:
        return None
    dot = dot_of(scope.gen, left, right, total, depth)
    if dot is None or (depth % dot.group == 0 and a.extent(a.along) % dot.group == 0):
        return dot
    return dot_of(scope.gen, left, right, total, None)


def _size(dim: n.Dim) -> int:
    return 0 if dim.extent is None else constant(dim.extent) or 0


def _terms(expr: Expr) -> list[int]:
    factors, rest = linear(expr)
    return [*factors.values(), rest]


def _is_tile(scope: Scope, region: n.Region) -> bool:
    """Return whether a region is all of a tile of two dimensions that belongs to this unit."""
    storages = scope.gen.storages
    storage = storages.storage(region.source)
    mine = storages.names[region.source].owner_depth == scope.depth
    whole = len(storage.shape) == 2 and region == n.whole(region.source, storage.shape)
    return mine and whole and storages.is_plain(region.source, "instance") and storage.strides[-1] == 1


def _only_here(scope: Scope, loop: n.Loop, tiles: set[str]) -> bool:
    inside = {id(x) for x in n.walk((loop,))}
    return not any(
        region.source in tiles
        for node in n.walk(scope.gen.program.body)
        if id(node) not in inside
        for _, region in n.regions(node)
    )


def _operand(scope: Scope, region: n.Region, along: int, variable: str) -> Operand | None:
    """Return a region of a constant tensor whose last two dimensions are the tile's, one of them in steps of
    k."""
    plain = scope.gen.storages.is_plain(region.source, "argument")
    if not plain or region.source not in scope.gen.constant or len(region.dims) < 2:
        return None
    *leading, _, _ = region.dims
    if any(d.extent is not None or variable in symbols(d.start) for d in leading):
        return None
    found = Operand(region, along, scope.gen.storages.storage(region.source))
    steps, other = found.dim(along), found.dim(found.across)
    in_steps = linear(steps.start) == ({Symbol(variable): _size(steps)}, 0)
    if not in_steps or not _size(steps) or not _size(other):
        return None
    low = scope.bound(simplify(scope.own(other.start)))
    if variable in symbols(other.start) or low is None or low[0] < 0:
        return None
    return found


def _is_output(scope: Scope, found: Product, node: n.Node) -> bool:
    """Return whether a statement is a copy of the result into a tensor, at the place of the operands; nothing
    else uses the tile."""
    if not isinstance(node, n.Copy) or n.remote(node) is not None or node.source != found.c:
        return False
    storage = scope.gen.storages.storage(node.to.source)
    plain = scope.gen.storages.is_plain(node.to.source, "argument")
    matrix = len(node.to.extents) == 2 and node.to.dims[-1].extent is not None
    if not plain or not matrix or storage.dtype != found.dot.total:
        return False
    rows, columns = node.to.dims[-2:]
    a, b = found.a.dim(found.a.across), found.b.dim(found.b.across)
    same = (rows.start, rows.extent, columns.start, columns.extent) == (a.start, a.extent, b.start, b.extent)
    fits = storage.shape[-2:] == (found.a.extent(found.a.across), found.b.extent(found.b.across))
    uses = sum(
        region.source == found.c.source
        for one in n.walk(scope.gen.program.body)
        for _, region in n.regions(one)
    )
    return same and fits and uses == 3


# --- writing --------------------------------------------------------------------------------------


def product(scope: Scope, found: Product) -> None:
    """Long products in chunks, so that a chunk of both operands stays in the second cache."""
    with scope.text.block():
        a = _rows(scope, found.a, found)
        panel, depth = _panels(scope, found.b, found.dot)
        c = scope.box(found.out.to if found.out is not None else found.c)
        c = Box(c.storage, c.pointer, c.axes[-2:], guard=c.guard)
        if found.out is None:
            c.axes = [Axis(e.extent, e.stride) for e in c.axes]
        if found.depth <= CHUNK * 3 // 2:
            _chunk(scope, found, a, (panel, depth), c)
            return
        _chunk(scope, replace(found, depth=CHUNK), a, (panel, depth), c)
        whole_chunks, rest = found.depth // CHUNK * CHUNK, found.depth % CHUNK
        later, k, wide = (
            replace(found, clear=False),
            scope.gen.fresh("k"),
            2 * found.dot.lanes(scope.gen.width),
        )
        if whole_chunks > CHUNK:
            with scope.text.block(f"for (long {k} = {CHUNK}; {k} < {whole_chunks}; {k} += {CHUNK})"):
                moved = replace(a, pointer=f"{a.pointer} + {k} * {a.axes[1].stride}")
                _chunk(scope, replace(later, depth=CHUNK), moved, (f"{panel} + {k} * {wide}", depth), c)
        if rest:
            moved = replace(a, pointer=f"{a.pointer} + {whole_chunks * a.axes[1].stride}")
            _chunk(scope, replace(later, depth=rest), moved, (f"{panel} + {whole_chunks * wide}", depth), c)


def _chunk(scope: Scope, found: Product, a: Box, panels: tuple[str, int], c: Box) -> None:
    """All panels, over the chunk of k that ``found.depth`` says."""
    gen, (panel, depth) = scope.gen, panels
    wide, columns = 2 * found.dot.lanes(gen.width), constant(c.axes[1].extent) or 0
    j = gen.fresh("j")
    limit = c.axes[1].high or str(columns)
    with scope.text.block(f"for (long {j} = 0; {j} < {limit}; {j} += {wide})"):
        b = Box(
            found.dot.storage(),
            f"{panel} + {j} * {depth}",
            [Axis(Const(found.depth), wide), Axis(Const(wide), 1)],
        )
        target = Box(c.storage, f"{c.pointer} + {j}", [c.axes[0], Axis(Const(wide), 1)])
        if c.axes[1].high is not None:
            with scope.text.block(f"if ({j} + {wide} > {limit})"):
                _partial(scope, found, (a, b, target), f"({limit} - {j})")
            with scope.text.block("else"):
                _pieces(scope, found, a, b, target)
        else:
            _pieces(scope, found, a, b, target)


def _pieces(scope: Scope, found: Product, a: Box, b: Box, c: Box) -> None:
    """All rows of one panel; at the edge of the tensor, those there are."""
    height = constant(a.axes[0].extent) or 0
    clear, size = found.clear, Const(found.depth)
    if a.axes[0].high is None:
        strips(scope, found.dot, a, b, c, (Const(height), size), "0", 2, clear)
        return
    rows = a.axes[0].high
    with scope.text.block(f"if ({rows} == {height})"):
        strips(scope, found.dot, a, b, c, (Const(height), size), "0", 2, clear)
    with scope.text.block("else"):
        name = f"@{rows}"
        scope.vars[name] = Value(rows, "int")
        strips(scope, found.dot, a, b, c, (Symbol(name), size), "0", 2, clear)
        if clear and found.out is None:
            i = scope.gen.fresh("i")
            with scope.loop(i, rows, str(height)):
                scope.text.add(f"memset({c.pointer} + {i} * {c.axes[0].stride}, 0, {8 * scope.gen.width});")


def _partial(scope: Scope, found: Product, boxes: tuple[Box, Box, Box], count: str) -> None:
    """Write a panel that is only partly inside the tensor."""
    a, b, c = boxes
    wide = 2 * found.dot.lanes(scope.gen.width)
    made = scratch(scope, [a.axes[0].extent, Const(wide)], found.dot.total)
    rows = a.axes[0].high or whole(a.axes[0].extent, scope)

    def moved(back: bool) -> None:
        i = scope.gen.fresh("i")
        places = f"{c.pointer} + {i} * {c.axes[0].stride}", f"{made.pointer} + {i} * {wide}"
        with scope.loop(i, "0", rows):
            to, source = places if back else places[::-1]
            scope.text.add(f"memcpy({to}, {source}, {count} * {found.dot.bytes});")

    if not found.clear:
        moved(back=False)
    _pieces(scope, found, a, b, made)
    moved(back=True)


def _at_start(scope: Scope, operand: Operand, depth: int) -> n.Region:
    """Return the operand's region with all of k."""
    dims = list(operand.region.dims)
    place = len(dims) - 2 + operand.along
    dims[place] = replace(dims[place], start=ZERO, extent=Const(depth))
    return replace(operand.region, dims=tuple(dims))


def _rows(scope: Scope, operand: Operand, found: Product) -> Box:
    """Return the rows of the left operand, over all of k."""
    dot, depth = found.dot, found.depth
    box = scope.box(_at_start(scope, operand, depth * dot.group))
    axes = [box.axes[operand.across], box.axes[operand.along]]
    apart = operand.storage.shape[-1] * dot.bytes // dot.group % ALIAS or operand.along == 0
    if operand.storage.dtype == dot.operand and apart and not dot.shifted:
        box = Box(box.storage, box.pointer, axes)
        if dot.group == 1:
            return box
        if operand.along == 1:
            return as_words(box, dot, 1)
    name, stride = scope.gen.packed(Pack(operand.region.source, operand.along, False, dot))
    row = scope.whole(operand.dim(operand.across).start)
    lead = _leading(scope, operand)
    rows = operand.extent(operand.across)
    axes = [Axis(axes[0].extent, stride, axes[0].low, axes[0].high), Axis(Const(depth), 1)]
    return Box(dot.storage(), f"{name} + ({lead} * {rows} + {row}) * {stride}", axes)


def _leading(scope: Scope, operand: Operand) -> str:
    """Return the number of the matrix among those of the tensor; indices outside give the first, and an
    error."""
    total: Expr = ZERO
    text = "0"
    for dim, extent in zip(operand.region.dims[:-2], operand.storage.shape[:-2], strict=True):
        at = simplify(scope.own(dim.start))
        if scope.is_inside(at, Const(1), Const(extent)):
            total = binary("+", binary("*", total, extent), at)
            text = whole(simplify(total), scope)
        else:
            site = scope.gen.failure_site("bounds", f"'{operand.region.source}[{{}}]' is out of bounds")
            text = f"({text} * {extent} + inside(failure, {site}, {whole(at, scope)}, {extent}))"
            name = scope.gen.fresh("lead")
            scope.text.add(f"const long {name} = {text};")
            scope.vars[f"@{name}"] = Value(name, "int")
            total = Symbol(f"@{name}")
            text = name
    return f"({text})"


def _panels(scope: Scope, operand: Operand, dot: Dot) -> tuple[str, int]:
    """Return the pointer to the first panel of the right operand, and the length of k in the panels."""
    wide, depth = 2 * dot.lanes(scope.gen.width), operand.extent(operand.along) // dot.group
    columns = -(-operand.extent(operand.across) // wide) * wide
    tile = _size(operand.dim(operand.across))
    last = scope.bound(simplify(scope.own(operand.dim(operand.across).start)))
    assert last is not None
    columns = max(columns, last[1] + tile)
    name, _ = scope.gen.packed(Pack(operand.region.source, operand.along, True, dot), columns)
    start = scope.whole(operand.dim(operand.across).start)
    return f"{name} + ({_leading(scope, operand)} * {columns} + {start}) * {depth}", depth


def pack_function(scope: Scope, name: str, pack: Pack, columns: int, pointer: str) -> tuple[list[str], int]:
    """Return the function that packs some panels (or a row), and how often it is called."""
    gen, dot = scope.gen, pack.dot
    storage = gen.storages.storage(pack.tensor)
    shape, strides = storage.shape, row_major(storage.shape)
    wide, depth = 2 * dot.lanes(gen.width), shape[-2:][pack.along]
    count, matrices = shape[-2:][1 - pack.along], math.prod(shape[:-2])
    group = math.gcd(columns // wide, 4)
    pieces = columns // (wide * group) if pack.panels else count
    text = Text(1)
    inner = Scope(gen, text, {}, 0)
    text.add(f"const long matrix = index / {pieces}, piece = index % {pieces};")
    source = f"{gen.name(pack.tensor)} + matrix * {shape[-1] * shape[-2]}"
    k, other = strides[-2:][pack.along], strides[-2:][1 - pack.along]
    if pack.panels:
        text.add(f"const long first = piece * {wide * group};")
        for number in range(group):  # panels side by side: their rows follow each other in the tensor
            text.add(f"const long low{number} = 0;")
            text.add(f"const long high{number} = lmax(lmin({count} - first - {number * wide}, {wide}), 0);")
        with text.block(f"for (long k = 0; k < {depth // dot.group}; k += {STEP})"):
            text.add(f"const long steps = lmin({depth // dot.group} - k, {STEP});")
            inner.vars["@steps"], inner.ranges["@steps"] = Value("steps", "int"), (1, STEP)
            for number in range(group):
                axes = [Axis(Symbol("@steps"), k), Axis(Const(wide), other, f"low{number}", f"high{number}")]
                start = f"{source} + k * {k * dot.group} + (first + {number * wide}) * {other}"
                at = f"(matrix * {columns} + first + {number * wide}) * {depth // dot.group} + k * {wide}"
                _panel(inner, pack, f"{pointer} + {at}", Box(storage, start, axes))
    else:
        stride = depth // dot.group + PADDING
        origin = Box(storage, f"{source} + piece * {other}", [Axis(Const(depth), k)])
        place = f"{pointer} + (matrix * {count} + piece) * {stride}"
        row = Storage("packed", dot.operand, (1,), 1, "scratch")
        copy(inner, Box(row, f"(({row.c_type} *)({place}))", [Axis(Const(depth), 1)]), origin)
        if dot.shifted:
            text.add(f"shifted({place}, {depth // dot.group});")
    lines = [
        f"/* {pack.tensor} as {'panels' if pack.panels else 'rows'} of {dot.operand} */",
        f"static void {name}(void *argument, long worker, long index) {{",
        "  struct run *const run = argument;",
        f"  {storage.c_type} *const {gen.name(pack.tensor)} = run->{gen.name(pack.tensor)};",
        *text.lines,
        "}",
        "",
    ]
    return lines, matrices * pieces


def _panel(scope: Scope, pack: Pack, place: str, source: Box) -> None:
    """Write some steps of one panel; ``source`` is k by columns, some of them outside the tensor."""
    dot, (steps, columns) = pack.dot, source.axes
    wide = constant(columns.extent) or 0
    to = Box(dot.storage(), place, [Axis(steps.extent, wide), Axis(columns.extent, 1)])
    if dot.group == 1:
        copy(scope, to, source)
    elif columns.stride == 1 and f"{dot.operand}_{source.storage.dtype}" in WEAVES:
        with scope.loop("i", "0", "steps"):
            scope.text.add(
                f"memset({place} + i * {wide} + {columns.high}, 0, ({wide} - {columns.high}) * 4);"
            )
            row = f"{source.pointer} + i * {steps.stride * dot.group}"
            lies = source.storage.dtype
            scope.text.add(weave(dot, lies, f"{place} + i * {wide}", row, steps.stride, columns.high or ""))
    elif steps.stride == 1 and source.storage.dtype == dot.operand:
        axes = [steps, Axis(columns.extent, columns.stride // dot.group, columns.low, columns.high)]
        copy(scope, to, Box(dot.storage(), f"((word *)({source.pointer}))", axes))
    else:
        parts = Const(dot.group)
        element = Storage("packed", dot.operand, (1,), 1, "scratch")
        to_axes = [Axis(steps.extent, wide * dot.group), Axis(columns.extent, dot.group), Axis(parts, 1)]
        axes = [Axis(steps.extent, steps.stride * dot.group), columns, Axis(parts, steps.stride)]
        copy(
            scope,
            Box(element, f"(({element.c_type} *)({place}))", to_axes),
            Box(source.storage, source.pointer, axes),
        )


def size_of(storage: Storage, pack: Pack, columns: int) -> int:
    """Return bytes of a packed tensor."""
    depth, count = storage.shape[-2:][pack.along] // pack.dot.group, storage.shape[-2:][1 - pack.along]
    elements = math.prod(storage.shape[:-2]) * (columns * depth if pack.panels else count * (depth + PADDING))
    return rounded(elements * pack.dot.bytes)
