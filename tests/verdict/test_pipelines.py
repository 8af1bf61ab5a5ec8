"""Pipelines of devices: those through which a batch passes as one, and what micro-batches bring."""

import pytest

import megatile as mt
import megatile.language as T
from megatile.verdict.pipelines import devices_take_turns, turns_of
from megatile.verdict.study import Study


def pipeline(parts, M=8192, N=1024, devices=4):
    """A product with every device's weights, one after the other, of all rows or of a part at a time."""
    rows = M // parts

    @T.program
    def kernel(
        X: T.Tensor((M, N), "f16"),
        W: T.Tensor((devices * N, N), "f16"),
        Y: T.Tensor((devices * M, N), "f16"),
    ):
        with T.Kernel(device=devices, block=(N // 128, rows // 128), threads=256) as (bx, by):
            with T.Scale("device") as (r, n):
                w, y = T.view(W, layout=T.FullRow), T.view(Y, layout=T.FullRow)
                x, box = T.view(X, layout=T.Replica), T.alloc((M, N), "f16", level="l2")
                T.copy(box, x)
                T.barrier()
            for s in T.serial(devices + parts - 1):
                with T.Scale("block"):
                    if (s >= r) & (s - r < parts):
                        a, b = T.alloc((128, 64), "f16", level="l1"), T.alloc((64, 128), "f16", level="l1")
                        c = T.alloc((128, 128), "f32")
                        T.clear(c)
                        for k in T.Pipelined(N // 64, num_stages=3):
                            T.copy(a, box[(s - r) * rows + by * 128, k * 64])
                            T.copy(b, w[k * 64, bx * 128])
                            T.gemm(a, b, c)
                        T.copy(y[(s - r) * rows + by * 128, bx * 128], c)
                with T.Scale("device"):
                    mine = (s >= r) & (s - r < parts) & (r < n - 1)
                    if mine:
                        at = (s - r) * rows
                        T.copy(box[at : at + rows, :], y[at : at + rows, :], dst=r + 1)
                    T.barrier()

    return kernel


def test_devices_of_which_one_works_at_a_time_are_found():
    slow = mt.simulate(pipeline(1), machine="dgx-h100")
    (found,) = devices_take_turns(Study(slow))
    parts = int(found.step.split()[4])
    written = mt.simulate(pipeline(parts), machine="dgx-h100")
    assert found.gain == pytest.approx(slow.time_ps / written.time_ps, rel=0.25)
    assert turns_of(Study(written)) is None
