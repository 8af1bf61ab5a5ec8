"""``timing/caches.py``: caches in front of a memory, and the blocks that they hold."""

from math import prod

import pytest

import megatile as mt
from megatile.core.dtypes import itemsize
from megatile.plan.build import PlanBuilder
from megatile.timing.caches import brick, chain, extents


def test_caches_of_a_memory_are_listed_from_the_units_outwards() -> None:
    dgx = mt.machine("dgx-h100")
    assert [c.name for c in chain(dgx, "hbm", dgx.level("sm").position)] == ["l2_cache"]
    assert chain(dgx, "hbm", dgx.levels[-1].position) == ()
    assert chain(dgx, "shared", 0) == ()


def test_least_extents_are_those_of_the_smallest_region() -> None:
    b = PlanBuilder("parts", scale="device", units=1)
    x, y = (b.tile(name, (64, 128), "f16", memory="hbm") for name in "xy")
    b.copy(y[0:16, 0:128], x[0:16, 0:128])
    b.copy(y[16:32, 0:64], x[16:32, 0:64])
    assert extents(b.finish()) == {"x": (16, 64), "y": (16, 64)}


@pytest.mark.parametrize(
    ("least", "block", "shape"),
    [
        ((16, 64), 2048, (16, 64)),
        ((16, 64), 512, (4, 64)),
        ((16, 64), 64, (1, 32)),
        ((1, 64), 1024, (4, 128)),
    ],
    ids=["as it is", "halved from the first", "both halved", "doubled from the last"],
)
def test_a_block_is_filled_by_part_of_the_tile(
    least: tuple[int, int], block: int, shape: tuple[int, int]
) -> None:
    b = PlanBuilder("block", scale="device", units=1)
    b.tile("x", (64, 128), "f16", memory="hbm")
    (tile,) = b.finish().tiles
    assert brick(tile, least, block) == shape
    assert prod(shape) * itemsize("f16") <= block
