"""Faults that give wrong data without a crash on hardware, each beside a correct twin that is not reported.

The first four are those that TileScale's notes on tuning call "silently wrong, not slow".
"""

import warnings

import numpy as np
import pytest

import megatile as mt
import megatile.language as T
import megatile.tilelang as tilelang
import megatile.tilelang.language as TL
from megatile.compat.tilelang.source import PrimFunc
from megatile.core.errors import MegatileError

D, N = 4, 8


def rows(n=D, width=N):
    return np.random.default_rng(0).random((n, width), np.float32)


def neighbours(faulty, *, arrivals=1, contexts=1, put_first=True, barrier=True, again=1):
    """Each device puts its row to the next and waits for a count that is divided by ``contexts``."""
    wanted = arrivals // contexts if contexts > 1 else arrivals - (0 if not faulty or contexts > 1 else 1)
    wanted = arrivals if not faulty else wanted

    @T.program
    def kernel(X: T.Tensor((D, N), "f32"), Y: T.Tensor((D, N), "f32")):
        with T.Kernel(device=D, block=1, threads=32), T.Scale("device") as (r, n):
            x, y = T.view(X, T.FullRow), T.view(Y, T.FullRow)
            inbox = T.alloc((arrivals, N), "f32", level="l2")
            came = T.alloc((1,), "i32", level="l2")
            with T.Scale("block"):
                for s in range(arrivals):
                    if not put_first and faulty:
                        T.signal(came[0], dst=(r + 1 + s) % n, scale="device")
                    T.copy(inbox[s, 0:N], x[0, 0:N], dst=(r + 1 + s) % n, scale="device")
                    if put_first or not faulty:
                        T.signal(came[0], dst=(r + 1 + s) % n, scale="device")
                T.wait(came[0], wanted if put_first else arrivals)
                for i in T.Parallel(N):
                    y[0, i] = inbox[arrivals - 1, i] + inbox[0, i]

    return kernel, (rows(), rows())


def overlapping_ranges(faulty, *, gap=1):
    """Two exchanges one after the other; the second one's flags begin inside the first one's range."""
    second = 2 + gap if not faulty else 1

    @T.program
    def kernel(X: T.Tensor((D, N), "f32"), Y: T.Tensor((D, N), "f32")):
        with T.Kernel(device=D, block=1, threads=32), T.Scale("device") as (r, n):
            x, y = T.view(X, T.FullRow), T.view(Y, T.FullRow)
            a = T.alloc((1, N), "f32", level="l2")
            b = T.alloc((1, N), "f32", level="l2")
            flags = T.alloc((3 + gap,), "i32", level="l2")
            with T.Scale("block"):
                t = T.alloc((1, N), "f32", level="l1")
                T.copy(a, x, dst=(r + 1) % n, scale="device")
                for k in range(2):
                    T.signal(flags[k], dst=(r + 1) % n, scale="device")
                T.wait(flags[0], 1)
                T.copy(t, a)
                T.copy(b, t, dst=(r + 2) % n, scale="device")
                T.signal(flags[second], dst=(r + 2) % n, scale="device")
                T.wait(flags[second], 1)
                T.copy(y, b)

    return kernel, (rows(), rows())


def stale_totals(faulty, *, ranks=2):
    """A signal tensor that an earlier launch left at 1, while the host's total begins at 0 again."""

    @TL.prim_func
    def kernel(X: TL.Tensor((ranks, N), TL.float32), Y: TL.Tensor((ranks, N), TL.float32),
               inbox: TL.Tensor((ranks, N), TL.float32), came: TL.Tensor((ranks,), TL.int32)):  # fmt: skip
        with TL.Kernel(ranks, threads=32) as b:
            t = TL.alloc_shared((N,), TL.float32)
            TL.copy(X[b, 0], t)
            TL.copy(t, inbox[(b + 1) % ranks, 0])
            TL.signal_op(TL.address_of(came[(b + 1) % ranks]), 1, TL.Amo.SIGNAL_ADD, -1)
            TL.wait_ge(came[b], 1)
            TL.copy(inbox[b, 0], t)
            TL.copy(t, Y[b, 0])

    totals = np.ones(ranks, np.int32) if faulty else np.zeros(ranks, np.int32)
    return kernel, (rows(ranks), rows(ranks), rows(ranks), totals)


def truncated(faulty, *, extent=100, block=32, what="rows"):
    """A grid, or a loop, that is rounded down."""
    count = extent // block if faulty else -(-extent // block)
    shape = (extent, N) if what != "columns" else (N, extent)

    @T.program
    def kernel(X: T.Tensor(shape, "f32"), Y: T.Tensor(shape, "f32")):
        with T.Kernel(block=1 if what == "loop" else count, threads=32) as b:
            t = T.alloc((block, N) if what != "columns" else (N, block), "f32", level="l1")
            for k in T.serial(count if what == "loop" else 1):
                if what == "columns":
                    T.copy(t, X[0, b * block])
                    T.copy(Y[0, b * block], t)
                else:
                    T.copy(t, X[(b + k) * block, 0])
                    T.copy(Y[(b + k) * block, 0], t)

    return kernel, (rows(*shape), rows(*shape))


