"""Everything that goes wrong in a script is said, by the ranks to blame, and the next one works."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

import megatile as mt
from megatile.runtime.host.allocators import AllocationError
from megatile.runtime.host.storage import TensorError
from megatile.runtime.host.workers import DistributedError, SpawnException

MACHINES = [{"machine": "ahbm", "sips": 4}, {"machine": "dgx-h100", "gpus": 4}]
CASES: dict[str, tuple[Callable[[int, Any, Any], None], list[int], type[BaseException], str]] = {}


def case(ranks: list[int], kind: type[BaseException], said: str) -> Callable[[Any], Any]:
    def note(fn: Any) -> Any:
        CASES[fn.__name__] = (fn, ranks, kind, said)
        return fn

    return note


@case([1], ZeroDivisionError, "division by zero")
def raises_before(rank: int, torch: Any, x: Any) -> None:
    assert rank != 1 or 1 / 0
    torch.distributed.all_reduce(x)


@case([1], TypeError, "takes tensors, not int")
def raises_inside(rank: int, torch: Any, x: Any) -> None:
    if rank == 1:
        try:
            torch.distributed.all_reduce(7)
        except DistributedError as problem:
            raise TypeError(str(problem)) from None
    torch.distributed.all_reduce(x)


@case([2], ValueError, "too late")
def raises_after(rank: int, torch: Any, x: Any) -> None:
    torch.distributed.all_reduce(x)
    if rank == 2:
        raise ValueError("too late")
    torch.distributed.barrier()


@case(
    [3],
    DistributedError,
    r"waits in all_reduce of f16\[64\] at test_failures.py:\d+ for rank 3.*rank 3 has ended",
)
def skips_one(rank: int, torch: Any, x: Any) -> None:
    torch.distributed.all_reduce(x)
    if rank != 3:
        torch.distributed.all_reduce(x)


@case([0], DistributedError, r"rank 0 waits in all_reduce .* for ranks 1, 2, 3")
def repeats_one(rank: int, torch: Any, x: Any) -> None:
    torch.distributed.all_reduce(x)
    if rank == 0:
        torch.distributed.all_reduce(x)


@case(
    [1],
    DistributedError,
    r"rank 0 calls all_reduce .*:\d+, rank 1 calls broadcast of f16\[64\] at test_failures.py:\d+",
)
def orders_differ(rank: int, torch: Any, x: Any) -> None:
    calls = [torch.distributed.all_reduce, torch.distributed.broadcast]
    for call in calls[::-1] if rank == 1 else calls:
        call(x)


@case([2], DistributedError, r"all_reduce of f16\[64\] at .*all_reduce of f16\[32\] at")
def shapes_differ(rank: int, torch: Any, x: Any) -> None:
    torch.distributed.all_reduce(torch.zeros(32) if rank == 2 else x)


@case([3], DistributedError, r"all_reduce of f16\[64\] at .*all_reduce of f32\[64\] at")
def types_differ(rank: int, torch: Any, x: Any) -> None:
    torch.distributed.all_reduce(torch.zeros(64, dtype="f32") if rank == 3 else x)


@case(
    [0],
    AllocationError,
    r"hbm.*: 1\.\d* TB asked for tensor 'much', .* free of|hbm.*: 1 TiB asked for tensor 'much'",
)
def out_of_memory(rank: int, torch: Any, x: Any) -> None:
    torch.engine.data, before = False, torch.engine.data
    try:
        torch.empty(1 << 39, dtype="f16", name="much")
    finally:
        torch.engine.data = before


@case([0], AllocationError, "tensor 'x0' was already freed")
def double_free(rank: int, torch: Any, x: Any) -> None:
    x.free()
    x.free()


@case([0], TensorError, "tensor 'x0' is used after it was freed")
def use_after_free(rank: int, torch: Any, x: Any) -> None:
    x.free()
    torch.distributed.all_reduce(x)


@case([0], DistributedError, "spawn inside a worker is refused")
def nested_spawn(rank: int, torch: Any, x: Any) -> None:
    torch.multiprocessing.spawn(good, args=(torch, {}), nprocs=2)


def good(rank: int, torch: Any, found: dict[int, float]) -> None:
    torch.accelerator.set_device_index(rank)
    torch.distributed.init_process_group()
    x = torch.full((64,), rank + 1.0)
    torch.distributed.all_reduce(x)
    found[rank] = x.numpy()[63]


def begun(rank: int, torch: Any, body: Any) -> None:
    torch.accelerator.set_device_index(rank)
    torch.distributed.init_process_group()
    body(rank, torch, torch.zeros(64, name=f"x{rank}"))


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: m["machine"])
def test_every_failure_is_reported_and_the_next_bench_works(machine: dict[str, Any]) -> None:
    with mt.host(**machine) as torch:
        for name, (body, ranks, kind, said) in CASES.items():
            with pytest.raises(SpawnException, match=said) as failed:
                torch.multiprocessing.spawn(begun, args=(torch, body), nprocs=4)
            assert sorted(failed.value.errors) == ranks, name
            assert {type(e) for e in failed.value.errors.values()} == {kind}, name
            assert str(failed.value).startswith(f"spawn failed on ranks {ranks}: rank"), name
            found: dict[int, float] = {}
            torch.multiprocessing.spawn(good, args=(torch, found), nprocs=4)
            assert set(found.values()) == {10}, name
        del failed  # its traceback holds tensors
        gc.collect()
        for pool in torch.memory._pools.values():
            left = [what for _, what in pool.taken.values() if "queue" not in what]
            assert not left, left


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: m["machine"])
def test_spawn_twice_and_reads_in_unfinished_epochs(machine: dict[str, Any]) -> None:
    def reads(rank: int, torch: Any, x: Any) -> None:
        work = torch.distributed.all_reduce(x.fill_(1), async_op=True)
        before = x.numpy()[0] if rank == 0 else None  # the others have not joined yet
        work.wait()
        assert before in (None, 1)
        assert x.numpy()[0] == 4

    with mt.host(**machine) as torch:
        for _ in range(2):
            found: dict[int, float] = {}
            torch.multiprocessing.spawn(good, args=(torch, found), nprocs=4)
            assert set(found.values()) == {10}
        torch.multiprocessing.spawn(begun, args=(torch, reads), nprocs=4)
