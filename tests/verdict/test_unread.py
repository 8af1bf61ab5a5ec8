"""What units read of the results of collectives."""

import pytest

import megatile as mt
import megatile.language as T
from megatile.ir import nodes as n
from megatile.verdict import changes, footprint
from megatile.verdict.fusion import between
from megatile.verdict.study import Study
from megatile.verdict.unread import unread_parts


def test_a_sum_of_which_blocks_read_their_devices_rows_is_found():
    @T.program
    def layer(
        X: T.Tensor((512, 4096), "f16"), W: T.Tensor((4096, 512), "f16"), Y: T.Tensor((512, 512), "f32")
    ):
        with T.Kernel(device=8, block=(4, 4), threads=128) as (bx, by), T.Scale("device") as (r, _):
            x, w, y = T.view(X, layout=T.FullCol), T.view(W, layout=T.FullRow), T.view(Y, layout=T.FullRow)
            part = T.alloc((512, 512), "f32", level="l2")
            with T.Scale("block"):
                a, b = T.alloc((128, 2), "f16", level="l1"), T.alloc((2, 128), "f16", level="l1")
                c = T.alloc((128, 128), "f32")
                T.clear(c)
                for k in T.Pipelined(256, num_stages=2):
                    T.copy(a, x[by * 128, k * 2])
                    T.copy(b, w[k * 2, bx * 128])
                    T.gemm(a, b, c)
                T.copy(part[by * 128, bx * 128], c)
            T.allreduce(part)
            with T.Scale("block"):
                u = T.alloc((16, 128), "f32")
                T.copy(u, part[r * 64 + by * 16, bx * 128])
                T.copy(y[by * 16, bx * 128], u)

    low = mt.lower(layer, machine="dgx-h100")
    (one,) = n.each(n.Collective, low.source.body)
    share = footprint.read_share(low.plan, "part", changes.source_line(one))
    assert share == pytest.approx(1 / 8)
    assert not list(between(low.plan))  # what a collective changes is not passed on


def turned(gathered, n=1 << 16, devices=8):
    @T.program
    def made(X: T.Tensor((devices, devices, n), "f16"), Y: T.Tensor((devices, devices, n), "f16")):
        with T.Kernel(device=devices), T.Scale("device") as (r, _):
            x, y = T.view(X, layout=T.Shard(0)), T.view(Y, layout=T.Shard(0))
            if gathered:
                every = T.alloc((devices, devices, n), "f16", level="l2")
                T.allgather(every, x)
                T.copy(y[0, 0:devices, 0:n], every[0:devices, r, 0:n])
            else:
                mine, got = (T.alloc((devices, n), "f16", level="l2") for _ in range(2))
                T.copy(mine, x[0])
                T.all_to_all(got, mine)
                T.copy(y[0], got)

    return made


def test_a_gather_of_which_units_read_some_of_each_part_is_an_exchange():
    slow, fast = (mt.simulate(turned(gathered), machine="dgx-h100") for gathered in (True, False))
    (found,) = unread_parts(Study(slow))
    assert found.gain == pytest.approx(slow.time_ps / fast.time_ps, rel=0.1)
    assert "all_to_all" in found.step


@pytest.mark.parametrize("edge", [1, 16])
def test_a_gather_of_which_units_read_the_edges_of_others_is_a_halo(edge):
    H, W, devices = 128, 1024, 4
    rows = H // devices

    @T.program
    def sweeps(U: T.Tensor((H, W), "f32")):
        with T.Kernel(device=devices, block=(W // 128, rows // 16), threads=128) as (bx, by):
            with T.Scale("device") as (r, _):
                mine = T.view(U, layout=T.FullRow)
                field = T.alloc((H, W), "f32", level="l2")
                for _ in T.serial(3):
                    T.allgather(field, mine)
                    with T.Scale("block"):
                        x, up = T.alloc((16, 128), "f32"), T.alloc((edge, 128), "f32")
                        first = r * rows + by * 16
                        T.copy(up, field[(first + H - edge) % H, bx * 128])
                        T.copy(x, field[first, bx * 128])
                        for i, j in T.Parallel(16, 128):
                            x[i, j] = x[i, j] + up[i % edge, j]
                        T.copy(mine[by * 16, bx * 128], x)
                    T.barrier()

    found = list(unread_parts(Study(mt.simulate(sweeps, machine="dgx-h100"))))
    assert [("halo" in f.reason, f.bound) for f in found] == ([(True, True)] if edge == 1 else [])
    if edge == 1:
        assert f"reads {1 / H:.2g} of it" in found[0].bottleneck
