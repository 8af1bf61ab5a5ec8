"""``sim/contents.py``: what the memories of a machine hold between launches."""

from __future__ import annotations

import numpy as np
import pytest
from tests.sim.shared import doubling, read
from tests.sim.toys import toy

from megatile.plan.build import PlanBuilder
from megatile.plan.model import PlanError
from megatile.sim import Session, SessionError


def test_scratch_of_an_earlier_kernel_does_not_leak() -> None:
    def writes(t_ptr, n, tl):
        mine = t_ptr + tl.program_id(0) * n * 2
        tl.store(mine, tl.load(mine, (n,)) * 3.0)

    def reads_nothing(t_ptr, n, tl):
        mine = t_ptr + tl.program_id(0) * n * 2
        tl.store(mine, tl.load(mine, (n,)) + 1.0)

    x = np.ones((4, 8), "f2")
    s = Session("ahbm")
    s.launch(read(writes, 8, 4), {"t": x})
    s.launch(read(reads_nothing, 8, 4))
    np.testing.assert_array_equal(s.read("t"), 3 * x + 1)


def test_raw_memory_stays_at_its_address_as_bytes() -> None:
    def put(t_ptr, n, tl):
        tl.store(0x1000, tl.load(t_ptr + tl.program_id(0) * n * 2, (n,)))

    def get(t_ptr, n, tl):
        mine = t_ptr + tl.program_id(0) * n * 2
        tl.store(mine, tl.load(0x1000 + 4, (n - 2,)))

    def as_bits(t_ptr, n, tl):
        mine = t_ptr + tl.program_id(0) * n * 2
        tl.store(mine, tl.cast(tl.load(0x1000, (n,), "i16"), "f16"))

    x = np.arange(32, dtype="f2").reshape(4, 8)
    s = Session("ahbm")
    s.launch(read(put, 8, 4), {"t": x})
    s.launch(read(get, 8, 4))
    np.testing.assert_array_equal(s.read("t"), np.concatenate([x[:, 2:], x[:, 6:]], axis=1))
    s.launch(read(as_bits, 8, 4))
    np.testing.assert_array_equal(s.read("t"), x.view("i2").astype("f2"))


def test_times_alone_leave_the_contents_unknown() -> None:
    s = Session(toy(2))
    assert s.launch(doubling()).outputs is None
    with pytest.raises(SessionError, match="'x' of plan 'double' was written by a launch without data"):
        s.launch(doubling(), data=True)
    with pytest.raises(SessionError, match="no tensor 'x' with known contents"):
        s.read("x")
    s.launch(doubling(), {"x": np.ones((2, 64), "f4")})
    assert (s.read("x") == 2).all()
    s.launch(doubling(), data=False)
    with pytest.raises(SessionError, match="no tensor 'x'"):
        s.read("x")


def test_a_tensor_keeps_its_shape_and_place() -> None:
    s = Session(toy(4))
    s.launch(doubling(), {"x": np.ones((2, 64), "f4")})
    with pytest.raises(PlanError, match="'x' lies on other units"):
        s.launch(doubling(units=3))
    b = PlanBuilder("other", scale="core", units=2)
    x = b.tile("x", (32,), "f32", memory="local", role="inout")
    b.compute("add", x, [x, x])
    with pytest.raises(PlanError, match=r"'x' exists from an earlier launch with shape \(64,\)"):
        s.launch(b.finish())
    s.free("x")
    s.launch(b.finish(), {"x": np.ones((2, 32), "f4")})
