"""The simulator against SimPy models of the same machine, with equal simulated time in every comparison."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from harness import (
    Row,
    at_most,
    bench,
    best_of,
    best_of_fresh,
    growth,
    peak_memory,
    ratio_at_least,
    ratio_at_most,
    seconds,
    sized,
)
from megatile.core.expr import select, unit
from megatile.hda import HDA, machine
from megatile.plan.build import PlanBuilder
from megatile.plan.model import Plan, statements
from megatile.sim import simulate
from megatile.trace import Trace, write_perfetto
from megatile.trace.events import COLUMNS
from sim_plans import meeting, meeting_in_simpy, readme_ring, readme_ring_in_simpy
from simpy_models import (
    LoadTimes,
    RingTimes,
    chunked_ring,
    contended,
    loads_and_sends,
    producers_and_consumers,
    puts,
)

CHUNK = 64
"""Floats per message. On the machine below: send 276 ps, flight 120, add 69, copy 84 + 10, credit 116."""
STEP = RingTimes(276, 120, 69, 84, 10, 116)


@cache
def box(n: int) -> HDA:
    """n cores in a ring: links of 1 B/ps and 100 ps, local memories, one memory that all share."""
    return HDA.from_dict(
        {
            "name": "box",
            "hw_spec": {
                "pe": [{"name": "core", "num_units": 1}],
                "pe_groups": [{"name": "box", "num_units": n}],
            },
            "hw_abstr": [{"name": "core", "target": "core"}, {"name": "device", "target": "box"}],
            "memory": [
                {
                    "name": "local",
                    "level": "core",
                    "size": "1 GiB",
                    "bandwidth": "4000 GB/s",
                    "latency": "10 ps",
                },
                {
                    "name": "common",
                    "level": "box",
                    "size": "8 GiB",
                    "bandwidth": "2000 GB/s",
                    "latency": "50 ps",
                },
            ],
            "networks": [
                {
                    "name": "net",
                    "level": "box",
                    "connects": "core",
                    "topology": "ring",
                    "bandwidth": "1000 GB/s",
                    "latency": "100 ps",
                }
            ],
            "engines": [
                {
                    "name": "vec",
                    "kind": "vector",
                    "level": "core",
                    "throughput": {"any": "1 TFLOP/s"},
                    "startup": "5 ps",
                },
                {"name": "dma", "kind": "dma", "level": "core", "startup": "20 ps", "channels": 2},
            ],
        }
    )


def ring(n: int) -> Plan:
    """The chunked ring all-reduce, one stream whatever n."""
    b = PlanBuilder("ring", scale="core", units=n)
    x = b.tile("x", (n, CHUNK), "f32", memory="local", role="inout")
    c = b.channel("ring", source=(unit - 1) % n, slot_bytes=4 * CHUNK, memory="local")
    with b.loop(0, n - 1) as loop:
        b.send(c, x[(unit - loop.index) % n], to=(unit + 1) % n)
        m = b.receive(c, (1, CHUNK), "f32")
        mine = x[(unit - loop.index - 1) % n]
        b.compute("add", mine, [mine, m])
    with b.loop(0, n - 1) as loop:
        b.send(c, x[(unit + 1 - loop.index) % n], to=(unit + 1) % n)
        b.receive(c, (1, CHUNK), "f32", into=x[(unit - loop.index) % n])
    return b.finish()


def messages(n: int) -> int:
    return n * 2 * (n - 1)


def same(ours: int, theirs: int) -> None:
    if ours != theirs:
        raise AssertionError(f"simulated times differ: {ours} and {theirs} ps")


@cache
def simpy_rate(n: int) -> float:
    """Messages per second of the SimPy ring, after checking that it simulates the same time."""
    same(simulate(ring(n), machine=box(n)).time_ps, chunked_ring(n, 2, STEP))
    return messages(n) / best_of_fresh(lambda _: chunked_ring(n, 2, STEP), lambda: None, 2)


@bench("sim-ring", needs=["simpy"])
def rings() -> Iterator[Row]:
    """From the call of ``simulate`` with a plan that was never simulated to its result; SimPy models of
    the same slots and credits beside it."""
    n, rounds, ranks = sized((128, 254, 4096), (8, 6, 16))
    took = best_of_fresh(lambda plan: simulate(plan, machine=box(n)), lambda: ring(n), 5)
    yield Row(f"ring of {n}", messages(n) / took, "messages/s", simpy_rate(n), "SimPy", ratio_at_least(80))
    plan, hda = readme_ring(n, rounds), machine("ahbm")
    same(simulate(plan, machine=hda).time_ps, readme_ring_in_simpy(plan, rounds, hda))
    took = best_of_fresh(lambda p: simulate(p, machine=hda), lambda: readme_ring(n, rounds), 5)
    rival = best_of_fresh(lambda p: readme_ring_in_simpy(p, rounds, hda), lambda: readme_ring(n, rounds), 2)
    name = f"kernel of README example 3, {n} units, {rounds} rounds"
    yield Row(name, n * rounds / took, "messages/s", n * rounds / rival, "SimPy", ratio_at_least(80))
    plan, hda = ring(n), box(n)
    times = {
        each: best_of(lambda r=each: simulate(plan, machine=hda, record=r), 12) for each in (True, False)
    }
    name = f"ring of {n}, everything recorded"
    yield Row(name, times[True], "s", times[False], "nothing recorded", ratio_at_most(1.3))
    hda = box(ranks)
    took = best_of_fresh(lambda large: simulate(large, machine=hda), lambda: ring(ranks), 2)
    yield Row(f"ring of {ranks} ranks", took, "s", bar=at_most(1))
    peak = peak_memory(lambda: simulate(ring(ranks), machine=box(ranks)))
    yield Row(f"ring of {ranks} ranks, memory", peak, "B", bar=at_most(200e6))


@bench("sim-growth")
def growths() -> Iterator[Row]:
    """Time per message as units, rounds and loads grow ten and a hundred times; the plan does not grow."""
    cases: list[tuple[str, Any, int]] = [
        ("rounds of README example 3, 16 units", lambda n: (readme_ring(16, n), machine("ahbm"), 16 * n), 20),
        ("units putting, 20 rounds", lambda n: (putting(n, 20), box(n), 20 * n), 40),
        ("units loading, 20 rounds", lambda n: (loading(n, 20), box(n), 20 * n), 40),
        ("units in a ring of uneven work", lambda n: (uneven_ring(n, 20), box(n), 20 * n), 40),
    ]
    for name, make, n in cases:

        def measure(size: int, make: Any = make) -> float:
            hda = make(size)[1]
            return best_of_fresh(lambda plan: simulate(plan, machine=hda), lambda: make(size)[0], 2)

        yield from growth(name, measure, n, bar=ratio_at_most(13))
    sizes = [sum(1 for s in ring(n).streams for _ in statements(s.body)) for n in (8, 4096)]
    yield Row("statements of a ring of 4096", sizes[1], "", sizes[0], "ring of 8", ratio_at_most(1))


def uneven_ring(n: int, rounds: int) -> Plan:
    """A ring whose units do more or less work between messages, so that no two are alike."""
    b = PlanBuilder("uneven", scale="core", units=n)
    x = b.tile("x", (CHUNK,), "f32", memory="local", role="inout")
    c = b.channel("c", source=(unit - 1) % n, slot_bytes=4 * CHUNK, memory="local")
    part = x[0 : unit * 7 % CHUNK + 1]
    with b.loop(0, rounds):
        b.compute("exp", part, [part])
        b.send(c, x, to=(unit + 1) % n)
        b.compute("add", x, [x, b.receive(c, (CHUNK,), "f32")])
    return b.finish()


def putting(n: int, rounds: int) -> Plan:
    """Everybody puts into its neighbour's memory, signals it and waits for its own signal."""
    b = PlanBuilder("puts", scale="core", units=n)
    z = b.tile("z", (CHUNK,), "f32", memory="local")
    w = b.tile("w", (CHUNK,), "f32", memory="local")
    flag = b.flag("there")
    with b.loop(0, rounds) as loop:
        b.copy(w.at((unit + 1) % n), z)
        b.signal(flag, to=(unit + 1) % n)
        b.wait(flag, loop.index + 1)
    return b.finish()


