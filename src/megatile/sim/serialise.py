"""How long bytes or operations take at a rate, as machine code: the engine's one function with floats."""

from __future__ import annotations

from typing import Any


def translate_serialise(function: Any) -> None:
    """``serialise(amount, rate)`` with the rate's bits as an integer: Python's floor division of floats."""
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
