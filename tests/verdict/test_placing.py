"""Rules about where data are kept: tiles of other units that blocks load again, buffers wider than read."""

import pytest

import megatile as mt
import megatile.language as T
from megatile.verdict.placing import remote_loads, wider_than_read
from megatile.verdict.study import Study


def of_peers(fetched, all_of_them, rows=256, n=512, k=128, devices=2):
    """Products of other devices' rows: loaded by every block, or copied to this device once."""
    parts = devices if all_of_them else 1

    @T.program
    def made(
        X: T.Symmetric((rows, k), "f16"), W: T.Tensor((parts * k, n), "f16"),
        Y: T.Tensor((devices, rows, n), "f16"),
    ):  # fmt: skip
        with T.Kernel(device=devices, block=(n // 64, rows // 64), threads=128) as (bx, by):
            with T.Scale("device") as (r, count):
                w, y = T.view(W, layout=T.Replica), T.view(Y, layout=T.Shard(0))
                local = T.alloc((parts, rows, k), "f16", level="l2")
                for p in range(parts if fetched else 0):
                    peer = (r + p + 1 - all_of_them) % count
                    T.copy(local[peer if all_of_them else 0], X, src=peer)
                with T.Scale("block"):
                    a, b = T.alloc((64, k), "f16", level="l1"), T.alloc((k, 64), "f16", level="l1")
                    c = T.alloc((64, 64), "f32")
                    T.clear(c)
                    for p in T.serial(parts):
                        if fetched:
                            T.copy(a, local[p, by * 64, 0])
                        else:
                            T.copy(
                                a, X[by * 64, 0], src=p if all_of_them else (r + 1) % count, scale="device"
                            )
                        T.copy(b, w[p * k, bx * 64])
                        T.gemm(a, b, c)
                    T.copy(y[0, by * 64, bx * 64], c)

    return made


@pytest.mark.parametrize("all_of_them", [False, True])
def test_tiles_of_other_units_could_be_fetched_once(all_of_them):
    slow, fast = (mt.simulate(of_peers(f, all_of_them, n=4096), machine="dgx-h100") for f in (False, True))
    (found,) = remote_loads(Study(slow))
    assert found.time_ps == pytest.approx(fast.time_ps, rel=0.05)
    assert "'X'" in found.bottleneck
    assert not list(remote_loads(Study(fast)))


def packed(dtype, n=1 << 17, devices=4):
    @T.program
    def exchange(X: T.Tensor((devices, devices, n), "bf16"), Y: T.Tensor((devices, devices, n), "bf16")):
        with T.Kernel(device=devices), T.Scale("device"):
            x, y = T.view(X, layout=T.Shard(0)), T.view(Y, layout=T.Shard(0))
            mine, got = T.alloc((devices, n), dtype, level="l2"), T.alloc((devices, n), dtype, level="l2")
            for i, j in T.Parallel(devices, n):
                mine[i, j] = T.max(x[0, i, j], 0)
            T.all_to_all(got, mine)
            T.copy(y[0], got)

    return exchange


def test_both_buffers_of_an_exchange_could_be_narrow():
    slow, fast = (mt.simulate(packed(dtype), machine="dgx-h100") for dtype in ("f32", "bf16"))
    (found,) = wider_than_read(Study(slow))
    assert found.name == "wide messages"
    assert found.time_ps == pytest.approx(fast.time_ps, rel=0.05)
