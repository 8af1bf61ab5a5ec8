"""``ir/passes/normalise.py``: expressions and control flow in their simplest form."""

from tests.ir.shared import LAUNCH, program

from megatile.ir.passes.driver import steps
from megatile.ir.passes.normalise import Normalise


def test_normalise() -> None:
    p = program(
        """
for k in serial(0, 4, 1):
    fill(A[k * 2 + k * 2::2 + 2, 0::8])
for k in serial(3, 3, 1):
    fill(B[0::1, 0::1])
if 1 < 2:
    fill(B[0::4, 0::8])
else:
    fill(A[0::1, 0::1])
"""
    )
    (after,) = steps(p, [Normalise()])
    assert (after.name, str(after.program)) == (
        "normalise",
        f"def p(A: f32[16, 8], B: f32[16, 8]):\n    {LAUNCH}\n"
        "    for k in serial(0, 4, 1):\n        fill(A[k * 4::4, 0::8])\n    fill(B[0::4, 0::8])\n",
    )
