"""What several files of tests/runtime share."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: plans cannot run on processes")


from megatile.core.expr import unit  # noqa: E402
from megatile.plan.build import PlanBuilder  # noqa: E402
from megatile.plan.model import Plan  # noqa: E402
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


def mixed_plan(units):
    """Ring messages, a message to oneself, receive-from-any, a group, flags, versions, a runtime integer."""
    b = PlanBuilder("mixed", scale="device", units=units)
    x = b.tile("x", (4, 6), "f32", memory="l2", role="inout")
    n = b.tile("n", (1,), "i32", memory="l2", role="input")
    out = b.tile("out", (4, 4), "bf16", memory="l2", role="output")
    total = b.tile("total", (4, 6), "f32", memory="l2", role="output")
    got = b.tile("got", (6,), "f32", memory="l2", role="output")
    scratch = b.tile("scratch", (4, 6), "f32", memory="l2", versions=2)
    ring = b.channel("ring", source=(unit + units - 1) % units, slot_bytes=96, memory="l2")
    own = b.channel("own", source=unit, slot_bytes=96, memory="l2")
    star = b.channel("star", source=(unit + units - 1) % units, slot_bytes=24, memory="l2", members=1)
    group, flag = b.group("all"), b.flag("ready")
    with b.loop(0, 3, index="k", held=x) as loop:
        b.compute("add", scratch, [loop.held, x], fresh=True)
        b.send(ring, scratch, to=(unit + 1) % units)
        loop.next(held=b.receive(ring, (4, 6), "f32"))
    b.compute("mul", x, [loop.held, x])
    b.send(own, x, to=unit)
    back = b.receive(own, (4, 6), "f32")
    b.compute("gemm", out, [x, back], transpose_b=True)
    rows = b.read_scalar(n[0], 3)
    with b.when(rows > 1) as branch:
        b.compute("exp", x[0], [x[0]])
    with branch.otherwise():
        b.compute("fill", x[0], value=-1.5)
    b.signal(flag, to=(unit + 1) % units)
    b.wait(flag, 1)
    b.send(star, x[1], to=(unit + 1) % units)
    message, _ = b.receive_any(star, (6,), "f32")
    b.copy(got, message)
    b.collective("all_reduce", group, x, total)
    b.barrier(group)
    return b.finish()


def waiting_plan():
    b = PlanBuilder("waiting", scale="device", units=3)
    x = b.tile("x", (1,), "f32", memory="l2", role="inout")
    ring = b.channel("ring", source=(unit + 2) % 3, slot_bytes=4, memory="l2")
    b.receive(ring, (1,), "f32", into=x)  # nobody sends
    return b.finish()
