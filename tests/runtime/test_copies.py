"""Copies between ranks without shared memory: what a barrier completes, and what is refused by name."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: plans cannot run on processes")

from tests.runtime.launch_cases import UNITS, X, builder, on_ranks  # noqa: E402
from tests.runtime.test_launch import neighbours  # noqa: E402

import megatile as mt  # noqa: E402
from megatile.core.expr import unit  # noqa: E402
from megatile.plan.execute import execute  # noqa: E402
from megatile.runtime.copies import refuse_one_sided  # noqa: E402
from megatile.runtime.errors import OneSidedError  # noqa: E402


def test_puts_and_gets_are_completed_by_collectives() -> None:
    """A put, a get of what was put, one of what a sum has left, and a put that only the end completes."""
    b, x, y, group = builder()
    t = b.tile("t", (2, 3), "f32", memory="l2")
    b.copy(t.at((unit + 1) % UNITS), x)
    b.barrier(group)
    b.copy(y[0:1], t[1:2].at((unit + 2) % UNITS))
    b.collective("all_reduce", group, t, t)
    b.barrier(group)
    b.compute("add", y[1:2], [t[0:1].at((unit + 1) % UNITS), y[0:1]])
    b.barrier(group)
    b.copy(x.at((unit + 3) % UNITS), y)
    plan = b.finish()
    refuse_one_sided(plan)
    found, expected = on_ranks(plan, {"x": X}), execute(plan, {"x": X})
    for name in ("x", "y"):
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


def test_a_message_after_a_put_is_refused() -> None:
    """It could tell the other rank to read what has not come yet."""
    b, x, y, group = builder()
    ring = b.channel("ring", source=(unit + UNITS - 1) % UNITS, slot_bytes=24, memory="l2")
    b.copy(y.at((unit + 1) % UNITS), x)
    b.send(ring, x, to=(unit + 1) % UNITS)
    b.barrier(group)
    with pytest.raises(OneSidedError, match=r"'y @ .*copy\(x.*a message follows it before a barrier does"):
        on_ranks(b.finish(), {"x": X})


def test_a_barrier_of_other_ranks_does_not_complete_a_copy() -> None:
    b, x, y, _ = builder()
    pairs = b.group("pairs", key=unit // 2)
    b.copy(y.at((unit + 2) % UNITS), x)
    b.barrier(pairs)
    with pytest.raises(OneSidedError, match="the next barrier is not one of both ranks"):
        on_ranks(b.finish(), {"x": X})


def test_a_get_of_an_own_put_is_refused() -> None:
    b, x, y, group = builder()
    t = b.tile("t", (2, 3), "f32", memory="l2")
    b.copy(t.at((unit + 1) % UNITS), x)
    b.copy(y, t.at((unit + 1) % UNITS))
    b.barrier(group)
    with pytest.raises(OneSidedError, match="it reads what this rank has put since the last barrier"):
        on_ranks(b.finish(), {"x": X})


def test_signals_to_other_ranks_are_refused_before_the_run() -> None:
    b, _, _, _ = builder()
    flag = b.flag("ready")
    b.signal(flag, to=unit)
    refuse_one_sided(b.finish())
    b.signal(flag, to=(unit + 1) % UNITS)
    with pytest.raises(
        OneSidedError, match=r"'signal\(ready, to=\(unit \+ 1\) % 4\)' cannot run between"
    ) as e:
        refuse_one_sided(b.finish())
    assert e.value.place is not None


def test_copies_between_blocks_of_a_rank_need_no_barrier_of_ranks() -> None:
    y = np.zeros(8, "f4")
    low = mt.lower(neighbours, y, machine="dgx-h100")
    refuse_one_sided(low.plan)
    np.testing.assert_array_equal(on_ranks(low.plan, low.scatter([y]))["y"], [[2, 3, 4, 1]] * 2)