def ring(faulty, *, slots=2, steps=6, fault="empty"):
    """Producer and consumer over slots: the producer must wait until a slot is empty again."""

    @T.program
    def kernel(A: T.Tensor((steps, N), "f32"), C: T.Tensor((steps, N), "f32")):
        with T.Kernel(block=1, warpgroup=2):
            a = T.alloc((slots, N), "f32", level="l1")
            with T.Scale("warpgroup") as (wg, _):
                full = T.alloc((slots,), "i32", level="l1")
                empty = T.alloc((slots,), "i32", level="l1")
                if wg == 0:
                    for k in T.serial(steps):
                        if k >= slots and not (faulty and fault == "empty"):
                            T.wait(empty[k % slots], k // slots)
                        T.copy(a[k % slots, 0:N], A[k, 0:N])
                        T.signal(full[k % slots], dst=1)
                else:
                    for k in T.serial(steps):
                        if not (faulty and fault == "full"):
                            late = 0 if faulty and fault == "phase" else 1
                            T.wait(full[k % slots], k // slots + late)
                        T.copy(C[k, 0:N], a[k % slots, 0:N])
                        T.signal(empty[k % slots], dst=0)

    return kernel, (rows(steps), rows(steps))


def met(faulty, *, scale="device"):
    """A put, and a read of what was put, with a barrier between them or none."""

    @T.program
    def kernel(X: T.Tensor((D, N), "f32"), Y: T.Tensor((D, N), "f32")):
        with T.Kernel(**({"block": 1, scale: D} if scale != "device" else {scale: D})):
            with T.Scale(scale) as (r, n):
                inbox = T.alloc((1, N), "f32", level="l2" if scale == "device" else "l1")
                T.copy(inbox, X[r : r + 1, 0:N], dst=(r + 1) % n)
                if not faulty:
                    T.barrier()
                T.copy(Y[r : r + 1, 0:N], inbox)

    return kernel, (rows(), rows())


def reused(faulty, *, rounds=3):
    """An inbox that is written again before its owner has read it."""

    @T.program
    def kernel(X: T.Tensor((D, N), "f32"), Y: T.Tensor((D, N), "f32")):
        with T.Kernel(device=D), T.Scale("device") as (r, n):
            x, y = T.view(X, T.FullRow), T.view(Y, T.FullRow)
            inbox = T.alloc((1, N), "f32", level="l2")
            for _ in range(rounds):
                T.copy(inbox, x, dst=(r + 1) % n)
                T.barrier()
                T.copy(y, inbox)
                if not faulty:
                    T.barrier()

    return kernel, (rows(), rows())


def reduction(faulty, *, fault="missing", devices=4):
    """Partial sums on devices: the all-reduce is missing, or is done again in every round."""

    @T.program
    def kernel(X: T.Tensor((devices, N), "f32"), Y: T.Tensor((N,), "f32")):
        with T.Kernel(device=devices), T.Scale("device"):
            x, y = T.view(X, T.FullRow), T.view(Y, T.Replica)
            c = T.alloc((N,), "f32", level="l2")
            T.clear(c)
            for _ in T.serial(2):
                for i in T.Parallel(N):
                    c[i] = c[i] + x[0, i]
                if faulty and fault == "again":
                    T.allreduce(c)
            if not faulty:
                T.allreduce(c)
            if faulty and fault == "some":
                T.allreduce(c)
                for i in T.Parallel(N):
                    c[i] = c[i] + x[0, i]
            T.copy(y, c)

    return kernel, (rows(devices), np.zeros(N, np.float32))


def sums(faulty, *, blocks=4, fault="plain"):
    """Blocks add to one result: by atomics, not by a read and a write; from a cleared tile."""

    @T.program
    def kernel(X: T.Tensor((blocks, N), "f32"), Y: T.Tensor((N,), "f32")):
        with T.Kernel(block=blocks, threads=32) as b:
            t = T.alloc((N,), "f32", level="l1")
            if not (faulty and fault == "uncleared"):
                T.clear(t)
            for i in T.Parallel(N):
                t[i] = t[i] + X[b, i]
            for i in T.Parallel(N):
                if faulty and fault == "plain":
                    Y[i] = Y[i] + t[i]
                else:
                    T.atomic_add(Y[i], t[i])

    return kernel, (rows(blocks), np.zeros(N, np.float32))


def written_twice(faulty, *, step=16, scale="block"):
    """Tiles that overlap by one element."""
    count = 4

    @T.program
    def kernel(X: T.Tensor((count * step,), "f32"), Y: T.Tensor((count * step + 1,), "f32")):
        with T.Kernel(**({"block": count} if scale == "block" else {"block": 1, scale: count})):
            with T.Scale(scale) as (b, _):
                for i in T.Parallel(step + (1 if faulty else 0)):
                    Y[b * step + i] = X[T.min(b * step + i, count * step - 1)]
                if b == count - 1 and not faulty:
                    Y[count * step] = X[0]

    return kernel, (rows(1, count * step)[0], rows(1, count * step + 1)[0])


def deadlock(faulty, *, fault="peer"):
    """A signal to the wrong peer, a wait for more than comes, a collective that not all reach."""

    @T.program
    def kernel(X: T.Tensor((D, N), "f32"), Y: T.Tensor((D, N), "f32")):
        with T.Kernel(device=D), T.Scale("device") as (r, n):
            x, y = T.view(X, T.FullRow), T.view(Y, T.FullRow)
            inbox = T.alloc((1, N), "f32", level="l2")
            came = T.alloc((1,), "i32", level="l2")
            T.copy(inbox, x, dst=(r + 1) % n)
            to = 0 if faulty and fault == "peer" else (r + 1) % n
            T.signal(came[0], dst=to)
            T.wait(came[0], 2 if faulty and fault == "count" else 1)
            if fault == "barrier" and (r > 0 or not faulty):
                T.barrier()
            if fault == "collective" and (r < 2 or not faulty):
                T.allreduce(inbox)
            T.copy(y, inbox)

    return kernel, (rows(), rows())


def in_place(faulty, *, shift=1):
    """A shift inside one array: everyone must have read before anyone writes."""

    @T.program
    def kernel(X: T.Tensor((D, N), "f32")):
        with T.Kernel(device=D), T.Scale("device") as (r, n):
            held = T.alloc((1, N), "f32", level="l2")
            T.copy(held, X[r : r + 1, 0:N])
            if not faulty:
                T.barrier()
            T.copy(X[(r + shift) % n : (r + shift) % n + 1, 0:N], held)

    return kernel, (rows(),)


def threads(faulty, *, count=64):
    """Threads of a block exchange elements through shared memory."""

    @T.program
    def kernel(X: T.Tensor((count,), "f32"), Y: T.Tensor((count,), "f32")):
        with T.Kernel(block=1, threads=count):
            s = T.alloc((count,), "f32", level="l1")
            with T.Scale("thread") as (t, n):
                s[t] = X[t]
                if not faulty:
                    T.barrier()
                Y[t] = s[n - 1 - t]

    return kernel, (rows(1, count)[0], rows(1, count)[0])


FOUR = [
    (neighbours, {"contexts": 2}), (overlapping_ranges, {}), (stale_totals, {}), (truncated, {}),
]  # fmt: skip
FORTY = [
    *((neighbours, {"arrivals": a, "contexts": c}) for a, c in ((2, 4), (3, 2), (2, 1), (3, 1))),
    *((neighbours, {"arrivals": a, "put_first": False}) for a in (1, 2, 3)),
    *((overlapping_ranges, {"gap": gap}) for gap in (2, 3)),
    *((stale_totals, {"ranks": ranks}) for ranks in (3, 4)),
    *((truncated, {"extent": e, "block": b, "what": w})
      for e, b, w in ((70, 16, "columns"), (33, 32, "rows"), (50, 16, "loop"), (100, 48, "loop"))),
    *((ring, {"slots": s, "fault": f})
      for s, f in ((2, "empty"), (3, "empty"), (2, "full"), (2, "phase"), (3, "phase"))),
    *((met, {"scale": scale}) for scale in ("device", "warpgroup", "warp")),
    *((reused, {"rounds": n}) for n in (2, 4)),
    *((reduction, {"fault": f, "devices": d})
      for f, d in (("missing", 4), ("missing", 2), ("again", 4), ("some", 3))),
    *((sums, {"blocks": b, "fault": f}) for b, f in ((4, "plain"), (2, "plain"), (4, "uncleared"))),
    *((written_twice, {"step": s, "scale": c}) for s, c in ((16, "block"), (8, "warp"))),
    *((deadlock, {"fault": f}) for f in ("peer", "count", "barrier", "collective")),
    *((in_place, {"shift": s}) for s in (1, 2)),
    *((threads, {"count": c}) for c in (64, 96)),
]  # fmt: skip


def outcome(kernel, arrays) -> list[str]:
    """What is reported: errors of the run, and warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            if isinstance(kernel, PrimFunc):
                tilelang.compile(kernel)(*arrays)
            else:
                mt.run(kernel, *arrays)
        except MegatileError as error:
            return [str(error)]
    return [str(one.message) for one in caught]


@pytest.mark.parametrize(("make", "how"), [*FOUR, *FORTY], ids=lambda part: getattr(part, "__name__", None))
def test_the_fault_is_found_and_its_twin_is_not_reported(make, how) -> None:
    assert outcome(*make(True, **how))
    assert outcome(*make(False, **how)) == []


def test_there_are_forty() -> None:
    assert len(FORTY) >= 40
