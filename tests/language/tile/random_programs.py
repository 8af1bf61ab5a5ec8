"""Random programs with their meaning in NumPy.

A program runs on every unit of one scale. A unit has two tiles ``a`` and ``b`` of ``m`` rows and ``c`` columns;
every step changes them, in the program (``emit``) and in arrays of all units' tiles (``oracle``).
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

import megatile.language as T

SCALES = ("device", "block", "warpgroup", "warp")
LEVEL = {"device": "l2", "block": "l1", "warpgroup": "l1", "warp": "l1"}
INNER = {"device": "block", "block": "warpgroup", "warpgroup": "warp", "warp": "thread"}


@dataclass
class Config:
    """Sizes of one program."""

    scale: str
    devices: tuple[int, ...]
    blocks: int
    groups: int
    m: int
    c: int
    rows: int
    cols: int

    @property
    def launch(self) -> dict[str, Any]:
        devices = self.devices if len(self.devices) > 1 else self.devices[0]
        return {"device": devices, "block": self.blocks, "warpgroup": self.groups, "warp": 2, "thread": 4}

    def counts(self) -> list[int]:
        """Units of each scale down to this one."""
        per = {
            "device": int(np.prod(self.devices)),
            "block": self.blocks,
            "warpgroup": self.groups,
            "warp": 2,
        }
        return [per[s] for s in SCALES[: SCALES.index(self.scale) + 1]]

    @property
    def group(self) -> int:
        return self.counts()[-1]

    @property
    def units(self) -> int:
        return int(np.prod(self.counts()))

    @property
    def inner(self) -> int:
        return {"device": self.blocks, "block": self.groups, "warpgroup": 2, "warp": 4}[self.scale]


@dataclass
class State:
    """All units' tiles."""

    a: np.ndarray
    b: np.ndarray
    w: np.ndarray
    counts: np.ndarray
    table: np.ndarray
    config: Config

    def by_group(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(-1, self.config.group, *x.shape[1:])

    def rank(self) -> np.ndarray:
        """The rank of every unit in its group, shaped to meet tiles."""
        return (np.arange(self.config.units) % self.config.group).reshape(-1, 1, 1)


@dataclass
class Step:
    name: str
    draw: Callable[[random.Random, Config], Any]
    emit: Callable[[Any, Any], None]
    oracle: Callable[[State, Any], None]
    fits: Callable[[Config], bool] = field(default=lambda config: True)


STEPS: dict[str, Step] = {}


def step(name: str, draw: Any = lambda rng, cfg: None, fits: Any = lambda cfg: True) -> Any:
    def register(cls: Any) -> Any:
        STEPS[name] = Step(name, draw, cls.emit, cls.oracle, fits)
        return cls

    return register


def f(x: Any) -> np.ndarray:
    return np.array(x, np.float32)


# --- elementwise ---------------------------------------------------------------------------------------------------

_UNARY = ("tanh", "sigmoid", "abs", "sin", "cos", "floor", "ceil", "erf")
_POSITIVE = ("exp", "exp2", "log", "log2", "sqrt", "rsqrt")  # of numbers between 0.5 and 4.5
_BINARY = ("add", "sub", "mul", "max", "min")


def draw_expression(rng: random.Random, depth: int) -> tuple[Any, ...]:
    if depth == 0:
        return rng.choice(
            [("a",), ("b",), ("number", round(rng.uniform(-1, 1), 2)), ("rank",), ("i",), ("j",)]
        )
    kind = rng.random()
    if kind < 0.42:
        return (rng.choice(_UNARY + _POSITIVE), draw_expression(rng, depth - 1))
    if kind < 0.85:
        return (rng.choice(_BINARY), draw_expression(rng, depth - 1), draw_expression(rng, depth - 1))
    if kind < 0.95:
        return (
            "where",
            draw_expression(rng, 0),
            draw_expression(rng, depth - 1),
            draw_expression(rng, depth - 1),
        )
    return ("cast", rng.choice(["f16", "bf16"]), draw_expression(rng, depth - 1))


def emit_expression(tree: tuple[Any, ...], leaf: dict[str, Any]) -> Any:
    op, *args = tree
    if op in leaf:
        return leaf[op]
    if op == "number":
        return T.cast(args[0], "f32")
    if op == "cast":
        return T.cast(T.cast(emit_expression(args[1], leaf), args[0]), "f32")
    values = [emit_expression(x, leaf) for x in args]
    if op in _POSITIVE:
        return getattr(T, op)(T.min(T.abs(values[0]) * 0.5 + 0.5, 4.5))
    if op == "where":
        return T.if_then_else(values[0] > 0.25, values[1], values[2])
    if op in ("add", "sub", "mul"):
        return {"add": values[0] + values[-1], "sub": values[0] - values[-1], "mul": values[0] * values[-1]}[
            op
        ]
    return getattr(T, op)(*values)


def eval_expression(tree: tuple[Any, ...], leaf: dict[str, Any]) -> np.ndarray:
    import math

    import ml_dtypes

    op, *args = tree
    if op in leaf:
        return f(leaf[op])
    if op == "number":
        return f(args[0])
    if op == "cast":
        kind = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}[args[0]]
        return f(eval_expression(args[1], leaf).astype(kind))
    values = [eval_expression(x, leaf) for x in args]
    if op in _POSITIVE:
        positive = np.minimum(np.abs(values[0]) * np.float32(0.5) + np.float32(0.5), np.float32(4.5))
        return f(1 / np.sqrt(positive) if op == "rsqrt" else getattr(np, op)(positive))
    table = {
        "where": lambda c, x, y: np.where(c > 0.25, x, y), "add": np.add, "sub": np.subtract, "mul": np.multiply,
        "max": np.maximum, "min": np.minimum, "tanh": np.tanh, "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "abs": np.abs,
        "sin": np.sin, "cos": np.cos, "floor": np.floor, "ceil": np.ceil, "erf": np.vectorize(math.erf),
    }  # fmt: skip
    return f(table[op](*values))


