"""Views become regions of their tensors: texts before and after, and the same meaning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.ir.passes.shared import resolved
from tests.language.tile.random_nodes import nested_program
from tests.language.tile.random_programs import random_program
from tests.language.tile.random_reach import reaching_program
from tests.lowering import odd_size_programs
from tests.lowering.test_examples import EXAMPLES, programs_of

import megatile as mt
import megatile.language as T
from megatile.ir.parser import parse
from megatile.ir.passes.driver import steps
from megatile.ir.passes.normalise import Normalise
from megatile.ir.passes.remove_jumps import RemoveJumps
from megatile.ir.passes.resolve_views import ResolveViews
from megatile.ir.program import Program
from megatile.lowering.lowered import build

CASES = {
    "shards": (
        "A: f32[64, 8]",
        """
with scale("device"):
    a = view("A", shard(0), "device")
    fill(a[4::4, 0::8])
    a[1, 2] = a[3, 2] + 1.0
""",
        """
A: f32[64, 8] @ part("device", shard(0))
with scale("device"):
fill(A.device[rank("device", "launch") * 16 + 4::4, 0::8])
A.device[rank("device", "launch") * 16 + 1, 2] = A.device[rank("device", "launch") * 16 + 3, 2] + 1.0
""",
    ),
    "an edge": (
        "A: f32[30]",
        """
with scale("block"):
    t = alloc((16,), "f32", "shared", "block")
    copy(t[0::16], A[anchor(block.x * 16, 16)])
""",
        """
A: f32[30]
with scale("block"):
t = alloc((16,), "f32", "shared", "block")
copy(t[0::16], A[clip(block.x * 16, 16, 0, 30)])
""",
    ),
    "uneven shards": (
        "A: f32[10]",
        """
with scale("device"):
    a = view("A", shard(0), "device")
    fill(a[anchor(0, 3)])
""",
        """
A: f32[10] @ part("device", shard(0))
with scale("device"):
fill(A.device[clip(min(rank("device", "launch") * 3, 10), 3, min(rank("device", "launch") * 3, 10), \
min(rank("device", "launch") * 3 + 3, 10))])
""",
    ),
    "an anchor along a view": (
        "A: f32[64]",
        """
with scale("block"):
    t = alloc((16,), "f32", "shared", "block")
    with scale("warpgroup"):
        w = view("t", shard(0), "warpgroup")
        copy(w[0::8], along(A[anchor(block.x * 16, 8)], w))
""",
        """
A: f32[64]
with scale("block"):
t = alloc((16,), "f32", "shared", "block", parts=(part("warpgroup", shard(0)),))
with scale("warpgroup"):
copy(t.warpgroup[rank("warpgroup", "block") * 8::8], \
A[block.x * 16 + rank("warpgroup", "block") * 8::8])
""",
    ),
    "a view of a view": (
        "A: f32[64]",
        """
with scale("device"):
    a = view("A", shard(0), "device")
with scale("block"):
    b = view("a", shard(0), "block")
    fill(b[0::8])
""",
        """
A: f32[64] @ part("device", shard(0)) @ part("device", shard(0), "block", shard(0))
with scale("block"):
fill(A.device.block[rank("device", "launch") * 16 + rank("block", "device") * 8::8])
""",
    ),
    "a put into another's view": (
        "A: f32[64], B: f32[64]",
        """
with scale("device"):
    a = view("A", shard(0), "device")
    b = view("B", shard(0), "device")
    copy(a[0::16], b[0::16], dst=(rank("device", "launch") + 1) % 4)
    copy(a[0::16], b[0::16], src=rank("device", "launch") + 1)
""",
        """
A: f32[64] @ part("device", shard(0)), B: f32[64] @ part("device", shard(0))
with scale("device"):
copy(A.device[(rank("device", "launch") + 1) % 4 * 16::16], B.device[rank("device", "launch") * 16::16], \
dst=(rank("device", "launch") + 1) % 4)
copy(A.device[rank("device", "launch") * 16::16], B.device[(rank("device", "launch") + 1) % 4 * 16::16], \
src=rank("device", "launch") + 1)
""",
    ),
    "an owner function of runs": (
        "A: f32[8]",
        """
with scale("device"):
    a = view("A", owner([span(0, 4, 1)], [span(4, 8, 1)]), "device")
    fill(a[0::4])
""",
        """
