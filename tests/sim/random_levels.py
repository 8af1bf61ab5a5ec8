"""Random plans of several levels by seed: blocks of a launch in slots, parts in them, and the device."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from tests.sim.random_cases import Case
from tests.sim.toys import toy

from megatile.core.expr import eq, select, table, unit
from megatile.hda import HDA, machine
from megatile.plan.build import PlanBuilder
from megatile.timing import Faults


def cached(rng: random.Random) -> HDA:
    """Cores behind one or two small caches of every kind."""
    memories = [
        {"name": "local", "level": "core", "size": "1 GiB", "bandwidth": "4000 GB/s", "latency": "10 ps"},
        {"name": "common", "level": "box", "size": "8 GiB", "bandwidth": "500 GB/s", "latency": "50 ps"},
    ]
    behind = "common"
    for name in ("back", "front")[: rng.randint(1, 2)]:
        block = rng.choice([16, 32, 64, 256])
        cache = {
            "name": name, "level": "box", "size": f"{block * rng.choice([1, 2, 3, 5, 8, 40])} B",
            "cache": True, "of": behind, "block": f"{block} B",
            "bandwidth": rng.choice(["1000 GB/s", "3000 GB/s"]),
            "latency": f"{rng.randint(1, 30)} ps", "write": rng.choice(["write_back", "write_through"]),
        }  # fmt: skip
        if rng.random() < 0.3:
            cache["fill"] = "250 GB/s"
        memories.append(cache)
        behind = name
    return toy(rng.randint(1, 5), memory=memories)


PLACES: list[tuple[Any, str, str, str, str, int]] = [
    (lambda rng: toy(4, rng.choice(["ring", "switch"])), "device", "core", "common", "local", 1),
    (lambda rng: toy(3, "full_mesh", control=True), "device", "core", "common", "local", 1),
    (lambda rng: machine("ahbm"), "cube", "pe", "sram", "tcm", 2),
    (lambda rng: machine("dgx-h100"), "device", "block", "hbm", "shared", 2),
    (cached, "device", "core", "common", "local", 1),
    (cached, "device", "core", "common", "local", 1),
]


def random_levels(seed: int) -> Case:
    rng = random.Random(seed)
    where = rng.choice(PLACES)
    return one_case(rng, seed, where, where[0](rng))


def one_case(rng: random.Random, seed: int, where: Any, hda: HDA) -> Case:
    """Blocks load a row of their device's tensor, work on it (as long as their number says), and store it; in
    between they may wait for others, have parts, or talk to the device."""
    _, outer, inner, far, near, most = where
    devices, per = rng.randint(1, most), rng.choice([1, 2, 3, 5, 9, 12])
    slots, parts, size = rng.choice([None, 1, 1, 2, 3]), rng.choice([0, 0, 2]), rng.choice([4, 16])
    room = hda.count(inner) // hda.count(outer)
    if slots is None:
        per = min(per, room)
    b = PlanBuilder(f"levels{seed}", scale=outer, units=devices)
    block = b.level("block", scale=inner, grid=per, parent=outer, slots=slots)
    other_rng = random.Random(-1 - seed)

    def spread(*shape: int) -> dict[str, Any]:
        """Some tensors lie in blocks with the units of the blocks."""
        cut = tuple(other_rng.randint(1, extent) for extent in shape)
        return {"over": block, "block": cut} if other_rng.random() < 0.3 else {}

    x = b.tile("x", (per, size), "f32", memory=far, role="inout", **spread(per, size))
    row = b.tile("row", (1, size), "f32", memory=near, level=block, versions=rng.randint(1, 2))
    work = b.tile("work", (size,), "f32", memory=near, level=block)
    rows = rng.randint(1, 6)
    y = b.tile("y", (rows, 2 * size), "f32", memory=far, role="input", **spread(rows, 2 * size))
    other = b.tile("other", (rows, size), "f32", memory=near, level=block)
    reading = rng.randint(0, 4)
    over, loaded, done = b.flag("over"), b.flag("loaded", level=block), b.flag("done", level=block)
    go = b.flag("go", level=block)
    mine = unit % per
    lengths = [rng.randint(1, size) for _ in range(per)]
    chained, resident = rng.random() < 0.4, (slots or 1) * room
    backwards = chained and (per <= resident or rng.random() < 0.3)  # else the last ones never come
    ring = rng.random() < 0.4 and per <= resident and per > 1
    c = b.channel(
        "c", source=unit // per * per + (unit - 1) % per, slots=rng.randint(1, 2), slot_bytes=4 * size,
        memory=near, level=block,
    )  # fmt: skip
    with b.stream(level=block):
        if chained:
            after = -1 if backwards else 1
            with b.when(1 - eq(mine, per - 1 if backwards else 0)):
                b.wait(go, 1)
        b.copy(row, x[mine : mine + 1, 0:size], fresh=not parts and rng.random() < 0.5)
        with b.loop(0, reading) as again:
            high, wide = rng.randint(1, rows), rng.randint(1, size)
            top = (mine * rng.randint(0, 3) + again.index) % (rows - high + 1)
            left = rng.randint(0, 2 * size - wide)
            by = rng.choice([e.name for e in hda.engines if e.kind == "dma"] or [""])
            b.copy(other[0:high, 0:wide], y[top : top + high, left : left + wide], by=by)
        b.compute("fill", work, value=1.0)
        with b.loop(0, table([rng.randint(0, 3) for _ in range(per)], mine)):
            part = work[0 : table(lengths, mine)]
            b.compute("add", part, [part, part])
        if chained:
            with b.when(1 - eq(mine, 0 if backwards else per - 1)):
                b.signal(go, to=unit + after)
        if ring:
            b.send(c, work, to=unit // per * per + (unit + 1) % per)
            b.compute("add", work, [work, b.receive(c, (size,), "f32")])
        if parts:
            b.signal(loaded, to=unit, amount=parts)
            b.wait(done, parts)
        b.compute("add", row, [row, row])
        b.copy(
            x[mine : mine + 1, 0:size], row, by=rng.choice(["", *(e.name for e in hda.engines if e.copies)])
        )
        b.signal(over, to=unit // per)
    if parts:
        part_level = b.level("part", scale=inner, grid=parts, parent=block, placement=unit * 0)
        own = b.tile("own", (size,), "f32", memory=near, level=part_level)
        with b.stream(level=part_level):
            b.wait(loaded, 1)
            b.compute("fill", own, value=2.0)
            with b.loop(0, unit % 3):
                b.compute("exp", own, [own])
            half = row[0:1, unit % parts * (size // 2) : unit % parts * (size // 2) + size // 2]
            b.compute("add", half, [half, half])
            b.signal(done, to=unit // parts)
    b.wait(over, select(unit < devices, per, 0))
    b.compute("add", x, [x, x])
    plan = b.finish()
    faults = Faults(jitter=rng.choice([None, None, seed]))
    inputs = None
    if rng.random() < 0.5:
        values = np.random.default_rng(seed).integers(-3, 4, (devices, per, size))
        inputs = {"x": values.astype("f4"), "y": np.ones((devices, rows, 2 * size), "f4")}
    return Case(seed, plan, hda, ("levels",), faults, inputs)