@step("parallel", lambda rng, cfg: draw_expression(rng, rng.randint(2, 4)))
class _Elementwise:
    @staticmethod
    def emit(e: Any, tree: Any) -> None:
        for i, j in T.Parallel(e.m, e.c):
            leaf = {
                "a": e.a[i, j],
                "b": e.b[i, j],
                "rank": T.cast(e.r, "f32"),
                "i": T.cast(i, "f32"),
                "j": T.cast(j, "f32"),
            }
            e.a[i, j] = T.clamp(emit_expression(tree, leaf), -8.0, 8.0)

    @staticmethod
    def oracle(s: State, tree: Any) -> None:
        i, j = np.ogrid[: s.config.m, : s.config.c]
        leaf = {"a": s.a, "b": s.b, "rank": s.rank(), "i": i[None], "j": j[None]}
        s.a = np.clip(np.broadcast_to(eval_expression(tree, leaf), s.a.shape), -8, 8).astype(np.float32)


@step("condition", lambda rng, cfg: (rng.randint(0, 2), rng.randint(0, cfg.m), round(rng.uniform(-1, 1), 2)))
class _Condition:
    @staticmethod
    def emit(e: Any, p: Any) -> None:
        parity, row, number = p
        if e.r % 2 == parity:
            T.fill(e.b[0:1, :], number)
        else:
            for i, j in T.Parallel(e.m, e.c):
                if i < row and j != 1:
                    e.b[i, j] = -e.b[i, j]

    @staticmethod
    def oracle(s: State, p: Any) -> None:
        parity, row, number = p
        chosen = s.rank()[:, 0, 0] % 2 == parity
        i, j = np.ogrid[: s.config.m, : s.config.c]
        s.b[~chosen] = np.where((i < row) & (j != 1), -s.b[~chosen], s.b[~chosen])
        s.b[chosen, 0] = number


@step("gather", lambda rng, cfg: [rng.randrange(cfg.m) for _ in range(cfg.m)])
class _Gather:
    @staticmethod
    def emit(e: Any, p: Any) -> None:
        index = T.alloc((e.m,), "i32", level=e.level)
        for i, row in enumerate(p):
            index[i] = row
        for i, j in T.Parallel(e.m, e.c):
            e.t[i, j] = e.a[index[i], j]
        T.copy(e.a, e.t)

    @staticmethod
    def oracle(s: State, p: Any) -> None:
        s.a = s.a[:, p]


