"""``sim/install.py``: which queues are at which units of the hardware."""

from __future__ import annotations

import numpy as np
import pytest
from tests.language.kernel import kernels
from tests.sim.concurrent_cases import pingpong
from tests.sim.shared import TRIP, read
from tests.sim.toys import ring, toy

from megatile.core.expr import unit
from megatile.plan.build import PlanBuilder
from megatile.plan.model import Plan
from megatile.sim import InstallError, Session, SessionError, simulate

MESSAGE = 1000
"""How long it occupies the host's link."""


def test_an_install_travels_once_and_costs_a_trip() -> None:
    hda = toy(4, control=True)
    plan = ring(4, 8)
    alone = simulate(plan, machine=hda).time_ps
    s = Session(hda)
    assert s.install(plan) == TRIP + 3 * MESSAGE
    first = s.launch(plan)
    assert first.time_ps == alone - TRIP
    assert s.time_ps == alone + 3 * MESSAGE
    assert s.launch(plan).time_ps == alone - TRIP
    # Without an install of its own, the first launch brings the queues, the second finds them.
    other = Session(hda)
    assert [other.launch(plan).time_ps for _ in range(2)] == [alone, alone - TRIP]


def test_a_second_install_is_an_error() -> None:
    plan = ring(4, 8)
    s = Session(toy(8))
    s.install(plan)
    with pytest.raises(InstallError, match=r"core 0 already has queues \(ring\)"):
        s.install(plan)
    launched = Session(toy(8))
    launched.launch(plan)
    with pytest.raises(InstallError, match="once per unit"):
        launched.install(plan)


def test_order_of_installs_on_different_units_does_not_matter() -> None:
    def pair(first: int) -> Plan:
        b = PlanBuilder(f"pair{first}", scale="core", units=2, placement=unit + first)
        x = b.tile(f"x{first}", (8,), "f32", memory="local", role="inout")
        c = b.channel("c", source=1 - unit, slot_bytes=32, memory="local")
        b.send(c, x, to=1 - unit)
        b.receive(c, (8,), "f32", into=x)
        return b.finish()

    x = np.arange(16, dtype="f4").reshape(2, 8)
    results = []
    for order in ((0, 2), (2, 0)):
        s = Session(toy(4, control=True))
        for first in order:
            s.install(pair(first))
        for first in (0, 2):
            s.launch(pair(first), {f"x{first}": x})
        results.append((s.time_ps, s.read("x0").tolist(), s.read("x2").tolist()))
    assert results[0] == results[1]
    assert results[0][1] == x[::-1].tolist()


def test_queues_that_do_not_fit_a_later_plan() -> None:
    s = Session(toy(4))
    s.launch(ring(4, 8))
    s.free("x")
    s.launch(ring(4, 4))  # smaller messages fit
    with pytest.raises(InstallError, match="slots of 32 bytes, the plan needs 64"):
        s.launch(ring(4, 16))
    with pytest.raises(InstallError, match="has slots 2, the plan needs 4"):
        s.launch(ring(4, 8, slots=4))
    with pytest.raises(InstallError, match="is fed by unit 3 in direction 0, the plan says 2"):
        s.launch(ring(3, 8))


def test_a_kernel_may_use_some_of_the_installed_directions() -> None:
    def grid(rank: int, size: int) -> dict[str, int]:
        return {"N": rank ^ 2, "S": rank ^ 2, "E": (rank + 1) % size, "W": (rank - 1) % size}

    def up(t_ptr, n, tl):
        mine = t_ptr + tl.program_id(0) * n * 2
        tl.send(dir="N", src=tl.load(mine, (n,)))
        tl.store(mine, tl.recv(dir="S", shape=(n,)))

    x = np.arange(64, dtype="f2").reshape(4, 16)
    s = Session("ahbm")
    s.install(read(up, 16, 4, topology=grid))
    s.launch(read(up, 16, 4, topology=grid), {"t": x})
    s.launch(read(kernels.hello_send, 16, 4))  # a ring: E and W alone
    np.testing.assert_array_equal(s.read("t"), np.roll(x[[2, 3, 0, 1]], 1, axis=0))
    with pytest.raises(InstallError, match="'ipcq' has no direction parent, only N, S, E, W"):
        s.launch(read(kernels.tree, 16, 4, (4,), topology="tree_binary"))


def test_units_are_installed_one_by_one_and_once() -> None:
    plan, s = pingpong(), Session(toy(2, control=True))
    assert s.install(plan, [1]) == 1940
    with pytest.raises(InstallError, match="core 1 already has queues"):
        s.install(plan)
    assert s.install(plan, [0]) == 1940
    for units in ([2], [-1]):
        with pytest.raises(SessionError, match="has units 0 to 1"):
            s.install(plan, units)
    assert [(e.unit_count, e.submit_ps) for e in s._installs] == [(1, 0), (1, 1940)]
    assert s.launch(plan).time_ps == simulate(plan, machine=toy(2, control=True)).time_ps - 1940


def test_the_channel_of_two_launches_must_be_one() -> None:
    s = Session(toy(2))
    s.submit(pingpong().part([0]))
    with pytest.raises(InstallError, match="has slots 2, the plan needs 3"):
        s.submit(pingpong(slots=3).part([1]))
