"""Messages by hand: their order, and loops of them."""

import pytest

import megatile as mt
import megatile.language as T
from megatile.ir import nodes as n
from megatile.verdict.exchange import incast
from megatile.verdict.serial import small_copies
from megatile.verdict.study import Study


def dispatched(turned, slots=256, dim=512):
    @T.program
    def kernel(X: T.Tensor((8, 8, slots, dim), "f16"), Y: T.Tensor((8, 8 * slots, dim), "f16")):
        with T.Kernel(device=8, block=slots // 2, threads=128) as b:
            with T.Scale("device") as (r, count):
                x, y = T.view(X, layout=T.Shard(0)), T.view(Y, layout=T.Shard(0))
                box = T.alloc((8 * slots, dim), "f16", level="l2")
                for p in range(8):
                    peer = (r + p) % count if turned else p
                    T.copy(box[r * slots : (r + 1) * slots, :], x[0, peer, :, :], dst=peer)
                T.barrier()
                with T.Scale("block"):
                    t = T.alloc((16, dim), "f16", level="l1")
                    T.copy(t, box[b * 16, 0])
                    T.copy(y[0, b * 16, 0], t)

    return kernel


def test_devices_that_send_in_one_order_are_found_where_blocks_work_too():
    slow, fast = (mt.simulate(dispatched(turned), machine="dgx-h100") for turned in (False, True))
    (found,) = incast(Study(slow))
    assert found.gain == pytest.approx(slow.time_ps / fast.time_ps, rel=0.1)
    assert not list(incast(Study(fast)))


def test_messages_one_by_one_under_conditions_are_found():
    @T.program
    def halo(X: T.Tensor((4, 4096), "f32")):
        with T.Kernel(device=4), T.Scale("device") as (r, count):
            x = T.view(X, layout=T.FullRow)
            u = T.alloc((12, 4096), "f32", level="l2")
            for i in T.serial(4):
                if r > 0:
                    T.copy(u[8 + i, :], u[4 + i, :], dst=r - 1)
                if r < count - 1:
                    T.copy(u[i, :], u[4 + i, :], dst=r + 1)
            T.barrier()
            T.copy(x[0, :], u[0, :])

    result = mt.simulate(halo, machine="dgx-h100")
    (found,) = small_copies(Study(result))
    assert found.name == "small messages"
    assert found.gain > 1.5
    assert len(list(n.each(n.If, result.lowered.source.body))) == 2