@step("atomic", lambda rng, cfg: rng.choice(["add", "max", "min"]))
class _Atomic:
    @staticmethod
    def emit(e: Any, op: Any) -> None:
        v = T.alloc((e.m,), "f32", level=e.level)
        T.fill(v, 0.5)
        for i, j in T.Parallel(e.m, e.c):
            getattr(T, f"atomic_{op}")(v[i], e.a[i, j])
        for i, j in T.Parallel(e.m, e.c):
            e.a[i, j] = v[i] * 0.1

    @staticmethod
    def oracle(s: State, op: Any) -> None:
        if op == "add":
            v = s.a.sum(axis=2) + 0.5
        else:
            v = np.maximum(s.a.max(axis=2), 0.5) if op == "max" else np.minimum(s.a.min(axis=2), 0.5)
        s.a = np.repeat(f(v * 0.1)[..., None], s.config.c, axis=2)


# --- tiles ---------------------------------------------------------------------------------------------------------------


@step(
    "reduce",
    lambda rng, cfg: (
        rng.choice(["sum", "max", "min", "absmax", "abssum"]),
        rng.randint(0, 1),
        rng.random() < 0.5,
    ),
)
class _Reduce:
    @staticmethod
    def emit(e: Any, p: Any) -> None:
        op, dim, clear = p
        v = T.alloc((e.c if dim == 0 else e.m,), "f32", level=e.level)
        T.fill(v, 0.25)
        getattr(T, f"reduce_{op}")(e.a, v, dim=dim, clear=clear)
        for i, j in T.Parallel(e.m, e.c):
            e.a[i, j] = e.a[i, j] - 0.1 * v[j if dim == 0 else i]

    @staticmethod
    def oracle(s: State, p: Any) -> None:
        op, dim, clear = p
        data = np.abs(s.a) if op.startswith("abs") else s.a
        name = op.removeprefix("abs")
        v = getattr(data, name)(axis=1 + dim, keepdims=True)
        if not clear:
            v = {"sum": np.add, "max": np.maximum, "min": np.minimum}[name](v, np.float32(0.25))
        s.a = f(s.a - np.float32(0.1) * v)


@step("cumsum", lambda rng, cfg: (rng.randint(0, 1), rng.random() < 0.5))
class _Cumsum:
    @staticmethod
    def emit(e: Any, p: Any) -> None:
        T.cumsum(e.a, e.t, dim=p[0], reverse=p[1])
        for i, j in T.Parallel(e.m, e.c):
            e.a[i, j] = e.t[i, j] * 0.2

    @staticmethod
    def oracle(s: State, p: Any) -> None:
        dim, reverse = p[0] + 1, p[1]
        x = np.flip(s.a, dim) if reverse else s.a
        x = np.cumsum(x, axis=dim)
        s.a = f((np.flip(x, dim) if reverse else x) * np.float32(0.2))


@step("slices", lambda rng, cfg: (lambda h, w: (h, w, *[rng.randint(0, cfg.m - h) for _ in range(2)],
                                                *[rng.randint(0, cfg.c - w) for _ in range(2)]))(
    rng.randint(1, cfg.m), rng.randint(1, cfg.c)))  # fmt: skip
class _Slices:
    @staticmethod
    def emit(e: Any, p: Any) -> None:
        h, w, i0, i1, j0, j1 = p
        T.copy(e.a[i0 : i0 + h, j0 : j0 + w], e.b[i1 : i1 + h, j1 : j1 + w])

    @staticmethod
    def oracle(s: State, p: Any) -> None:
        h, w, i0, i1, j0, j1 = p
        s.a[:, i0 : i0 + h, j0 : j0 + w] = s.b[:, i1 : i1 + h, j1 : j1 + w]


@step("edge", lambda rng, cfg: (rng.randrange(cfg.rows), rng.randrange(cfg.cols)))
class _Edge:
    """A tile from the shared tensor, over its edge where it reaches there."""

    @staticmethod
    def emit(e: Any, p: Any) -> None:
        T.copy(e.b, e.W[p[0], p[1]])

    @staticmethod
    def oracle(s: State, p: Any) -> None:
        cfg = s.config
        padded = np.pad(s.w, ((0, cfg.m), (0, cfg.c)))
        s.b[:] = padded[p[0] : p[0] + cfg.m, p[1] : p[1] + cfg.c]


