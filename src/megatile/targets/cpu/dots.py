"""How micro-kernels multiply: a table of the kinds of operands, by what the processor has.

Where it adds several products at a time to a lane (two of bf16 or i16, four of i8), operands lie in *words*:
so many of them that follow each other along k, in 32 bits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from megatile.core.expr import Const, constant
from megatile.targets.common.allocation import Storage
from megatile.targets.common.elements import Value, held
from megatile.targets.common.expressions import whole
from megatile.targets.common.scope import Axis, Box, Scope
from megatile.targets.cpu.moving import copy, dense, fill, scratch


@dataclass(frozen=True)
class Dot:
    """One kind: sums of dtype ``total`` from operands of dtype ``operand``, ``group`` of them in a word."""

    operand: str
    total: str
    element: str
    """The C of a word, and of a vector of them."""
    vector: str
    sums: str
    group: int = 1
    bytes: int = 4
    shifted: bool = False
    """Whether the left operand is unsigned: it is held with 128 added, which is taken off the sums."""

    def lanes(self, width: int) -> int:
        """Sums in a vector, of ``width`` floats."""
        return width * 4 // self.bytes

    def rows(self, most: int) -> int:
        """Return rows of a micro-kernel that has registers for ``most`` of plain sums."""
        return most - 2 if self.shifted else most

    @property
    def word(self) -> str:
        """The dtype that words are moved as."""
        return self.operand if self.group == 1 else "i32"

    def storage(self) -> Storage:
        return Storage("packed", self.word, (1,), 1, "scratch")


DOTS = {
    "f32": Dot("f32", "f32", "float", "vf", "vf"),
    "f64": Dot("f64", "f64", "double", "vd", "vd", bytes=8),
    "i32": Dot("i32", "i32", "u32", "vu", "vu"),
    "bf16": Dot("bf16", "f32", "word", "vi", "vf", group=2),
    "i16": Dot("i16", "i32", "word", "vi", "vu", group=2),
    "i8": Dot("i8", "i32", "word", "vi", "vu", group=4, shifted=True),
}
_NEEDS = {"bf16": "avx512_bf16", "i8": "avx512_vnni", "i16": "avx2"}
"""The flag of a processor that has instructions for words of each."""
_AS_PAIRS = {"i8", "u8", "i16"}


def words_of(flags: frozenset[str]) -> frozenset[str]:
    """Return the kinds of words that a processor with these flags multiplies."""
    return frozenset(name for name, flag in _NEEDS.items() if flag in flags)


def dot_of(gen: Any, a: str, b: str, total: str, depth: int | None) -> Dot | None:
    """Return the kind for operands of two dtypes, if there is one; words need a ``depth`` that is known."""
    if depth is not None:
        if a == b in gen.words and a in ("bf16", "i8"):
            return DOTS[a]
        if {a, b} <= _AS_PAIRS and "i16" in gen.words:
            return DOTS["i16"]
    return DOTS.get(total)


# --- operands as words ----------------------------------------------------------------------------


def left(scope: Scope, box: Box, dot: Dot) -> Box:
    """Return the left operand, ``m`` by ``k``, as a micro-kernel reads it: one word for a row at a time."""
    if dot.group == 1:
        return dense(scope, box, dot.operand)
    rows, steps = box.axes
    if not _is_plain(box, dot, steps) or steps.stride != 1 or rows.stride % dot.group or dot.shifted:
        if rows.stride == 1 and steps.stride != 1 and not dot.shifted:
            turned = replace(box, axes=[steps, rows])
            made = woven(scope, turned, dot)
            return replace(made, axes=made.axes[::-1])
        box = _padded(scope, box, dot, 1)
    made = as_words(box, dot, 1)
    if dot.shifted:
        scope.text.add(f"shifted({made.pointer}, {box.storage.size // dot.group});")
    return made


def right(scope: Scope, box: Box, dot: Dot) -> Box:
    """Return the right operand, ``k`` by ``n``, with words that follow each other along the columns."""
    steps, columns = box.axes
    if dot.group == 1:
        lies = held(box.storage.dtype, box.storage.wide)
        if columns.stride == 1 and not box.clipped and lies == dot.operand:
            return box
        packed = scratch(scope, [steps.extent, columns.extent], dot.operand)
        copy(scope, packed, box)
        return packed
    if _is_plain(box, dot, steps) and steps.stride == 1 and columns.stride % dot.group == 0:
        source = as_words(box, dot, 0)
        packed = scratch(scope, [a.extent for a in source.axes], "i32")
        # copies turn squares of f32; what they move are bits
        target = replace(packed, storage=replace(packed.storage, dtype="f32"), pointer=_cast(packed, "float"))
        copy(scope, target, replace(source, storage=target.storage, pointer=_cast(source, "float")))
        return replace(packed, pointer=_cast(packed, "word"))
    return woven(scope, box, dot)


def woven(scope: Scope, box: Box, dot: Dot) -> Box:
    """Interleave rows along k: every ``group`` of them become one row of words."""
    steps, columns = box.axes
    lies = held(box.storage.dtype, box.storage.wide)
    if columns.stride != 1 or box.clipped or f"{dot.operand}_{lies}" not in WEAVES or _rest(steps, dot):
        box = _padded(scope, box, dot, 0)
        lies, (steps, columns) = dot.operand, box.axes
    count = (constant(steps.extent) or 0) // dot.group
    made = scratch(scope, [Const(count), columns.extent], "i32")
    to, i = replace(made, pointer=_cast(made, "word")), scope.gen.fresh("i")
    with scope.loop(i, "0", str(count)):
        row = f"{to.pointer} + {i} * {to.axes[0].stride}"
        scope.text.add(weave(dot, lies, row, f"{box.pointer} + {i} * {dot.group * steps.stride}",
                             steps.stride, whole(columns.extent, scope)))  # fmt: skip
    return to


WEAVES = {"bf16_bf16", "bf16_f32", "i16_i16", "i16_i8", "i16_u8", "i8_i8"}
"""Kinds of words, and what they can be made from."""


def weave(dot: Dot, lies: str, to: str, source: str, stride: int, count: str) -> str:
    """Return the statement that makes ``count`` words of ``group`` rows."""
    return f"weave_{dot.operand}_{lies}({to}, {source}, {stride}, {count});"


def as_words(box: Box, dot: Dot, along: int) -> Box:
    """Return elements that follow each other along k, looked at as words."""
    axes = [
        Axis(Const((constant(a.extent) or 0) // dot.group), 1)
        if at == along
        else Axis(a.extent, a.stride // dot.group, a.low, a.high)
        for at, a in enumerate(box.axes)
    ]
    return Box(dot.storage(), _cast(box, "word"), axes)


def _cast(box: Box, c_type: str) -> str:
    return f"(({c_type} *)({box.pointer}))"


def _rest(steps: Axis, dot: Dot) -> int:
    return (constant(steps.extent) or 0) % dot.group


def _is_plain(box: Box, dot: Dot, steps: Axis) -> bool:
    lies = held(box.storage.dtype, box.storage.wide)
    return not box.clipped and lies == dot.operand and not _rest(steps, dot)


def _padded(scope: Scope, box: Box, dot: Dot, along: int) -> Box:
    """Return a copy in the dtype of the words, with zeros where k does not fill the last."""
    depth = constant(box.axes[along].extent) or 0
    filled = -(-depth // dot.group) * dot.group
    extents = [Const(filled) if at == along else a.extent for at, a in enumerate(box.axes)]
    made = scratch(scope, extents, dot.operand)
    part = [Axis(box.axes[at].extent, a.stride) for at, a in enumerate(made.axes)]
    copy(scope, replace(made, axes=part), box)
    if filled > depth:
        tail, step = list(made.axes), made.axes[along].stride
        tail[along] = Axis(Const(filled - depth), step)
        fill(scope, Box(made.storage, f"{made.pointer} + {depth * step}", tail), Value("0", dot.operand))
    return made
