"""``timing/spread_hops.py``: about how many links the copies of tiles cross that are spread over units,
before any is simulated."""

from tests.lowering.shared import ROUNDS, WAFER, own, reads, spread_plan

import megatile as mt


def test_a_route_is_paid_hop_by_hop() -> None:
    """Two cores side by side read each other's block: a hop of one cycle more than their own, each time."""
    near, far = (
        mt.simulate(reads(2, which), machine=WAFER, record=False).time_ps
        for which in (own, lambda b, i: 1 - b)
    )
    hop = round(1e12 / 1.1e9)
    assert ROUNDS * hop <= far - near <= ROUNDS * (hop + 2 * hop)


def test_plans_say_how_tiles_are_spread() -> None:
    plan = spread_plan()
    assert 'x = tile(f32, (8, 4), memory="sram", role="input", over="core", block=(2, 4))' in str(plan)
    assert mt.Plan.from_json(plan.to_json()) == plan == mt.Plan.from_text(str(plan))
    assert {k: v for k, v in mt.simulate(plan, machine=WAFER).usage.bytes_on.items() if "fabric" in k}
