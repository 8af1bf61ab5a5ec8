"""Matrix products: a micro-kernel of named vector variables, over strips of rows and panels of columns.

``c += a @ b`` with ``c`` and ``b`` contiguous along the columns; elements of ``a`` are broadcast, so it may
lie either way. Operands that lie otherwise, or in a dtype for which there is no kind of product, are copied
first.
"""

from __future__ import annotations

from megatile.core.dtypes import accumulator
from megatile.core.expr import Const, Expr, constant
from megatile.ir import nodes as n
from megatile.targets.common.elements import Value, c_type, converted, held, loaded, stored
from megatile.targets.common.expressions import whole
from megatile.targets.common.scope import Axis, Box, Scope
from megatile.targets.cpu.dots import DOTS, Dot, dot_of, left, right
from megatile.targets.cpu.moving import copy, dense, fill, scratch
from megatile.targets.cpu.passes import is_invariant


def gemm(scope: Scope, node: n.Gemm, scale: str = "") -> None:
    """``c += a @ b``; with ``scale``, rows of ``c`` are multiplied by its numbers first."""
    with scope.text.block():
        a, b, c = (_matrix(scope.box(r)) for r in (node.a, node.b, node.c))
        wide = accumulator(a.storage.dtype)
        a = _transposed(a) if node.transpose_a else a
        b = _transposed(b) if node.transpose_b else b
        _check(scope, a, b, c)
        plain = (
            not c.clipped
            and c.copies == 1
            and held(c.storage.dtype, c.storage.wide) == c.storage.dtype == wide
        )
        if plain and wide in DOTS and c.axes[1].stride != 1 and c.axes[0].stride == 1:
            a, b, c = _transposed(b), _transposed(a), _transposed(c)
        dot = dot_of(scope.gen, a.storage.dtype, b.storage.dtype, wide, constant(a.axes[1].extent))
        ready = scope.gen.prepared.get(id(node))
        b = ready or b
        if plain and c.axes[1].stride == 1:
            _product(scope, dot, a, b, c, ready is not None, node.clear, scale)
            return
        total = scratch(scope, [x.extent for x in c.axes], wide)
        if not node.clear:
            copy(scope, total, c)
        _product(scope, dot, a, b, total, ready is not None, node.clear)
        copy(scope, c, total)


def prepare(scope: Scope, loop: n.Loop) -> None:
    """Operands that would be turned in every step of a loop, though they stay the same, are turned before."""
    gen = scope.gen
    for node in n.own_statements(loop.body):
        if not isinstance(node, n.Gemm) or id(node) in gen.prepared:
            continue
        strides = gen.storages.storage(node.c.source).strides[-2:]
        swapped = strides[1] != 1 and strides[0] == 1
        region = node.a if swapped else node.b
        turned = node.transpose_a != swapped if swapped else node.transpose_b
        if gen.storages.storage(region.source).home != "instance" or not is_invariant(region, loop):
            continue
        one, other = (gen.storages.storage(r.source).dtype for r in (node.a, node.b))
        with scope.text.block():
            box = _matrix(scope.box(region))
            box = _transposed(box) if turned else box
            dot = dot_of(gen, one, other, accumulator(one), constant(box.axes[0].extent))
            if dot is None or box.clipped or (box.axes[1].stride == 1 and dot.group == 1):
                continue
            gen.prepared[id(node)] = _packed(scope, box if dot.group == 1 else right(scope, box, dot), dot)


