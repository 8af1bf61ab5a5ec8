"""A plan written by hand: chunked ring all-reduce over any number of units, checked, executed and priced."""

import numpy as np

import megatile as mt
from megatile.core.expr import unit
from megatile.cost.price import price
from megatile.plan.build import PlanBuilder
from megatile.plan.check import check
from megatile.plan.execute import execute


def all_reduce(units, chunk):
    """Every unit has `units` chunks; after 2 (units - 1) steps each chunk is the sum over all units."""
    b = PlanBuilder("all_reduce", scale="pe", units=units)
    x = b.tile("x", (units, chunk), "f32", memory="tcm", role="inout")
    ring = b.channel("ring", source=(unit - 1) % units, slots=2, slot_bytes=4 * chunk, memory="tcm")
    east = (unit + 1) % units
    with b.loop(0, units - 1) as step:
        b.send(ring, x[(unit - step.index) % units], to=east)
        message = b.receive(ring, (1, chunk), "f32")
        mine = x[(unit - step.index - 1) % units]
        b.compute("add", mine, [mine, message])
    with b.loop(0, units - 1) as step:
        b.send(ring, x[(unit + 1 - step.index) % units], to=east)
        b.receive(ring, (1, chunk), "f32", into=x[(unit - step.index) % units])
    return b.finish()


def main():
    plan = all_reduce(8, 1024)
    print(plan)
    machine = mt.machine("ahbm")
    seen = check(plan, machine)
    print(f"checked: {seen.messages} messages of {seen.units} units in {seen.streams} stream")

    data = np.random.default_rng(0).integers(0, 9, (8, 8, 1024)).astype("f4")
    result = execute(plan, {"x": data})["x"]
    print("data right:", bool((result == data.sum(axis=0)).all()))

    bounds = price(plan, machine)
    print(f"time on {machine.name}: {bounds.lower_ns:.1f} to {bounds.upper_ns:.1f} ns")
    print(f"a ring of 100 000 is as short: {len(str(all_reduce(100_000, 1)).splitlines())} lines")


if __name__ == "__main__":
    main()
