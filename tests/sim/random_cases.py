"""Random plans of every kind on random machines, by seed: what simulator and SimPy reader must agree on.

A case is a plan made of rounds (patterns of communication and work), a machine, faults, and data where values
decide the course. Some plans are stuck on purpose.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from tests.sim.random_plans import PATTERNS, Rounds
from tests.sim.toys import toy

from megatile.core.dtypes import numpy_dtype
from megatile.core.errors import MegatileError
from megatile.core.expr import eq, member, select, table, unit
from megatile.hda import HDA, machine
from megatile.hda.model import Unit
from megatile.plan.build import PlanBuilder
from megatile.plan.model import Compute, Plan, ReceiveAny, Stream, Work
from megatile.timing import Faults

RACY = {"puts", "collect", "share"}
"""Patterns with races: only their times mean something."""


@dataclass(frozen=True)
class Place:
    """Where plans can run: a machine, a scale, memories near and far, how many units, and how they stand."""

    hda: HDA
    scale: str
    near: str
    far: str
    most: int = 6
    step: int = 1
    total: int = 0
    reduces: bool = False
    scaling: int = 1

    def stand(self, index: Any) -> Any:
        return index * self.step % self.total if self.step > 1 else index


def toy_place(rng: random.Random) -> Place:
    """The toy machine in one of its many forms."""
    network: dict[str, Any] = {"in_network_reduction": ["sum"], "duplex": rng.choice(["full", "half"])}
    if rng.random() < 0.3:
        network["granule"] = rng.choice(["24 B", "32 B", "100 B"])
    if rng.random() < 0.2:
        network["hop_overhead"] = "3 ps"
    topology: Any = rng.choice(["ring", "line", "switch", "full_mesh", "mesh"])
    n = rng.choice([6, 8])
    if topology == "mesh":
        network["dims"] = [2, n // 2]
    dma = rng.choice([{}, {}, {"channels": 1}, {"channels": 20}, {"level": "box"}, {"bandwidth": "700 GB/s"}])
    hda = toy(
        n,
        topology,
        control=rng.random() < 0.4,
        network=network,
        dma=dma,
        link_latency=rng.choice(["100 ps", "1 ps", "37 ps"]),
        link_bandwidth=rng.choice(["1000 GB/s", "3000 GB/s", "333 GB/s"]),
        vector=rng.choice([{}, {}, {"level": "box"}]),
        memory=rng.choice([None, None, SLOW_MEMORY]),
        engines=MOVERS["level" in dma :],
    )
    return Place(hda, "core", "local", "common", n, rng.choice([1, 1, 1, 3, 4]), n, True)


MOVERS = [
    {"name": "own", "kind": "dma", "level": "core", "startup": "9 ps", "bandwidth": "300 GB/s"},
    {"name": "common_mover", "kind": "dma", "level": "box", "startup": "31 ps", "latency": "11 ps"},
]
"""DMA engines that a copy must name: one of each core, one that all cores share."""
SLOW_MEMORY = [
    {"name": "local", "level": "core", "size": "1 GiB", "bandwidth": "500 GB/s", "latency": "0 ps"},
    {"name": "common", "level": "box", "size": "8 GiB", "bandwidth": "90 GB/s", "latency": "7 ps"},
]
PLACES: list[Callable[[random.Random], Place]] = [
    *[toy_place] * 6,
    lambda rng: Place(
        machine("ahbm"), "pe", "tcm", rng.choice(["sram", "hbm"]), 9, rng.choice([1, 3, 17]), 256
    ),
    lambda rng: Place(machine("dgx-h100"), "device", "hbm", "hbm", 8, 1, 8, True, 64),
    lambda rng: Place(machine("dgx-h100"), "block", "shared", "hbm", 6, rng.choice([1, 140]), 1056),
    lambda rng: Place(machine("h100-cluster"), "device", "hbm", "hbm", 6, rng.choice([1, 5]), 32, True, 64),
    lambda rng: Place(machine("mi300x-8"), "device", "hbm", "hbm", 8, 1, 8),
    lambda rng: Place(machine("mi300x-8"), "block", "lds", "hbm", 6, rng.choice([1, 39, 305]), 2432),
    lambda rng: Place(machine("cerebras-wse2"), "core", "sram", "sram", 6, rng.choice([1, 1001]), 850_000),
    lambda rng: Place(machine("cpu"), "block", "scratch", "ram", 2, 1, 2),
]


class Everything(Rounds):
    """More patterns than `Rounds` has; each is correct by itself, unless ``spoil`` leaves something out."""

    def __init__(self, *args: Any, place: Place, spoil: bool) -> None:
        super().__init__(*args)
        self.place, self.spoil = place, spoil
        able = [e.kind for e in place.hda.engines if e.rate("f32") is not None]
        self.engines = [kind for kind in self.engines if kind in able]

    def maybe(self, share: float) -> bool:
        return self.rng.random() < share

    def bad(self) -> bool:
        """Once per spoiled plan: something is left out here."""
        wanted = self.spoil and self.maybe(0.5)
        self.spoil = self.spoil and not wanted
        return wanted

    def tile(self, name: str, shape: tuple[int, ...], **options: Any) -> Any:
        memory = options.pop("memory", None) or self.rng.choice(self.memories)
        return self.b.tile(name, shape, options.pop("dtype", "f32"), memory=memory, **options)

    def queues(self, source: Any, members: Any = 1, most: int | None = None, least: int = 1) -> Any:
        rng = self.rng
        return self.b.channel(
            "q",
            source=source,
            slot_bytes=4 * (most or self.size),
            memory=rng.choice(self.memories),
            slots=rng.randint(least, least + 2),
            members=members,
            credit_bytes=rng.choice([None, None, 0, 64]),
            chunk_bytes=rng.choice([None, None, None, 40]),
        )

    def both_ways(self) -> None:
        """East and west at once, through two members with few slots."""
        n, b, rng = self.n, self.b, self.rng
        c = self.queues(select(eq(member, 0), (unit - 1) % n, (unit + 1) % n), ("W", "E"))
        with b.loop(0, rng.randint(1, 5), rng.choice([1, 1, 2])) as loop:
            b.send(c, self.x[loop.index % n], to=(unit + 1) % n, member="W")
            b.send(c, self.z, to=(unit - 1) % n, member="E")
            west = b.receive(c, (1, self.size), "f32", member="W")
            if self.maybe(0.5):
                mine = self.x[(loop.index + 1) % n]
                b.compute("add", mine, [mine, west])
            b.receive(c, (self.size,), "f32", member="E", into=self.y, fresh=True)

    def even_and_odd(self) -> None:
        """Even units send east first, odd ones receive first; then everybody sends west, several times."""
        n, b = self.n - self.n % 2, self.b
        c = self.queues(select(eq(member, 0), (unit - 1) % n, (unit + 1) % n), ("W", "E"))
        rounds = self.rng.randint(1, 4)
        with b.when(unit < n):
            with b.when(eq(unit % 2, 0)) as branch:
                b.send(c, self.z, to=(unit + 1) % n, member="W")
                b.receive(c, (self.size,), "f32", member="E", into=self.y, fresh=True)
            with branch.otherwise():
                b.compute("add", self.z, [self.z, b.receive(c, (self.size,), "f32", member="W")])
                b.send(c, self.z, to=(unit - 1) % n, member="E")
            with b.loop(0, rounds):
                b.send(c, self.z, to=(unit - 1) % n, member="E")
                b.compute("add", self.z, [self.z, b.receive(c, (self.size,), "f32", member="E")])

    def lengths(self) -> None:
        """Messages whose length depends on the unit, some of them empty."""
        n, b = self.n, self.b
        sizes = [self.rng.choice([0, 0, 1, self.size // 2, self.size]) for _ in range(n)]
        c = self.queues((unit - 1) % n)
        with b.loop(0, self.rng.randint(1, 3)):
            b.send(c, self.z[0 : table(sizes, unit)], to=(unit + 1) % n)
            length = table(sizes, (unit - 1) % n)
            if self.maybe(0.5):
                b.receive(c, (length,), "f32", into=self.x[0, 0:length])
            else:
                b.receive(c, (length,), "f32")

    def any_copied_out(self) -> None:
        """Everybody to unit 0, which copies out whatever comes first; several rounds."""
        n, b, rounds = self.n, self.b, self.rng.randint(1, 3)
        c = self.queues(select(eq(unit, 0), member + 1, -1), max(1, n - 1))
        nbytes = Work(bytes=self.y.shape[0] * 4 + unit * 0)
        with b.when(eq(unit, 0)) as branch, b.loop(0, rounds * (n - 1)):
            shape = (unit * 0 + self.size,)
            b.add(
                ReceiveAny(
                    c.name, tuple(range(c.members)), None, b.fresh("who"), shape, "f32",
                    self.y.whole().region, True, nbytes,
                )
            )  # fmt: skip
            if self.maybe(0.5):
                b.compute("add", self.z, [self.z, self.y])
        with branch.otherwise(), b.loop(0, rounds):
            with b.loop(0, unit % 3):
                b.compute("exp", self.z, [self.z])
            if not self.bad():
                b.send(c, self.z, to=0, member=unit - 1)

    def any_of_some(self) -> None:
        """Two members of three are taken as they come, the third in its turn; what was chosen is used."""
        n, b = self.n, self.b
        c = self.queues((unit - 1 - member) % n, 3)
        for k in range(3):
            if self.maybe(0.5):
                b.compute("exp", self.z, [self.z])
            b.send(c, self.x[k % n], to=(unit + 1 + k) % n, member=k)
        for _ in range(2):
            m, chosen = b.receive_any(c, (1, self.size), "f32", members=(2, 0))
            with b.loop(0, chosen + 1):
                b.compute("add", self.z, [self.z, self.z])
            row = self.x[chosen % n]
            b.compute("add", row, [row, m])
        b.receive(c, (1, self.size), "f32", member=1)

    def held(self) -> None:
        """Messages are kept under names: two carried, one merged, freed only when nobody needs them."""
        n, b = self.n, self.b
        c = self.queues((unit - 1) % n, least=3)
        for _ in range(2):
            b.send(c, self.z, to=(unit + 1) % n)
        one, two = (b.receive(c, (self.size,), "f32") for _ in range(2))
        with b.loop(0, self.rng.randint(0, 4), old=one, new=two, count=1) as loop:
            b.compute("add", self.z, [loop.old, loop.new])
            b.send(c, loop.new, to=(unit + 1) % n)
            with b.when((unit + loop.index) % 2) as branch:
                b.compute("exp", self.z, [self.z])
            with branch.otherwise():
                b.copy(self.y, self.z, fresh=True)
            kept = branch.merge(loop.old, loop.new) if self.maybe(0.5) else loop.new
            loop.next(old=kept, new=b.receive(c, (self.size,), "f32"), count=loop.count * 2 % 7)
        with b.loop(loop.count, 0, -2):
            b.compute("add", self.z, [self.z, loop.new])

    def versions(self) -> None:
        """A carried version of a tile is read while newer ones are made."""
        b, size = self.b, self.size
        t = self.tile("t", (size,), versions=self.rng.randint(2, 3))
        b.compute("fill", t, value=1.0)
        with b.loop(0, self.rng.randint(1, 5), last=t) as loop:
            b.compute("add", t, [loop.last, self.z], fresh=True)
            if self.maybe(0.4):
                b.copy(self.y, loop.last, fresh=True)
            loop.next(last=t)
        b.copy(self.z, loop.last)

    def scalar(self) -> None:
        """A number that is read decides how often, how much and with whom."""
        b, n = self.b, self.n
        s = self.tile("s", (3,), dtype="i32", role="input")
        times = b.read_scalar(s[0:1], bound=3, name="times")
        with b.loop(0, times):
            b.compute("exp", self.z, [self.z])
        length = b.read_scalar(s[1:2], bound=3, name="length")
        b.copy(self.x[0, 0:length], self.z[0:length])
        if self.maybe(0.5):
            c = self.queues((unit - 1) % n)
            with b.loop(0, 3):
                b.send(c, self.z, to=(unit + 1) % n)
                m = b.receive(c, (self.size,), "f32")
                with b.when(times > 1):
                    b.compute("add", self.z, [self.z, m])

    def read_after_write(self) -> None:
        """A number is read after the unit has written it."""
        b = self.b
        s, t = self.tile("s", (3,), dtype="i32", role="input"), self.tile("t", (3,), dtype="i32")
        b.copy(t, s)
        if self.maybe(0.5):
            b.compute("minimum", t, [t, s])
        with b.loop(0, b.read_scalar(t[2:3], bound=3, name="again")):
            b.copy(self.y, self.z, fresh=True)

    def many_signals(self) -> None:
        """Several units raise one member of a flag, by different amounts, after puts."""
        n, b, rng = self.n, self.b, self.rng
        flag = b.flag(b.fresh("flag"), 2)
        box = self.tile("box", (n, self.size))
        low, high = rng.randint(0, 1), rng.randint(0, n)
        with b.loop(0, unit % 3):
            b.compute("exp", self.z, [self.z])
        b.copy(box[unit].at(low), self.x[0])
        b.signal(flag, to=low, member=1, amount=unit + 1)
        with b.when(eq(unit, low)):
            b.wait(flag, high, member=1)
            b.wait(flag, n * (n + 1) // 2 + (1 if self.bad() else 0), member=1)
            b.compute("add", self.x[0], [self.x[0], box[n - 1]])
            with b.loop(0, n) as loop:
                b.signal(flag, to=loop.index)
        b.wait(flag, 1)

    def gets(self) -> None:
        """Barriers around gets from a neighbour, of parts of a tile."""
        n, b, by = self.n, self.b, self.rng.randrange(self.n)
        everyone = b.group("everyone")
        far = self.tile("far", (2, self.size), role="inout")
        got = self.tile("got", (self.size,), versions=self.rng.randint(1, 2))
        with b.loop(0, self.rng.randint(1, 3)) as loop:
            b.copy(far[loop.index % 2], self.x[0])
            b.barrier(everyone)
            b.copy(got, far[loop.index % 2].at((unit + by) % n), fresh=True)
            b.compute("add", self.z, [self.z, got])
            b.barrier(everyone)

    def share(self) -> None:
        """A tile that several units share: each writes its row, all read it after a barrier."""
        n, b = self.n, self.b
        sharers = self.rng.randint(1, n)
        t = self.tile("t", (n, self.size), owner=unit // sharers, owners=-(-n // sharers))
        b.compute("add", t[unit], [self.x[0], self.x[0]]) if self.maybe(0.5) else b.copy(t[unit], self.x[0])
        if self.maybe(0.7):
            b.barrier(b.group(b.fresh("near"), unit // sharers))
        b.compute("add", self.x[0], [self.x[0], t[unit // sharers * sharers]])
        other = self.rng.randrange(-(-n // sharers))
        b.copy(self.x[0], t[0].at(other))

    def teams(self) -> None:
        """Barriers of some units only; one may stay away."""
        n, b, rng = self.n, self.b, self.rng
        parts = rng.randint(1, 3)
        out = rng.randrange(n)
        group = b.group(b.fresh("team"), select(eq(unit, out), -1, unit % parts))
        with b.loop(0, rng.randint(1, 2)), b.when(eq(unit, out)) as branch:
            b.compute("exp", self.z, [self.z])
        with branch.otherwise():
            b.compute("exp", self.z, [self.z])
            if self.bad():
                with b.when(unit > 1):
                    b.barrier(group)
            else:
                b.barrier(group)

    def network(self) -> None:
        """A reduction or a broadcast by the network, per group."""
        b, parts = self.b, self.rng.randint(1, 2)
        group = b.group(b.fresh("net"), unit % parts)
        if self.place.reduces and self.maybe(0.6):
            b.collective("all_reduce", group, self.z, self.z)
        else:
            b.collective("broadcast", group, self.x[0], self.x[self.n - 1], root=0)

    def scratch(self) -> None:
        """Tiles at fixed offsets that lie over each other wait for each other."""
        b, size = self.b, self.size
        near = self.memories[0]
        tiles = [
            self.tile(
                "raw", (size,), memory=near, offset=4096 + 4 * size * k // 2, versions=self.rng.randint(1, 2)
            )
            for k in range(3)
        ]
        apart = self.tile("raw", (size,), memory=near, offset=1 << (13 if size <= 64 else 16))
        for _ in range(self.rng.randint(2, 6)):
            to = self.rng.choice([*tiles, apart])
            if self.maybe(0.5):
                b.copy(to, self.z, fresh=self.maybe(0.3))
            else:
                b.compute("exp", to, [self.z], engine=self.rng.choice(self.engines))
        b.compute("fill", tiles[0], value=1.0)
        b.compute("add", self.z, [self.z, tiles[0]])

    def blocks(self) -> None:
        """Blocks of a matrix that overlap in part, on several engines."""
        b, rng = self.b, self.rng
        t = self.tile("m", (6, 6))
        b.compute("fill", t, value=1.0)
        for _ in range(rng.randint(2, 8)):
            height, width = rng.randint(1, 3), rng.randint(1, 3)
            cut = [
                t[low : low + height, left : left + width]
                for low, left in [(rng.randint(0, 3), rng.randint(0, 3)) for _ in range(3)]
            ]
            kind = rng.choice(["add", "copy", "exp"])
            if kind == "add":
                b.compute("add", cut[0], cut[1:], engine=rng.choice(self.engines))
            elif kind == "copy":
                b.copy(cut[0], cut[1])
            else:
                b.compute("exp", cut[0], [cut[1]])

    def crossing(self) -> None:
        """All to all; spoiled, everybody first receives."""
        if not self.bad():
            self.exchange()
            return
        c = self.queues((unit - 1) % self.n)
        b = self.b
        b.compute("add", self.z, [self.z, b.receive(c, (self.size,), "f32")])
        b.send(c, self.z, to=(unit + 1) % self.n)

    def flood(self) -> None:
        """More messages than slots, while the receiver sleeps; spoiled, nobody ever takes them."""
        n, b = self.n, self.b
        c = self.queues(select(unit % 2, unit - 1, -1))
        count = c.slots + self.rng.randint(0, 2)
        spoiled = self.bad()
        with b.when(unit % 2) as branch:
            with b.loop(0, 3):
                b.compute("exp", self.z, [self.z])
            with b.loop(0, count - 2 if spoiled else count):
                b.compute("add", self.z, [self.z, b.receive(c, (self.size,), "f32")])
        with branch.otherwise(), b.when(unit + 1 < n), b.loop(0, count + (4 if spoiled else 0)):
            b.send(c, self.z, to=unit + 1)


MORE = (
    "both_ways", "even_and_odd", "lengths", "any_copied_out", "any_of_some", "held", "versions", "scalar",
    "read_after_write", "many_signals", "gets", "share", "teams", "network", "scratch", "blocks", "crossing",
    "flood",
)  # fmt: skip
ALL = (*PATTERNS, "load", "feed", "puts", "collect", *MORE, *MORE)


@dataclass
class Case:
    """One thing to agree on."""

    seed: int
    plan: Plan
    hda: HDA
    patterns: tuple[str, ...]
    faults: Faults = field(default_factory=Faults)
    inputs: dict[str, Any] | None = None
    assume: dict[str, Any] | None = None


def random_case(seed: int, patterns: tuple[str, ...] = ALL, rounds: int = 5) -> Case:
    """The case of that number."""
    rng = random.Random(seed)
    place = rng.choice(PLACES)(rng)
    n = rng.randint(2, place.most)
    size = rng.choice([4, 12, 16, 64]) * rng.choice([1, 1, place.scaling])
    b = PlanBuilder(f"case{seed}", scale=place.scale, units=n, placement=place.stand(unit))
    memories = (place.near, place.near, place.far)
    x = b.tile("x", (n, size), "f32", memory=place.near, role="inout")
    y = b.tile("y", (size,), "f32", memory=rng.choice(memories), versions=rng.randint(1, 3))
    z = b.tile("z", (size,), "f32", memory=place.near, role="output")
    b.compute("fill", y, [], value=1.0)
    b.compute("fill", z, [], value=0.0)
    make = Everything(b, rng, n, size, x, y, z, memories, place=place, spoil=rng.random() < 0.12)
    names = tuple(rng.choice(patterns) for _ in range(rng.randint(1, rounds)))
    for name in names:
        getattr(make, name)()
        make.work()
    plan = _in_streams(_moved_by(b.finish(), place.hda, random.Random(-seed)), rng)
    case = Case(seed, plan, place.hda, names, _faults(rng, plan, place))
    _values(case, rng)
    return case


def _in_streams(plan: Plan, rng: random.Random) -> Plan:
    """Now and then the units are divided among several streams with the same statements."""
    (stream,) = plan.streams
    parts = rng.choice([1, 1, 1, 2, 3])
    runs = [(k, plan.units, parts) for k in range(min(parts, plan.units))]
    return replace(plan, streams=tuple(Stream((run,), stream.body) for run in runs))


def _moved_by(plan: Plan, hda: HDA, rng: random.Random) -> Plan:
    """In some plans copies name the DMA engine that does them."""
    movers = ["", *(engine.name for engine in hda.engines if engine.kind == "dma")]

    def named(body: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(
            replace(s, by=rng.choice(movers))
            if isinstance(s, Compute) and s.engine == "dma"
            else replace(s, **{k: named(getattr(s, k)) for k in ("body", "orelse") if hasattr(s, k)})
            for s in body
        )

    if rng.random() < 0.5:
        return plan
    return replace(plan, streams=tuple(replace(stream, body=named(stream.body)) for stream in plan.streams))


def _faults(rng: random.Random, plan: Plan, place: Place) -> Faults:
    level = place.hda.scale(place.scale).level
    pair = [Unit(level, int(place.stand(rng.randrange(plan.units)))) for _ in range(2)]
    try:
        linked = pair[0] != pair[1] and bool(list(place.hda.route(*pair).hops()))
    except MegatileError:
        linked = False
    down = ("down",) if place.total < 10_000 else ()  # a detour over a whole wafer takes minutes to find
    kinds = rng.choice(
        [(), (), ("slow",), ("jitter",), ("straggler",), down, ("jitter", "slow", "straggler")]
    )
    return Faults(
        link_down=(tuple(pair),) if "down" in kinds and linked else (),
        slow_link=((tuple(pair), rng.choice([1.5, 4.0])),) if "slow" in kinds and linked else (),
        jitter=rng.randrange(100) if "jitter" in kinds else None,
        straggler=((rng.randrange(plan.units), rng.choice([1.3, 5.0])),) if "straggler" in kinds else (),
    )


def _values(case: Case, rng: random.Random) -> None:
    """Data, or what a reader of data shall assume, where a plan reads numbers; sometimes data anyway."""
    reads = {"scalar", "read_after_write"} & set(case.patterns)
    if reads and (RACY & set(case.patterns) or rng.random() < 0.3):
        case.assume = {
            f"{name}{suffix}": [rng.randrange(4) for _ in range(case.plan.units)]
            for name in ("times", "length", "again")
            for suffix in ("", *(f"_{k}" for k in range(1, 9)))
        }
    elif not RACY & set(case.patterns) and (reads or rng.random() < 0.2):
        values = np.random.default_rng(case.seed)
        case.inputs = {
            t.name: values.integers(0, 4, (case.plan.owners(t), *t.shape)).astype(numpy_dtype(t.dtype))
            for t in case.plan.tiles
            if t.role in ("input", "inout")
        }