def queueing(pairs: int, count: int) -> Plan:
    """Even units put messages into a bounded queue, odd ones get them and add them up."""
    b = PlanBuilder("queues", scale="core", units=2 * pairs)
    x = b.tile("x", (CHUNK,), "f32", memory="local", role="inout")
    c = b.channel("c", source=select(unit % 2, unit - 1, -1), slot_bytes=4 * CHUNK, memory="local", slots=4)
    with b.stream(range(0, 2 * pairs, 2)), b.loop(0, count):
        b.send(c, x, to=unit + 1)
    with b.stream(range(1, 2 * pairs, 2)), b.loop(0, count):
        b.compute("add", x, [x, b.receive(c, (CHUNK,), "f32")])
    return b.finish()


def loading(n: int, rounds: int) -> Plan:
    """Everybody loads from the memory that all share, into two buffers in turns, and works on it."""
    b = PlanBuilder("loads", scale="core", units=n)
    x = b.tile("x", (CHUNK,), "f32", memory="common", role="input")
    y = b.tile("y", (CHUNK,), "f32", memory="local", versions=2)
    z = b.tile("z", (CHUNK,), "f32", memory="local", role="inout")
    with b.loop(0, rounds):
        b.copy(y, x, fresh=True)
        b.compute("add", z, [z, y])
    return b.finish()


