"""Receives posted ahead: in order, as many as there are slots, and under way while kernels work."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: plans cannot run on processes")

from hypothesis import (  # noqa: E402
    given,
    settings,
    strategies as st,
)
from tests.patience import patience  # noqa: E402

from megatile.core.expr import unit  # noqa: E402
from megatile.plan.build import PlanBuilder  # noqa: E402
from megatile.plan.code import compile_plan  # noqa: E402
from megatile.plan.execute import execute  # noqa: E402
from megatile.runtime.control import MAX_ANNOUNCED_COLLECTIVES, Inbox, Scout  # noqa: E402
from megatile.runtime.launch import launch  # noqa: E402
from megatile.runtime.processes import run_processes  # noqa: E402


class Wires:
    """Posts receives by writing them down."""

    def __init__(self):
        self.posted = []

    def receive(self, coming):
        self.posted.append((coming.source, coming.channel, coming.member, coming.shape))
        return lambda: torch.zeros(1)


def inbox_of(plan, number=0):
    channels = {channel.name: channel for channel in plan.channels}
    scout = Scout(compile_plan(plan)[0].instructions, number, channels)
    wires = Wires()
    return Inbox(scout, wires.receive, channels), wires


def loop_plan(rounds=5, slots=2):
    """Two queues from the unit before, one from the unit after, in a loop; a message's length follows k."""
    b = PlanBuilder("loop", scale="device", units=3)
    x = b.tile("x", (8,), "f32", memory="l2", role="inout")
    one = b.channel("one", source=(unit + 2) % 3, slot_bytes=32, memory="l2", slots=slots, members=2)
    other = b.channel("other", source=(unit + 1) % 3, slot_bytes=32, memory="l2")
    with b.loop(0, rounds, index="k") as loop:
        b.send(one, x[0 : loop.index + 1], to=(unit + 1) % 3, member=0)
        b.send(one, x, to=(unit + 1) % 3, member=1)
        b.send(other, x, to=(unit + 2) % 3)
        b.receive(one, (loop.index + 1,), "f32", into=x[0 : loop.index + 1], member=0)
        b.receive(one, (8,), "f32", into=x, member=1)
        b.receive(other, (8,), "f32", into=x)
        b.compute("add", x, [x, x])
    return b.finish()


def test_as_many_receives_are_posted_as_there_are_slots():
    inbox, wires = inbox_of(loop_plan())
    inbox.look_ahead()
    assert wires.posted == [
        (2, "one", 0, (1,)), (2, "one", 1, (8,)), (1, "other", 0, (8,)),
        (2, "one", 0, (2,)), (2, "one", 1, (8,)), (1, "other", 0, (8,)),
    ]  # fmt: skip
    inbox.take("one", 0, 2)
    assert wires.posted[6:] == [(2, "one", 0, (3,))]  # the slot of the message taken, and nothing else
    inbox.take("one", 1, 2)
    assert wires.posted[7:] == [(2, "one", 1, (8,))]
    inbox.take("other", 0, 1)
    assert wires.posted[8:] == [(1, "other", 0, (8,))]


def test_receives_of_one_source_keep_their_order():
    """A queue with free slots waits behind one that is full, if the same unit feeds both."""
    b = PlanBuilder("order", scale="device", units=3)
    full = b.channel("full", source=(unit + 2) % 3, slot_bytes=4, memory="l2", slots=1)
    free = b.channel("free", source=(unit + 2) % 3, slot_bytes=4, memory="l2", slots=4)
    other = b.channel("other", source=(unit + 1) % 3, slot_bytes=4, memory="l2", slots=1)
    for channel in (full, full, free, other):
        b.receive(channel, (1,), "f32")
    inbox, wires = inbox_of(b.finish())
    inbox.look_ahead()
    assert [name for _, name, *_ in wires.posted] == ["full", "other"]
    inbox.take("full", 0, 2)
    assert [name for _, name, *_ in wires.posted] == ["full", "other", "full", "free"]


