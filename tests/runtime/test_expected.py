"""Addresses that the host gives, and its prices of torch's operations, line by line (`tests.expected`)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.expected import digest, line, tried

import megatile as mt
from megatile.runtime.host.allocators import Allocators, PeMMU, Pool, VirtualAllocator

Check = Callable[[str, dict[str, Any]], None]
KNOWN_TORCH = "2.13"


def pool_life(seed: int) -> str:
    """What is taken and given back at random, with every error."""
    rng, pool, held, said = random.Random(seed), Pool("p", 4096, 256 * seed), [], []
    for _ in range(60):
        if held and rng.random() < 0.45:
            start, size = held.pop(rng.randrange(len(held)))
            wrong = rng.choice((0, 0, 0, 1, 64))
            said.append(tried(lambda s=start, n=size + wrong: pool.give_back(s, n)))
            if wrong:
                held.append((start, size))
        else:
            size = rng.choice((0, 1, 63, 64, 65, 128, 200, 1000, -1, 1.5))
            found = tried(lambda n=size: pool.take(n, "it"))
            said.append(found)
            if isinstance(found, int):
                held.append((found, size))
        said.append((pool.free_bytes, tuple(pool._free)))
    return line(
        free=pool.free_bytes, taken=len(pool.taken), life=digest(said), errors=digest(*map(str, said))
    )


def addresses_of(memory: Allocators) -> Iterator[tuple[str, Any]]:
    """What the PEs of a machine allocate, also those that there are not."""
    shape = memory.shape
    last = shape.devices - 1, shape.cubes - 1, shape.pes - 1
    beyond = (shape.devices, 0, 0), (0, shape.cubes, 0), (0, 0, shape.pes), (-1, 0, 0)
    for key in ((0, 0, 0), last, *beyond):
        for kind in ("hbm", "tcm", "sram", "disk"):
            yield f"{key} {kind}", tried(lambda k=key, x=kind: str(memory[k].alloc(x, 100)))
    one = memory[last]
    away = one.address("hbm", 0)
    yield "hbm queue", tried(lambda: one.reserve_ipcq_hbm(100))
    yield "tcm queue", tried(lambda: one.reserve_ipcq_tcm(100))
    yield "sram queue", tried(lambda: one.reserve_ipcq_sram(100))
    yield "wrong memory", tried(lambda: one.free_tcm(away, 64))
    for pool in one.pools.values():
        yield (
            pool.name.partition(" ")[0],
            line(name=pool.name, all=pool.size, at=pool.start, free=pool.free_bytes),
        )


def test_addresses(expected: Check) -> None:
    found: dict[str, Any] = {f"pool {seed}": pool_life(seed) for seed in range(12)}
    for size in (0, 1, 2, 3, 64, 4096, 1.5):
        found[f"pages of {size}"] = tried(lambda n=size: VirtualAllocator(page_size=n).page_size)
    virtual = VirtualAllocator(1 << 20, 1 << 16, 4096)
    for number, size in enumerate((1, 4096, 4097, 0, 12288)):
        found[f"virtual {number}"] = virtual.alloc(size)
    virtual.free((1 << 20) + 4096, 4096)
    found["virtual again"] = virtual.alloc(4000)
    for name in ("ahbm", "dgx-h100", "tpu-v5p", "cerebras-wse2"):
        found |= {f"{name} {case}": answer for case, answer in addresses_of(Allocators(mt.machine(name)))}
    table = PeMMU(4096)
    pa = Allocators(mt.machine("ahbm"))[0, 0, 0].alloc("hbm", 20000)
    for va, size in ((8192, 100), (8292, 5000), (8100, 92), (8191, 1), (8200, 4), (20000, 8192)):
        found[f"map {va} {size}"] = tried(lambda v=va, n=size: table.map(v, n, pa, f"t{v}"))
    for va, size in (
        (8192, 1),
        (8192, 100),
        (8192, 101),
        (8291, 1),
        (8292, 5000),
        (8099, 1),
        (20000, 1),
        (28192, 1),
    ):
        found[f"translate {va} {size}"] = tried(lambda v=va, n=size: str(table.translate(v, n)))
    for va in (8192, 8193, 0, 8192):
        found[f"unmap {va} {len(table._ranges)}"] = tried(lambda v=va: table.unmap(v))
    expected("addresses", found)


def test_prices_of_torch(expected: Check) -> None:
    torch = pytest.importorskip("torch")
    if not torch.__version__.startswith(KNOWN_TORCH):
        pytest.skip("other versions may start other kernels")
    F = torch.nn.functional
    attend = F.scaled_dot_product_attention

    def of(*shape: int, dtype: Any = torch.bfloat16, grad: bool = False) -> Any:
        return torch.empty(shape, dtype=dtype, device="meta", requires_grad=grad)

    index = torch.empty(7, dtype=torch.int64, device="meta")
    cases = {
        "mm": (lambda a, b: a @ b, of(8, 16), of(16, 32)),
        "nothing": (lambda a, b: a @ b, of(0, 16), of(16, 32)),
        "bmm": (torch.bmm, of(3, 8, 16), of(3, 16, 32)),
        "addmm": (torch.addmm, of(32), of(8, 16), of(16, 32)),
        "baddbmm": (torch.baddbmm, of(3, 8, 32), of(3, 8, 16), of(3, 16, 32)),
        "conv": (lambda x, w: F.conv2d(x, w, padding=1), of(2, 3, 8, 8), of(6, 3, 3, 3)),
        "grouped": (lambda x, w: F.conv2d(x, w, groups=3), of(2, 3, 8, 8), of(6, 1, 3, 3)),
        "embedding": (lambda w, i: F.embedding(i, w), of(100, 16), index),
        "select": (lambda w, i: torch.index_select(w, 0, i), of(100, 16), index),
        "copy": (lambda a, b: a.copy_(b), of(64, 3), of(64, 3, dtype=torch.float32)),
        "fill": (lambda a: a.fill_(1), of(64, 3)),
        "view": (lambda a: a.reshape(8, 8).t(), of(64)),
        "softmax": (lambda a: torch.softmax(a, -1), of(8, 64)),
        "sum": (lambda a: a.float().sum(), of(8, 64)),
        "attention": (attend, of(2, 4, 9, 16), of(2, 4, 12, 16), of(2, 4, 12, 16)),
        "causal": (lambda q, k: attend(q, k, k, is_causal=True), of(2, 4, 12, 16), of(2, 4, 12, 16)),
        "shared": (lambda q, k: attend(q, k, k, enable_gqa=True), of(1, 8, 5, 16), of(1, 2, 10, 16)),
        "layer norm": (lambda x: F.layer_norm(x, (64,)), of(8, 64)),
        "cross entropy": (lambda x, i: F.cross_entropy(x, i), of(7, 50), index),
    }  # fmt: skip
    found: dict[str, Any] = {}
    for name, (function, *arguments) in cases.items():
        for graph in (False, True):
            made = mt.torch_estimate(function, *arguments, graph=graph)
            rows = [tuple(row.values()) for row in made.rows()]
            found[f"{name}{' graph' * graph}"] = line(us=made.time_us, rows=rows, text=digest(str(made)))
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)).to("meta")
    for backward in (False, True):
        for machine in ("dgx-h100", "mi300x-8"):
            made = mt.torch_estimate(
                model, of(8, 16, dtype=torch.float32), backward=backward, machine=machine
            )
            found[f"model {machine}{' backward' * backward}"] = line(
                us=made.time_us, rows=digest(made.rows()), text=str(made)
            )
    expected("prices", found)
