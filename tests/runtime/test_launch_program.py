"""Tile programs in processes that share memory: what the interpreter gives, and what a lost process does."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runtime.program_cases import turned

import megatile as mt
import megatile.language as T
from megatile.runtime.errors import LaunchError

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module(name)


def arrays_of(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.standard_normal(shape, dtype="f4") for shape in shapes]


@pytest.mark.parametrize("processes", [None, 1, 2, 3])
def test_a_tensor_parallel_product(processes: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    gemm = example("demo", monkeypatch).gemm
    a, b = arrays_of((128, 256), (256, 128))
    c = np.zeros((128, 128), "f4")
    seconds = mt.launch(gemm, a, b, c, machine="dgx-h100", processes=processes)
    assert seconds > 0
    np.testing.assert_allclose(c, a @ b, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("processes", [4, 2])
def test_ring_attention(processes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    program = example("34_ring_attention", monkeypatch).ring_attention(2, 64, 32)
    q, k, v = arrays_of(*[(2, 64, 32)] * 3)
    o, expected = np.zeros_like(q), np.zeros_like(q)
    mt.run(program, q, k, v, expected, machine="dgx-h100")
    mt.launch(program, q, k, v, o, machine="dgx-h100", processes=processes)
    np.testing.assert_allclose(o, expected, rtol=1e-4, atol=1e-5)


@T.program
def counted(count: T.Tensor((3,), "i32"), highest: T.Tensor((1,), "f32"), tickets: T.Tensor((4, 200), "i32")):
    """All devices change the same elements; the old values of one of them are tickets."""
    with T.Kernel(device=4), T.Scale("device") as (rank, _):
        mine = T.view(tickets, layout=T.Shard(0))
        for k in T.serial(200):
            T.atomic_add(count[k % 2], 1)
            T.atomic_max(highest[0], T.cast(rank * 200 + k, "f32"))
            before = T.atomic_add(count[2], 1, return_prev=True)
            mine[0, k] = before


def test_atomics_of_processes() -> None:
    count, highest, tickets = np.zeros(3, "i4"), np.zeros(1, "f4"), np.zeros((4, 200), "i4")
    mt.launch(counted, count, highest, tickets, machine="dgx-h100")
    assert count.tolist() == [400, 400, 800]
    assert highest == 799
    assert sorted(tickets.reshape(-1).tolist()) == list(range(800))


def test_mistakes_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    gemm = example("demo", monkeypatch).gemm
    a, b = arrays_of((128, 256), (256, 128))
    for wrong in ({"processes": 0}, {"processes": "two"}, {"processes": 10**6}, {"timeout": None}):
        with pytest.raises(LaunchError, match=f"{next(iter(wrong))}="):
            mt.launch(gemm, a, b, np.zeros((128, 128), "f4"), machine="dgx-h100", **wrong)
    c = np.zeros((128, 128), "f4")
    mt.launch(gemm, a, b, c, machine="dgx-h100", processes=np.int64(2))
    np.testing.assert_allclose(c, a @ b, rtol=1e-3, atol=1e-3)
    with pytest.raises(mt.MegatileError, match="'B'"):
        mt.launch(gemm, a, a, np.zeros((128, 128), "f4"), machine="dgx-h100")


def test_arguments_of_plans_and_of_programs_are_kept_apart():
    plan = mt.collective("all_reduce", machine="dgx-h100", nbytes=64, ranks=2, algorithm="ring")
    with pytest.raises(LaunchError, match=r"launch of a plan has no argument 'processes' .*nproc"):
        mt.launch(plan, processes=2)
    with pytest.raises(LaunchError, match=r"launch of a program has no argument 'repeat' .*processes"):
        mt.launch(turned, np.zeros((2, 3), "f4"), repeat=2)