def loading_and_sending(n: int, rounds: int) -> Plan:
    """Everybody loads from the memory that all share, works on it and sends it to the next one."""
    b = PlanBuilder("loads and sends", scale="core", units=n)
    x = b.tile("x", (CHUNK,), "f32", memory="common", role="input")
    y = b.tile("y", (CHUNK,), "f32", memory="local", versions=2)
    z = b.tile("z", (CHUNK,), "f32", memory="local", role="inout")
    c = b.channel("c", source=(unit - 1) % n, slot_bytes=4 * CHUNK, memory="local")
    with b.loop(0, rounds):
        b.copy(y, x, fresh=True)
        b.compute("add", y, [y, y])
        b.send(c, y, to=(unit + 1) % n)
        b.compute("add", z, [z, b.receive(c, (CHUNK,), "f32")])
    return b.finish()


@bench("sim-contention", needs=["simpy"])
def contention() -> Iterator[Row]:
    n, rounds = sized((64, 100), (4, 8))
    load = LoadTimes(20, 128, 60, 69)
    cases: list[tuple[str, Any, Any]] = [
        (
            "put and get",
            lambda: queueing(n // 2, 2 * rounds),
            lambda: producers_and_consumers(n // 2, 2 * rounds, 4, STEP),
        ),
        ("contended memory", lambda: loading(n, rounds), lambda: contended(n, rounds, load)),
        (
            "loads before a barrier",
            lambda: meeting(n, rounds // 4, 4),
            lambda: meeting_in_simpy(n, rounds // 4, 4, load, box(n)),
        ),
        (
            "contended memory, then sent on",
            lambda: loading_and_sending(n, rounds),
            lambda: loads_and_sends(n, rounds, 2, load, STEP),
        ),
        ("one-sided put, signal, wait", lambda: putting(n, rounds), lambda: puts(n, rounds, 276, 120, 108)),
    ]
    for name, make, rival in cases:
        hda = box(n)
        same(simulate(make(), machine=hda).time_ps, rival())
        # Short runs of both: on a busy machine a few runs are needed to see a quiet one.
        ours = best_of_fresh(lambda plan, h=hda: simulate(plan, machine=h), make, 20)
        theirs = best_of_fresh(lambda _, r=rival: r(), lambda: None, 6)
        count = n * rounds
        yield Row(name, count / ours, "transfers/s", count / theirs, "SimPy", ratio_at_least(60))


def blocks_of_a_product(waves: int, steps: int) -> Plan:
    """Waves of blocks on 132 SMs, each with so many steps of two loads and a product, in 4 versions."""
    rows, columns, size, depth = 132, waves, 128, 64
    b = PlanBuilder("product", scale="device", units=1)
    block = b.level("block", scale="block", grid=rows * columns, parent="device", slots=1)
    left = b.tile("left", (rows * size, steps * depth), "f16", memory="hbm", role="input")
    right = b.tile("right", (steps * depth, columns * size), "f16", memory="hbm", role="input")
    x = b.tile("x", (size, depth), "f16", memory="shared", level=block, versions=4)
    y = b.tile("y", (depth, size), "f16", memory="shared", level=block, versions=4)
    total = b.tile("total", (size, size), "f32", memory="registers", level=block)
    top, start = unit // columns * size, unit % columns * size
    with b.stream(level=block), b.loop(0, steps) as step:
        at = step.index * depth
        b.copy(x, left[top : top + size, at : at + depth], fresh=True)
        b.copy(y, right[at : at + depth, start : start + size], fresh=True)
        b.compute("gemm_add", total, [x, y, total], engine="tensor")
    return b.finish()


@bench("sim-blocks")
def waves_of_blocks() -> Iterator[Row]:
    hda = machine("dgx-h100")
    simulate(blocks_of_a_product(1, 4), machine=hda, engine="compiled")
    waves, steps = sized((16, 128), (1, 2))
    taken = best_of(lambda: simulate(blocks_of_a_product(waves, steps), machine=hda).summary(), 3)
    yield Row(f"132 SMs x {waves} waves x {steps} steps, plan to summary", taken, "s", bar=at_most(0.7))

    def measure(waves: int) -> float:
        plan = blocks_of_a_product(waves, sized(32, 2))
        return best_of(lambda: simulate(plan, machine=hda, record=False), 2)

    yield from growth("waves of blocks of 32 steps", measure, 1, bar=ratio_at_most(13))
    plan = blocks_of_a_product(sized(4, 1), steps)
    times = {each: best_of(lambda r=each: simulate(plan, machine=hda, record=r), 6) for each in (True, False)}
    name = f"132 SMs x {sized(4, 1)} waves, everything recorded"
    yield Row(name, times[True], "s", times[False], "nothing recorded", ratio_at_most(1.3))
    plans = [blocks_of_a_product(n, sized(32, 2)) for n in sized((10, 100), (1, 2))]
    peaks = [peak_memory(lambda p=plan: simulate(p, machine=hda, record=False)) for plan in plans]
    yield Row("100 waves, memory", peaks[1], "B", peaks[0], "10 waves", ratio_at_most(1.5))


def naive_ring(n: int, size: int) -> Plan:
    """What came last is sent on and added."""
    b = PlanBuilder("naive", scale="pe", units=n)
    x = b.tile("x", (size,), "f32", memory="tcm", role="inout")
    c = b.channel("ring", source=(unit - 1) % n, slot_bytes=4 * size, memory="tcm")
    b.send(c, x, to=(unit + 1) % n)
    first = b.receive(c, (size,), "f32")
    with b.loop(0, n - 2, current=first) as loop:
        b.compute("add", x, [x, loop.current])
        b.send(c, loop.current, to=(unit + 1) % n)
        loop.next(current=b.receive(c, (size,), "f32"))
    b.compute("add", x, [x, loop.current])
    return b.finish()


def numpy_ring(x: np.ndarray) -> np.ndarray:
    """The same copies and adds as a bare loop."""
    n = len(x)
    total, slots = x.copy(), [x.copy(), x.copy()]
    for step in range(n - 1):
        old, new = slots[step % 2], slots[(step + 1) % 2]
        for u in range(n):
            new[u] = old[u - 1]
            total[u] += new[u]
    return total


@bench("sim-data")
def with_data() -> Iterator[Row]:
    n, size = sized((256, 64 * 1024 // 4), (128, 16))
    plan, hda = naive_ring(n, size), machine("ahbm")
    x = np.random.default_rng(0).integers(-1, 2, (n, size)).astype("f4")
    result = simulate(plan, {"x": x}, machine=hda)
    assert result.outputs is not None
    np.testing.assert_array_equal(result.outputs["x"], numpy_ring(x))
    ours = min(seconds(lambda: simulate(plan, {"x": x}, machine=hda)) for _ in range(2))
    bare = min(seconds(lambda: numpy_ring(x)) for _ in range(2))
    yield Row(f"{n} PEs x {size * 4} B with data", ours, "s", bare, "bare NumPy loop", ratio_at_most(2.5))


@bench("trace")
def writing() -> Iterator[Row]:
    from tempfile import TemporaryDirectory

    count = sized(1_000_000, 1000)
    columns = {name: np.zeros(count, dtype=kind) for name, kind in COLUMNS.items()}
    columns["unit"] = np.arange(count) % 64
    columns["start_ps"] = np.arange(count) * 1000
    columns["end_ps"] = columns["start_ps"] + 700 + np.arange(count) % 300
    columns["cause"] = np.arange(count) - 1
    units = tuple(f"sip0/cube{i // 8}/pe{i % 8}" for i in range(64))
    trace = Trace(units, ("dma.0",), ("send",), ("",), ("kernel.py:1",), columns=columns)
    with TemporaryDirectory() as folder:
        took = min(seconds(lambda: write_perfetto(trace, f"{folder}/t.json.gz")) for _ in range(2))
    yield Row(f"{count:_} events to Perfetto JSON", took, "s", bar=at_most(5))
