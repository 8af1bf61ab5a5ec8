"""All-to-all traffic against an independent per-hop SimPy model, and the ring with credits."""

from __future__ import annotations

import random

import pytest
from tests.sim.toys import first_arrivals, ring, toy

from megatile.core.expr import Const, member, table, unit
from megatile.hda import HDA
from megatile.plan.build import PlanBuilder
from megatile.plan.model import Plan
from megatile.sim import simulate
from simpy_models import Message, RingTimes, chunked_ring, per_hop_fabric


def all_to_all(n: int, sizes: list[int]) -> Plan:
    """Unit u sends n-1 messages in turn to u+1, u+2, …; its k-th has ``sizes[u * (n-1) + k]`` bytes."""
    b = PlanBuilder("all_to_all", scale="core", units=n)
    x = b.tile("x", (max(sizes),), "u8", memory="local", role="input")
    c = b.channel("c", source=(unit - 1 - member) % n, slot_bytes=max(sizes), memory="local", members=n - 1)
    with b.loop(0, n - 1) as loop:
        length = table(sizes, unit * (n - 1) + loop.index)
        b.send(c, x[0:length], to=(unit + 1 + loop.index) % n, member=loop.index)
    with b.loop(0, n - 1) as loop:
        length = table(sizes, (unit - 1 - loop.index) % n * (n - 1) + loop.index)
        b.receive(c, (length,), "u8", member=loop.index)
    return b.finish()


def expected(n: int, sizes: list[int], hda: HDA, start: list[int]) -> list[list[int]]:
    """The same traffic for SimPy: the route of every message, hop by hop."""
    network = hda.networks[0]
    queues = []
    for u in range(n):
        messages = []
        for k in range(n - 1):
            size = sizes[u * (n - 1) + k]
            links = network.topology.hops(u, (u + 1 + k) % n)
            hops = tuple((link, size, network.latency_ps) for link in links)
            messages.append(Message(u, hops, 20, size, before_ps=10, after_ps=10))
        queues.append(messages)
    return per_hop_fabric(queues)


@pytest.mark.parametrize(
    ("n", "topology", "extra"),
    [(16, "ring", {}), (64, "mesh", {"dims": [8, 8]})],
    ids=["16-ring", "8x8-mesh"],
)
def test_all_to_all_equals_the_per_hop_model(n: int, topology: str, extra) -> None:
    """Sizes are random, so that no two heads meet at one link at once: ties are a matter of taste."""
    rng = random.Random(7)
    sizes = [rng.randrange(20_000, 1_000_000) for _ in range(n * (n - 1))]
    hda = toy(n, topology, link_latency="137 ps", network=extra)
    r = simulate(all_to_all(n, sizes), machine=hda, engine="compiled")
    arrived = first_arrivals(r.record)
    reference = expected(n, sizes, hda, [0] * n)
    for u in range(n):
        for k in range(n - 1):
            assert arrived[0, (u + 1 + k) % n, k] == reference[u][k], (u, k)
    assert r.time_ps == max(max(row) for row in reference)


@pytest.mark.parametrize(("n", "slots"), [(3, 1), (8, 1), (8, 2), (13, 4)])
def test_the_ring_with_credits_equals_simpy(n: int, slots: int) -> None:
    """64 floats: send 20 + 256, flight 120, add 69, copy out of the slot 20 + 64 and 10, credit 116."""
    times = RingTimes(276, 120, 69, 84, 10, 116)
    assert simulate(ring(n, 64, slots), machine=toy(n)).time_ps == chunked_ring(n, slots, times)


def test_an_expression_may_name_a_constant_unit() -> None:
    """Guard of the helper above: a table of sizes is an ordinary expression."""
    assert table([3, 5], Const(1)).evaluate({}) == 5
