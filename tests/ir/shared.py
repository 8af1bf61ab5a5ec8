"""What several files of tests/ir share."""

from megatile.ir.parser import parse

LAUNCH = 'launch(device=2, block=4, warpgroup=2, dispatch="block")'


def program(body: str):
    lines = "\n".join(f"    {line}" for line in body.strip("\n").splitlines())
    return parse(f"def p(A: f32[16, 8], B: f32[16, 8]):\n    {LAUNCH}\n{lines}\n")
