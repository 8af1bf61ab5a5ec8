"""``ir/parser.py``: text of a Program back to a Program."""

from dataclasses import replace

import pytest
from tests.ir.shared import program

from megatile.ir import nodes as n
from megatile.ir.parser import ProgramSyntaxError, parse
from megatile.ir.verify import verify

EVERYTHING = """
with scale("device"):
    a = view("A", shard(0), "device")
    b = view("B", mesh(shard(0), replica()), "device")
    t = alloc((8, 8), "f16", "hbm", "device")
    f = alloc((2,), "i32", "hbm", "device", flag=True)
    r = reshape("t", (4, 16), "f16")
    n = readscalar(f[0], bound=4)
    x = n + 1
    copy(t[0::8, 0::8], a[0::8, 0::8], dst=(rank("device", "launch") + 1) % 2, axis=0, impl="dma")
    copy(t[0::8, 0::8], along(A[anchor(n * 8, 8), anchor(0, 8)], b))
    gemm(t[0::8, 0::8], t[0::8, 0::8], t[0::8, 0::8], transpose_b=True, clear=True, policy="FullRow")
    fill(t[0::4, 3], value=(-inf))
    reduce("max", a[0::8, 0::8], t[0, 0::8], clear=False)
    cumsum(a[0::8, 0::8], t[0::8, 0::8], dim=1, reverse=True)
    barrier("device", axis=0)
    signal("f", (1,), dst=0, amount=2)
    wait("f", (1,), n)
    wait("f", (0,), 1, phase=2)
    hint("use_swizzle", text='panel_size=10, order="row"')
    collective("allreduce", "device", (t[0::8, 0],), (t[0::8, 0],), op="fn", fn=merge("m", (max(a0, b0),)))
    print("{} {}", values=(x, t[0::1, 0::8]), unit=0)
    check(x < 5 and not n == 3, text="small")
    breakpoint(unit=1)
    atomic("add", "A", (0, 0), cast(x, "f32") * bitcast(f[0], "f32"))
    atomic("cas", "f", (0,), x, expected=0, result="old")
    atomicregion("max", a[0::8, 0::8], t[0::8, 0::8])
    barrier("device", name="pair", group=old // 2, units=2)
    barrier("device", units=(0, 1))
    fence()
    for turn in bounded(0, 64, 1):
        if old > 3:
            break
        else:
            continue
    for s in in_step(8):
        t[s, 0] = t[s, 1]
    for k in pipelined(0, n, 2, stages=3):
        for i, j in parallel(8, 8):
            y = select(i < j, exp2(t[i, j]), 0.5)
            t[i, j] = y - t[j, i] ** 2.0
    if x > 1:
        return
    else:
        with scale("block"):
            v = view("a", owner([[0, 2], span(0, 8, 1)], [[1], span(0, 8, 1)], [[], []], [[], []]), "block")
"""


def test_everything_parses_back() -> None:
    p = program(EVERYTHING)
    assert parse(str(p)) == p
    assert parse(str(replace(p, padded=True))) == replace(p, padded=True)
    verify(p)
    kinds = {type(node) for node in n.walk(p.body)}
    assert kinds == set(n.STATEMENTS.values())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "a Program is one 'def'"),
        ("def p(:", "not a Program: "),
        ("\0", "not a Program: .*null bytes"),
        ("x = " + "-" * 100_000 + "1", "not a Program: "),
        ("def p(A):\n    launch(block=1, dispatch='block')", "a parameter is written name: dtype"),
        ("def p():\n    pass", "begins with launch"),
        ("def p():\n    launch(block=1, dispatch='block')\n    dance(1)", "unknown statement"),
        ("def p():\n    launch(block=1, dispatch='block')\n    x = sing(1)", "unknown function"),
        ("def p():\n    launch(block=1, dispatch='block')\n    x = lambda: 1", "unknown expression: lambda"),
        (
            "def p():\n    launch(block=1, dispatch='block')\n    for i in around(1):\n        pass",
            "unknown loop",
        ),
        (
            "def p(A: f32[8]):\n    launch(block=1, dispatch='block')\n    fill(A[anchor(0, 4, 8)])",
            "an anchor has a start and an extent",
        ),
        (
            "def p(A: f32[8]):\n    launch(block=1, dispatch='block')\n    fill(A[clip(0, 4)])",
            "clip has a start, an extent and two limits",
        ),
    ],
)
def test_syntax_errors(text: str, message: str) -> None:
    with pytest.raises(ProgramSyntaxError, match=message):
        parse(text)
