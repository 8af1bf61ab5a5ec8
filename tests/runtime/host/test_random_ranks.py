"""Random programs of ranks (collectives of groups, messages, kernels, copies) against a model in NumPy."""

from __future__ import annotations

import random

import numpy as np
import pytest

import megatile as mt

RANKS, SIZE, TENSORS = 3, 6, 3
GROUPS = ([0, 1, 2], [0, 1], [1, 2], [0, 2])
KINDS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "message", "kernel", "copy")
FUNCTIONS = {"sum": np.sum, "max": np.max, "min": np.min}


def program(seed: int) -> list[tuple]:
    """Steps: what, from and to which tensor, reduction, whether asynchronous, group."""
    r = random.Random(seed)
    steps = []
    for _ in range(r.randint(3, 9)):
        i, j = r.sample(range(TENSORS), 2)
        steps.append((r.choice(KINDS), i, j, r.choice(list(FUNCTIONS)), r.random() < 0.5, r.choice(GROUPS)))
    return steps


def start(rank: int, number: int) -> np.ndarray:
    return np.arange(SIZE, dtype=np.float32) + 10 * rank + 100 * number


def model(steps: list[tuple]) -> list[list[np.ndarray]]:
    t = [[start(rank, number) for number in range(TENSORS)] for rank in range(RANKS)]
    for kind, i, j, op, _, group in steps:
        old = [t[r][i] for r in group]
        part = SIZE // len(group)
        if kind == "kernel":
            for mine in t:
                mine[i] = mine[i] * 2
        elif kind == "copy":
            for mine in t:
                mine[j] = mine[i]
        elif kind == "message":
            t[group[-1]][j] = old[0]
        for k, r in enumerate(group):
            if kind == "all_reduce":
                t[r][i] = FUNCTIONS[op](old, axis=0)
            elif kind == "broadcast":
                t[r][i] = old[-1]
            elif kind == "all_gather":
                t[r][j] = np.concatenate([o[:part] for o in old])
            elif kind == "reduce_scatter":
                reduced = FUNCTIONS[op](old, axis=0)[k * part : (k + 1) * part]
                t[r][j] = np.concatenate([reduced, t[r][j][part:]])
            elif kind == "all_to_all":
                t[r][j] = np.concatenate([o[k * part : (k + 1) * part] for o in old])
    return t


def double(x, n, tl):
    tl.store(x, tl.load(x, shape=(n,), dtype="f32") * 2.0)


def run(torch, steps: list[tuple]) -> list[list]:
    """The tensors of every rank after the program."""
    dist, kept = torch.distributed, {}

    def worker(rank: int) -> None:
        torch.accelerator.set_device_index(rank)
        dist.init_process_group()
        groups = {tuple(g): dist.new_group(g) for g in GROUPS}
        t = [torch.tensor(start(rank, number)) for number in range(TENSORS)]
        for kind, i, j, op, later, ranks in steps:
            options = {"group": groups[tuple(ranks)], "async_op": later}
            part, work = SIZE // len(ranks), None
            if kind == "kernel":
                torch.launch("double", double, t[i], SIZE)
            elif kind == "copy":
                t[j].copy_(t[i])
            elif kind == "message" and rank == ranks[0]:
                work = dist.isend(t[i], ranks[-1])
            elif kind == "message" and rank == ranks[-1]:
                work = dist.irecv(t[j], ranks[0])
            elif rank not in ranks:
                continue
            elif kind == "all_reduce":
                work = dist.all_reduce(t[i], op, **options)
            elif kind == "broadcast":
                work = dist.broadcast(t[i], ranks[-1], **options)
            elif kind == "all_gather":
                work = dist.all_gather_into_tensor(t[j], torch.tensor(t[i].numpy()[:part]), **options)
            elif kind == "reduce_scatter":
                mine = torch.zeros(part, dtype="f32")
                dist.reduce_scatter_tensor(mine, t[i], op, group=options["group"])
                t[j][:part] = mine
            elif kind == "all_to_all":
                work = dist.all_to_all_single(t[j], t[i], **options)
            if work is not None:
                work.wait()
        kept[rank] = t

    torch.multiprocessing.spawn(worker, nprocs=RANKS)
    return [kept[rank] for rank in range(RANKS)]


@pytest.fixture(scope="module")
def torch():
    with mt.host("ahbm", sips=RANKS, log=True) as namespace:
        yield namespace


@pytest.mark.parametrize("seeds", [range(k, k + 10) for k in (0, 10)], ids=str)
def test_random_programs(torch, seeds) -> None:
    for seed in seeds:
        tensors = run(torch, program(seed))
        again = mt.replay(torch.op_log)
        for mine, right in zip(tensors, model(program(seed)), strict=True):
            for tensor, expected in zip(mine, right, strict=True):
                np.testing.assert_allclose(tensor.contents(), expected, err_msg=f"seed {seed}")
                np.testing.assert_array_equal(again[tensor.name], tensor.contents())
        torch.op_log.entries.clear()
        torch.op_log.inputs.clear()
