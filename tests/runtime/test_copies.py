"""Copies between ranks without shared memory: what a barrier completes, and what is refused by name."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: plans cannot run on processes")

from tests.runtime.test_launch import neighbours  # noqa: E402

import megatile as mt  # noqa: E402
from megatile.core.expr import unit  # noqa: E402
from megatile.plan.build import PlanBuilder  # noqa: E402
from megatile.plan.execute import execute  # noqa: E402
from megatile.plan.model import Plan  # noqa: E402
from megatile.runtime.copies import refuse_one_sided  # noqa: E402
from megatile.runtime.errors import OneSidedError  # noqa: E402
from megatile.runtime.stream import UnitRun  # noqa: E402
from megatile.runtime.tile_memory import RankMemory  # noqa: E402

UNITS = 4


class Wires:
    """Ranks that are threads of this process; one that fails ends the others."""

    def __init__(self, plan: Plan):
        self.plan, self.meet = plan, threading.Condition()
        self.given: dict[Any, dict[int, Any]] = defaultdict(dict)
        self.counts: dict[Any, int] = defaultdict(int)
        self.sent: dict[Any, list[Any]] = defaultdict(list)
        self.broken = False

    def of(self, rank: int) -> Wire:
        return Wire(self, rank)

    def together(self, key: Any, rank: int, members: list[int], value: Any) -> dict[int, Any]:
        with self.meet:
            number = self.counts[key, rank]
            self.counts[key, rank] += 1
            self.given[key, number][rank] = value
            self.meet.notify_all()
            enough = self.meet.wait_for(
                lambda: self.broken or len(self.given[key, number]) == len(members), 20
            )
            assert enough
            assert not self.broken, "another rank failed"
            return self.given[key, number]


class Wire:
    timeout = 20.0

    def __init__(self, wires: Wires, rank: int):
        self.wires, self.rank, self.plan = wires, rank, wires.plan

    def members(self, group: str | None) -> list[int]:
        if group is None:
            return list(range(self.plan.units))
        key = next(g.key for g in self.plan.groups if g.name == group)
        mine = key.evaluate({"unit": self.rank})
        return [u for u in range(self.plan.units) if key.evaluate({"unit": u}) == mine]

    def exchange(self, group: str | None, messages: dict[int, Any]) -> dict[int, Any]:
        members = self.members(group)
        found = self.wires.together(("exchange", tuple(members)), self.rank, members, messages)
        return {r: found[r][self.rank].clone() for r in members if r != self.rank}

    def gather(self, group: str | None, data: Any) -> list[Any]:
        members = self.members(group)
        found = self.wires.together(("gather", tuple(members)), self.rank, members, data.clone())
        return [found[r] for r in members]

    def send(self, channel: str, to: int, member: int, data: Any, slots: int) -> None:
        self.wires.sent[channel, to, member].append(data.clone())

    def receive(self, coming: Any) -> Any:
        raise AssertionError("no plan here receives")

    def finish(self) -> None:
        pass


def on_ranks(plan: Plan, inputs: dict[str, Any]) -> dict[str, Any]:
    """The outputs of every rank; the first error that a rank raised."""
    wires, found, errors = Wires(plan), {}, {}
    arrays = {name: np.asarray(array, "f4") for name, array in inputs.items()}

    def work(rank: int) -> None:
        try:
            found[rank] = UnitRun(plan, rank, RankMemory(plan, rank, arrays), wires.of(rank)).run()
        except Exception as error:
            errors.setdefault("first", error)
            with wires.meet:
                wires.broken = True
                wires.meet.notify_all()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(plan.units)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    if errors:
        raise errors["first"]
    return {name: np.stack([np.asarray(found[r][name]) for r in range(plan.units)]) for name in found[0]}


def builder() -> tuple[PlanBuilder, Any, Any, Any]:
    b = PlanBuilder("copies", scale="device", units=UNITS)
    x = b.tile("x", (2, 3), "f32", memory="l2", role="inout")
    y = b.tile("y", (2, 3), "f32", memory="l2", role="output")
    return b, x, y, b.group("all")


X = np.arange(UNITS * 6).reshape(UNITS, 2, 3)


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


def test_a_get_before_any_barrier_reads_what_was_given() -> None:
    b, x, y, _ = builder()
    with b.loop(0, 2, index="k") as loop:
        b.copy(y[loop.index], x[loop.index].at((unit + 1) % UNITS))
    plan = b.finish()
    np.testing.assert_array_equal(on_ranks(plan, {"x": X})["y"], np.roll(X, -1, axis=0))


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
