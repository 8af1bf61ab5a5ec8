"""More phases: indices and counts from data, atomics, jumps, units below blocks, and devices."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from tests.differential.phases import Launch, by_rows, kind, new, through, tiles
from tests.differential.values import Range, Value

import megatile.language as T

INDICES = 13
BINS = 5


@kind("gather")
class _Gather:
    """Rows by an index of the data."""

    @staticmethod
    def draw(rng: random.Random, source: Value, launch: Launch) -> Any:
        shape = (INDICES, source.shape[1])
        p = {
            **tiles(rng, source._replace(shape=shape), launch),
            "dtype": source.dtype,
            "last": source.shape[0],
        }
        return source._replace(shape=shape, name=""), p

    @staticmethod
    def emit(e: Any, p: Any) -> None:
        through(e, p, _Gather.body)

    @staticmethod
    def body(e: Any, p: Any, row: Any, column: Any) -> None:
        y = T.alloc((p["tm"], p["tn"]), p["dtype"], level="l1")
        index = T.alloc((p["tm"],), "i32", level="l1")
        T.copy(index, e.index[row])
        for i in T.Parallel(p["tm"]):
            index[i] = index[i] % p["last"]
        for i in T.serial(p["tm"]):
            k = T.read_scalar(index[i], bound=p["last"] - 1)
            T.copy(y[i, :], e.source[k, column])
        T.copy(e.result[row, column], y)

    @staticmethod
    def oracle(p: Any, x: np.ndarray, inputs: Any) -> np.ndarray:
        return x[inputs["index"] % p["last"]]


@kind("table")
class _Table:
    """Elements of a tile by an index that was computed."""

    @staticmethod
    def draw(rng: random.Random, source: Value, launch: Launch) -> Any:
        p = {
            **by_rows(rng, source, launch),
            "a": rng.randint(1, 7),
            "b": rng.randint(0, 7),
            "dtype": source.dtype,
        }
        return source._replace(name=""), p

    @staticmethod
    def emit(e: Any, p: Any) -> None:
        through(e, p, _Table.body)

    @staticmethod
    def body(e: Any, p: Any, row: Any, column: Any) -> None:
        tm, tn = p["tm"], p["tn"]
        x = T.alloc((tm, tn), p["dtype"], level=p["level"])
        y = T.alloc((tm, tn), p["dtype"], level=p["level"])
        place = T.alloc((tn,), "i32", level=p["level"])
        T.copy(x, e.source[row, 0])
        for j in T.Parallel(tn):
            place[j] = (j * p["a"] + p["b"]) % tn
        for i, j in T.Parallel(tm, tn):
            y[i, j] = x[i, place[j]]
        T.copy(e.result[row, 0], y)

    @staticmethod
    def oracle(p: Any, x: np.ndarray, inputs: Any) -> np.ndarray:
        return x[:, (np.arange(x.shape[1]) * p["a"] + p["b"]) % x.shape[1]]


@kind("scatter")
class _Scatter:
    """Atomic sums, of elements in any order or of whole tiles."""

    @staticmethod
    def draw(rng: random.Random, source: Value, launch: Launch) -> Any:
        found = Range(source.exact, source.bound * source.shape[0], source.bits)
        if not found.fits or found.bound > 1e5:
            return None
        p = {
            **tiles(rng, source, launch),
            "from": source.dtype,
            "extent": source.shape[0],
            "step": rng.randint(1, 4),
        }
        return new((BINS, source.shape[1]), "f32", found), p

    @staticmethod
    def emit(e: Any, p: Any) -> None:
        through(e, p, _Scatter.body)

    @staticmethod
    def body(e: Any, p: Any, row: Any, column: Any) -> None:
        tm, tn = p["tm"], p["tn"]
        x = T.alloc((tm, tn), p["from"], level=p["level"])
        one = T.alloc((1, tn), "f32", level=p["level"])
        T.copy(x, e.source[row, column])
        for i in T.serial(tm):
            if row + i < p["extent"]:
                for j in T.Parallel(tn):
                    one[0, j] = T.cast(x[i, j], "f32")
                T.atomic_add(e.result[(row + i) * p["step"] % BINS, column], one)

    @staticmethod
    def oracle(p: Any, x: np.ndarray, inputs: Any) -> np.ndarray:
        found = np.zeros((BINS, x.shape[1]))
        np.add.at(found, np.arange(len(x)) * p["step"] % BINS, x.astype(np.float64))
        return found.astype(np.float32)


@kind("counted")
class _Counted:
    """As many rows of a block's part as the data says."""

    @staticmethod
    def draw(rng: random.Random, source: Value, launch: Launch) -> Any:
        part = source.shape[0] // launch.blocks
        if part < 1:
            return None
        p = {"part": part, "dtype": source.dtype, "loop": rng.random() < 0.5, "blocks": launch.blocks}
        return source._replace(name=""), p

    @staticmethod
    def emit(e: Any, p: Any) -> None:
        with T.Scale("block") as (rank, _):
            x = T.alloc((p["part"], e.source.shape[1]), p["dtype"], level="l1")
            count = T.read_scalar(e.counts[rank], bound=e.most) % (p["part"] + 1)
            first = rank * p["part"]
            if p["loop"]:
                for k in T.serial(count):
                    T.copy(x[k, :], e.source[first + k, :])
                    T.copy(e.result[first + k, :], x[k, :])
            else:
                T.copy(x[0:count, :], e.source[first : first + count, :])
                T.copy(e.result[first : first + count, :], x[0:count, :])

    @staticmethod
    def oracle(p: Any, x: np.ndarray, inputs: Any) -> np.ndarray:
        found = np.zeros_like(x)
        for block in range(p["blocks"]):
            first = block * p["part"]
            last = first + int(inputs["counts"][block]) % (p["part"] + 1)
            found[first:last] = x[first:last]
        return found


