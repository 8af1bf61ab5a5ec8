"""What several files of tests/ir/passes share."""

from __future__ import annotations

from megatile.ir.parser import parse
from megatile.ir.passes.resolve_views import ResolveViews
from megatile.ir.verify import verify

LAUNCH = 'launch(device=4, block=2, warpgroup=2, dispatch="block", host="device")'


def resolved(params: str, body: str, device: int = 4) -> str:
    """The parameters and the statements after the pass, in one line each."""
    lines = "\n".join(f"    {line}" for line in body.strip("\n").splitlines())
    launch = LAUNCH.replace("device=4", f"device={device}")
    program = parse(f"def p({params}):\n    {launch}\n{lines}\n")
    after = ResolveViews().apply(program)
    verify(after)
    assert parse(str(after)) == after
    head, _, *rest = str(after).splitlines()
    return "\n".join([head.removeprefix("def p(").removesuffix("):"), *(line.strip() for line in rest)])
