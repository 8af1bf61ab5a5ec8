"""Quantities that no machine has are refused with their place, not by an overflow."""

from __future__ import annotations

import math

import pytest

import megatile as mt
from megatile.core.errors import MachineError, QuantityError
from megatile.core.quantities import LIMITS, UNITS, quantity, size
from megatile.plan.build import PlanBuilder
from megatile.timing.machine_timing import TimingError


def test_every_dimension_has_limits() -> None:
    assert {kind for kind, _ in UNITS.values()} == set(LIMITS)
    for unit, (kind, factor) in UNITS.items():
        least, most, lowest, highest = LIMITS[kind]
        for value in (most * 10, least / 10 or 1e-30):
            text = f"{value / factor} {unit}"
            if value < least or value > most:
                with pytest.raises(QuantityError, match=r"is (less|more) than") as caught:
                    quantity(text)
                assert (lowest if value < least else highest) in str(caught.value)
        if kind != "share":
            assert math.isclose(quantity(highest).value, most)
            assert quantity(lowest).value == least


@pytest.mark.parametrize("text", ["1e-9 B/s", "1e300 B/s", "1e-400 B/s", "1e400 B/s"])
def test_a_rate_that_cannot_be_is_one_sentence_with_its_place(text: str) -> None:
    with pytest.raises(MachineError, match=r"dgx-h100.yaml:\d+: networks.nvlink.bandwidth: "):
        mt.machine("dgx-h100", **{"networks.nvlink.bandwidth": text})


def test_a_clock_can_make_a_figure_too_small() -> None:
    with pytest.raises(MachineError, match=r"memory.registers.latency: .1e15 cycles. is more than 1000 s"):
        mt.machine("dgx-h100", **{"memory.registers.latency": "1e15 cycles"})


@pytest.mark.parametrize("count", [8 * 10**18 + 1, "8000000000000000001", "1e300", "8001 PB", -1])
def test_sizes_have_limits_too(count: int | str) -> None:
    with pytest.raises(QuantityError):
        size(count)
    assert size(8 * 10**18) == size("8 EB") == size(str(8 * 10**18)) == 8 * 10**18


@pytest.mark.parametrize("engine", ["plain", "compiled"])
def test_a_run_that_takes_years_is_one_sentence(engine: str) -> None:
    slow = mt.machine("dgx-h100", **{"memory.hbm.bandwidth": "1 B/s"})
    big = PlanBuilder("copy", scale="block", units=1)
    x, y = (big.tile(name, (1 << 20,), "f32", memory="hbm") for name in "xy")
    big.copy(x, y)
    with pytest.raises(TimingError, match=r"4 MiB at the 1 B/s of 'hbm' take over 6 days"):
        mt.simulate(big.finish(), machine=slow, engine=engine)
    late = mt.machine("dgx-h100", **{"engines.cuda_cores.startup": "1000 s"})
    many = PlanBuilder("loop", scale="block", units=1)
    x = many.tile("x", (8,), "f32", memory="shared")
    with many.loop(0, 6000):
        many.compute("add", x, [x, x])
    with pytest.raises(TimingError, match="longer than 53 days"):
        mt.simulate(many.finish(), machine=late, engine=engine)
