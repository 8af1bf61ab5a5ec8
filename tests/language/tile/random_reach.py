"""A step of random programs in which smaller units reach into other units of the group, and wait for them.

It is not drawn with the others: who wants it puts it into a program.
"""

import random
from typing import Any

import numpy as np
from tests.language.tile.random_programs import (
    INNER,
    STEPS,
    RandomProgram,
    State,
    build,
    random_program,
    step,
)

import megatile.language as T


@step(
    "reach",
    lambda rng, cfg: (rng.choice(["put", "get", "atomic"]), rng.randrange(cfg.group)),
    lambda cfg: False,
)
class _Reach:
    """Every smaller unit moves its rows to the unit ``shift`` further, and tells its like there."""

    @staticmethod
    def emit(e: Any, p: Any) -> None:
        how, shift = p
        there = (e.r + shift) % e.n
        inbox, sent = (T.alloc((e.m, e.c), "f32", level=e.level) for _ in range(2))
        told = T.alloc((e.inner,), "i32", level=e.level)
        T.copy(sent, e.a)
        T.fill(inbox, 0.5)
        T.barrier()
        with T.Scale(INNER[e.scale]) as (rank, size):
            if how != "get":
                for k in T.Persistent(e.m, size, rank):
                    if how == "put":
                        T.copy(inbox[k, :], sent[k, :], dst=there, scale=e.scale)
                    else:
                        T.atomic_add(inbox[k, 0 : e.c], sent[k, 0 : e.c], dst=there, scale=e.scale)
            T.signal(told[rank], dst=there, scale=e.scale)
            T.wait(told[rank], 1)
            for k in T.Persistent(e.m, size, rank):
                if how == "get":
                    T.copy(e.b[k, :], sent[k, :], src=(e.r + e.n - shift) % e.n, scale=e.scale)
                else:
                    T.copy(e.b[k, :], inbox[k, :])
        T.barrier()

    @staticmethod
    def oracle(s: State, p: Any) -> None:
        moved = np.roll(s.by_group(s.a), p[1], axis=1).reshape(s.b.shape)
        s.b = moved + np.float32(0.5 if p[0] == "atomic" else 0)


def reaching_program(seed: int) -> RandomProgram:
    """The first steps of a random program, and among them this one."""
    case, rng = random_program(seed), random.Random(seed)
    steps = list(case.steps[:3])
    steps.insert(rng.randrange(len(steps) + 1), ("reach", STEPS["reach"].draw(rng, case.config)))
    return RandomProgram(seed, case.config, steps, build(case.config, steps))
