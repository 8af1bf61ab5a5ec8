"""The table of probes; each one measures and yields figures.

What compiled code attains (rates of products, vectors, special functions and copies) is measured with tile
programs; what they cannot say (latencies, the peak of the units, signals between processes) with C.
"""

from __future__ import annotations

import ctypes
import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any

import numpy as np

from megatile.core.cached import cached
from megatile.core.dtypes import numpy_dtype
from megatile.core.quantities import format_bytes
from megatile.hda import HDA, machine
from megatile.hda.probe import vector_bits
from megatile.runtime.measure import samples
from megatile.runtime.measure.figures import Figure, Sample, duration, rate, sampled, timed
from megatile.runtime.shared import World, run
from megatile.runtime.shared.world import library, native
from megatile.targets.common.errors import CompileError
from megatile.targets.common.kernel import CompiledKernel
from megatile.targets.compile import compile as compile_program

MAX_ARRAY_BYTES = 128 << 20
"""Bytes of the largest array."""
TILE = (40, 96)
"""Of elementwise work: it fits the first cache."""
PRODUCT = (112, 96, 80)
DTYPES = ("f32", "f64", "bf16", "f16", "f8e4m3", "i8")
ROUNDS, QUICK_ROUNDS = 15, 3
"""How often all is measured: the best counts, for what others do comes and goes."""


