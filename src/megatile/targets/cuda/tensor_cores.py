"""Products of warps: fragments by ``ldmatrix``, then ``mma``, as the PTX manual lays them out over lanes."""

from __future__ import annotations

from dataclasses import dataclass

from megatile.core.dtypes import itemsize
from megatile.lowering.swizzle import DEEP
from megatile.targets.common.scope import Axis, Box
from megatile.targets.cuda.alignment import WIDEST
from megatile.targets.cuda.layouts import Mma
from megatile.targets.cuda.scope import DeviceScope

_NUMBER = {"i8": "int", "u8": "int"} | dict.fromkeys(("f16", "bf16", "f8e4m3", "f8e5m2"), "float")
"""Of sums, by the dtype of the factors."""


MANY = 128
"""Accumulators of a thread that leave no registers for a second step."""


@dataclass(frozen=True)
class Operand:
    """A factor: the rows of ``a`` or columns of ``b`` (``side``), and what is summed over (``along``)."""

    box: Box
    side: Axis
    along: Axis
    aligned: int
    """Bytes at which its rows begin."""

    @property
    def size(self) -> int:
        return itemsize(self.box.storage.dtype)

    @property
    def by_ldmatrix(self) -> bool:
        """Whether rows of 16 bytes are in shared memory; across the sum only with elements of 16 bits."""
        suits = self.along.stride == 1 or (self.side.stride == 1 and self.size == 2)
        return suits and self.aligned == WIDEST and self.box.storage.home == "instance"

    def at(self, side: str, along: str) -> str:
        """The pointer to an element."""
        terms = [(side, self.side.stride), (along, self.along.stride)]
        if terms[1][1] != 1:
            terms.reverse()
        return " + ".join(
            [self.box.pointer, *(place if step == 1 else f"({place}) * {step}" for place, step in terms)]
        )


@dataclass(frozen=True)
class HeldOperand:
    """A first factor in registers, as accumulators of another product; with ``across`` tiles of 16 by 8."""

    name: str
    dtype: str
    across: int
    size: int = 2


def by_warps(
    scope: DeviceScope, a: Operand | HeldOperand, b: Operand, layout: Mma, target: str, depth: int
) -> None:
    """Fragments of 16 rows and 8 columns, 32 bytes deep, and their products."""
    text, name = scope.text, b.box.storage.dtype
    text.add(f"// warps {layout.high} x {layout.wide}, each {layout.down} x {layout.across} tiles of 16 x 8")
    with text.block():
        text.add(
            f"const int lane = {scope.crew.index} % 32, warp = {scope.crew.index} / 32, "
            f"top = warp / {layout.wide} * {layout.down * 16}, "
            f"left = warp % {layout.wide} * {layout.across * 8};"
        )
        with text.block(f"if (warp < {layout.busy})" if layout.busy < layout.warps else ""):
            text.add(f"#pragma unroll{_unrolled(a, layout, name)}")
            with text.block(f"for (int ki = 0; ki < {depth}; ki += {DEEP // a.size})"):
                text.add(f"u32 xs[{layout.down * 4}];")
                _rows(scope, a, layout.down)
                both = 1 + (layout.across % 2 == 0 and b.by_ldmatrix)
                text.add("#pragma unroll")
                with text.block(f"for (int ni = 0; ni < {layout.across}; ni += {both})"):
                    text.add(f"u32 ys[{2 * both}];")
                    _columns(scope, b, both == 2)
                    text.add("#pragma unroll")
                    with text.block(f"for (int mi = 0; mi < {layout.down}; mi++)"):
                        text.add(f"{_NUMBER[name]} *const sums = {target} + (mi * {layout.across} + ni) * 4;")
                        for q in range(both):
                            text.add(f"mma_{name}(sums{q * ' + 4'}, xs + mi * 4, ys{q * ' + 2'});")


def _unrolled(a: Operand | HeldOperand, layout: Mma, dtype: str) -> str:
    """How many steps are written out: with sums of another product all, else two, so that one's fragments
    are loaded while the other's are multiplied, if there are registers for that."""
    if isinstance(a, HeldOperand):
        return ""
    converted = dtype.startswith("f8")  # to f16 on most devices, which takes registers
    return " 1" if converted or layout.registers > MANY else " 2"


def _rows(scope: DeviceScope, a: Operand | HeldOperand, count: int) -> None:
    """``xs``: of each 16 rows four matrices of 8 by 16 bytes, first those below each other."""
    text, half = scope.text, WIDEST // a.size
    text.add("#pragma unroll")
    with text.block(f"for (int mi = 0; mi < {count}; mi++)"):
        if isinstance(a, HeldOperand):
            text.add(f"const float *const held = {a.name} + (mi * {a.across} + ki / 8) * 4;")
            for q in range(4):
                text.add(f"xs[mi * 4 + {q}] = both_{a.dtype}(held[{2 * q}], held[{2 * q + 1}]);")
        elif not a.by_ldmatrix:
            for q in range(4):
                place = a.at(f"top + mi * 16 + {q % 2 * 8} + lane / 4", _in_k(a, q // 2))
                text.add(f"xs[mi * 4 + {q}] = {_word(a, place)};")
        elif a.along.stride == 1:
            place = a.at("top + mi * 16 + lane % 16", f"ki + lane / 16 * {half}")
            text.add(f"ldmatrix_x4(xs + mi * 4, {place});")
        else:
            place = a.at("top + mi * 16 + lane / 8 % 2 * 8", "ki + lane % 8 + lane / 16 * 8")
            text.add(f"ldmatrix_x4_trans(xs + mi * 4, {place});")


def _columns(scope: DeviceScope, b: Operand, both: bool) -> None:
    """``ys``: of 8 columns, or of twice 8 at once, two matrices of 8 by 16 bytes each."""
    text, half = scope.text, WIDEST // b.size
    first, on, word = "left + ni * 8", " + lane / 16 * 8" if both else "", f"ldmatrix_x{4 if both else 2}"
    if not b.by_ldmatrix:
        for q in range(2):
            text.add(f"ys[{q}] = {_word(b, b.at(f'{first} + lane / 4', _in_k(b, q)))};")
    elif b.along.stride == 1:
        place = b.at(f"{first} + lane % 8{on}", f"ki + lane / 8 % 2 * {half}")
        text.add(f"{word}(ys, {place});")
    else:
        text.add(f"{word}_trans(ys, {b.at(first + on, 'ki + lane % 16')});")


def _in_k(operand: Operand, half: int) -> str:
    """Where in the sum a lane's elements of a word begin."""
    return f"ki + {half * WIDEST // operand.size} + lane % 4 * {4 // operand.size}"


def _word(operand: Operand, place: str) -> str:
    """Elements that follow each other in the sum, in one word."""
    if operand.along.stride == 1 and operand.aligned >= 4:
        return f"word({place})"
    return f"gathered({place}, {operand.along.stride})"
