"""Advice about tiles and residency."""

from tests.verdict import flawed

import megatile as mt


def test_accumulators_that_fill_the_registers_are_not_a_matter_of_threads():
    """Two blocks of 128 KiB accumulators leave no register for threads: only a smaller tile would do."""
    made = flawed.gemm(4096, 4096, 1024, 128, 256, threads=256, stages=1)
    names = [one.name for one in mt.simulate(made, machine="dgx-h100").verdict().findings]
    assert "occupancy" not in names  # other tiles were timed
    made.made_by = None
    verdict = mt.simulate(made, machine="dgx-h100").verdict()
    (found,) = (one for one in verdict.findings if one.name == "occupancy")
    assert found.step == "a smaller 'c': it takes 128 KiB of the 256 KiB of 'registers'"


def test_tiles_of_equal_area_are_not_called_too_small():
    """64×256 and 128×128 have as many elements: it is the shape that matters."""
    made = flawed.gemm(4096, 4096, 512, 32, 512, threads=256, panel=8)
    found = [f for f in mt.simulate(made, machine="dgx-h100").verdict().findings if f.name == "small tile"]
    changed = [dict(x.split(" ", 1) for x in f.step.partition(": ")[2].split(", ")) for f in found]
    values = {"bM": 32, "bN": 512, "bK": 64}
    for each in changed:
        after = values | {name: int(text.rpartition(" ")[2]) for name, text in each.items()}
        assert after["bM"] * after["bN"] > 32 * 512
