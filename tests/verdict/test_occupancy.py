"""Advice about tiles and residency."""

from tests.verdict import flawed

import megatile as mt
from megatile.verdict.occupancy import occupancy, tile_size
from megatile.verdict.study import Study


def test_accumulators_that_fill_the_registers_are_not_a_matter_of_threads():
    """Two blocks of 128 KiB accumulators leave no register for threads: only a smaller tile would do."""
    made = flawed.gemm(4096, 4096, 1024, 128, 256, threads=256, stages=1)
    result = mt.simulate(made, machine="dgx-h100")
    assert not list(occupancy(Study(result)))  # other tiles are timed by other rules
    made.made_by = None
    (found,) = occupancy(Study(result))
    assert found.step == "a smaller 'c': it takes 128 KiB of the 256 KiB of 'registers'"


def test_tiles_of_equal_area_are_not_called_too_small():
    """64×256 and 128×128 have as many elements: it is the shape that matters."""
    made = flawed.gemm(4096, 4096, 512, 32, 512, threads=256, panel=8)
    found = tile_size(Study(mt.simulate(made, machine="dgx-h100")))
    found = [one for one in found if one.name == "small tile"]
    changed = [dict(x.split(" ", 1) for x in f.step.partition(": ")[2].split(", ")) for f in found]
    values = {"bM": 32, "bN": 512, "bK": 64}
    for each in changed:
        after = values | {name: int(text.rpartition(" ")[2]) for name, text in each.items()}
        assert after["bM"] * after["bN"] > 32 * 512
