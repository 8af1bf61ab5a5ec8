"""``runtime/shared/world.py``: one rank's view of the memory that all ranks map."""

from __future__ import annotations

import numpy as np
import pytest

from megatile.core.dtypes import numpy_dtype
from megatile.runtime import shared
from megatile.runtime.errors import LaunchError

REDUCE = {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod}


def values(rank: int, count: int, dtype: str) -> np.ndarray:
    return np.random.default_rng(rank).integers(1, 4, count).astype(numpy_dtype(dtype))


def all_reduced(world: shared.World, cases: list[tuple[int, str, str]]) -> list[int]:
    """The number of wrong elements of each case."""
    wrong = []
    for count, dtype, op in cases:
        x = world.symmetric(count, dtype)
        x.local[:] = values(world.rank, count, dtype)
        world.all_reduce(x, op)
        parts = np.stack([values(r, count, dtype).astype("f8") for r in range(world.size)])
        wrong.append(int((x.local.astype("f8") != REDUCE[op](parts, axis=0)).sum()))
    return wrong


@pytest.mark.parametrize("processes", [1, 2, 3, 5])
def test_all_reduce_of_every_kind(processes: int) -> None:
    cases = [
        (n, d, "sum")
        for n in (1, 7, 300, 5000)
        for d in ("f32", "f64", "i32", "i64", "f16", "bf16", "u8", "i8")
    ]
    cases += [(n, "f32", op) for n in (3, 70_001) for op in REDUCE]
    found = shared.run(all_reduced, processes, heap="2 MiB", args=(cases,))
    assert found == [[0] * len(cases)] * processes


def all_others(world: shared.World) -> bool:
    n, me = world.size, world.rank
    part, whole, swapped = (
        world.symmetric(5, "i32"),
        world.symmetric((n, 5), "i32"),
        world.symmetric((n, 5), "i32"),
    )
    part.local[:] = 10 * me + np.arange(5)
    world.all_gather(whole, part)
    fine = np.array_equal(whole.local, 10 * np.arange(n)[:, None] + np.arange(5))
    world.all_to_all(swapped, whole)
    fine &= np.array_equal(swapped.local, np.tile(10 * me + np.arange(5), (n, 1)))
    world.reduce_scatter(part, whole)
    fine &= np.array_equal(part.local, n * (10 * me + np.arange(5)))
    world.broadcast(part, n - 1)
    return bool(fine and np.array_equal(part.local, n * (10 * (n - 1) + np.arange(5))))


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_the_other_collectives(processes: int) -> None:
    assert shared.run(all_others, processes) == [True] * processes


def handed_round(world: shared.World, rounds: int) -> int:
    """A token goes round by puts and signals."""
    token, flag = world.symmetric(1, "i64"), world.symmetric(1, "i32")
    following = (world.rank + 1) % world.size
    for turn in range(1, rounds + 1):
        if world.rank or turn > 1:
            world.wait(flag, turn - (world.rank == 0))
        token.of(following)[0] = token.local[0] + 1
        world.signal(flag, following)
    world.barrier()
    return int(token.local[0])


def test_puts_are_seen_after_their_signal() -> None:
    assert shared.run(handed_round, 3, args=(200,))[0] == 600


def test_errors_name_what_does_not_fit() -> None:
    with pytest.raises(LaunchError, match=r"rank 0: a symmetric array of .* does not fit"):
        shared.run(lambda w: w.symmetric(1 << 20), 2, heap="1 MiB")
    with pytest.raises(LaunchError, match="no reduction 'mean'"):
        shared.run(lambda w: w.all_reduce(w.symmetric(4), "mean"), 2)
    with pytest.raises(LaunchError, match="no room for"):
        shared.run(lambda w: None, 2, heap="900 TiB")
    with pytest.raises(LaunchError, match="cannot share memory"):
        shared.run(lambda w: None, 0)
    for timeout in (0, -1.0, float("nan"), "10 s", None, True):
        with pytest.raises(LaunchError, match="timeout="):
            shared.run(lambda w: None, 2, timeout=timeout)  # type: ignore[arg-type]
