"""Random programs with three nested regions (node, device, block), with their meaning in NumPy.

Every device has a tile of some rows; each step changes all of them, in the program and in an array of shape
(nodes, devices, rows, columns).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import megatile.language as T

Draw = Callable[[random.Random, "Sizes"], Any]
STEPS: dict[str, tuple[Draw, Callable[..., None], Callable[[np.ndarray, Any], np.ndarray]]] = {}
AXIS = {"node": 0, "device": 1}


@dataclass(frozen=True)
class Sizes:
    """Units of each scale under one of the next larger; ``outer`` names the largest."""

    nodes: int
    devices: int
    blocks: int
    rows: int
    columns: int
    outer: str = "node"

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.nodes, self.devices, self.blocks * self.rows, self.columns


@dataclass
class Here:
    """What a step of a program sees: the tile of its device, ranks, and a second tile that peers write."""

    x: Any
    inbox: Any
    told: Any
    rank: dict[str, Any]
    sizes: Sizes
    count: int = 0

    def scale(self, word: str) -> str:
        return self.sizes.outer if word == "node" else word


def _blocks(e: Here, p: Any) -> None:
    factor, add = p
    rows, columns = e.sizes.rows, e.sizes.columns
    with T.Scale("block") as (b, _):
        t = T.alloc((rows, columns), "f32")
        T.copy(t, e.x[b * rows, 0])
        for i, j in T.Parallel(rows, columns):
            t[i, j] = t[i, j] * factor + (e.rank["node"] * 2 + e.rank["device"]) * add
        T.copy(e.x[b * rows, 0], t)


def _blocks_meaning(x: np.ndarray, p: Any) -> np.ndarray:
    numbers = np.add.outer(np.arange(x.shape[0]) * 2, np.arange(x.shape[1]))[..., None, None]
    return x * np.float32(p[0]) + np.float32(numbers * p[1])


STEPS["blocks"] = (lambda rng, _: (rng.choice([1.0, 0.5]), rng.randrange(3)), _blocks, _blocks_meaning)


def _reduce(e: Here, p: Any) -> None:
    T.allreduce(e.x, op=p[1], scale=e.scale(p[0]))


STEPS["reduce"] = (
    lambda rng, _: (rng.choice(["node", "device"]), rng.choice(["sum", "max", "min"])),
    _reduce,
    lambda x, p: np.broadcast_to(getattr(np, p[1])(x, axis=AXIS[p[0]], keepdims=True), x.shape),
)


def _broadcast(e: Here, p: Any) -> None:
    T.broadcast(e.x, root=p[1], scale=e.scale(p[0]))


def _draw_root(rng: random.Random, sizes: Sizes) -> Any:
    scale = rng.choice(["node", "device"])
    return scale, rng.randrange(sizes.shape[AXIS[scale]])


STEPS["broadcast"] = (
    _draw_root,
    _broadcast,
    lambda x, p: np.broadcast_to(np.take(x, [p[1]], axis=AXIS[p[0]]), x.shape),
)


def _gather(e: Here, p: Any) -> None:
    """All parts of the peers, of which the one of the next peer is kept."""
    n = e.sizes.shape[AXIS[p]]
    rows = e.sizes.blocks * e.sizes.rows
    every = T.alloc((n * rows, e.sizes.columns), "f32", level="l2")
    T.allgather(every, e.x, scale=e.scale(p))
    T.copy(e.x, every[(e.rank[p] + 1) % n * rows, 0])


STEPS["gather"] = (
    lambda rng, _: rng.choice(["node", "device"]),
    _gather,
    lambda x, p: np.roll(x, -1, axis=AXIS[p]),
)


def _put(e: Here, p: Any) -> None:
    """Devices, or their blocks, put their rows into the peer ``shift`` further and tell it."""
    word, shift, blocks, met = p
    n, scale, rows = e.sizes.shape[AXIS[word]], e.scale(word), e.sizes.rows
    there = (e.rank[word] + shift) % n
    e.count += 1
    if met or not blocks:
        if blocks:
            with T.Scale("block") as (b, _):
                T.copy(e.inbox[b * rows, 0], e.x[b * rows : b * rows + rows, :], dst=there, scale=scale)
        else:
            T.copy(e.inbox, e.x, dst=there, scale=scale)
        if met:
            T.barrier(scale=scale)
        else:
            T.signal(e.told[0], dst=there, scale=scale, amount=e.sizes.blocks)
            T.wait(e.told[0], e.count * e.sizes.blocks)
        if met:
            T.signal(e.told[0], amount=e.sizes.blocks)
    else:
        with T.Scale("block") as (b, _):
            T.copy(e.inbox[b * rows, 0], e.x[b * rows : b * rows + rows, :], dst=there, scale=scale)
            T.signal(e.told[0], dst=there, scale=scale)
        T.wait(e.told[0], e.count * e.sizes.blocks)
    T.copy(e.x, e.inbox)
    T.barrier()  # nobody writes an inbox again before all have read theirs
    T.barrier(scale=e.sizes.outer)


def _draw_put(rng: random.Random, sizes: Sizes) -> Any:
    scale = rng.choice(["node", "device"])
    return scale, rng.randrange(sizes.shape[AXIS[scale]]), rng.random() < 0.5, rng.random() < 0.5


STEPS["put"] = (_draw_put, _put, lambda x, p: np.roll(x, p[1], axis=AXIS[p[0]]))


@dataclass
class NestedProgram:
    """A program and its meaning."""

    program: Any
    sizes: Sizes
    steps: list[tuple[str, Any]]

    def arrays(self, seed: int = 0) -> list[np.ndarray]:
        rows = int(np.prod(self.sizes.shape[:3]))
        x = np.random.default_rng(seed).integers(-4, 5, (rows, self.sizes.columns)).astype("f4")
        return [x, np.zeros_like(x)]

    def wanted(self, x: np.ndarray) -> np.ndarray:
        state = x.reshape(self.sizes.shape)
        for word, p in self.steps:
            state = STEPS[word][2](state, p)
        return np.ascontiguousarray(state).reshape(x.shape)


def build(sizes: Sizes, steps: list[tuple[str, Any]]) -> Any:
    rows, columns = int(np.prod(sizes.shape[:3])), sizes.columns
    mine = sizes.blocks * sizes.rows
    launch = {sizes.outer: sizes.nodes, "device": sizes.devices, "block": sizes.blocks, "threads": 32}

    @T.program
    def nested(X: T.Tensor((rows, columns), "f32"), Y: T.Tensor((rows, columns), "f32")):
        with T.Kernel(**launch), T.Scale(sizes.outer) as (rn, _nn):
            xn, yn = T.view(X, layout=T.FullRow), T.view(Y, layout=T.FullRow)
            with T.Scale("device") as (rd, _nd):
                xd, yd = T.view(xn, layout=T.FullRow), T.view(yn, layout=T.FullRow)
                x = T.alloc((mine, columns), "f32", level="l2")
                inbox = T.alloc((mine, columns), "f32", level="l2")
                told = T.alloc((1,), "i32", level="l2")
                T.copy(x, xd)
                here = Here(x, inbox, told, {"node": rn, "device": rd}, sizes)
                for word, p in steps:
                    STEPS[word][1](here, p)
                T.copy(yd, x)

    return nested


def nested_program(seed: int, outer: str = "node", devices: int = 4) -> NestedProgram:
    rng = random.Random(seed)
    sizes = Sizes(
        rng.randrange(1, 4), rng.randrange(1, devices + 1), rng.randrange(1, 4), rng.randrange(1, 3), 8, outer
    )
    words = list(STEPS)
    steps = []
    for _ in range(rng.randrange(1, 5)):
        word = rng.choice(words)
        steps.append((word, STEPS[word][0](rng, sizes)))
    return NestedProgram(build(sizes, steps), sizes, steps)