@step("gemm", lambda rng, cfg: (rng.random() < 0.5, rng.random() < 0.5))
class _Gemm:
    @staticmethod
    def emit(e: Any, p: Any) -> None:
        transposed, clear = p
        g = T.alloc((e.m, e.m), "f32", level=e.level)
        T.clear(g)
        T.gemm(e.a, e.b, g, transpose_B=True, clear_accum=clear)
        if transposed:
            T.gemm(g, e.b, e.t, transpose_A=True, clear_accum=True)
        else:
            T.gemm(g, e.b, e.t, clear_accum=True, policy=T.GemmWarpPolicy.FullRow)
        for i, j in T.Parallel(e.m, e.c):
            e.a[i, j] = T.tanh(e.t[i, j] * 0.05)

    @staticmethod
    def oracle(s: State, p: Any) -> None:
        g = s.a @ s.b.swapaxes(1, 2)
        g = g.swapaxes(1, 2) if p[0] else g
        s.a = f(np.tanh(g @ s.b * np.float32(0.05)))


@step(
    "pipelined",
    lambda rng, cfg: (
        rng.randint(1, 3),
        rng.randint(1, 3),
        rng.choice(["Pipelined", "serial", "unroll", "vectorized"]),
    ),
)
class _Pipelined:
    """A product with the shared tensor, in tiles with a tail."""

    @staticmethod
    def emit(e: Any, p: Any) -> None:
        size, stages, kind = p
        x = T.alloc((e.m, size), "f32", level=e.level)
        w = T.alloc((size, e.c), "f32", level=e.level)
        T.clear(e.t)
        steps = T.ceildiv(e.cols, size)
        for k in T.Pipelined(steps, num_stages=stages) if kind == "Pipelined" else getattr(T, kind)(steps):
            T.copy(x, e.W[0, k * size])
            for i, j in T.Parallel(size, e.c):
                w[i, j] = T.cast(k * size + i, "f32") * 0.01 + T.cast(j, "f32") * 0.1
            T.gemm(x, w, e.t)
        T.copy(e.b, e.t)

    @staticmethod
    def oracle(s: State, p: Any) -> None:
        cfg = s.config
        i, j = np.ogrid[: cfg.cols, : cfg.c]
        w = f(i) * np.float32(0.01) + f(j) * np.float32(0.1)
        s.b[:] = np.pad(s.w, ((0, cfg.m), (0, 0)))[: cfg.m] @ w


@step("scalar", lambda rng, cfg: None)
class _Scalar:
    """Extents and trip counts from data."""

    @staticmethod
    def emit(e: Any, p: Any) -> None:
        count = T.read_scalar(e.counts[e.u], bound=e.m)
        for k in T.serial(count):
            T.copy(e.a[k, :], e.b[k, :])
        T.fill(e.b[0:count, :], 0.5)
        T.device_assert(count <= e.m, "bounded")

    @staticmethod
    def oracle(s: State, p: Any) -> None:
        for unit, count in enumerate(s.counts):
            s.a[unit, :count] = s.b[unit, :count]
            s.b[unit, :count] = 0.5


@step("persistent", lambda rng, cfg: rng.randint(1, 9))
class _Persistent:
    """A unit takes every n-th row."""

    @staticmethod
    def emit(e: Any, total: Any) -> None:
        for k in T.Persistent(total, e.n, e.r):
            row = k % e.m
            e.a[row, 1] = e.a[row, 1] + 0.5
        T.breakpoint(unit=0)
        T.print("rank", e.r, unit=0)

    @staticmethod
    def oracle(s: State, total: Any) -> None:
        for unit in range(s.config.units):
            for k in range(unit % s.config.group, total, s.config.group):
                s.a[unit, k % s.config.m, 1] += np.float32(0.5)


@step("carried", lambda rng, cfg: rng.randint(1, 5))
class _Carried:
    """A scalar that a loop changes."""

    @staticmethod
    def emit(e: Any, p: Any) -> None:
        row = e.r % e.m
        for _ in T.serial(p):
            e.a[row, 0] = e.a[row, 0] + 0.25
            row = (row + 1) % e.m

    @staticmethod
    def oracle(s: State, p: Any) -> None:
        for unit in range(s.config.units):
            for k in range(p):
                s.a[unit, (unit % s.config.group + k) % s.config.m, 0] += np.float32(0.25)


# --- units talking to each other -------------------------------------------------------------------------------------------


