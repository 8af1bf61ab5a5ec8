"""Phases of generated programs: each reads a tensor of two dimensions and writes a new one, tile by tile."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from tests.differential.values import (
    NUMPY,
    Range,
    Value,
    converted,
    draw,
    emit,
    evaluate,
    range_of,
    stored,
    types_for,
)

import megatile.language as T

FLOATS = ("f32", "f16", "bf16")


class Launch(NamedTuple):
    blocks: int
    warps: int
    devices: int = 1


class Phase(NamedTuple):
    """``emit(e, p)`` writes it into a program; ``oracle(p, source, inputs)`` gives the new tensor."""

    kind: str
    source: Value
    result: Value
    p: dict[str, Any]


class Kind(NamedTuple):
    draw: Callable[[random.Random, Value, Launch], tuple[Value, dict[str, Any]] | None]
    emit: Callable[[Any, Any], None]
    oracle: Callable[[dict[str, Any], np.ndarray, dict[str, np.ndarray]], np.ndarray]
    devices: bool = False


KINDS: dict[str, Kind] = {}


def kind(name: str, devices: bool = False) -> Callable[[Any], Any]:
    def register(cls: Any) -> Any:
        KINDS[name] = Kind(cls.draw, cls.emit, cls.oracle, devices)
        return cls

    return register


def known(source: Value) -> Range:
    return Range(source.exact, source.bound, source.bits)


def new(shape: tuple[int, ...], dtype: str, found: Range) -> Value:
    found = stored(found, dtype)
    return Value("", shape, dtype, found.exact, found.bound, found.bits)


def tiles(rng: random.Random, source: Value, launch: Launch) -> dict[str, Any]:
    """How a phase goes through a tensor: tile sizes, the loop, and the level of its tiles."""
    mode = rng.choice(("persistent", "pair", "while", "pipelined", "serial"))
    rows, columns = source.shape
    tm = -(-rows // launch.blocks) if mode == "pipelined" else rng.randint(1, rows + 2)
    tn = rng.randint(1, columns + 2)
    return {
        "mode": mode, "tm": tm, "tn": tn, "rows": -(-rows // tm), "columns": -(-columns // tn),
        "stages": rng.randint(1, 3), "level": rng.choice(("l0", "l1")),
    }  # fmt: skip


def through(e: Any, p: Any, body: Any) -> None:
    """Call ``body(e, p, row, column)`` for the first element of every tile."""
    count = p["rows"] * p["columns"]
    with T.Scale("block") as (rank, size):
        if p["mode"] == "persistent":
            for t in T.Persistent(count, size, rank):
                body(e, p, t // p["columns"] * p["tm"], t % p["columns"] * p["tn"])
        elif p["mode"] == "pair":
            for i, j in T.Persistent((p["rows"], p["columns"]), size, rank):
                body(e, p, i * p["tm"], j * p["tn"])
        elif p["mode"] == "while":
            t = rank
            while T.bounded(t < count, count):
                body(e, p, t // p["columns"] * p["tm"], t % p["columns"] * p["tn"])
                t = t + size
        elif p["mode"] == "serial":
            for k in T.serial(T.ceildiv(count, size)):
                if k * size + rank < count:
                    t = k * size + rank
                    body(e, p, t // p["columns"] * p["tm"], t % p["columns"] * p["tn"])
        else:
            for k in T.Pipelined(p["columns"], num_stages=p["stages"]):
                body(e, p, rank * p["tm"], k * p["tn"])


def by_rows(rng: random.Random, source: Value, launch: Launch) -> dict[str, Any]:
    """As `tiles`, with whole rows."""
    p = tiles(rng, source, launch)
    return {**p, "tn": source.shape[1], "columns": 1}


@kind("map")
class _Map:
    """Elementwise code on tiles, some over the edge, with a conversion."""

    @staticmethod
    def draw(rng: random.Random, source: Value, launch: Launch) -> Any:
        smooth = not source.exact or rng.random() < 0.3
        leaves = {
            "x": known(source),
            "i": Range(True, 64, 0),
            "j": Range(True, 64, 0),
            "s": Range(True, 2, 1),
        }
        tree = draw(rng, rng.randint(1, 4), [*leaves, "x", "x"], smooth)
        found = range_of(tree, leaves)
        if found is None:
            return None
        dtype = types_for(rng, found)
        p = {**tiles(rng, source, launch), "tree": tree, "dtype": dtype, "by": rng.choice(("cast", "copy"))}
        return new(source.shape, dtype, found), {**p, "from": source.dtype}

    @staticmethod
    def emit(e: Any, p: Any) -> None:
        through(e, p, _Map.body)

    @staticmethod
    def body(e: Any, p: Any, row: Any, column: Any) -> None:
        tm, tn = p["tm"], p["tn"]
        x = T.alloc((tm, tn), p["from"], level=p["level"])
        T.copy(x, e.source[row, column])
        y = T.alloc((tm, tn), p["dtype"] if p["by"] == "cast" else "f32", level=p["level"])
        for i, j in T.Parallel(tm, tn):
            leaf = {
                "x": T.cast(x[i, j], "f32"), "i": T.cast(row + i, "f32"), "j": T.cast(column + j, "f32"),
                "s": T.cast(e.s, "f32"),
            }  # fmt: skip
            y[i, j] = T.cast(emit(p["tree"], leaf), p["dtype"] if p["by"] == "cast" else "f32")
        T.copy(e.result[row, column], y)

    @staticmethod
    def oracle(p: Any, x: np.ndarray, inputs: Any) -> np.ndarray:
        i, j = np.ogrid[: x.shape[0], : x.shape[1]]
        leaf = {"x": x.astype(np.float64), "i": i, "j": j, "s": np.float64(inputs["s"])}
        return converted(np.broadcast_to(evaluate(p["tree"], leaf), x.shape), p["dtype"])


@kind("transpose")
class _Transpose:
    @staticmethod
    def draw(rng: random.Random, source: Value, launch: Launch) -> Any:
        shape = source.shape[::-1]
        return source._replace(shape=shape, name=""), {**tiles(rng, source, launch), "dtype": source.dtype}

    @staticmethod
    def emit(e: Any, p: Any) -> None:
        through(e, p, _Transpose.body)

    @staticmethod
    def body(e: Any, p: Any, row: Any, column: Any) -> None:
        tm, tn = p["tm"], p["tn"]
        x = T.alloc((tm, tn), p["dtype"], level=p["level"])
        y = T.alloc((tn, tm), p["dtype"], level="l1")
        T.copy(x, e.source[row, column])
        for j, i in T.Parallel(tn, tm):
            y[j, i] = x[i, j]
        T.copy(e.result[column, row], y)

    @staticmethod
    def oracle(p: Any, x: np.ndarray, inputs: Any) -> np.ndarray:
        return np.ascontiguousarray(x.T)


@kind("gemm")
class _Gemm:
    """A product with the weights or with itself, transposed on either side, over tiles of the depth."""

    @staticmethod
    def draw(rng: random.Random, source: Value, launch: Launch) -> Any:
        form = rng.choice(("weights", "self", "gram"))
        dtype = source.dtype if source.dtype in FLOATS and source.exact else "f32"
        if source.dtype == "i8" and form == "weights":
            dtype = "i8"
        elif source.whole:
            return None
        rows, inner = source.shape if form != "gram" else source.shape[::-1]
        other = Range(True, 2, 2 if dtype != "i8" else 0) if form == "weights" else known(source)
        found = Range(source.exact, source.bound * other.bound * inner, source.bits + other.bits)
        if not found.fits or found.bound > 1e6:
            return None
        p = {
            "form": form, "dtype": dtype, "tm": rng.randint(1, rows + 1), "tk": rng.randint(1, inner + 1),
            "stages": rng.randint(1, 3), "inner": inner, "rows": rows,
            "loop": rng.choice(("pipelined", "serial")), "level": rng.choice(("l0", "l1")),
            "relu": rng.random() < 0.5, "to": "i32" if dtype == "i8" else "f32",
        }  # fmt: skip
        if rng.random() < 0.3:  # the sizes of tensor cores
            p.update(tm=16, tk=rng.choice((16, 32)))
        columns = 11 if form == "weights" else rows
        return new((rows, columns), p["to"], found), {
            **p,
            "columns": columns,
            "tn": rng.choice((8, 16, columns)),
        }

    @staticmethod
    def emit(e: Any, p: Any) -> None:
        tm, tn, tk, dtype = p["tm"], p["tn"], p["tk"], p["dtype"]
        across = -(-p["columns"] // tn)
        steps = -(-p["inner"] // tk)
        with T.Scale("block") as (rank, size):
            c = T.alloc((tm, tn), p["to"], level="l0")
            for t in T.Persistent(-(-p["rows"] // tm) * across, size, rank):
                row = t // across * tm
                column = t % across * tn
                T.clear(c)
                a = T.alloc((tk, tm) if p["form"] == "gram" else (tm, tk), dtype, level=p["level"])
                b = T.alloc((tn, tk) if p["form"] == "self" else (tk, tn), dtype, level=p["level"])
                loop = (
                    T.Pipelined(steps, num_stages=p["stages"])
                    if p["loop"] == "pipelined"
                    else T.serial(steps)
                )
                for k in loop:
                    if p["form"] == "gram":
                        T.copy(a, e.source[k * tk, row])
                        T.copy(b, e.source[k * tk, column])
                        T.gemm(a, b, c, transpose_A=True)
                    elif p["form"] == "self":
                        T.copy(a, e.source[row, k * tk])
                        T.copy(b, e.source[column, k * tk])
                        T.gemm(a, b, c, transpose_B=True)
                    else:
                        T.copy(a, e.source[row, k * tk])
                        T.copy(b, e.weights[k * tk, column])
                        T.gemm(a, b, c)
                if p["relu"]:
                    for i, j in T.Parallel(tm, tn):
                        c[i, j] = T.max(c[i, j], 0)
                T.copy(e.result[row, column], c)

    @staticmethod
    def oracle(p: Any, x: np.ndarray, inputs: Any) -> np.ndarray:
        x = converted(x, p["dtype"]).astype(np.float64)
        w = converted(inputs["weights"][: x.shape[1]], p["dtype"]).astype(np.float64)
        found = {"weights": lambda: x @ w, "self": lambda: x @ x.T, "gram": lambda: x.T @ x}[p["form"]]()
        return converted(np.maximum(found, 0) if p["relu"] else found, p["to"])


@kind("rows")
class _Rows:
    """Softmax, or what is left without the largest of a row."""

    @staticmethod
    def draw(rng: random.Random, source: Value, launch: Launch) -> Any:
        soft = not source.exact or rng.random() < 0.5
        found = Range(False, 1, 0) if soft else Range(True, 2 * source.bound, source.bits)
        if not found.fits:
            return None
        p = {**by_rows(rng, source, launch), "soft": soft, "from": source.dtype, "keep": rng.random() < 0.5}
        return new(source.shape, "f32", found), p

    @staticmethod
    def emit(e: Any, p: Any) -> None:
        through(e, p, _Rows.body)

    @staticmethod
    def body(e: Any, p: Any, row: Any, column: Any) -> None:
        tm, tn = p["tm"], p["tn"]
        raw = T.alloc((tm, tn), p["from"], level=p["level"])
        x = T.alloc((tm, tn), "f32", level="l0")
        top = T.alloc((tm,), "f32", level="l0")
        T.copy(raw, e.source[row, 0])
        for i, j in T.Parallel(tm, tn):
            x[i, j] = T.cast(raw[i, j], "f32")
        if p["keep"]:
            T.fill(top, -T.infinity("f32"))
            T.reduce_max(x, top, dim=1, clear=False)
        else:
            T.reduce_max(x, top, dim=1)
        for i, j in T.Parallel(tm, tn):
            x[i, j] = x[i, j] - top[i]
        if p["soft"]:
            total = T.alloc((tm,), "f32", level="l0")
            for i, j in T.Parallel(tm, tn):
                x[i, j] = T.exp(x[i, j])
            T.reduce_sum(x, total, dim=1)
            for i, j in T.Parallel(tm, tn):
                x[i, j] = x[i, j] / total[i]
        T.copy(e.result[row, 0], x)

    @staticmethod
    def oracle(p: Any, x: np.ndarray, inputs: Any) -> np.ndarray:
        x = x.astype(np.float64)
        x = x - x.max(axis=1, keepdims=True)
        return (np.exp(x) / np.exp(x).sum(axis=1, keepdims=True) if p["soft"] else x).astype(np.float32)


@kind("reduce")
class _Reduce:
    """A reduction of rows or columns of a tile, subtracted from it."""

    @staticmethod
    def draw(rng: random.Random, source: Value, launch: Launch) -> Any:
        op, dim = rng.choice(("sum", "max", "min", "absmax", "abssum")), rng.randint(0, 1)
        p = {
            **tiles(rng, source, launch),
            "op": op,
            "dim": dim,
            "from": source.dtype,
            "clear": rng.random() < 0.5,
        }
        length = p["tm"] if dim == 0 else p["tn"]
        found = Range(source.exact, source.bound * (1 + length * ("sum" in op)) + 1, max(source.bits, 1))
        return (new(source.shape, "f32", found), p) if found.fits and found.bound < 1e5 else None

    @staticmethod
    def emit(e: Any, p: Any) -> None:
        through(e, p, _Reduce.body)

    @staticmethod
    def body(e: Any, p: Any, row: Any, column: Any) -> None:
        tm, tn, dim = p["tm"], p["tn"], p["dim"]
        raw = T.alloc((tm, tn), p["from"], level=p["level"])
        x = T.alloc((tm, tn), "f32", level="l0")
        v = T.alloc((tn if dim == 0 else tm,), "f32", level="l0")
        T.copy(raw, e.source[row, column])
        for i, j in T.Parallel(tm, tn):
            x[i, j] = T.cast(raw[i, j], "f32")
        T.fill(v, 0.5)
        getattr(T, "reduce_" + p["op"])(x, v, dim=dim, clear=p["clear"])
        for i, j in T.Parallel(tm, tn):
            x[i, j] = x[i, j] - v[j if dim == 0 else i]
        T.copy(e.result[row, column], x)

    @staticmethod
    def oracle(p: Any, x: np.ndarray, inputs: Any) -> np.ndarray:
        rows, columns = x.shape
        tm, tn = p["tm"], p["tn"]
        wide = np.pad(x.astype(np.float64), ((0, p["rows"] * tm - rows), (0, p["columns"] * tn - columns)))
        parts = wide.reshape(p["rows"], tm, p["columns"], tn)
        op = p["op"].removeprefix("abs")
        data = np.abs(parts) if p["op"].startswith("abs") else parts
        v = getattr(data, op)(axis=1 if p["dim"] == 0 else 3, keepdims=True)
        if not p["clear"]:
            v = {"sum": np.add, "max": np.maximum, "min": np.minimum}[op](v, 0.5)
        return (parts - v).reshape(wide.shape)[:rows, :columns].astype(np.float32)


@kind("cumsum")
class _Cumsum:
    @staticmethod
    def draw(rng: random.Random, source: Value, launch: Launch) -> Any:
        p = {**by_rows(rng, source, launch), "reverse": rng.random() < 0.5, "from": source.dtype}
        found = Range(source.exact, source.bound * source.shape[1], source.bits)
        return (new(source.shape, "f32", found), p) if found.fits and found.bound < 1e5 else None

    @staticmethod
    def emit(e: Any, p: Any) -> None:
        through(e, p, _Cumsum.body)

    @staticmethod
    def body(e: Any, p: Any, row: Any, column: Any) -> None:
        raw = T.alloc((p["tm"], p["tn"]), p["from"], level="l1")
        x = T.alloc((p["tm"], p["tn"]), "f32", level="l1")
        y = T.alloc((p["tm"], p["tn"]), "f32", level="l1")
        T.copy(raw, e.source[row, 0])
        for i, j in T.Parallel(p["tm"], p["tn"]):
            x[i, j] = T.cast(raw[i, j], "f32")
        T.cumsum(x, y, dim=1, reverse=p["reverse"])
        T.copy(e.result[row, 0], y)

    @staticmethod
    def oracle(p: Any, x: np.ndarray, inputs: Any) -> np.ndarray:
        x = x.astype(np.float64)[:, :: -1 if p["reverse"] else 1]
        return np.cumsum(x, axis=1)[:, :: -1 if p["reverse"] else 1].astype(np.float32)


@kind("integers")
class _Integers:
    """Arithmetic of i32, wrapped to a narrower type or a shift of it."""

    OPS = ("add", "mul", "and", "or", "xor", "left", "right", "divide", "rest", "less")

    @staticmethod
    def draw(rng: random.Random, source: Value, launch: Launch) -> Any:
        if not source.whole or source.dtype == "i64" or source.bound > 40000:
            return None
        dtype = rng.choice(("i32", "i16", "i8", "u8"))
        p = {
            **tiles(rng, source, launch),
            "op": rng.choice(_Integers.OPS),
            "n": rng.randint(1, 7),
            "to": dtype,
        }
        return new(source.shape, dtype, Range(True, 2**20, 0)), {**p, "from": source.dtype}

    @staticmethod
    def emit(e: Any, p: Any) -> None:
        through(e, p, _Integers.body)

    @staticmethod
    def body(e: Any, p: Any, row: Any, column: Any) -> None:
        raw = T.alloc((p["tm"], p["tn"]), p["from"], level=p["level"])
        y = T.alloc((p["tm"], p["tn"]), p["to"], level=p["level"])
        T.copy(raw, e.source[row, column])
        for i, j in T.Parallel(p["tm"], p["tn"]):
            y[i, j] = T.cast(_Integers.value(p["op"], T.cast(raw[i, j], "i32"), p["n"]), p["to"])
        T.copy(e.result[row, column], y)

    @staticmethod
    def value(op: str, x: Any, n: int) -> Any:
        if op == "add":
            return x + n
        if op == "mul":
            return x * n
        if op == "and":
            return x & n
        if op == "or":
            return x | n
        if op == "xor":
            return x ^ n
        if op == "left":
            return x << (n % 4)
        if op == "right":
            return T.abs(x) >> n
        if op == "divide":
            return T.abs(x) // n
        if op == "rest":
            return T.abs(x) % n
        return T.if_then_else(x < n, x, n)

    @staticmethod
    def oracle(p: Any, x: np.ndarray, inputs: Any) -> np.ndarray:
        x, n = x.astype(np.int64), p["n"]
        found = {
            "add": x + n, "mul": x * n, "and": x & n, "or": x | n, "xor": x ^ n, "left": x << (n % 4),
            "right": np.abs(x) >> n, "divide": np.abs(x) // n, "rest": np.abs(x) % n,
            "less": np.where(x < n, x, n),
        }  # fmt: skip
        return found[p["op"]].astype(NUMPY[p["to"]])
