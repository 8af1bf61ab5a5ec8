"""Every check has a plan that fails it; the message names the command and its line."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.plan.shared import builder, fails, ring, tile

import megatile as mt
from megatile.core.expr import unit
from megatile.plan.build import PlanBuilder
from megatile.plan.check import check
from megatile.plan.follow import PlanDeadlock
from megatile.plan.model import Plan, PlanError, Stream


def test_a_message_that_nobody_receives():
    b = builder()
    b.send(ring(b), tile(b), to=(unit + 1) % 4)
    fails(b, r"kernel.py:7: 1 message from unit 3 is never received on ring\[0\] of unit 0: send\(ring, x")


def test_sizes_of_message_and_receive_differ():
    b = builder()
    c, x = ring(b), tile(b)
    b.send(c, x, to=(unit + 1) % 4)
    b.receive(c, (4,), "f32", into=tile(b, "y", (4,)))
    fails(b, r"kernel.py:7: unit 0 expects 16 bytes, the message has 32")


def test_a_message_larger_than_a_slot():
    b = builder()
    b.send(ring(b), tile(b, shape=(9,)), to=(unit + 1) % 4)
    fails(b, r"kernel.py:7: a message of 36 bytes does not fit a slot of 32 bytes of channel 'ring'")


def test_sending_to_a_queue_that_another_feeds():
    b = builder()
    b.send(ring(b), tile(b), to=(unit + 2) % 4)
    fails(b, r"kernel.py:7: unit 0 sends to queue \(2, 0\) of channel 'ring', which it does not feed")


def test_sending_to_nobody():
    b = builder()
    line = b.channel("line", source=unit - 1, slot_bytes=32, memory="tcm")
    b.send(line, tile(b), to=unit + 1)
    fails(b, "unit 3 sends to unit 4, which does not exist")


def test_regions_outside_of_their_tile():
    b = builder()
    x = tile(b)
    b.compute("neg", x[unit * 2 : unit * 2 + 4], [x[0:4]])
    fails(b, r"kernel.py:7: 'x' of extents \(8,\) has no elements 0:10: x\[unit \* 2:\+4\] <- neg")


def test_shapes_that_do_not_fit():
    b = builder()
    b.compute("add", tile(b, "y"), [tile(b), tile(b, "z", (5,))])
    fails(b, r"kernel.py:7: shapes \(8,\) and \(5,\) do not fit together: y <- add\(x, z")
    b = builder()
    b.compute("neg", tile(b, "y", (4,)), [tile(b)])
    fails(b, r"the result has shape \(8,\), not \(4,\)")
    b = builder()
    b.compute("gemm", tile(b, "c", (2, 2)), [tile(b, "a", (2, 3)), tile(b, "b", (2, 3))])
    fails(b, "gemm: inner extents 3 and 2 differ")


def test_writing_a_received_message():
    b = builder()
    c, x = ring(b), tile(b)
    b.send(c, x, to=(unit + 1) % 4)
    message = b.receive(c, (8,), "f32")
    b.compute("neg", message, [x])
    fails(b, "a received message cannot be written")


def test_every_unit_has_one_stream():
    b = builder()
    with b.stream(range(3)):
        b.compute("fill", tile(b), value=0)
    fails(b, "unit 3 has 0 streams, not one")
    plan = b.finish()
    fails(replace(plan, streams=(*plan.streams, *plan.streams)), "unit 0 has 2 streams")
    fails(replace(plan, streams=(Stream(((0, 5, 1),), ()),)), "stream of unit 4, but there are 4 units")


def test_declarations_that_make_no_sense():
    b = builder()
    tile(b, role="inputs")
    fails(b, "tile 'x' has role 'inputs'.*did you mean 'input'")
    b = builder()
    tile(b, versions=0)
    fails(b, "needs versions >= 1")
    b = builder()
    b.channel("c", source=0, slot_bytes=0, memory="tcm")
    fails(b, "at least one member, one slot and one byte")
    b = builder()
    x = tile(b, owner=unit // 2, owners=2)
    b.compute("fill", x, fresh=True, value=0)
    fails(b, "kernel.py:7: a new version of shared tile 'x'")


def test_a_loop_that_never_ends():
    b = builder()
    with b.loop(0, 4, 0):
        pass
    fails(b, "kernel.py:7: a loop with step 0 never ends")


def test_names_that_the_text_form_cannot_hold():
    for name in ("a b", "for", ""):
        with pytest.raises(PlanError, match=r"kernel.py:7: .* cannot be a name"):
            tile(builder(), name)


def test_a_memory_that_several_units_share():
    hda = mt.machine("ahbm")
    b = PlanBuilder("p", scale="pe", units=8)
    b.tile("x", (2**20,), "f32", memory="sram")
    check(b.finish(), hda)
    b = PlanBuilder("p", scale="pe", units=8)
    b.tile("x", (2**20 + 1,), "f32", memory="sram")
    fails(b, r"memory 'sram'.*needs 33554464 \(8 units of 4194308 bytes each", hda=hda)


def test_machines_that_lack_something():
    hda = mt.machine("ahbm")
    fails(
        PlanBuilder("p", scale="pe", units=257),
        "uses unit 256 of scale 'pe', machine 'ahbm' has 256",
        hda=hda,
    )
    b = builder()
    tile(b, shape=(8,))
    b.tiles["x"] = replace(b.tiles["x"], memory="tmc")
    fails(b, "has no memory 'tmc'", mt.MegatileError, hda)
    b = PlanBuilder("p", scale="gpu", units=1)
    b.tile("x", (8,), "f32", memory="l2_cache")
    with pytest.raises(mt.MegatileError):
        check(b.finish(), mt.machine("dgx-h100"))


def test_data_dependent_plans_are_checked_at_their_bound_or_as_assumed():
    b = builder(2)
    c, x = ring(b, 2, slots=1), tile(b)
    count = b.read_scalar(x[0:1], bound=2)
    with b.loop(0, count):
        b.send(c, x, to=(unit + 1) % 2)
    b.receive(c, (8,), "f32", into=x)
    plan = b.finish()
    assert check(plan, assume={"scalar": 1}).messages == 2
    with pytest.raises(PlanDeadlock):
        check(plan)


def test_a_long_ring_is_checked_without_following_every_message():
    n = 100_000
    b = PlanBuilder("long", scale="device", units=n)
    x = b.tile("x", (8,), "f32", memory="l2", role="inout")
    c = b.channel("ring", source=(unit - 1) % n, slot_bytes=32, memory="l2")
    with b.loop(0, n - 1):
        b.send(c, x, to=(unit + 1) % n)
        b.receive(c, (8,), "f32", into=x)
    assert check(b.finish()).messages == n * (n - 1)


def _uneven(write, bytes_of_message):
    """Two units; each sends as many elements as its number plus one to the other, which keeps them."""
    from_other = "2 - unit"
    text = f"""
plan("uneven", scale="device", grid=(2,))
x = tile(f32, (4,), memory="l2", role="input")
y = tile(f32, (4,), memory="l2", role="output")
c = channel(source=1 - unit, slots=1, slot_bytes=8, memory="l2")
with units((0, 2, 1)):
    send(c, x[0:+(unit + 1)], to=1 - unit, bytes={bytes_of_message})
    m <- receive(c, f32[{from_other}], bytes=({from_other}) * 4)
    y[0:+({write})] <- copy(m, engine="vector", bytes=({from_other}) * 4)
"""
    return Plan.from_text(text.strip() + "\n")


def test_blocks_that_differ_from_unit_to_unit_are_compared():
    assert check(_uneven("2 - unit", "(unit + 1) * 4")).messages == 2
    with pytest.raises(PlanError, match=r"the result has shape \(2,\), not \(1,\)"):
        check(_uneven("unit + 1", "(unit + 1) * 4"))
    with pytest.raises(PlanError, match=r"a message of f32\[1\] has 4 bytes, not 8"):
        check(_uneven("2 - unit", "8"))
