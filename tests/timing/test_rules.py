"""How long commands take: the roofline holds for every one, rules can be added, origins are told."""

import pytest
from tests.timing.rules_cases import H100, MI, adding

from megatile.plan.build import PlanBuilder
from megatile.plan.model import Transport, with_transport
from megatile.timing import Resources
from megatile.timing.rules import RULES, operands, rule


def test_operands_by_memory_and_in_slots_of_queues():
    b = PlanBuilder("mixed", scale="device", units=2)
    x = b.tile("x", (256,), "f32", memory="hbm")
    y = b.tile("y", (256,), "f16", memory="shared")
    b.compute("copy", y, [x], engine="vector")
    b.compute("mul", x, [x, x])
    plan = b.finish()
    first, second = (operands(plan)[id(s)].bytes for s in plan.streams[0].body)
    assert first == {"hbm": 1024, "shared": 512}
    assert second == {"hbm": 2048}, "a block is read once and written once"


def test_bytes_go_with_the_work_where_blocks_vary():
    b = PlanBuilder("tail", scale="device", units=1)
    x = b.tile("x", (1000,), "f32", memory="hbm")
    with b.loop(0, 4) as loop:
        i = loop.index
        length = 300 - (i // 3) * 200
        part = x[i * 300 : i * 300 + length]
        b.compute("add", part, [part, part])
    plan = b.finish()
    command = plan.streams[0].body[0].body[0]
    resources = Resources(H100, plan)
    startup = next(e for e in H100.engines if e.kind == "vector").startup_ps
    full, tail = (resources.compute_ps(command, n, 0) - startup for n in (300, 100))
    assert full == pytest.approx(3 * tail, abs=3)
    assert full == pytest.approx(2400 / H100.memory("hbm").effective_bandwidth * 1e12, abs=1)


def test_a_rule_of_ones_own():
    plan = adding(1024, "shared", "block")
    try:

        @rule("add")
        def slow(command):
            return 1000 * command.startup_ps + command.flops

        found = Resources(H100, plan).compute_ps(plan.streams[0].body[0], 1024, 0)
    finally:
        RULES._things.pop("add")
    engine = next(e for e in H100.engines if e.kind == "vector")
    assert found == 1000 * engine.startup_ps + 1024


def test_library_kernels_were_measured_with_their_reductions():
    plan = adding(MI, "hbm")
    command = plan.streams[0].body[0]
    kernel = with_transport(plan, Transport("kernel", protocol="Simple"), "all_reduce", 1, MI)
    by_library = Resources(H100, kernel).compute_ps(command, MI, 0)
    assert by_library < Resources(H100, plan).compute_ps(command, MI, 0)
