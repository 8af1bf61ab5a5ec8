"""Work whose results are masked out."""

import megatile as mt
import megatile.language as T
from megatile.ir import nodes as n
from megatile.verdict.needless import _without_copies, invariant, masks


def owners(program):
    source = mt.lower(program, machine="dgx-h100").source
    return [(getattr(owner, "var", ""), guard.text()) for owner, guard, _ in masks(source)]


def test_masks_of_what_is_added_leave_out_rounds():
    @T.program
    def mixture(E: T.Tensor((4,), "i32"), X: T.Tensor((8, 256), "f32"), Y: T.Tensor((4, 256), "f32")):
        with T.Kernel(block=4, threads=64) as b:
            x, y = T.alloc((256,), "f32"), T.alloc((256,), "f32")
            mine = T.read_scalar(E[b], bound=7)
            T.clear(y)
            for e in T.serial(8):
                T.copy(x, X[e, 0:256])
                for i in T.Parallel(256):
                    y[i] = y[i] + T.if_then_else(e == mine, x[i], 0.0)
            T.copy(Y[b, 0:256], y)

    assert owners(mixture) == [("e", "e == scalar")]


def test_masks_by_a_number_that_rounds_read_leave_them_out():
    @T.program
    def sparse(M: T.Tensor((4, 8), "i32"), X: T.Tensor((8, 256), "f32"), Y: T.Tensor((4, 256), "f32")):
        with T.Kernel(block=4, threads=64) as b:
            x, y = T.alloc((256,), "f32"), T.alloc((256,), "f32")
            T.clear(y)
            for e in T.serial(8):
                wanted = T.read_scalar(M[b, e], bound=1)
                T.copy(x, X[e, 0:256])
                for i in T.Parallel(256):
                    x[i] = T.if_then_else(wanted > 0, x[i], 0.0)
                for i in T.Parallel(256):
                    y[i] = y[i] + x[i]
            T.copy(Y[b, 0:256], y)

    assert owners(sparse) == [("e", "scalar > 0")]
    (loop,) = n.each(n.Loop, mt.lower(sparse, machine="dgx-h100").source.body)
    assert isinstance(loop.body[0], n.ReadScalar)


def test_copies_of_copies_are_all_left_out():
    @T.program
    def handed_on(X: T.Tensor((64, 256), "f16"), Y: T.Tensor((64, 256), "f32")):
        with T.Kernel(block=8, threads=64) as b:
            x, y = T.alloc((8, 256), "f16", level="l1"), T.alloc((8, 256), "f16", level="l1")
            z, w = T.alloc((8, 256), "f16", level="l1"), T.alloc((8, 256), "f32")
            T.copy(x, X[b * 8, 0])
            T.copy(y, x)
            T.copy(z, y)
            T.copy(w, z)
            T.copy(Y[b * 8, 0], w)

    left = _without_copies(mt.lower(handed_on, machine="dgx-h100").source, far="hbm")
    assert [(m.to.source, m.source.source) for m in n.each(n.Copy, left.body)] == [
        ("x", "X"), ("w", "x"), ("Y", "w")
    ]  # fmt: skip
    assert mt.lower(left, machine="dgx-h100").plan


def test_a_broadcast_in_every_round_is_repeated_unless_its_tile_changes():
    def stepped(changes, n=1024):
        @T.program
        def made(W: T.Tensor((4, n), "f16"), Y: T.Tensor((4, 6, n), "f16")):
            with T.Kernel(device=4), T.Scale("device"):
                w, y = T.view(W, layout=T.FullRow), T.view(Y, layout=T.Shard(0))
                t = T.alloc((1, n), "f16", level="l2")
                T.copy(t, w)
                for s in T.serial(6):
                    T.broadcast(t, root=0)
                    for j in T.Parallel(n):
                        y[0, s, j] = t[0, j]
                    if changes:
                        for j in T.Parallel(n):
                            t[0, j] = t[0, j] * 2

        return mt.lower(made, machine="dgx-h100").source

    ((loop, node),) = invariant(stepped(False))
    assert (loop.var, node.kind) == ("s", "broadcast")
    assert not list(invariant(stepped(True)))