class Host:
    """The computer that is measured, and what is known of it already."""

    def __init__(self, quick: bool) -> None:
        self.quick, self.rounds, self.runs = quick, QUICK_ROUNDS if quick else ROUNDS, 4
        self.hda: HDA = machine("cpu")
        self.cores = self.hda.count("block")
        self.l1, self.l2 = (self.hda.memory(name).size for name in ("l1_cache", "scratch"))
        self.near, self.far = 3 * self.l1 // 16, 2 * self.l1
        self.turn = 0
        self.kernels: dict[Any, CompiledKernel] = {}
        self.times: dict[Any, list[float]] = {}

    def seen(self, key: Any, seconds: Iterable[float]) -> Sample:
        """Return what this round and those before say about something."""
        self.times.setdefault(key, []).extend(seconds)
        return sampled(self.times[key])

    def run(self, make: Callable[..., Any], *args: Any, threads: int = 1, runs: int = 0) -> Sample:
        """Return a call of a program, timed as `k.compare` does it."""
        key = make, args, threads
        if key not in self.kernels:
            self.kernels[key] = compile_program(make(*args), threads=threads)
        params = enumerate(self.kernels[key].code_for(()).program.params)
        arrays = [self.array(i, p.shape, numpy_dtype(p.dtype)) for i, p in params]
        return self.seen(key, [self.kernels[key].profile(*arrays, repeat=runs or self.runs).seconds])

    def array(self, number: int, shape: tuple[Any, ...], dtype: Any) -> np.ndarray:
        """Return an argument; the pages of large ones are there from the beginning."""
        count = math.prod(shape)
        if count * dtype.itemsize < self.l2:
            return np.full(shape, 1 if dtype.kind == "i" else 0.3, dtype)
        return self.large[number].view(dtype)[:count].reshape(shape)

    @cached_property
    def large(self) -> list[np.ndarray]:
        return [np.full(MAX_ARRAY_BYTES // 4, 0.3, np.float32) for _ in range(2)]

    def step(
        self, make: Callable[..., Any], *args: Any, steps: int, threads: int = 1, runs: int = 0
    ) -> Sample:
        """Return one of the equal steps of a program, without the call."""
        whole = self.run(make, *args, threads=threads, runs=runs)
        arrays = len(self.kernels[make, args, threads].code_for(()).shapes)
        call = self.call.seconds + arrays * self.argument.seconds
        return whole.less(call + (self.wakeup.seconds if threads > 1 else 0), steps)

    @property
    def argument(self) -> Sample:
        """What a call takes longer for every array."""
        return self.run(samples.copies, 1, 1).less(self.run(samples.nothing, 1).seconds)

    @property
    def call(self) -> Sample:
        """A call of a program that does next to nothing, without its array."""
        return self.run(samples.nothing, 1).less(self.argument.seconds)

    @property
    def wakeup(self) -> Sample:
        """What a call takes longer with threads for all cores."""
        if self.cores == 1:
            return Sample(1e-9, 0, 1)
        both = self.run(samples.nothing, self.cores, threads=self.cores, runs=4 * self.runs)
        return both.less(self.run(samples.nothing, 1).seconds)

    def copying(self, both: int, threads: int = 1, tile: int = 0) -> Sample:
        """Return seconds for each byte of copies through tiles; of the bytes of both arrays."""
        count, runs = both // 8, self.runs if both <= MAX_ARRAY_BYTES else 2
        return self.step(
            samples.copies, count, (tile or self.near) // 4, steps=8 * count, threads=threads, runs=runs
        )

    def copies(self, threads: int) -> dict[int, Sample]:
        """Return seconds for each byte in copies, by bytes of both arrays: in the second cache and behind
        it."""
        more = {8 * self.l2 * 2**e for e in range((MAX_ARRAY_BYTES // self.l2 // 8).bit_length())}
        more |= set() if self.quick else {size * 3 // 2 for size in more}
        sizes = {self.l2 // 2, 4 * self.l2, *(s for s in more if s <= MAX_ARRAY_BYTES), 2 * MAX_ARRAY_BYTES}
        return {size: self.copying(size, threads) for size in sorted(sizes)}

    def fastest(self, copies: dict[int, Sample]) -> int:
        """Return the size of the fastest copies that the second cache does not hold."""
        return min((size for size in copies if size > 2 * self.l2), key=lambda size: copies[size].seconds)

    def l3(self, copies: dict[int, Sample]) -> tuple[int, float]:
        """Return bytes of the last cache that these copies really have for themselves (others may use it
        too), and how far off they are then: so much of larger arrays stays in it, as `k.compare` has it."""
        inside, behind = copies[self.fastest(copies)].seconds, copies[max(copies)].seconds
        if behind <= inside:
            return max(copies), 0.5
        parts = {size: (s.seconds - inside) / (behind - inside) for size, s in copies.items()}

        def off(size: float) -> float:
            return statistics.fmean(abs(part - max(0.0, 1 - size / of)) for of, part in parts.items())

        steps = range(8 * (MAX_ARRAY_BYTES // self.l2).bit_length())
        size = min((4 * self.l2 * 2 ** (e / 8) for e in steps), key=off)
        return round(size), off(size)


Probe = Callable[[Host], Iterator[Figure]]
PROBES: list[tuple[str, Probe]] = []


def probe(name: str) -> Callable[[Probe], Probe]:
    def register(function: Probe) -> Probe:
        PROBES.append((name, function))
        return function

    return register


@probe("calls")
def calls(host: Host) -> Iterator[Figure]:
    yield duration("control.launch.call.overhead", host.call, "a call of a program that does nothing")
    yield duration("control.launch.argument.overhead", host.argument, "the same with one array more")
    yield duration(
        "control.launch.thread_wakeup.overhead", host.wakeup, "the same with a thread on every core"
    )
    blocks = 4096
    each = host.step(samples.nothing, blocks, steps=2 * blocks)
    yield duration(
        "engines.load_store.startup", each, "blocks that do nothing, for each of their two commands"
    )


@probe("vectors")
def vectors(host: Host) -> Iterator[Figure]:
    elements, steps = math.prod(TILE), 100
    shape = "×".join(map(str, TILE))
    plain = host.step(samples.scaling, *TILE, steps, steps=steps)
    how = f"elements of a {shape} tile read and written"
    yield rate("memory.registers.bandwidth", 8 * elements, "B/s", plain, how)
    tiny = host.step(samples.scaling, 1, 16, 20 * steps, steps=20 * steps)
    yield duration("engines.simd.startup", tiny, "elementwise work on 16 elements")
    for dtype, key in (("f32", "any"), ("f64", "f64")):
        found = host.step(samples.polynomial, *TILE, steps, dtype, steps=steps)
        how = f"a polynomial in {dtype} on a {shape} tile"
        yield rate(f"engines.simd.throughput.{key}", samples.POLYNOMIAL * elements, "FLOP/s", found, how)
    found = host.step(samples.exponentials, *TILE, steps, steps=steps)
    how = f"exp on a {shape} tile"
    yield rate("engines.special_functions.throughput.any", elements, "OP/s", found, how)
    first = host.step(samples.exponentials, 1, 16, 20 * steps, steps=20 * steps).less(tiny.seconds)
    yield duration("engines.special_functions.latency", first, "exp of 16 elements, of those, and so on")


@probe("products")
def matrix_products(host: Host) -> Iterator[Figure]:
    flops, steps = 2 * math.prod(PRODUCT), 20
    for dtype in DTYPES[:4] if host.quick else DTYPES:
        try:
            found = host.step(samples.products, *PRODUCT, steps, dtype, steps=steps)
        except CompileError:
            continue
        how = f"products of {dtype} tiles {'×'.join(map(str, PRODUCT))}"
        key = "f8" if dtype.startswith("f8") else dtype
        yield rate(f"engines.fma.throughput.{key}", flops, "FLOP/s", found, how)
        if dtype == "f32":
            small = (14, 32, 16)
            work = found.seconds * math.prod(small) / math.prod(PRODUCT)
            tiny = host.step(samples.products, *small, 10 * steps, steps=10 * steps).less(work)
            yield duration("engines.fma.startup", tiny, "a product of 14×32×16, less its work")


@probe("copies")
def memories(host: Host) -> Iterator[Figure]:
    one = host.copies(1)
    every = host.copies(host.cores) if host.cores > 1 else one
    alone, together = host.l3(one), host.l3(every)
    near, inside = one[host.l2 // 2], one[host.fastest(one)]
    how = "copies through tiles, both arrays together "
    yield rate("memory.scratch.bandwidth", 1, "B/s", near, how + format_bytes(host.l2 / 2))
    best = min(near, inside, key=lambda s: s.seconds)
    yield rate("engines.load_store.bandwidth", 1, "B/s", best, "the faster of copies in both caches")
    again = host.copying(4 * host.l2, tile=host.far).less(inside.seconds)
    how_much = (
        f"copies through tiles of {format_bytes(host.far)}, less those through {format_bytes(host.near)}"
    )
    yield rate("memory.l1_cache.fill", 1, "B/s", again, how_much)
    count = host.l2 // 16
    direct = host.step(samples.moving, count, steps=1)
    how_much = f"an array of {format_bytes(4 * count)} copied at once"
    yield rate("engines.memcpy.bandwidth", 4 * count, "B/s", direct, how_much)
    for key, (size, off), cores in (("size", max(alone, together), host.cores), ("unit_size", alone, 1)):
        slower = f"where copies by {cores} core{'s' * (cores > 1)} become slower"
        yield Figure(f"memory.l3_cache.{key}", size, "B", off, host.rounds, slower)
    fastest, largest = (host.fastest(one), host.fastest(every)), max(one)
    for name, of, all_of in (("l3_cache", *fastest), ("ram", largest, largest)):
        said = how + format_bytes(of) + ", one core"
        yield rate(f"memory.{name}.unit_bandwidth", 1, "B/s", one[of], said)
        many = min((every[all_of], one[of]), key=lambda s: s.seconds)
        said = how + format_bytes(all_of) + f", {host.cores} cores"
        yield rate(f"memory.{name}.bandwidth", 1, "B/s", many, said)


@cached()
def _native() -> ctypes.CDLL:
    made = native("megatile.runtime.measure", "host.c", {}, "-O3", f"-DBITS={max(128, vector_bits())}")
    made.follow.restype = ctypes.c_void_p
    made.read_all.restype = made.chains_f32.restype = ctypes.c_float
    made.chains_f64.restype = ctypes.c_double
    return made


@probe("latencies")
def latencies(host: Host) -> Iterator[Figure]:
    sizes = {
        "l1_cache": host.l1 // 2,
        "scratch": host.l2 // 2,
        "l3_cache": 4 * host.l2,
        "ram": MAX_ARRAY_BYTES,
    }
    for name, nbytes in sizes.items():
        chain, steps = _chain(nbytes), 20_000
        start = [ctypes.c_void_p(chain.ctypes.data)]

        def walk(start: list[Any] = start, steps: int = steps) -> None:
            start[0] = ctypes.c_void_p(_native().follow(start[0], ctypes.c_long(steps)))

        found = host.seen(name, timed(walk, host.runs)).less(0, steps)
        yield duration(f"memory.{name}.latency", found, f"pointers through {format_bytes(nbytes)}")
    array = np.ones(host.l1 // 2 // 4, np.float32)
    lines, rounds = array.nbytes * 8 // max(128, vector_bits()), 50
    address = ctypes.c_void_p(array.ctypes.data)
    reading = lambda: _native().read_all(address, ctypes.c_long(lines), ctypes.c_long(rounds))  # noqa: E731
    seen = host.seen("read", timed(reading, host.runs))
    yield rate("memory.l1_cache.bandwidth", rounds * array.nbytes, "B/s", seen, "an array read")


@cached()
def _chain(nbytes: int) -> np.ndarray:
    """Return lines that each hold the address of the next, in random order, in one circle."""
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
        found = host.seen(dtype, timed(lambda: chains(*numbers), host.runs))  # noqa: B023
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
    count, steps, runs = host.l2 // 16, 20, 4 * host.runs
    tiny = host.step(samples.reducing, 1, 10 * steps, steps=10 * steps, threads=2, runs=runs)
    each, how = Sample(tiny.seconds / MESSAGES, tiny.error, tiny.runs), "an all-reduce by two devices of "
    yield duration("networks.shared_memory.latency", each, how + "one element")
    work = host.step(samples.reducing, count, steps, steps=steps, threads=2, runs=runs).less(tiny.seconds)
    yield rate("networks.shared_memory.bandwidth", 4 * count, "B/s", work, how + format_bytes(4 * count))


@probe("processes")
def processes(host: Host) -> Iterator[Figure]:
    if not hasattr(os, "fork"):
        return
    count, rounds, now = max(2, host.cores), 200, host.turn % 5 == 0  # seldom: it takes long
    started = host.seen("launch", [_seconds(lambda: run(_idle, count))] if now else [])
    yield duration("process launch", started, f"{count} processes begun and ended")
    _native()
    for name, work, members, how in (
        ("barrier", _barriers, count, f"{count} processes"),
        ("signal", _answer, 2, "to another process, half of there and back"),
    ):
        found = host.seen(name, [max(run(work, members, args=(rounds,)))] if now else [])
        yield duration(name, found, how)


def _seconds(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def _idle(world: World) -> int:
    return world.rank


def _barriers(world: World, rounds: int) -> float:
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