def test_nothing_is_posted_beyond_an_integer_that_is_not_known():
    b = PlanBuilder("unknown", scale="device", units=2)
    n = b.tile("n", (1,), "i32", memory="l2", role="input")
    a, c = (b.channel(x, source=(unit + 1) % 2, slot_bytes=4, memory="l2") for x in "ac")
    b.receive(a, (1,), "f32")
    rows = b.read_scalar(n[0], 9)
    with b.when(rows > 3) as branch:
        b.receive(a, (1,), "f32")
    with branch.otherwise():
        b.receive(c, (1,), "f32")
    for value, expected in ((2, "ac"), (7, "aa")):
        inbox, wires = inbox_of(b.finish())
        inbox.look_ahead()
        assert [name for _, name, *_ in wires.posted] == ["a"]
        inbox.learn(value)
        assert "".join(name for _, name, *_ in wires.posted) == expected


def test_a_long_stream_is_not_read_to_its_end_at_once():
    inbox, wires = inbox_of(loop_plan(rounds=100_000))
    inbox.look_ahead()
    assert len(wires.posted) == 6
    assert inbox._count <= MAX_ANNOUNCED_COLLECTIVES
    for k in range(300):  # and what is taken next has always been posted
        for channel, member, source in (("one", 0, 2), ("one", 1, 2), ("other", 0, 1)):
            inbox.take(channel, member, source)
        assert len(wires.posted) == 6 + 3 * (k + 1)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_message_is_posted_once_in_order_and_before_it_is_taken(data):
    """Random receives of random queues: whatever the order, taking never waits for what is not posted."""
    slots = data.draw(st.lists(st.integers(1, 3), min_size=2, max_size=4))
    sources = data.draw(st.lists(st.integers(1, 2), min_size=len(slots), max_size=len(slots)))
    order = data.draw(st.lists(st.integers(0, len(slots) - 1), max_size=3 * MAX_ANNOUNCED_COLLECTIVES))
    b = PlanBuilder("random", scale="device", units=3)
    channels = [
        b.channel(f"c{i}", source=(unit + s) % 3, slot_bytes=4, memory="l2", slots=count)
        for i, (s, count) in enumerate(zip(sources, slots, strict=True))
    ]
    for i in order:
        b.receive(channels[i], (1,), "f32")
    inbox, wires = inbox_of(b.finish())
    inbox.look_ahead()
    for done, i in enumerate(order, 1):
        inbox.take(f"c{i}", 0, sources[i])
        for j, count in enumerate(slots):
            posted = sum(name == f"c{j}" for _, name, *_ in wires.posted)
            assert posted - order[:done].count(j) <= count
    for source in (1, 2):
        wanted = [f"c{i}" for i in order if sources[i] == source]
        assert [name for s, name, *_ in wires.posted if s == source] == wanted


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_loops_with_several_queues_equal_their_execution(slots):
    plan = loop_plan(slots=slots)
    x = np.arange(24, dtype="f4").reshape(3, 8)
    found, expected = launch(plan, inputs={"x": x}, timeout=patience(60), repeat=2), execute(plan, {"x": x})
    np.testing.assert_array_equal(found["x"], expected["x"])


def ring_plan(units, steps):
    """As attention goes: a kernel works on what is held while the next chunk travels."""
    b = PlanBuilder("overlap", scale="device", units=units)
    x = b.tile("x", (64,), "f32", memory="l2", role="input")
    y = b.tile("y", (64,), "f32", memory="l2", role="output")
    ring = b.channel("ring", source=(unit + units - 1) % units, slot_bytes=256, memory="l2", slots=1)
    with b.loop(0, steps, index="k", held=x) as loop:
        b.compute("exp", y, [loop.held])
        b.send(ring, loop.held, to=(unit + 1) % units)
        loop.next(held=b.receive(ring, (64,), "f32"))
    return b.finish()


def test_the_next_chunk_arrives_while_a_kernel_works(tmp_path, monkeypatch):
    """In real processes: kernel i ends only when message i + 1 is here, so that in turn they never would."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    plan = ring_plan(3, 6)
    (tmp_path / "plan").write_text(plan.to_json(), encoding="utf-8")
    for number in range(3):
        (tmp_path / f"in_0_{number}").write_bytes(np.full(64, number / 8, "f4").tobytes())
    run_processes("overlap_work", tmp_path, 3, what="overlap", timeout=patience(60), repeat=1)
    for number in range(3):
        y = np.frombuffer((tmp_path / f"out_1_{number}").read_bytes(), "f4")
        np.testing.assert_allclose(y, np.exp(((number - 5) % 3) / 8), rtol=1e-6)
