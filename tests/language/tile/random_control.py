"""Steps of random programs: loops left early, fetching and tile-wide atomics, uneven and grouped meetings."""

from typing import Any

import numpy as np
from tests.language.tile.random_programs import State, f, step

import megatile.language as T


@step("jumps", lambda rng, cfg: (rng.randrange(cfg.m), rng.randrange(cfg.m), rng.random() < 0.5))
class _Jumps:
    """Rows up to one that is chosen at run time, without another one."""

    @staticmethod
    def emit(e: Any, p: Any) -> None:
        last, skipped, up = p
        done = 0
        for k in T.serial(e.m):
            if up:
                if k == (last + e.r) % e.m:
                    break
                if k == skipped:
                    continue
            elif k > 0:  # noqa: SIM102
                if k == skipped:
                    continue
            e.a[k, 0] = e.a[k, 0] + 0.5
            done = done + 1
        e.b[0, 0] = T.cast(done, "f32")

    @staticmethod
    def oracle(s: State, p: Any) -> None:
        last, skipped, up = p
        for unit, rank in enumerate(s.rank().reshape(-1)):
            stop = (last + rank) % s.config.m if up else s.config.m
            rows = [k for k in range(stop) if k != skipped or (not up and k == 0)]
            s.a[unit, rows, 0] += np.float32(0.5)
            s.b[unit, 0, 0] = len(rows)


@step("while", lambda rng, cfg: rng.randint(1, 40))
class _While:
    @staticmethod
    def emit(e: Any, p: Any) -> None:
        number, turns = p + e.r, 0
        while T.bounded(number != 1, 200):
            if number % 2 == 0:
                number = number // 2
            else:
                number = 3 * number + 1
            turns = turns + 1
        e.a[0, 0] = T.cast(turns, "f32") * 0.125

    @staticmethod
    def oracle(s: State, p: Any) -> None:
        for unit, rank in enumerate(s.rank().reshape(-1)):
            number, turns = p + int(rank), 0
            while number != 1:
                number = number // 2 if number % 2 == 0 else 3 * number + 1
                turns += 1
            s.a[unit, 0, 0] = turns * 0.125


@step("atomic_region", lambda rng, cfg: rng.choice(["add", "max", "min"]))
class _AtomicRegion:
    @staticmethod
    def emit(e: Any, op: Any) -> None:
        v = T.alloc((e.m, e.c), "f32", level=e.level)
        T.fill(v, 0.25)
        getattr(T, f"atomic_{op}")(v, e.a)
        getattr(T, f"atomic_{op}")(v[e.m - 1, 0], e.b)
        T.copy(e.a, v)

    @staticmethod
    def oracle(s: State, op: Any) -> None:
        function = {"add": np.add, "max": np.maximum, "min": np.minimum}[op]
        v = function(s.a, np.float32(0.25))
        v[:, -1] = function(v[:, -1], s.b[:, 0])
        s.a = f(v)


@step("tickets", lambda rng, cfg: rng.randint(1, 3))
class _Tickets:
    """Rows are taken by tickets until none are left; a lock of one unit."""

    @staticmethod
    def emit(e: Any, p: Any) -> None:
        state = T.alloc((2,), "i32", level=e.level)
        T.fill(state, 0)
        while True:
            row = T.atomic_add(state[0], p, return_prev=True)
            if row >= e.m:
                break
            before = T.atomic_cas(state[1], row, row + p)
            e.b[row, 0] = T.cast(before, "f32")
        e.b[0, 1] = T.cast(T.atomic_exchange(state[1], 5), "f32")

    @staticmethod
    def oracle(s: State, p: Any) -> None:
        rows = range(0, s.config.m, p)
        s.b[:, rows, 0] = np.array(rows, np.float32)
        s.b[:, 0, 1] = rows[-1] + p


@step("uneven_all_to_all")
class _UnevenAllToAll:
    """Unit r sends to unit j one row if r + j is even, else none."""

    @staticmethod
    def emit(e: Any, p: Any) -> None:
        out = T.alloc((e.n, e.c), "f32", level=e.level)
        x = T.alloc((e.n, e.c), "f32", level=e.level)
        counts = T.alloc((e.n,), "i32", level=e.level)
        received = T.alloc((e.n,), "i32", level=e.level)
        T.fill(out, -1.0)
        for i in T.Parallel(e.n):
            counts[i] = 1 - (e.r + i) % 2
        for i, j in T.Parallel(e.n, e.c):
            x[i, j] = e.a[0, j] + i
        T.all_to_all(out, x, counts, received)
        T.copy(e.b[0, 0], out[0:1, 0 : e.c])
        e.b[1, 0] = T.cast(received[e.n - 1], "f32")

    @staticmethod
    def oracle(s: State, p: Any) -> None:
        n, groups, b = s.config.group, s.by_group(s.a), s.by_group(s.b)
        for group in range(len(groups)):
            for rank in range(n):
                first = rank % 2  # the first unit that sends here
                sent = (rank + 1) // 2 if first == 0 else rank // 2  # rows it sends to others before
                b[group, rank, 0] = groups[group, first, 0] + np.float32(sent)
                b[group, rank, 1, 0] = 1 - (rank + n - 1) % 2
        s.b = b.reshape(s.b.shape)


@step("groups", fits=lambda cfg: cfg.group % 2 == 0)
class _Groups:
    """Neighbours meet two by two and read each other's row; the sum is made on both sides of a branch."""

    @staticmethod
    def emit(e: Any, p: Any) -> None:
        inbox = T.alloc((e.m, e.c), "f32", level=e.level)
        T.copy(inbox, e.a, dst=e.r + 1 - 2 * (e.r % 2))
        T.fence()
        T.barrier(name="pair", group=e.r // 2, units=2)
        if e.r % 2 == 0:
            T.allreduce(inbox)
        else:
            T.allreduce(inbox)
        T.copy(e.b, inbox)

    @staticmethod
    def oracle(s: State, p: Any) -> None:
        x = s.by_group(s.a)
        s.b = f(np.broadcast_to(x.sum(axis=1, keepdims=True), x.shape).reshape(s.b.shape))
