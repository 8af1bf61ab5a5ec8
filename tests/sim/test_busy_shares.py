"""Shares of time are shares: copies that go on at once count once."""

import megatile as mt
import megatile.language as T


@T.program
def gather(X: T.Tensor((64, 4096), "f32"), Y: T.Tensor((64, 4096), "f32")):
    with T.Kernel(block=8, threads=128) as b:
        x = T.alloc((8, 4096), "f32", level="l1")
        for i in T.serial(8):
            T.copy(x[i, 0:4096], X[b * 8 + i, 0])
        T.copy(Y[b * 8, 0], x)


def test_overlapping_copies_count_once():
    r = mt.simulate(gather, machine="dgx-h100")
    whole = r.time_ps * r.usage.units["dma"]
    assert r.busy["dma"] > whole  # eight at a time
    assert 0.1 < r.use("dma") <= 1
