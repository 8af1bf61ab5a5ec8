"""What is measured: a table of probes, each of which yields figures.

What compiled code attains (rates of products, vectors, special functions and copies) is measured with tile
programs; what they cannot say (latencies, the peak of the units, signals between processes) with C.
"""

from __future__ import annotations

import ctypes
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from importlib.resources import files
from typing import Any

import numpy as np

from megatile.core.dtypes import numpy_dtype
from megatile.core.quantities import format_bytes
from megatile.hda import HDA, machine
from megatile.hda.probe import vector_bits
from megatile.runtime.measure import samples
from megatile.runtime.measure.figures import Figure, Sample, duration, rate, sampled, timed
from megatile.runtime.shared import World, run
from megatile.runtime.shared.world import library
from megatile.targets.common.errors import CompileError
from megatile.targets.common.kernel import Kernel
from megatile.targets.common.toolchain import Making
from megatile.targets.compile import compile as compile_program

LARGEST = 128 << 20
"""Bytes of the largest array."""
TILE = (40, 96)
"""Of elementwise work: it fits the first cache."""
PRODUCT = (112, 96, 80)
DTYPES = ("f32", "f64", "bf16", "f16", "f8e4m3", "i8")
OFTEN, ROUNDS = 64 << 20, 5
"""Bytes of copies that are timed in several rounds."""
BLOCK = 24 << 10
"""Bytes that a block copies."""


