"""``plan/kernel_ends.py``: where the kernels of libraries end that a stream starts."""

from __future__ import annotations

from megatile.plan import model as pm
from megatile.plan.code import compile_plan
from megatile.plan.kernel_ends import kernel_ends

PLAN = """
plan("p", scale="device", grid=(2,))
nccl = transport("kernel", library="nccl", algorithm="ring", protocol="LL")
x = tile(f32, (8,), memory="hbm")
ring = channel(source=(unit + 1) % 2, slots=2, slot_bytes=32, memory="hbm", transport="nccl")
with units((0, 2, 1)):
    start(nccl, "all_reduce", ranks=2, bytes=32)
    for i in range(0, 2, 1):
        send(ring, x, to=(unit + 1) % 2, bytes=32)
        m <- receive(ring, f32[8], bytes=32)
        x <- add(x, m, flops=8, bytes=96, by="nccl")
        free(m)
    x <- fill(value=0, flops=8)
    for i_1 in range(0, 2, 1):
        start(nccl, "all_reduce", ranks=2, bytes=32)
        x <- copy(x, engine="vector", bytes=32, by="nccl")
        x <- fill(value=1, flops=8)
"""


def test_a_kernel_ends_after_the_last_command_of_its_transport() -> None:
    plan = pm.Plan.from_text(PLAN)
    (code,) = compile_plan(plan)
    after = [code.instructions[i] for i in sorted(kernel_ends(plan, code))]
    assert [getattr(one.statement, "operation", one.kind) for one in after] == ["fill", "fill"]
    assert [dict(one.statement.attributes)["value"] for one in after] == [0, 1]
