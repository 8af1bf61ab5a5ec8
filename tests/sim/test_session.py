"""Several launches on one machine: memory stays, queues are installed once, times add up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.language.kernel import kernels
from tests.sim.shared import TRIP, doubling, read
from tests.sim.toys import ring, toy

import megatile as mt
from megatile.core.errors import MegatileError
from megatile.core.expr import unit
from megatile.plan.build import PlanBuilder
from megatile.plan.model import Plan, PlanError
from megatile.sim import Deadlock, Session, SessionError, simulate


def test_two_kernels_one_after_another_on_one_engine() -> None:
    """A trip of the launch and 69 ps, twice."""
    x = np.arange(128, dtype="f4").reshape(2, 64)
    with Session(toy(2, control=True)) as s:
        first = s.launch(doubling(), {"x": x})
        second = s.launch(doubling("again"))
    assert (first.time_ps, second.time_ps, s.time_ps) == (TRIP + 69, TRIP + 69, 2 * (TRIP + 69))
    np.testing.assert_array_equal(s.read("x"), 4 * x)
    assert [launch.submit_ps for launch in s.launches] == [0, TRIP + 69]


@pytest.mark.parametrize("buffer", ["tcm", "sram", "hbm"])
def test_a_ring_all_reduce_after_hello_send(buffer: str) -> None:
    """Both use the same scratch and the same queues; the numbers are those of NumPy."""
    hello = read(kernels.hello_send, buffer_kind=buffer)
    reduce = read(kernels.naive_ring, extra=(8,), buffer_kind=buffer)
    x = np.random.default_rng(3).integers(-3, 4, (8, 16)).astype("f2")
    with Session("ahbm") as s:
        s.install(hello)
        s.launch(hello, {"t": x})
        np.testing.assert_array_equal(s.read("t"), np.roll(x, 1, axis=0))
        r = s.launch(reduce)
    np.testing.assert_array_equal(s.read("t"), np.broadcast_to(x.sum(axis=0), x.shape))
    apart = [simulate(p, machine="ahbm").time_ps for p in (hello, reduce)]
    trip = 783_000  # host link 601, PCIe 100, IO CPU 50, M CPU 20, PE CPU 10, scheduler 2
    assert s.time_ps == sum(apart) - trip + 7 * 1000  # eight messages, one after another over the link
    assert sum(step.adds_ps for step in s.critical_path) == s.time_ps
    assert s.trace.end_ps == s.time_ps
    assert r.outputs is not None


def test_tensors_of_earlier_launches_take_room() -> None:
    def plan(name: str) -> Plan:
        b = PlanBuilder(name, scale="core", units=1)
        x = b.tile(name, (150 << 20,), "f32", memory="local", role="inout")
        b.compute("add", x, [x, x])
        return b.finish()

    s = Session(toy(1))
    s.launch(plan("a"), data=False)
    with pytest.raises(PlanError, match="memory 'local' of machine 'toy' has"):
        s.launch(plan("b"), data=False)
    s.free("a")
    s.launch(plan("b"), data=False)


def test_a_deadlocked_machine_stays_so() -> None:
    def stuck(t_ptr, n, tl):
        tl.store(t_ptr, tl.recv(dir="W", shape=(n,)))

    s = Session("ahbm")
    with pytest.raises(Deadlock):
        s.launch(read(stuck, 8, 3))
    with pytest.raises(SessionError, match=r"session is over: launch 0 \('stuck'\) is deadlocked"):
        s.launch(read(kernels.hello_send, 8, 3))


def test_what_a_session_refuses() -> None:
    s = mt.Session("ahbm")
    with pytest.raises(SessionError, match=r"takes a Plan, not function.*tl\.read_kernel"):
        s.launch(kernels.hello_send)
    with pytest.raises(SessionError, match="takes a machine, not int"):
        Session(3)
    with pytest.raises(SessionError, match="no queues to install"):
        Session(toy(2)).install(doubling())
    with s:
        pass
    with pytest.raises(SessionError, match="this session is over"):
        s.launch(read(kernels.hello_send, 8, 3))


def test_the_pointers_of_queues_count_on() -> None:
    s = Session(toy(4))
    for expected in (6, 12):
        s.launch(ring(4, 8))
        pointers = s.pointers().pointers
        assert len(pointers) == 8
        ends = {
            (p.unit, p.direction): (p.my_head, p.my_tail, p.peer_head_cache, p.peer_tail_cache)
            for p in pointers
        }
        assert ends["core0", "->ring[0]"] == (expected, 0, 0, expected)
        assert ends["core1", "ring[0]"] == (0, expected, expected, 0)
    assert "ring[0]" in s.pointers().text()


def test_the_summary_names_installs_and_launches() -> None:
    s = Session(toy(4, control=True))
    s.install(ring(4, 8))
    s.launch(ring(4, 8))
    lines = s.summary().splitlines()
    assert lines[0].startswith("toy: 1 launches")
    assert [line.split()[0] for line in lines[2:]] == ["install", "ring"]
    assert "install" in s.why_slow()


def in_memory(memory: str, elements: int = 4, offset: int | None = None, slot_bytes: int = 64) -> Plan:
    """Two PEs with a tensor, and a queue of two slots, in a memory."""
    b = PlanBuilder("big", scale="pe", units=2)
    x = b.tile("x", (elements,), "f32", memory=memory, role="inout")
    y = b.tile("y", (4,), "f32", memory=memory, offset=offset)
    c = b.channel("c", source=1 - unit, slot_bytes=slot_bytes, memory=memory)
    b.copy(y, x[0:4])
    b.send(c, y, to=1 - unit)
    b.receive(c, (4,), "f32", into=y)
    return b.finish()


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (in_memory("tcm", slot_bytes=1 << 24), "'tcm' of machine 'ahbm' has 12582912 bytes, the plan needs"),
        (in_memory("hbm", 7 << 28), "6442450944 bytes in each of its 8 slices, the plan needs 7516192"),
        (in_memory("tcm", offset=-5), "tile 'y' would lie at byte -5 of memory 'tcm'"),
        (in_memory("hbm", offset=6 << 30), "tile 'y' would lie at bytes 6442450944 to 6442450960 of it"),
    ],
)
def test_what_does_not_fit_is_refused_when_it_is_submitted(plan: Plan, says: str) -> None:
    for use in (
        lambda s: s.submit(plan),
        lambda s: s.install(plan),
        lambda s: simulate(plan, machine="ahbm"),
    ):
        with pytest.raises(PlanError, match=says):
            use(Session("ahbm"))


def test_ranges_with_fixed_places_keep_apart() -> None:
    b = PlanBuilder("over", scale="core", units=1)
    x = b.tile("x", (64,), "f32", memory="local", role="inout", offset=0)
    y = b.tile("y", (64,), "f32", memory="local", offset=128)
    b.copy(y, x)
    with pytest.raises(PlanError, match="tile 'x' and tile 'y' overlap in memory 'local' at byte 128"):
        Session(toy(1)).submit(b.finish())


def test_a_launch_that_is_refused_leaves_nothing_behind() -> None:
    s = Session(toy(2))
    with pytest.raises(PlanError, match=r"input 'x' has shape \(3, 64\), not \(2, 64\)"):
        s.submit(doubling(), {"x": np.ones((3, 64), "f4")})
    assert s.launch(doubling()).outputs is None  # "x" is still unknown
    s.launch(doubling(), {"x": np.ones((2, 64), "f4")})
    with pytest.raises(PlanError, match="has shape"):
        s.submit(doubling(), {"x": np.ones((3, 64), "f4")})
    s.launch(doubling())
    assert (s.read("x") == 4).all()


def test_messages_of_a_long_launch_stay_in_an_installed_queue() -> None:
    """However long it is: one unit must not be timed for all, as its messages would be lost."""

    def channel(b: PlanBuilder) -> Any:
        return b.channel("c", source=(unit + 1) % 2, slot_bytes=16, memory="local", slots=4, installed=True)

    def sender(rounds: int) -> Plan:
        b = PlanBuilder("sender", scale="core", units=2)
        x = b.tile("x", (4,), "f32", memory="local", role="inout")
        c = channel(b)
        with b.loop(0, rounds):
            b.compute("add", x, [x, x])
        b.send(c, x, to=(unit + 1) % 2)
        return b.finish()

    b = PlanBuilder("receiver", scale="core", units=2)
    b.receive(channel(b), (4,), "f32", into=b.tile("y", (4,), "f32", memory="local", role="output"))
    receiver, times = b.finish(), []
    for rounds in (10, 200_000):
        session = Session(toy(2), record=0)
        session.launch(sender(rounds), data=False)
        times.append(session.launch(receiver, data=False).time_ps)
    assert times[0] == times[1]


def test_a_launch_that_ends_with_an_error_ends_its_session() -> None:
    b = PlanBuilder("scalar", scale="core", units=2)
    s = b.tile("s", (1,), "i32", memory="local", role="input")
    x = b.tile("x", (64,), "f32", memory="local", role="inout")
    with b.loop(0, b.read_scalar(s[0:1], bound=3, name="times")):
        b.compute("add", x, [x, x])
    session = Session(toy(2))
    launch = session.submit(b.finish())
    with pytest.raises(MegatileError, match="times"):
        session.wait()
    assert launch.state == "failed"
    with pytest.raises(SessionError, match=r"session is over: launch 0 \('scalar'\) ended with an error"):
        session.wait()