class Host:
    """The computer that is measured, and what is known of it already."""

    def __init__(self, quick: bool) -> None:
        self.quick = quick
        self.runs = 7 if quick else 15
        self.hda: HDA = machine("cpu")
        self.cores = self.hda.count("block")
        self.l1, self.l2 = (self.hda.memory(name).size for name in ("l1_cache", "scratch"))

    @cached_property
    def call(self) -> Sample:
        """A call of a program that does next to nothing."""
        return timed(_call(samples.nothing(1)), 4 * self.runs)

    @cached_property
    def copies(self) -> dict[int, Sample]:
        """Seconds for each byte in copies by one core, by bytes of both arrays."""
        sizes = {self.l2 // 2, 4 * self.l2, 2 * LARGEST}
        more = {8 * self.l2 * 2**e for e in range((LARGEST // self.l2 // 4).bit_length())}
        more |= set() if self.quick else {size * 3 // 2 for size in more}
        sizes |= {size for size in more if size < 2 * LARGEST}
        calls = {size: _call(samples.copies(size // 8, BLOCK // 4)) for size in sizes if size <= OFTEN}
        found = {size: self.copying(size, 1) for size in sorted(sizes) if size > OFTEN}
        for _ in range(ROUNDS):  # others who use the last cache come and go
            for size, call in calls.items():
                once = self.copying(size, 1, call, ROUNDS)
                found[size] = min(once, found.get(size, once), key=lambda s: s.seconds)
        return found

    def copying(
        self, both: int, threads: int, call: Callable[[], object] | None = None, rounds: int = 1
    ) -> Sample:
        count = both // 8
        call = call or _call(samples.copies(count, BLOCK // 4), threads)
        runs = self.runs * (1 if threads == 1 else 4) // (rounds if both <= OFTEN else 3)
        call_s = self.call.seconds if threads == 1 else self.wakeup.seconds + self.call.seconds
        return timed(call, max(1, runs), alone=threads == 1).less(call_s, 8 * count)

    @cached_property
    def wakeup(self) -> Sample:
        """What a call takes longer with threads for all cores."""
        if self.cores == 1:
            return Sample(1e-9, 0, 1)
        both = timed(_call(samples.nothing(self.cores), self.cores), 4 * self.runs, alone=False)
        return both.less(self.call.seconds)

    @cached_property
    def l3(self) -> tuple[int, float, Sample, Sample]:
        """Bytes of the last cache that this computer really has for itself, with what they are uncertain by;
        copies in it and behind it. A cache that others use too is smaller than the system says. Arrays up to
        its size are in it, and less and less of them up to twice that (as `k.compare` has it): every copy
        that is neither as fast as in it nor as slow as behind it says where it ends."""
        inside, behind = self.copies[4 * self.l2], self.copies[max(self.copies)]
        slower = behind.seconds - inside.seconds
        parts = {size: (s.seconds - inside.seconds) / slower for size, s in sorted(self.copies.items())}
        ends = [size / (1 + part) for size, part in parts.items() if size > 4 * self.l2 and 0.1 < part < 0.9]
        if slower <= 0 or not ends:
            within = max(size for size, part in parts.items() if slower <= 0 or part <= 0.5)
            return max(4 * self.l2, within), 0.5, inside, behind
        middle = statistics.median(ends)
        spread = (max(ends) - min(ends)) / 2 / middle
        return max(4 * self.l2, round(middle)), max(spread, 0.1), inside, behind


Probe = Callable[[Host], Iterator[Figure]]
PROBES: list[tuple[str, Probe]] = []


def probe(name: str) -> Callable[[Probe], Probe]:
    def register(function: Probe) -> Probe:
        PROBES.append((name, function))
        return function

    return register


def _call(program: Any, threads: int = 1) -> Callable[[], object]:
    kernel: Kernel = compile_program(program, threads=threads)
    arrays = [
        np.full(p.shape, 0.3 if p.dtype[0] != "i" else 1, numpy_dtype(p.dtype))
        for p in program.build("cpu").params
    ]
    return lambda: kernel(*arrays)


@probe("calls")
def calls(host: Host) -> Iterator[Figure]:
    yield duration("control.launch.call.overhead", host.call, "a call of a program that does nothing")
    yield duration(
        "control.launch.thread_wakeup.overhead", host.wakeup, "the same with a thread on every core"
    )
    blocks = 4096
    each = timed(_call(samples.nothing(blocks)), host.runs).less(host.call.seconds, 2 * blocks)
    yield duration(
        "engines.load_store.startup", each, "blocks that do nothing, for each of their two commands"
    )


@probe("vectors")
def vectors(host: Host) -> Iterator[Figure]:
    elements, steps = math.prod(TILE), 100
    shape = "×".join(map(str, TILE))
    plain = timed(_call(samples.scaling(*TILE, steps)), host.runs).less(host.call.seconds, steps)
    how = f"elements of a {shape} tile read and written"
    yield rate("memory.registers.bandwidth", 8 * elements, "B/s", plain, how)
    tiny = timed(_call(samples.scaling(1, 16, 20 * steps)), host.runs).less(host.call.seconds, 20 * steps)
    yield duration("engines.simd.startup", tiny, "elementwise work on 16 elements")
    for dtype, key in (("f32", "any"), ("f64", "f64")):
        found = timed(_call(samples.polynomial(*TILE, steps, dtype)), host.runs).less(
            host.call.seconds, steps
        )
        how = f"a polynomial in {dtype} on a {shape} tile"
        yield rate(f"engines.simd.throughput.{key}", samples.POLYNOMIAL * elements, "FLOP/s", found, how)
    found = timed(_call(samples.exponentials(*TILE, steps)), host.runs).less(host.call.seconds, steps)
    how = f"exp on a {shape} tile"
    yield rate("engines.special_functions.throughput.any", elements, "OP/s", found, how)


@probe("products")
def matrix_products(host: Host) -> Iterator[Figure]:
    flops, steps = 2 * math.prod(PRODUCT), 20
    for dtype in DTYPES[:4] if host.quick else DTYPES:
        try:
            call = _call(samples.products(*PRODUCT, steps, dtype))
        except CompileError:
            continue
        found = timed(call, host.runs).less(host.call.seconds, steps)
        how = f"products of {dtype} tiles {'×'.join(map(str, PRODUCT))}"
        key = "f8" if dtype.startswith("f8") else dtype
        yield rate(f"engines.fma.throughput.{key}", flops, "FLOP/s", found, how)
        if dtype == "f32":
            small = (14, 32, 16)
            tiny = timed(_call(samples.products(*small, 10 * steps)), host.runs)
            work = found.seconds * math.prod(small) / math.prod(PRODUCT)
            tiny = tiny.less(host.call.seconds, 10 * steps).less(work)
            yield duration("engines.fma.startup", tiny, "a product of 14×32×16, less its work")


@probe("copies")
def memories(host: Host) -> Iterator[Figure]:
    size, uncertain, inside, behind = host.l3
    near = host.copies[host.l2 // 2]
    how = "copies through tiles, both arrays together "
    for name in ("memory.scratch.bandwidth", "engines.load_store.bandwidth"):
        yield rate(name, 1, "B/s", near, how + format_bytes(host.l2 / 2))
    count = host.l2 // 16
    direct = timed(_call(samples.moving(count)), host.runs).less(host.call.seconds)
    how_much = f"an array of {format_bytes(4 * count)} copied at once"
    yield rate("engines.memcpy.bandwidth", 4 * count, "B/s", direct, how_much)
    yield Figure("memory.l3_cache.size", size, "B", uncertain, 1, "where copies become slower")
    rows = ("l3_cache", inside, 4 * host.l2), ("ram", behind, max(host.copies))
    for name, sample, both in rows:
        one = rate(f"memory.{name}.unit_bandwidth", 1, "B/s", sample, how.format(both / 2**20) + ", one core")
        yield one
        many = host.copying(both, host.cores) if host.cores > 1 else sample
        best = min((many, sample), key=lambda s: s.seconds)
        said = how.format(both / 2**20) + f", {host.cores} cores"
        yield rate(f"memory.{name}.bandwidth", 1, "B/s", best, said)


@cache
def _native() -> ctypes.CDLL:
    text = files("megatile.runtime.measure").joinpath("host.c").read_text(encoding="utf-8")
    made = Making(text, ("-O3", f"-DBITS={max(128, vector_bits())}")).load()
    made.follow.restype = ctypes.c_void_p
    made.read_all.restype = made.chains_f32.restype = ctypes.c_float
    made.chains_f64.restype = ctypes.c_double
    return made


@probe("latencies")
def latencies(host: Host) -> Iterator[Figure]:
    sizes = {"l1_cache": host.l1 // 2, "scratch": host.l2 // 2, "l3_cache": 4 * host.l2, "ram": LARGEST}
    for name, nbytes in sizes.items():
        chain, steps = _chain(nbytes), 20_000 if host.quick else 50_000
        start = [ctypes.c_void_p(chain.ctypes.data)]

        def walk(start: list[Any] = start, steps: int = steps) -> None:
            start[0] = ctypes.c_void_p(_native().follow(start[0], ctypes.c_long(steps)))

        found = timed(walk, host.runs).less(0, steps)
        yield duration(f"memory.{name}.latency", found, f"pointers through {format_bytes(nbytes)}")
    array = np.ones(host.l1 // 2 // 4, np.float32)
    lines, rounds = array.nbytes * 8 // max(128, vector_bits()), 50
    address = ctypes.c_void_p(array.ctypes.data)
    seen = timed(lambda: _native().read_all(address, ctypes.c_long(lines), ctypes.c_long(rounds)), host.runs)
    yield rate("memory.l1_cache.bandwidth", rounds * array.nbytes, "B/s", seen, "an array read")


def _chain(nbytes: int) -> np.ndarray:
    """Lines that each hold the address of the next, in random order, in one circle."""
    lines = nbytes // 64
    table = np.zeros((lines, 8), np.uint64)
    order = np.random.default_rng(0).permutation(lines)
    order = np.concatenate([order[order == 0], order[order != 0]])
    table[order, 0] = table.ctypes.data + 64 * np.roll(order, -1).astype(np.uint64)
    return table


@probe("peaks")
def peaks(host: Host) -> Iterator[Figure]:
    steps, lanes = 20_000, max(128, vector_bits()) // 32
    for dtype, kind, wide in (("f32", ctypes.c_float, lanes), ("f64", ctypes.c_double, lanes // 2)):
        chains = getattr(_native(), f"chains_{dtype}")
        numbers = ctypes.c_long(steps), kind(0.5), kind(0.5)
        found = timed(lambda chains=chains, numbers=numbers: chains(*numbers), host.runs)  # type: ignore[misc]
        yield rate(
            f"peak {dtype}", 24 * wide * steps, "FLOP/s", found, "chains of multiply-adds in registers"
        )


MESSAGES = 4
"""Links that an all-reduce waits for, one after the other: to the memory and back, twice."""


@probe("devices")
def devices(host: Host) -> Iterator[Figure]:
    """What devices that are threads hand each other through the memory they share: each reads its share of
    what all have, and writes the result to all."""
    if host.cores == 1:
        return
    count, steps = host.l2 // 16, 20

    def step(count: int, steps: int) -> Sample:
        call = _call(samples.reducing(count, steps), 2)
        return timed(call, 4 * host.runs, alone=False).less(host.call.seconds + host.wakeup.seconds, steps)

    tiny, how = step(1, 10 * steps), "an all-reduce by two devices of "
    each = Sample(tiny.seconds / MESSAGES, tiny.error, tiny.runs)
    yield duration("networks.shared_memory.latency", each, how + "one element")
    work = step(count, steps).less(tiny.seconds)
    yield rate("networks.shared_memory.bandwidth", 8 * count, "B/s", work, how + format_bytes(4 * count))


@probe("processes")
def processes(host: Host) -> Iterator[Figure]:
    if not hasattr(os, "fork"):
        return
    count, rounds = max(2, host.cores), 200
    started = sampled(_seconds(lambda: run(_idle, count)) for _ in range(5))
    yield duration("process launch", started, f"{count} processes begun and ended")
    _native()
    for name, work, members, how in (
        ("barrier", _meet, count, f"{count} processes"),
        ("signal", _answer, 2, "to another process, half of there and back"),
    ):
        found = [max(run(work, members, args=(rounds,))) for _ in range(host.runs)]
        yield duration(name, sampled(found), how)


def _seconds(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def _idle(world: World) -> int:
    return world.rank


def _meet(world: World, rounds: int) -> float:
    world.barrier()
    begun = time.perf_counter()
    for _ in range(rounds):
        world.barrier()
    return (time.perf_counter() - begun) / rounds


def _answer(world: World, rounds: int) -> float:
    flag, shared = world.symmetric(1, "i32"), library()
    world.barrier()
    mine, other = (
        ctypes.c_void_p(world.heap.address(world.part(rank) + flag.offset))
        for rank in (world.rank, 1 - world.rank)
    )
    functions = (ctypes.cast(f, ctypes.c_void_p) for f in (shared.mt_signal, shared.mt_wait))
    numbers = ctypes.c_long(rounds), ctypes.c_long(world.rank == 0)
    heap = ctypes.c_void_p(world.heap.address(0))
    return _seconds(lambda: _native().answers(heap, mine, other, *numbers, *functions)) / rounds / 2
