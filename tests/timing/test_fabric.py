"""``timing/fabric.py``: paths through the networks of an HDA."""

from __future__ import annotations

import gc
from typing import Any
from weakref import ref

import numpy as np
import pytest
from tests.timing.many_routes_cases import GRIDS, grid

import megatile as mt
from megatile.collectives.algorithms import find_algorithm
from megatile.collectives.requests import make_job
from megatile.core.expr import unit
from megatile.plan.build import PlanBuilder
from megatile.plan.model import Transport, with_transport
from megatile.sim import simulate
from megatile.sim.state import PathRow
from megatile.timing.fabric import Fabric
from megatile.timing.faults import Faults
from megatile.timing.resources import Resources


@pytest.mark.parametrize(("topology", "extents"), GRIDS)
def test_routes_in_groups_are_those_of_single_pairs(topology: str, extents: list[int]) -> None:
    hda = grid(topology, extents)
    fabric, total = Fabric(hda, Faults()), hda.level("core").total
    a, b = (x.reshape(-1) for x in np.meshgrid(np.arange(total), np.arange(total)))
    per = hda.network("net").topology.link_count
    seen = np.zeros(len(a), dtype=int)
    for group in fabric.alike("core", a, b):
        first = [s.resource for s in routes(fabric, a, b, group.pairs[0])]
        for pair, shift in zip(group.pairs.tolist(), group.shifts.tolist(), strict=True):
            seen[pair] += 1
            links = [s.resource for s in routes(fabric, a, b, pair)]
            moved = [(k.network, *divmod(k.owner * per + k.number + shift, per)) for k in first]
            assert links == (moved if shift else first)
    assert (seen == 1).all()
    for group in fabric.alike("core", a, b, lengths=True):
        times = {sum(s.latency_ps for s in routes(fabric, a, b, pair)) for pair in group.pairs}
        assert len(times) == 1


def routes(fabric: Fabric, a: Any, b: Any, pair: int) -> Any:
    unit = fabric.hda.unit
    return (
        fabric.stages(unit(("core", int(a[pair]))), unit(("core", int(b[pair]))))
        if a[pair] != b[pair]
        else ()
    )


def test_copies_on_a_grid_are_a_handful_of_rows() -> None:
    """Paths of a stencil's units to their neighbours are alike; none of their links is shared."""
    hda, n = grid("mesh", [10, 6], 1), 60
    b = PlanBuilder("stencil", scale="core", units=n)
    u = b.tile("u", (8,), "f32", memory="local")
    with b.when(unit % 10 < 9):
        b.copy(u.at(unit + 1), u)
    with b.when(unit < n - 10):
        b.copy(u.at(unit + 10), u)
    plan = b.finish()
    simulation = simulate(plan, machine=hda).launch.simulation
    assert simulation.arena.used["paths"] <= 2
    assert not simulation.paths.everything_shared
    assert not simulation.arena.rows("paths")[:2, PathRow.contended].any()


H100 = mt.machine("h100-cluster", nodes=2)


def seen(protocol, name="ring", hda=H100, channels=None, **more):
    job, _ = make_job("all_reduce", machine=hda, nbytes="1 KiB")
    plan = find_algorithm(name).plan(job)
    if protocol is not None:
        plan = with_transport(
            plan, Transport("kernel", "nccl", name, protocol, channels), "all_reduce", 16, 1024
        )
    return Resources(hda, plan, **more)


def test_one_is_shared_by_plans_with_machine_path_and_share():
    ring, tree = seen("Simple"), seen("Simple", "tree")
    assert ring.fabric is tree.fabric
    assert ring.path(0, "hbm", 9, "hbm") is tree.path(0, "hbm", 9, "hbm")
    others = [
        seen("LL"),
        seen("Simple", channels=1),
        seen("Simple", hda=mt.machine("h100-cluster", nodes=2)),
        seen("Simple", faults=Faults(slow_link=((("gpu:0", "gpu:1"), 4.0),))),
        seen(None),
    ]
    assert len({id(r.fabric) for r in (ring, *others)}) == 6
    slow = others[3]
    assert slow.path(0, "hbm", 1, "hbm").bandwidth < ring.path(0, "hbm", 1, "hbm").bandwidth


def test_it_goes_with_the_last_plan():
    one = seen("Simple", hda=mt.machine("h100-cluster", nodes=3))
    kept = ref(one.fabric)
    del one
    gc.collect()
    assert kept() is None


def test_what_many_units_found_out_is_their_own():
    many = mt.machine("h100-cluster", nodes=40)
    ring, again = (seen("Simple", hda=many) for _ in range(2))
    assert ring.fabric is not again.fabric