@step("put", lambda rng, cfg: (rng.randrange(cfg.group), rng.random() < 0.5))
class _Put:
    @staticmethod
    def emit(e: Any, p: Any) -> None:
        shift, by_signal = p
        inbox = T.alloc((e.m, e.c), "f32", level=e.level)
        if by_signal:
            flag = T.alloc((1,), "i32", level=e.level)
            T.copy(inbox, e.a, dst=(e.r + shift) % e.n)
            T.signal(flag, dst=(e.r + shift) % e.n)
            T.wait(flag, 1)
        else:
            T.copy(inbox, e.a, dst=(e.r + shift) % e.n)
            T.barrier()
        T.copy(e.b, inbox)

    @staticmethod
    def oracle(s: State, p: Any) -> None:
        s.b = np.roll(s.by_group(s.a), p[0], axis=1).reshape(s.b.shape).copy()


@step("get", lambda rng, cfg: rng.randrange(cfg.group))
class _Get:
    @staticmethod
    def emit(e: Any, p: Any) -> None:
        T.copy(e.t, e.a)
        T.barrier()
        T.copy(e.b, e.t, src=(e.r + p) % e.n)
        T.barrier()

    @staticmethod
    def oracle(s: State, p: Any) -> None:
        s.b = np.roll(s.by_group(s.a), -p, axis=1).reshape(s.b.shape).copy()


@step("allreduce", lambda rng, cfg: rng.choice(["sum", "max", "min", "fn"]))
class _Allreduce:
    @staticmethod
    def emit(e: Any, op: Any) -> None:
        if op == "fn":
            T.allreduce(e.a, fn=lambda x, y: T.max(x, y) * 1.0)
        else:
            T.allreduce(e.a, op=op, algorithm="ring")
        for i, j in T.Parallel(e.m, e.c):
            e.a[i, j] = e.a[i, j] * 0.5

    @staticmethod
    def oracle(s: State, op: Any) -> None:
        name = "max" if op == "fn" else op
        total = getattr(s.by_group(s.a), name)(axis=1, keepdims=True)
        s.a = f(np.broadcast_to(total * np.float32(0.5), s.by_group(s.a).shape).reshape(s.a.shape))


@step("lse_merge")
class _LseMerge:
    @staticmethod
    def emit(e: Any, p: Any) -> None:
        lse = T.alloc((e.m,), "f32", level=e.level)
        for i in T.Parallel(e.m):
            lse[i] = T.log2(T.cast(e.r + i + 1, "f32"))
        T.allreduce(e.a, lse, fn=T.lse_merge)

    @staticmethod
    def oracle(s: State, p: Any) -> None:
        weight = s.rank() + np.arange(s.config.m).reshape(1, -1, 1) + 1.0
        x, w = s.by_group(s.a), s.by_group(np.broadcast_to(weight, s.a.shape))
        merged = (x * w).sum(axis=1, keepdims=True) / w.sum(axis=1, keepdims=True)
        s.a = f(np.broadcast_to(merged, x.shape).reshape(s.a.shape))


@step("allgather", lambda rng, cfg: rng.randrange(cfg.group))
class _Allgather:
    @staticmethod
    def emit(e: Any, peer: Any) -> None:
        out = T.alloc((e.n * e.m, e.c), "f32", level=e.level)
        T.allgather(out, e.a)
        T.copy(e.b, out[peer * e.m : peer * e.m + e.m, :])

    @staticmethod
    def oracle(s: State, peer: Any) -> None:
        x = s.by_group(s.a)
        s.b = f(np.broadcast_to(x[:, peer : peer + 1], x.shape).reshape(s.b.shape))


@step("reduce_scatter", fits=lambda cfg: cfg.m % cfg.group == 0)
class _ReduceScatter:
    @staticmethod
    def emit(e: Any, p: Any) -> None:
        rows = e.m // e.n
        out = T.alloc((rows, e.c), "f32", level=e.level)
        T.reduce_scatter(out, e.a)
        for i, j in T.Parallel(rows, e.c):
            e.b[i, j] = out[i, j] * 0.5

    @staticmethod
    def oracle(s: State, p: Any) -> None:
        rows, x = s.config.m // s.config.group, s.by_group(s.a)
        total = x.sum(axis=1).reshape(x.shape[0], s.config.group, rows, -1)
        s.b[:, :rows] = total.reshape(s.config.units, rows, -1) * np.float32(0.5)


