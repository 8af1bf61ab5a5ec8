"""The engine as plain Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from megatile.records.functions import Functions
from megatile.sim import instructions, state
from megatile.sim.arena import LAYOUT

_HERE = Path(__file__).parent


def _translate_serialise(function: Any) -> None:
    """Translate ``serialise(amount, rate)``, the engine's one function with floats: the rate's bits as an
    integer, and Python's floor division."""
    from llvmlite import ir

    word, real = ir.IntType(64), ir.DoubleType()
    b = ir.IRBuilder(function.append_basic_block())
    amount, bits = function.args
    rate = b.bitcast(bits, real)
    nothing = b.or_(
        b.icmp_signed("<=", amount, word(0)), b.fcmp_ordered("==", rate, ir.Constant(real, float("inf")))
    )
    with b.if_then(nothing):
        b.ret(word(0))
    x = b.fsub(ir.Constant(real, -0.0), b.fmul(b.sitofp(amount, real), ir.Constant(real, 1e12)))
    rest = b.frem(x, rate)
    quotient = b.fdiv(b.fsub(x, rest), rate)
    uneven = b.fcmp_unordered("!=", rest, ir.Constant(real, 0.0))
    quotient = b.select(uneven, b.fsub(quotient, ir.Constant(real, 1.0)), quotient)
    floor = function.module.declare_intrinsic("llvm.floor", [real])
    down = b.call(floor, [quotient])
    high = b.fcmp_ordered(">", b.fsub(quotient, down), ir.Constant(real, 0.5))
    down = b.select(high, b.fadd(down, ir.Constant(real, 1.0)), down)
    b.ret(b.sub(word(0), b.fptosi(down, word)))


FUNCTIONS = Functions(
    _HERE / "engine",
    {**vars(instructions), **vars(state)},
    LAYOUT,
    [_HERE / name for name in ("instructions.py", "state.py", "arena.py", "plain.py")],
    {"serialise": _translate_serialise},
)
"""The functions of the engine; ``answering``: by the number of a simulation that runs, what answers it."""


def engine() -> Any:
    """Return the functions of the engine; each takes the memory of an `Arena` first."""
    return FUNCTIONS.plain
