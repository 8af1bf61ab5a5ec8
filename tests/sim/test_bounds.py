"""lower <= simulated <= upper for random plans; equal where nothing contends."""

from __future__ import annotations

from statistics import median

from random_plans import random_plan
from toys import ring, toy

from megatile.cost.price import price
from megatile.sim import simulate


def test_the_price_bounds_the_simulated_time() -> None:
    ratios = []
    for seed in range(60):
        plan = random_plan(seed)
        hda = toy(
            plan.units,
            ["ring", "switch", "line"][seed % 3],
            control=seed % 4 == 0,
            network={"duplex": ["full", "half"][seed % 2]},
        )
        bounds, time = price(plan, hda), simulate(plan, machine=hda).time_ps
        assert bounds.lower_ps <= time <= bounds.upper_ps, seed
        ratios.append(bounds.upper_ps / bounds.lower_ps)
    assert median(ratios) <= 2


def test_the_price_is_exact_where_nothing_contends() -> None:
    for n in (3, 8):
        bounds = price(ring(n, 64), toy(n))
        assert bounds.lower_ps == bounds.upper_ps == simulate(ring(n, 64), machine=toy(n)).time_ps