@step("all_to_all", fits=lambda cfg: cfg.m % cfg.group == 0)
class _AllToAll:
    @staticmethod
    def emit(e: Any, p: Any) -> None:
        out = T.alloc((e.m, e.c), "f32", level=e.level)
        T.all_to_all(out, e.a)
        T.copy(e.b, out)

    @staticmethod
    def oracle(s: State, p: Any) -> None:
        n = s.config.group
        x = s.by_group(s.a).reshape(-1, n, n, s.config.m // n, s.config.c)
        s.b = x.swapaxes(1, 2).reshape(s.b.shape).copy()


@step("broadcast", lambda rng, cfg: rng.randrange(cfg.group))
class _Broadcast:
    @staticmethod
    def emit(e: Any, root: Any) -> None:
        T.broadcast(e.b, root=root)

    @staticmethod
    def oracle(s: State, root: Any) -> None:
        x = s.by_group(s.b)
        s.b = f(np.broadcast_to(x[:, root : root + 1], x.shape).reshape(s.b.shape))


# --- views by smaller units ----------------------------------------------------------------------------------------------------


@step("shard", lambda rng, cfg: (rng.randint(0, 1), round(rng.uniform(-1, 1), 2)))
class _Shard:
    @staticmethod
    def emit(e: Any, p: Any) -> None:
        dim, number = p
        u = T.alloc((e.m, e.c), "f32", level=e.level)
        T.copy(u, e.a)
        with T.Scale(INNER[e.scale]) as (rank, size):
            mine = T.view(u, layout=T.Shard(dim))
            for i in T.serial(mine.shape[0]):
                for j in T.serial(mine.shape[1]):
                    mine[i, j] = mine[i, j] + T.cast(rank, "f32") * number
        T.copy(e.a, u)

    @staticmethod
    def oracle(s: State, p: Any) -> None:
        dim, number = p
        length = s.a.shape[1 + dim]
        owner = np.arange(length) // -(-length // s.config.inner)
        s.a = f(s.a + (f(owner) * np.float32(number)).reshape((1, -1, 1) if dim == 0 else (1, 1, -1)))


@step("owner", lambda rng, cfg: None)
class _Owner:
    @staticmethod
    def emit(e: Any, p: Any) -> None:
        inner = e.inner
        u = T.alloc((e.m, e.c), "f32", level=e.level)
        with T.Scale(INNER[e.scale]) as (rank, size):
            mine = T.view(u, layout=lambda i, j: i % inner)
            T.fill(mine, rank)
        for i, j in T.Parallel(e.m, e.c):
            e.a[i, j] = e.a[i, j] * 0.5 + u[i, j]

    @staticmethod
    def oracle(s: State, p: Any) -> None:
        rows = f(np.arange(s.config.m) % s.config.inner).reshape(1, -1, 1)
        s.a = f(s.a * np.float32(0.5) + rows)


@step("replica", lambda rng, cfg: rng.choice(["replica", "partial"]))
class _Replica:
    @staticmethod
    def emit(e: Any, kind: Any) -> None:
        u = T.alloc((e.m, e.c), "f32", level=e.level)
        T.copy(u, e.a)
        with T.Scale(INNER[e.scale]) as (rank, size):
            mine = T.view(u, layout=T.Replica if kind == "replica" else T.Partial("sum"))
            for i, j in T.Parallel(e.m, e.c):
                mine[i, j] = mine[i, j] * T.cast(rank, "f32") * 0.1
            T.allreduce(mine)
        T.copy(e.a, u)

    @staticmethod
    def oracle(s: State, kind: Any) -> None:
        s.a = f(sum(s.a * np.float32(r) * np.float32(0.1) for r in range(s.config.inner)))


@step("gather_view")
class _GatherView:
    @staticmethod
    def emit(e: Any, p: Any) -> None:
        u = T.alloc((e.m, e.c), "f32", level=e.level)
        x = T.alloc((e.m, e.c), "f32", level=e.level)
        with T.Scale(INNER[e.scale]) as (rank, size):
            part = T.view(u, layout=T.FullRow)
            T.fill(part, rank)
            whole = T.allgather(part)
            if rank == 0:
                T.copy(x, whole)
        T.copy(e.b, x)

    @staticmethod
    def oracle(s: State, p: Any) -> None:
        owner = np.arange(s.config.m) // -(-s.config.m // s.config.inner)
        s.b[:] = f(owner).reshape(1, -1, 1)


import tests.language.tile.random_control  # noqa: E402
import tests.language.tile.random_numbers  # noqa: E402, F401  (more steps, which need the definitions above)

# --- programs ------------------------------------------------------------------------------------------------------------------


@dataclass
class RandomProgram:
    seed: int
    config: Config
    steps: list[tuple[str, Any]]
    program: Any

    def arrays(self) -> list[np.ndarray]:
        cfg, rng = self.config, np.random.default_rng(self.seed)
        x = rng.uniform(-1, 1, (2, cfg.units, cfg.m, cfg.c)).astype(np.float32)
        w = rng.uniform(-1, 1, (cfg.rows, cfg.cols)).astype(np.float32)
        counts = rng.integers(0, cfg.m + 1, cfg.units).astype(np.int32)
        return [x[0], x[1], w, counts, np.zeros_like(x[0]), np.zeros_like(x[0])]

    def expected(self) -> tuple[np.ndarray, np.ndarray]:
        a, b, w, counts, *_ = self.arrays()
        state = State(a.copy(), b.copy(), w, counts, counts, self.config)
        for name, parameters in self.steps:
            STEPS[name].oracle(state, parameters)
        return state.a, state.b


def random_config(rng: random.Random) -> Config:
    scale = rng.choice(SCALES)
    devices = rng.choice([(1,), (2,), (4,), (2, 2)]) if scale == "device" else rng.choice([(1,), (2,)])
    blocks = rng.randint(1, 4) if scale == "block" else rng.randint(1, 2)
    groups = rng.randint(1, 3) if scale == "warpgroup" else rng.randint(1, 2)
    return Config(scale, devices, blocks, groups, rng.choice([4, 6, 8, 12]), rng.randint(2, 6), rng.randint(3, 14),
                  rng.randint(3, 9))  # fmt: skip


MEETING = {"put", "get", "allreduce", "lse_merge", "allgather", "reduce_scatter", "all_to_all", "broadcast",
           "gather_view", "scatter_view", "groups", "uneven_all_to_all"}  # fmt: skip
"""Steps in which the units of a group wait for each other."""


@cache
def random_program(seed: int, one_device: bool = False) -> RandomProgram:
    """``one_device``: inside one device; blocks do not wait for each other, and units send as much to each."""
    rng = random.Random(seed)
    cfg = random_config(rng)
    if one_device:
        cfg.devices, cfg.scale = (1,), rng.choice(SCALES[1:])
    refused = MEETING if cfg.scale == "block" else {"uneven_all_to_all"}
    steps = []
    for _ in range(rng.randint(3, 8)):
        name = rng.choice(
            [s.name for s in STEPS.values() if s.fits(cfg) and not (one_device and s.name in refused)]
        )
        steps.append((name, STEPS[name].draw(rng, cfg)))
    return RandomProgram(seed, cfg, steps, build(cfg, steps))


def build(cfg: Config, steps: list[tuple[str, Any]]) -> Any:
    shape = (cfg.units, cfg.m, cfg.c)
    above = SCALES[: SCALES.index(cfg.scale)]
    counts = cfg.counts()

    def nested(e: Any, scales: Any, u: Any) -> None:
        """The regions around the chosen scale, then the steps on its units."""
        if scales:
            with T.Scale(scales[0]) as (r, n):
                nested(e, scales[1:], u * n + r)
        else:
            with T.Scale(cfg.scale) as (r, n):
                e.r, e.n, e.u = r, n, u * n + r
                assert n == counts[-1]
                e.a, e.b, e.t = (T.alloc((cfg.m, cfg.c), "f32", level=e.level) for _ in range(3))
                T.copy(e.a, e.A[e.u, 0, 0])
                T.copy(e.b, e.B[e.u, 0, 0])
                for name, parameters in steps:
                    STEPS[name].emit(e, parameters)
                T.copy(e.X[e.u, 0, 0], e.a)
                T.copy(e.Y[e.u, 0, 0], e.b)

    @T.program
    def program(
        A: T.Tensor(shape, "f32"), B: T.Tensor(shape, "f32"), W: T.Tensor((cfg.rows, cfg.cols), "f32"),
        N: T.Tensor((cfg.units,), "i32"), X: T.Tensor(shape, "f32"), Y: T.Tensor(shape, "f32"),
    ):  # fmt: skip
        with T.Kernel(**cfg.launch):
            e = SimpleNamespace(
                A=A, B=B, W=W, X=X, Y=Y, counts=N, m=cfg.m, c=cfg.c, cols=cfg.cols, scale=cfg.scale,
                level=LEVEL[cfg.scale], inner=cfg.inner,
            )  # fmt: skip
            nested(e, above, 0)

    return program