A: f32[8] @ part("device", owner([span(0, 4, 1)], [span(4, 8, 1)]))
with scale("device"):
fill(A.device[rank("device", "launch") * 4::4])
""",
    ),
    "an owner function that scatters": (
        "A: f32[5]",
        """
with scale("device"):
    a = view("A", owner([[0, 2, 4]], [[1, 3]]), "device")
    fill(a[0::2])
    a[1] = 0.0
""",
        """
A: f32[5] @ part("device", owner([span(0, 5, 2)], [[1, 3]]))
with scale("device"):
fill(A.device[pick(0, rank("device", "launch"), [[0, 2, 4], [1, 3]])::2])
A.device[pick(1, rank("device", "launch"), [[0, 2, 4], [1, 3]])] = 0.0
""",
    ),
    "copies and what is gathered": (
        "A: f32[16], C: f32[8]",
        """
with scale("device"):
    a = view("A", shard(0), "device")
    c = view("C", partial("sum"), "device")
    fill(c[0::8])
    collective("gather_view", "device", (a[0::4],), (a[0::4],))
""",
        """
A: f32[16] @ part("device", shard(0)), C: f32[8] @ part("device", partial("sum"))
with scale("device"):
fill(C.device[0::8])
collective("gather_view", "device", (A.device[rank("device", "launch") * 4::4],), \
(A.device[rank("device", "launch") * 4::4],))
""",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_before_and_after(case: str) -> None:
    params, body, wanted = CASES[case]
    assert resolved(params, body, 2 if "owner" in case else 4) == wanted.strip("\n")


# --- the same meaning ---------------------------------------------------------------------------------


def check_each_step(program: Program, arrays: list[Any], machine: Any) -> None:
    """The interpreter gives the same after each pass, bit for bit, and the executed Plan agrees."""
    quiet: dict[str, Any] = {"machine": machine, "output": lambda text: None}
    wanted = [np.array(a) for a in arrays]
    mt.run(program, *wanted, **quiet)
    for step in steps(program, (Normalise(), ResolveViews(), RemoveJumps())):
        found = [np.array(a) for a in arrays]
        mt.run(step.program, *found, **quiet)
        assert [a.tobytes() for a in found] == [a.tobytes() for a in wanted], step.name
        if step.name == "resolve_views":
            assert ResolveViews().apply(step.program) == step.program
            text = str(step)
            assert parse(text) == step.program
            assert not any(word in text for word in ("view(", "along(", "anchor("))
    got = mt.execute(program, *arrays, machine=machine)
    for param, before, after in zip(program.params, arrays, wanted, strict=True):
        mine = np.asarray(got.get(param.name, before)).astype("f8")
        np.testing.assert_allclose(mine, after.astype("f8"), rtol=2e-2, atol=2e-3, err_msg=param.name)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples(path: Any, capsys: Any) -> None:
    for prog, arrays, machine in programs_of(path):
        check_each_step(*_built(prog, arrays, machine))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "make", [odd_size_programs.uneven_shards3, odd_size_programs.moe_ep3, odd_size_programs.conv1d_halo3]
)
def test_unusual_sizes(make: Any) -> None:
    check_each_step(*_built(*make(), "dgx-h100"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(6))
def test_random_programs(seed: int) -> None:
    for case in (random_program(seed), reaching_program(seed)):
        check_each_step(*_built(case.program, case.arrays(), "dgx-h100"))
    nested = nested_program(seed)
    check_each_step(*_built(nested.program, nested.arrays(), "h100-cluster"))


def test_scattered_tiles_and_tensors() -> None:
    @T.program
    def p(X: T.Tensor((12,), "f32"), Y: T.Tensor((12,), "f32")):
        with T.Kernel(device=2, block=1, threads=256):
            with T.Scale("device"):
                y = T.view(Y, layout=lambda i: i % 2)
            with T.Scale("block"):
                t = T.alloc((12,), "f32", level="l1")
                T.copy(t, X)
                with T.Scale("warpgroup"):
                    mine = T.view(t, layout=lambda i: i % 2)
                    T.cumsum(mine, mine)
                for i in T.Parallel(6):
                    y[i] = t[i]

    arrays = [np.arange(12, dtype="f4"), np.zeros(12, "f4")]
    check_each_step(*_built(p, arrays, "dgx-h100"))


def _built(prog: Any, arrays: list[Any], machine: str) -> tuple[Program, list[Any], Any]:
    program, hda = build(prog, arrays, machine)
    return program, arrays, hda