@kind("sliced")
class _Sliced:
    """Slices with a step and from the end."""

    @staticmethod
    def draw(rng: random.Random, source: Value, launch: Launch) -> Any:
        rows, columns = source.shape
        p = {"step": rng.randint(1, 3), "last": rng.randint(1, columns), "dtype": source.dtype}
        p["rows"] = len(range(0, rows, p["step"]))
        return source._replace(shape=(p["rows"], p["last"]), name=""), p

    @staticmethod
    def emit(e: Any, p: Any) -> None:
        with T.Scale("block") as (rank, _):
            if rank == 0:
                x = T.alloc((p["rows"], p["last"]), p["dtype"], level="l1")
                T.copy(x, e.source[:: p["step"], -p["last"] :])
                T.copy(e.result[0, 0], x)

    @staticmethod
    def oracle(p: Any, x: np.ndarray, inputs: Any) -> np.ndarray:
        return x[:: p["step"], -p["last"] :]


@kind("jumps")
class _Jumps:
    """A loop that leaves and skips iterations."""

    @staticmethod
    def draw(rng: random.Random, source: Value, launch: Launch) -> Any:
        n = rng.randint(1, 9)
        found = Range(source.exact, source.bound + n, max(source.bits, 1))
        p = {**tiles(rng, source, launch), "n": n, "stop": rng.randint(0, 9), "skip": rng.randint(1, 4)}
        return (new(source.shape, "f32", found), {**p, "from": source.dtype}) if found.fits else None

    @staticmethod
    def emit(e: Any, p: Any) -> None:
        through(e, p, _Jumps.body)

    @staticmethod
    def body(e: Any, p: Any, row: Any, column: Any) -> None:
        tm, tn = p["tm"], p["tn"]
        raw = T.alloc((tm, tn), p["from"], level=p["level"])
        x = T.alloc((tm, tn), "f32", level=p["level"])
        T.copy(raw, e.source[row, column])
        for i, j in T.Parallel(tm, tn):
            x[i, j] = T.cast(raw[i, j], "f32")
        added = 0
        for k in T.serial(p["n"]):
            if k == p["stop"]:
                break
            if k % p["skip"] == 1:
                continue
            added = added + 1
            for i, j in T.Parallel(tm, tn):
                x[i, j] = x[i, j] + 0.5
        for i, j in T.Parallel(tm, tn):
            x[i, j] = x[i, j] + T.cast(added, "f32") * 0.5
        T.copy(e.result[row, column], x)

    @staticmethod
    def oracle(p: Any, x: np.ndarray, inputs: Any) -> np.ndarray:
        turns = [k for k in range(min(p["n"], p["stop"])) if k % p["skip"] != 1]
        return (x.astype(np.float64) + len(turns)).astype(np.float32)


