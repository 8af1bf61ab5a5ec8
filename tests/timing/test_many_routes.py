"""Routes of many pairs at once: as those of single pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from megatile.core.expr import select, unit
from megatile.hda import HDA
from megatile.plan.build import PlanBuilder
from megatile.sim import plain, simulate
from megatile.sim.data import Assumed
from megatile.sim.simulation import Simulation
from megatile.sim.state import PathRow, UnitRow
from megatile.timing import Resources
from megatile.timing.fabric import Fabric
from megatile.timing.faults import Faults


def grid(topology: str, extents: list[int], groups: int = 2) -> HDA:
    cores = int(np.prod(extents))
    network: dict[str, Any] = {
        "name": "net", "level": "chip", "connects": "core", "topology": topology, "bandwidth": "1000 GB/s",
        "latency": "100 ps", "hop_overhead": "7 ps",
    }  # fmt: skip
    if topology != "ring":
        network["dims"] = extents
    outer = {"name": "between", "level": "box", "connects": "chip", "topology": "ring",
             "bandwidth": "100 GB/s", "latency": "1 ns"}  # fmt: skip
    return HDA.from_dict(
        {
            "name": "grid",
            "hw_spec": {
                "pe": [{"name": "core", "num_units": 1}],
                "pe_groups": [{"name": "chip", "num_units": cores}, {"name": "box", "num_units": groups}],
            },
            "hw_abstr": [
                {"name": "core", "target": "core"}, {"name": "chip", "target": "chip"},
                {"name": "device", "target": "box"},
            ],
            "memory": [{"name": "local", "level": "core", "size": "1 MiB", "bandwidth": "4000 GB/s",
                        "latency": "10 ps"}],
            "networks": [network, outer],
            "engines": [
                {"name": "vec", "kind": "vector", "level": "core", "throughput": {"any": "1 TFLOP/s"}},
                {"name": "dma", "kind": "dma", "level": "core", "startup": "20 ps", "channels": 4},
            ],
        }
    )  # fmt: skip


GRIDS = [("ring", [7]), ("ring", [8]), ("mesh", [4, 3]), ("torus", [5, 4]), ("torus", [3, 3, 3])]


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


@pytest.mark.parametrize(("topology", "extents"), GRIDS)
def test_messages_and_channels_of_many_pairs(topology: str, extents: list[int]) -> None:
    hda = grid(topology, extents)
    n = hda.level("core").total
    b = PlanBuilder("p", scale="core", units=n)
    b.channel("c", source=(unit - 1) % n, slot_bytes=64, memory="local")
    machine_of = Resources(hda, b.finish())
    units, peers = np.random.default_rng(0).integers(0, n, (2, 40))
    pairs = list(zip(units.tolist(), peers.tolist(), strict=True))
    assert machine_of.messages_ps(units, peers, 8).tolist() == [machine_of.message_ps(*p, 8) for p in pairs]
    lanes = machine_of.virtual_channels("c", units, peers).tolist()
    assert lanes == [machine_of.virtual_channel("c", *p) for p in pairs]


def test_expressions_of_many_units_are_those_of_each() -> None:
    n = 9
    b = PlanBuilder("p", scale="core", units=n)
    x = b.tile("x", (64,), "f32", memory="local")
    with b.loop(0, 4) as loop:
        other = select(unit % 2, (unit * 5 - loop.index) % n, (unit - 7) // 2 % n)
        b.copy(x.at(other), x)
    simulation = Simulation(record=0)
    plan = b.finish()
    simulation.add(plan, Resources(grid("ring", [9], 1), plan), Assumed(None))
    memory, rows = simulation.arena.memory, simulation.arena.rows("units")
    found = 0
    for x_number in range(simulation.arena.used["expressions"]):
        frame = simulation.arena.rows("frames")[int(rows[0, UnitRow.frame]) :]
        values, always = simulation.rows.meanings[x_number].of_all(np.arange(n), frame)
        if always:
            found += 1
            each = [
                int(plain.engine().evaluate(memory, x_number, int(rows[u, UnitRow.frame]))) for u in range(n)
            ]
            assert values.tolist() == each
    assert found


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
