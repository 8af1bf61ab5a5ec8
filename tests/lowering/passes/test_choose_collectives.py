"""``lowering/passes/choose_collectives.py``: what algorithm does each collective."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
from tests.lowering.shared import checked, program, text_after
from tests.lowering.test_examples import EXAMPLES, programs_of

import megatile as mt
import megatile.language as T
from megatile.plan import model as pm
from megatile.plan.model import Plan
from megatile.sim.launches import Launch
from megatile.sim.machine_run import MachineRun


def test_collectives_of_one_program_have_a_transport_each() -> None:
    """Of another size or operation, what the library takes is another; alike ones have one."""

    @T.program
    def kernel(X: T.Tensor((4 * 256, 64), "f32"), Y: T.Tensor((4 * 1024, 64), "f32")):
        with T.Kernel(device=4), T.Scale("device"):
            x, y = T.view(X, layout=T.FullRow), T.view(Y, layout=T.FullRow)
            T.allreduce(x)
            T.allgather(y, x)
            T.allreduce(x)

    plan = mt.lower(kernel, machine="dgx-h100").plan
    assert [t.model_name() for t in plan.transports] == ["NCCL ring, LL"] * 2
    starts = [s for s in plan.streams[0].body if isinstance(s, pm.Start)]
    assert [s.collective for s in starts] == ["all_reduce", "all_gather", "all_reduce"]
    assert [s.transport for s in starts] == ["nccl", plan.transports[1].name, "nccl"]
    assert Plan.from_text(str(plan)) == Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize(
    ("kind", "algorithm", "words"),
    [
        ("allreduce", "rings", r"'rings' is not among the collective algorithms .*did you mean 'ring'"),
        ("allreduce", "os:system", "is not among the collective algorithms"),
        ("all_to_all", "tree", r"tree cannot do all_to_all over 4 ranks.*one of bruck"),
        ("allreduce", "hierarchical", "the ranks are not nested in equal groups"),
    ],
)
def test_what_cannot_be_is_reported_with_its_line(kind: str, algorithm: str, words: str) -> None:
    with pytest.raises(mt.MegatileError, match=words) as caught:
        mt.lower(program(kind, algorithm), machine="dgx-h100")
    assert "shared.py:" in str(caught.value)


def test_a_root_that_changes_has_no_algorithm() -> None:
    def spread(algorithm: str | None) -> Any:
        @T.program
        def kernel(X: T.Tensor((4, 8), "f32"), Y: T.Tensor((4, 8), "f32")):
            with T.Kernel(device=4), T.Scale("device") as r:
                t = T.alloc((1, 8), "f32", level="l2")
                for k in T.serial(4):
                    T.copy(t, X[r, 0])
                    T.broadcast(t, root=k, algorithm=algorithm)
                T.copy(Y[r, 0], t)

        return kernel

    x, y = np.arange(32, dtype="f4").reshape(4, 8), np.zeros((4, 8), "f4")
    checked(spread(None), x, y, np.tile(x[3], (4, 1)), "dgx-h100")
    with pytest.raises(mt.MegatileError, match="from a root that is not a number"):
        mt.lower(spread("tree"), machine="dgx-h100")


def test_a_time_is_asked_for_at_most_once_per_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GEMM of the README: bounds take no run, and the times of a machine are asked for once."""
    runs = Counter[str]()
    start = MachineRun.start

    def counted(self: MachineRun, launch: Launch, **keywords: Any) -> Any:
        runs[launch.plan.name] += 1
        return start(self, launch, **keywords)

    monkeypatch.setattr(MachineRun, "start", counted)
    machine = mt.machine("dgx-h100", **{"networks.nvlink.latency": "501 ns"})

    @T.program
    def gemm(A: T.Tensor((256, 512), "f32"), B: T.Tensor((512, 128), "f32"), C: T.Tensor((256, 128), "f32")):
        with T.Kernel(device=4, block=(2, 4), threads=256) as (bx, by):
            with T.Scale("device"):
                a = T.view(A, layout=T.FullCol)
                b = T.view(B, layout=T.FullRow)
                c = T.view(C, layout=T.Replica)
            with T.Scale("block"):
                a_tile = T.alloc((64, 32), "f32", level="l1")
                b_tile = T.alloc((32, 64), "f32", level="l1")
                c_tile = T.alloc((64, 64), "f32", level="l0")
                T.clear(c_tile)
                for k in T.Pipelined(a.shape[1] // 32, num_stages=2):
                    T.copy(a_tile, a[by * 64, k * 32])
                    T.copy(b_tile, b[k * 32, bx * 64])
                    T.gemm(a_tile, b_tile, c_tile)
                T.copy(c[by * 64, bx * 64], c_tile)
            with T.Scale("device"):
                T.allreduce(c, impl="copy_engine")

    for _ in range(2):
        mt.lower(gemm, machine=machine)
        assert set(runs.values()) == {1}


def test_choose_collectives() -> None:
    (path,) = (path for path in EXAMPLES if path.stem.startswith("24_"))
    ((prog, arrays, machine),) = programs_of(path)
    lines = text_after(mt.lower(prog, *arrays, machine=machine), "choose_collectives")
    whole = "(C.device[0::128, 0::128],)"
    assert f'collective("allreduce", "device", {whole}, {whole}, algorithm="ring", impl="nccl")' in lines
    mine = "(C_local.warpgroup[0::64, 0::64],)"
    assert f'collective("allreduce", "warpgroup", {mine}, {mine}, algorithm="shared")' in lines


def test_collectives_without_the_library() -> None:
    @T.program
    def p(Y: T.Tensor((4,), "f32")):
        with T.Kernel(device=2):
            y = T.view(Y, layout=T.Replica)
            o, lse = T.alloc((4,), "f32", level="l2"), T.alloc((4,), "f32", level="l2")
            T.copy(o, y)
            T.copy(lse, y)
            T.allreduce(o, lse, fn=T.lse_merge)
            T.allreduce(o, algorithm="ring")

    text = str(mt.lower(p).steps[-1])
    assert re.findall(r'algorithm="(\w+)"', text) == ["gets", "ring"]