@kind("warps")
class _Warps:
    """Warps divide a tile of their block, then sum or hand on their parts."""

    @staticmethod
    def draw(rng: random.Random, source: Value, launch: Launch) -> Any:
        how = rng.choice(("shard", "sum", "pass", "signal"))
        bound = source.bound * (launch.warps if how == "sum" else 1) + launch.warps
        found = Range(source.exact, bound, max(source.bits, 1))
        if not found.fits or found.bound > 1e5 or source.shape[0] < launch.blocks:
            return None
        tm = launch.warps * -(-source.shape[0] // (launch.blocks * launch.warps))
        p = {"how": how, "tm": tm, "from": source.dtype, "dim": rng.randint(0, 1), "shift": rng.randint(0, 3)}
        p.update(columns=source.shape[1], warps=launch.warps)
        return new(source.shape, "f32", found), p

    @staticmethod
    def emit(e: Any, p: Any) -> None:
        tm, tn = p["tm"], p["columns"]
        part = tm // p["warps"]
        with T.Scale("block") as (block, _):
            raw = T.alloc((tm, tn), p["from"], level="l1")
            x = T.alloc((tm, tn), "f32", level="l1")
            T.copy(raw, e.source[block * tm, 0])
            for i, j in T.Parallel(tm, tn):
                x[i, j] = T.cast(raw[i, j], "f32")
            with T.Scale("warp") as (rank, size):
                if p["how"] == "shard":
                    mine = T.view(x, layout=T.Shard(p["dim"]))
                    for i in T.serial(mine.shape[0]):
                        for j in T.serial(mine.shape[1]):
                            mine[i, j] = mine[i, j] + T.cast(rank, "f32") * 0.5
                else:
                    y = T.alloc((part, tn), "f32", level="l1")
                    T.copy(y, x[rank * part : rank * part + part, :])
                    if p["how"] == "sum":
                        T.allreduce(y)
                        T.copy(x[rank * part : rank * part + part, :], y)
                    else:
                        inbox = T.alloc((part, tn), "f32", level="l1")
                        there = (rank + p["shift"]) % size
                        T.copy(inbox, y, dst=there)
                        if p["how"] == "signal":
                            flag = T.alloc((1,), "i32", level="l1")
                            T.signal(flag, dst=there)
                            T.wait(flag, 1)
                        else:
                            T.barrier()
                        T.copy(x[rank * part : rank * part + part, :], inbox)
            T.copy(e.result[block * tm, 0], x)

    @staticmethod
    def oracle(p: Any, x: np.ndarray, inputs: Any) -> np.ndarray:
        rows, tm, n = len(x), p["tm"], p["warps"]
        blocks = -(-rows // tm)
        parts = np.pad(x.astype(np.float64), ((0, blocks * tm - rows), (0, 0))).reshape(
            blocks, n, tm // n, -1
        )
        if p["how"] == "sum":
            parts = np.broadcast_to(parts.sum(axis=1, keepdims=True), parts.shape)
        elif p["how"] != "shard":
            parts = np.roll(parts, p["shift"], axis=1)
        whole = parts.reshape(blocks, tm, -1)
        if p["how"] == "shard":
            length = whole.shape[1 + p["dim"]]
            owner = np.arange(length) // -(-length // n) * 0.5
            whole = whole + (owner.reshape(1, -1, 1) if p["dim"] == 0 else owner)
        return whole.reshape(blocks * tm, -1)[:rows].astype(np.float32)


@kind("roles")
class _Roles:
    """One warp group loads tiles into slots, the other stores them changed."""

    @staticmethod
    def draw(rng: random.Random, source: Value, launch: Launch) -> Any:
        found = Range(source.exact, source.bound + 2, max(source.bits, 1))
        if not found.fits:
            return None
        tm = -(-source.shape[0] // launch.blocks)
        p = {
            "tm": tm,
            "tn": rng.randint(1, source.shape[1]),
            "slots": rng.randint(1, 3),
            "from": source.dtype,
        }
        p["steps"] = -(-source.shape[1] // p["tn"])
        return new(source.shape, "f32", found), p

    @staticmethod
    def emit(e: Any, p: Any) -> None:
        tm, tn, slots = p["tm"], p["tn"], p["slots"]
        with T.Scale("block") as (block, _):
            ring = T.alloc((slots, tm, tn), p["from"], level="l1")
            with T.Scale("warpgroup") as (role, _):
                full = T.alloc((slots,), "i32", level="l1")
                empty = T.alloc((slots,), "i32", level="l1")
                y = T.alloc((tm, tn), "f32", level="l0")
                if role == 0:
                    for k in T.serial(p["steps"]):
                        if k >= slots:
                            T.wait(empty[k % slots], k // slots)
                        T.copy(ring[k % slots, 0:tm, 0:tn], e.source[block * tm, k * tn])
                        T.signal(full[k % slots], dst=1)
                elif role == 1:
                    for k in T.serial(p["steps"]):
                        T.wait(full[k % slots], k // slots + 1)
                        for i, j in T.Parallel(tm, tn):
                            y[i, j] = T.cast(ring[k % slots, i, j], "f32") + T.cast(e.s, "f32")
                        T.signal(empty[k % slots], dst=0)
                        T.copy(e.result[block * tm, k * tn], y)

    @staticmethod
    def oracle(p: Any, x: np.ndarray, inputs: Any) -> np.ndarray:
        return (x.astype(np.float64) + np.float64(inputs["s"])).astype(np.float32)


@kind("devices", devices=True)
class _Devices:
    """Every device has some rows; a collective, puts or gets move them."""

    HOW = ("allreduce", "allgather", "reduce_scatter", "all_to_all", "broadcast", "put", "get", "signal")

    @staticmethod
    def draw(rng: random.Random, source: Value, launch: Launch) -> Any:
        n = launch.devices
        how, op = rng.choice(_Devices.HOW), rng.choice(("sum", "max", "min"))
        part = source.shape[0] // n
        square = how in ("reduce_scatter", "all_to_all")
        if source.shape[0] % n or (square and part % n):
            return None
        found = Range(source.exact, source.bound * n, source.bits)
        rows = {"allgather": source.shape[0] * n, "reduce_scatter": part}.get(how, source.shape[0])
        if not found.fits or found.bound > 1e5 or rows > 64:
            return None
        p = {"how": how, "op": op, "part": part, "shift": rng.randint(0, n), "rows": rows // n, "n": n}
        return new((rows, source.shape[1]), "f32", found), {
            **p,
            "from": source.dtype,
            "root": rng.randrange(n),
        }

    @staticmethod
    def emit(e: Any, p: Any) -> None:
        part, columns, how = p["part"], e.source.shape[1], p["how"]
        with T.Scale("device") as (rank, size):
            mine = T.view(e.source, layout=T.FullRow)
            theirs = T.view(e.result, layout=T.FullRow)
            raw = T.alloc((part, columns), p["from"], level="l2")
            x = T.alloc((part, columns), "f32", level="l2")
            y = T.alloc((p["rows"], columns), "f32", level="l2")
            T.copy(raw, mine)
            for i, j in T.Parallel(part, columns):
                x[i, j] = T.cast(raw[i, j], "f32")
            if how == "allreduce":
                T.allreduce(x, op=p["op"])
                T.copy(y, x)
            elif how == "broadcast":
                T.broadcast(x, root=p["root"])
                T.copy(y, x)
            elif how == "get":
                T.barrier()
                T.copy(y, x, src=(rank + p["shift"]) % size)
            elif how == "put":
                T.copy(y, x, dst=(rank + p["shift"]) % size)
                T.barrier()
            elif how == "signal":
                flag = T.alloc((1,), "i32", level="l2")
                T.copy(y, x, dst=(rank + p["shift"]) % size)
                T.signal(flag, dst=(rank + p["shift"]) % size)
                T.wait(flag, 1)
            else:
                getattr(T, how)(y, x)
            T.copy(theirs, y)

    @staticmethod
    def oracle(p: Any, x: np.ndarray, inputs: Any) -> np.ndarray:
        n, how = p["n"], p["how"]
        parts = x.astype(np.float64).reshape(n, p["part"], -1)
        if how == "allreduce":
            parts = np.broadcast_to(getattr(parts, p["op"])(axis=0), parts.shape)
        elif how == "broadcast":
            parts = np.broadcast_to(parts[p["root"]], parts.shape)
        elif how in ("put", "signal", "get"):
            parts = np.roll(parts, -p["shift"] if how == "get" else p["shift"], axis=0)
        elif how == "allgather":
            parts = np.broadcast_to(parts.reshape(1, -1, x.shape[1]), (n, len(x), x.shape[1]))
        elif how == "reduce_scatter":
            parts = parts.sum(axis=0)
        else:
            parts = parts.reshape(n, n, p["part"] // n, -1).swapaxes(0, 1)
        return parts.reshape(-1, x.shape[1]).astype(np.float32)
