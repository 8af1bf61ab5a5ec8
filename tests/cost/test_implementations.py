"""``cost/implementations.py``: ways to do a primitive."""

from dataclasses import replace
from typing import Any

import pytest
from tests.lowering.passes.shared import CLUSTER, H100

import megatile as mt
from megatile.core.errors import MegatileError
from megatile.cost.implementations import CANDIDATES, Candidate, Request, choose, prices, transfer_ps


def request(primitive="Copy", scale="block", hda=H100, **more) -> Request:
    return Request(primitive, hda, scale, **({"dtype": "f16", "elements": 1 << 14} | more))


def product(rows: int, **more) -> Request:
    sizes = (rows, 128, 64)
    return request("Gemm", extents=sizes, operations=2 * rows * 128 * 64, **more)


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        (request(memories=("hbm", "shared")), "tma"),
        (request(memories=("shared", "registers")), "lsu"),
        (request(scale="device", memories=("hbm", "hbm")), "copy_engine"),
        (request(scale="device", memories=("hbm", "hbm"), reach="device"), "copy_engine"),
        (request(scale="device", memories=("hbm", "hbm"), reach="node", hda=CLUSTER), "nic"),
        (request(memories=("shared", "shared"), reach="block"), "dsmem"),
        (request(memories=("shared", "hbm"), reach="device"), "tma"),
        (product(128), "tensor"),
        (product(128, dtype="f32"), "vector"),
        (request("Reduce", operations=1 << 14, memories=("registers",)), "shuffle"),
    ],
)
def test_the_cheapest_that_applies(asked: Request, name: str) -> None:
    got, found = choose(asked)
    assert got == name == next(n for n in found if CANDIDATES[asked.primitive][n].body is None)
    assert all(price > 0 for price in found.values())
    assert list(found.values()) == sorted(found.values())


def test_prices_grow_with_the_work() -> None:
    for name, price in prices(product(4096)).items():
        assert price > prices(product(64))[name]
    larger = request(elements=1 << 20, memories=("hbm", "shared"))
    assert all(p > prices(request(memories=("hbm", "shared")))[n] for n, p in prices(larger).items())


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        (request(memories=("hbm", "registers")), {"lsu"}),  # bulk copies do not reach registers
        (request(memories=("hbm", "shared"), row=100), {"lsu"}),  # nor take rows of 100 bytes
        (request(memories=("hbm", "shared"), row=112), {"tma", "lsu"}),
        (request(memories=("hbm", "registers"), hda=mt.machine("mi300x-8")), {"dma", "lsu"}),
        (request(memories=("shared", "hbm"), reach="node", hda=CLUSTER), {"nic"}),
        (request(memories=("shared", "shared"), reach="block", paired=True), {"dsmem", "software_channel"}),
    ],
)
def test_when_copies_apply(asked: Request, names: set[str]) -> None:
    assert set(prices(asked)) == names


@pytest.mark.parametrize("price", ["7", float("nan"), float("inf"), -5, [1]])
def test_a_price_is_a_number_of_picoseconds(price: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CANDIDATES["Gemm"], "odd", Candidate("odd", lambda request: price))
    request = Request("Gemm", mt.machine("dgx-h100"), "block", "f16", 64, 1 << 16, (32, 32, 32))
    with pytest.raises(MegatileError, match="price of 'odd' for gemm must be non-negative picoseconds"):
        prices(request)


@pytest.mark.parametrize(("chunks", "credits"), [(1, 0), (2, 0), (3, 1), (10, 8)])
def test_chunks_beyond_the_slots_of_a_queue_wait_for_credit(chunks: int, credits: int) -> None:
    """Two slots of 64 KiB: each further chunk waits until the receiver has freed one."""
    asked = request(memories=("shared", "shared"), reach="block", paired=True, elements=chunks << 15)
    found = prices(asked)
    out = transfer_ps(replace(asked, reach=None), by="software_channel")
    credit = H100.networks[0].latency_ps
    assert (
        found["software_channel"] == min(found["dsmem"], found.get("lsu", 1 << 62)) + out + credits * credit
    )