def _packed(scope: Scope, box: Box, dot: Dot) -> Box:
    """Return a copy that lasts, in panels where the columns fill them."""
    packed = scratch(scope, [x.extent for x in box.axes], dot.word)
    packed.pointer = scope.gen.persistent(packed.storage.size * dot.bytes, c_type(dot.word))
    (k, j), wide = box.axes, 2 * dot.lanes(scope.gen.width)
    depth, columns = constant(k.extent), constant(j.extent)
    if depth is None or columns is None or columns % wide:
        copy(scope, packed, box)
        return packed
    count, inner = Const(columns // wide), Const(wide)
    to = [Axis(count, depth * wide), Axis(k.extent, wide), Axis(inner, 1)]
    source = [Axis(count, j.stride * wide), k, Axis(inner, j.stride)]
    copy(scope, Box(packed.storage, packed.pointer, to), Box(box.storage, box.pointer, source))
    packed.axes, packed.panels = [Axis(k.extent, wide), Axis(j.extent, 1)], True
    return packed


def _matrix(box: Box) -> Box:
    """Return the last two dimensions; those before have one element."""
    for axis in box.axes[:-2]:
        assert constant(axis.extent) == 1
    return Box(box.storage, box.pointer, box.axes[-2:], box.copies, box.copy_stride, box.guard)


def _transposed(box: Box) -> Box:
    return Box(box.storage, box.pointer, box.axes[::-1], box.copies, box.copy_stride, box.guard)


def _check(scope: Scope, a: Box, b: Box, c: Box) -> None:
    """Extents known only at run time must fit as well."""
    for one, other in ((a.axes[1], b.axes[0]), (a.axes[0], c.axes[0]), (b.axes[1], c.axes[1])):
        if one.extent != other.extent:
            x, y = whole(one.extent, scope), whole(other.extent, scope)
            site = scope.gen.failure_site(
                "shape", "T.gemm: the extents of its operands differ, one of them is {}"
            )
            scope.text.add(f"if ({x} != {y}) fail(failure, {site}, {x});")


def _product(
    scope: Scope, dot: Dot | None, a: Box, b: Box, c: Box, ready: bool, clear: bool, scale: str = ""
) -> None:
    """``c (+)= a @ b``, with ``c`` contiguous along columns; ``ready``: ``b`` was prepared."""
    if a.copies > 1 or b.copies > 1:
        a, b = (Box(x.storage, x.pointer, x.axes, 1, 0, x.guard, panels=x.panels) for x in (a, b))
    if dot is None:
        a, b = (dense(scope, x, c.storage.dtype) for x in (a, b))
        _plain_loops(scope, a, b, c, clear)
        return
    a, b = left(scope, a, dot), b if ready else right(scope, b, dot)
    m, k, cols = c.axes[0].extent, a.axes[1].extent, c.axes[1].extent
    for start, vectors, rest in _panels(scope, cols, dot.lanes(scope.gen.width)):
        if rest is None:
            strips(scope, dot, a, b, c, (m, k), start, vectors, clear, scale)
        else:
            _narrow(scope, dot, a, b, c, (m, k), start, rest, clear, scale)


def _panels(scope: Scope, cols: Expr, width: int) -> list[tuple[str, int, str | None]]:
    """(first column, vectors per row, or the number of columns if they are fewer than a vector)."""
    known = constant(cols)
    pieces: list[tuple[str, int, str | None]] = []
    if known is None:
        text = whole(cols, scope)
        pieces = [(f"*0:{text} / {2 * width} * {2 * width}", 2, None)]
        pieces.append((f"({text} / {2 * width} * {2 * width})", 0, f"({text} % {2 * width})"))
        return pieces
    double = known // (2 * width) * 2 * width
    if double:
        pieces.append((f"*0:{double}", 2, None))
    if known - double >= width:
        pieces.append((str(double), 1, None))
        double += width
    if known > double:
        pieces.append((str(double), 0, str(known - double)))
    return pieces


def heights(rows_: int, most: int) -> list[int]:
    """Return rows in strips of nearly equal height, none above ``most``."""
    strips = -(-rows_ // most)
    return [rows_ // strips + (i < rows_ % strips) for i in range(strips)]


def strips(
    scope: Scope, dot: Dot, a: Box, b: Box, c: Box, size: tuple[Expr, Expr], start: str, vectors: int,
    clear: bool, scale: str = "",
) -> None:  # fmt: skip
    """Micro-kernels over the rows of one panel of columns (or of several: ``*first:stop``)."""
    if start.startswith("*"):
        first, stop = start[1:].split(":", 1)
        j = scope.gen.fresh("j")
        with scope.text.block(
            f"for (long {j} = {first}; {j} < {stop}; {j} += {vectors * dot.lanes(scope.gen.width)})"
        ):
            strips(scope, dot, a, b, c, size, j, vectors, clear, scale)
        return
    m, k = size[0], whole(size[1], scope)
    strides = (a.axes[0].stride, a.axes[1].stride, b.axes[0].stride, c.axes[0].stride)

    def call(i: str, height: int) -> None:
        name = scope.gen.micro_kernel(
            dot, height, vectors, strides, "clear" if clear else "scale" if scale else ""
        )
        column = f"({start}) * {k}" if b.panels else start
        scope.text.add(
            f"{name}({k}, {a.pointer} + ({i}) * {strides[0]}, {b.pointer} + {column}, "
            f"{c.pointer} + ({i}) * {strides[3]} + {start}{f', {scale} + {i}' if scale else ''});"
        )

    most, known = dot.rows(scope.gen.rows), constant(m)
    if known is None:
        i, rows_ = scope.gen.fresh("i"), whole(m, scope)
        scope.text.add(f"long {i} = 0;")
        with scope.text.block(f"for (; {i} + 8 <= {rows_}; {i} += 8)"):
            call(i, 8)
        with scope.text.block(f"for (; {i} < {rows_}; {i}++)"):
            call(i, 1)
        return
    every = heights(known, most)
    at = 0
    for height in dict.fromkeys(every):
        count = every.count(height)
        if count == 1:
            call(str(at), height)
        else:
            i = scope.gen.fresh("i")
            with scope.text.block(f"for (long {i} = {at}; {i} < {at + count * height}; {i} += {height})"):
                call(i, height)
        at += count * height


def _narrow(
    scope: Scope, dot: Dot, a: Box, b: Box, c: Box, size: tuple[Expr, Expr], start: str, count: str,
    clear: bool, scale: str,
) -> None:  # fmt: skip
    """Columns that fill no vector (or two, if their number is known only now): through padded copies."""
    lanes = dot.lanes(scope.gen.width)
    width = lanes if count.isdigit() else 2 * lanes
    m, k = size
    panel = scratch(scope, [k, Const(width)], dot.word)
    total = scratch(scope, [m, Const(width)], dot.total)
    with scope.text.block(f"if ({count})"):
        for box, part, extent in ((panel, b, k), (total, c, m)):
            if box is total and clear:
                continue
            i = scope.gen.fresh("i")
            with scope.loop(i, "0", whole(extent, scope)):
                scope.text.add(
                    f"memset({box.pointer} + {i} * {width}, 0, {dot.bytes * width});",
                    f"memcpy({box.pointer} + {i} * {width}, {part.pointer} + {i} * {part.axes[0].stride} "
                    f"+ {start}, ({count}) * {dot.bytes});",
                )
        strips(scope, dot, a, panel, total, size, "0", width // lanes, clear, scale)
        i = scope.gen.fresh("i")
        with scope.loop(i, "0", whole(m, scope)):
            scope.text.add(
                f"memcpy({c.pointer} + {i} * {c.axes[0].stride} + {start}, {total.pointer} + {i} * {width}, "
                f"({count}) * {dot.bytes});"
            )


def _plain_loops(scope: Scope, a: Box, b: Box, c: Box, clear: bool) -> None:
    """Whole numbers of 64 bits: rows of the result get multiples of rows of ``b``."""
    wide = c.storage.dtype
    if clear:
        fill(scope, c, Value("0", wide))
    i, p, j = (scope.gen.fresh(x) for x in "ipj")
    with (
        scope.loop(i, "0", whole(c.axes[0].extent, scope)),
        scope.loop(p, "0", whole(a.axes[1].extent, scope)),
    ):
        x = loaded(a.storage.dtype, a.storage.wide, a.at([i, p]), False).text
        scope.text.add(f"const {c_type(wide)} x_ = {x};")
        with scope.loop(j, "0", whole(c.axes[1].extent, scope)):
            y = loaded(b.storage.dtype, b.storage.wide, b.at([p, j]), False).text
            total = Value(f"{loaded(wide, False, c.at([i, j]), False).text} + x_ * {y}", wide)
            scope.text.add(stored(wide, False, c.at([i, j]), converted(total, wide)))


AHEAD = 48
"""Steps of a panel that are fetched ahead."""


def micro_kernel(
    name: str, dot: Dot, height: int, vectors: int, strides: tuple[int, int, int, int], begin: str, width: int
) -> list[str]:
    """Return ``height`` rows of ``vectors`` vectors, each in a variable of its own. They ``begin`` with zero
    (clear), with what is in ``c``, or with that times a number for each row (scale)."""
    rows_a, steps_a, steps_b, rows_c = strides
    every = [(i, j) for i in range(height) for j in range(vectors)]
    lanes, words = dot.lanes(width), dot.group > 1
    panels = steps_b == vectors * lanes
    element, total = dot.element, c_type(dot.total)
    scale = ", const float *s" if begin == "scale" else ""
    head = f"{name}(long k, const {element} *a, const {element} *b, {total} *c{scale})"
    lines = [f"static __attribute__((noinline)) void {head} {{"]
    for i, j in every:
        start = "{0}" if begin == "clear" else f"({dot.sums})ld_{dot.total}(c + {i * rows_c + j * lanes})"
        start += f" * s[{i}]" if begin == "scale" else ""
        lines.append(f"  {dot.sums} c{i}_{j} = {start};")
    if dot.shifted:
        lines += [f"  {dot.sums} z{j} = {{0}};" for j in range(vectors)]
    lines.append(f"  for (; k > 0; k--, a += {steps_a}, b += {steps_b}) {{")
    if panels:
        lines += [f"    __builtin_prefetch(b + {AHEAD * steps_b + j * lanes});" for j in range(vectors)]
    load = "ld_word" if words else f"({dot.vector})ld_{dot.operand}"
    lines += [f"    const {dot.vector} b{j} = {load}(b + {j * lanes});" for j in range(vectors)]
    if dot.shifted:
        lines.append(
            " ".join(f"    ADD_{dot.operand}(z{j}, viset(0x80808080), b{j});" for j in range(vectors))
        )
    for i in range(height):
        if words:
            lines.append(f"    const vi a{i} = viset(a[{i * rows_a}]);")
            lines.append(
                "    " + " ".join(f"ADD_{dot.operand}(c{i}_{j}, a{i}, b{j});" for j in range(vectors))
            )
        else:
            lines.append(f"    const {element} a{i} = a[{i * rows_a}];")
            lines.append("    " + " ".join(f"c{i}_{j} += a{i} * b{j};" for j in range(vectors)))
    lines.append("  }")
    for i, j in every:
        sum_ = f"c{i}_{j} - z{j}" if dot.shifted else f"c{i}_{j}"
        cast = "(vi)" if dot.total == "i32" else ""
        lines.append(f"  st_{dot.total}(c + {i * rows_c + j * lanes}, {cast}({sum_}));")
    return [*lines, "}", ""]
