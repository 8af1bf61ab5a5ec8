"""Ways to do a primitive: a registry (primitive, scale, machine) → candidates, each with a price.

A candidate says what it would cost (`Request` → picoseconds; None: it cannot do this), from figures of the
machine alone. The cheapest does the work, or the one that ``impl=`` names. Users add their own, in ``T``:

    @T.implementation("gemm", "by_halves", price=lambda r: r.operations // 100)
    def by_halves(A, B, C):
        ...

One without a price is taken only where ``impl=`` names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from megatile.core.cached import cached
from megatile.core.dtypes import itemsize
from megatile.core.errors import MegatileError, did_you_mean
from megatile.cost.cheapest import cheapest
from megatile.hda import HDA
from megatile.hda.model import Engine

BULK = ("tma", "dma")
"""What a unit's own engine for bulk copies is called: NVIDIA's since Hopper, and any other."""
BY_SCALE = ("dsmem", "copy_engine", "nic")
"""What carries a copy between units: of one device, of one node, of several nodes."""


@dataclass(frozen=True)
class Request:
    """What a statement at a scale asks of a machine."""

    primitive: str
    machine: HDA
    scale: str
    dtype: str = "f32"
    elements: int = 0
    """Of the result; what is copied."""
    operations: int = 0
    extents: tuple[int, ...] = ()
    """Rows, columns and inner extent of a product."""
    memories: tuple[str, ...] = ()
    """Where its operands lie."""
    reach: str | None = None
    """The scale whose units a put or get goes between; None: it stays with the unit."""
    inside: bool = False
    """Whether these are units inside one instance, which share its memories."""
    spread: bool = False
    """Whether an operand is spread over the memories of units: it comes over their network."""
    width: int = 0
    """Bytes of an element on its way, where a copy converts; 0: those of ``dtype``."""
    row: int = 0
    """Bytes of the rows of a copy, and of what they are apart, in common; 0: any."""
    ahead: bool = False
    """Whether it is in a loop, or units have several instances: while the latency of one passes, an engine
    works on the next."""
    paired: bool = False
    """Whether every unit that sends also receives: a put or get could be a message."""

    @property
    def nbytes(self) -> int:
        return self.elements * (self.width or itemsize(self.dtype))

    @property
    def position(self) -> int:
        return self.machine.level(self.machine.scale(self.scale).level).position

    @property
    def far(self) -> bool:
        """Whether an operand lies in a memory above the unit, or in those of other units."""
        hda, position = self.machine, self.position
        return self.spread or any(hda.level(hda.memory(m).level).position > position for m in self.memories)

    @property
    def in_registers(self) -> bool:
        registers = self.machine.memory("l0")
        return any(self.machine.memory(m) is registers for m in self.memories)

    def engine(self, kind: str, dtype: str | None = None) -> tuple[Engine, int] | None:
        """Return the engine of a kind nearest to the scale, and how many of them a unit has."""
        return self.nearest(
            [e for e in self.machine.engines if e.kind == kind and (not dtype or e.rate(dtype))]
        )

    def mover(self, name: str) -> tuple[Engine, int] | None:
        """Return the DMA engine for copies of a name: one whose ``copies`` say so, else one that says
        nothing."""
        every = [e for e in self.machine.engines if e.kind == "dma"]
        named = [e for e in every if name in e.copies]
        return self.nearest(named or [e for e in every if not e.copies])

    def nearest(self, found: list[Engine]) -> tuple[Engine, int] | None:
        if not found:
            return None
        level, position = self.machine.level, self.position
        engine = min(found, key=lambda e: abs(level(e.level).position - position))
        units = max(1, self.machine.level(engine.level).total // self.machine.count(self.scale))
        return engine, engine.count * units


Price = Callable[[Request], int | None]
NamedPrice = Callable[[Request, str], int | None]


@dataclass(frozen=True, eq=False)
class Candidate:
    """One way to do a primitive: its price, and its meaning in ``T`` where lowering does not know it."""

    name: str
    price: Price
    body: Callable[..., Any] | None = None


CANDIDATES: dict[str, dict[str, Candidate]] = {}


def candidate(primitive: str, *names: str) -> Callable[[NamedPrice], NamedPrice]:
    """Register ``f(request, name) -> picoseconds or None`` for names that lowering knows."""

    def register(price: NamedPrice) -> NamedPrice:
        for name in names:
            one = Candidate(name, lambda request, name=name: price(request, name))  # type: ignore[misc]
            CANDIDATES.setdefault(primitive, {})[name] = one
        return price

    return register


def implementation(
    primitive: str, name: str, *, price: Price | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function written in ``T`` as a way to do a primitive: it gets the operands, and the options
    (``transpose_A`` …) that it has parameters for."""
    known = {word.lower(): word for word in CANDIDATES}
    word = known.get(str(primitive).lower())
    if word is None:
        raise MegatileError(
            f"there is no primitive '{primitive}'",
            advice=did_you_mean(str(primitive), sorted(known), what="primitives"),
        )
    taken = CANDIDATES[word].get(name)
    if taken is not None and taken.body is None:
        raise MegatileError(f"'{name}' is already an implementation of {word.lower()}", advice="another name")

    def register(body: Callable[..., Any]) -> Callable[..., Any]:
        CANDIDATES[word][name] = Candidate(name, price or (lambda request: None), body)
        return body

    return register


def check_implementation(primitive: str, name: str) -> None:
    if name not in CANDIDATES[primitive]:
        raise MegatileError(
            f"there is no implementation '{name}' of {primitive.lower()}",
            advice=did_you_mean(name, CANDIDATES[primitive], what="implementations"),
        )


def prices(request: Request) -> Mapping[str, int]:
    """Return picoseconds of every candidate that can do this, cheapest first."""
    return _prices(request, tuple(CANDIDATES[request.primitive].values()))


@cached(most=4096)
def _prices(request: Request, candidates: tuple[Candidate, ...]) -> Mapping[str, int]:
    every = {one.name: one for one in candidates}

    def price(name: str) -> int | None:
        found = every[name].price(request)
        if found is not None and not (isinstance(found, (int, float)) and 0 <= found < 1 << 63):
            raise MegatileError(
                f"the price of '{name}' for {request.primitive.lower()} must be non-negative picoseconds or "
                f"None, got {found!r}",
                advice="price=lambda request: request.operations // 100",
            )
        return found

    return MappingProxyType(cheapest(every, price).times)


def choose(request: Request, forced: str | None = None) -> tuple[str, Mapping[str, int]]:
    """Return the implementation of a statement among those that lowering knows (a body in ``T`` has been read
    in its place), and the prices of all that could do it; "" where no figures of the machine say anything."""
    every = prices(request)
    found = {name: p for name, p in every.items() if CANDIDATES[request.primitive][name].body is None}
    if forced is not None:
        check_implementation(request.primitive, forced)
        if forced not in found:
            raise MegatileError(
                f"'{forced}' cannot do this {request.primitive.lower()} at scale '{request.scale}' of "
                f"machine '{request.machine.name}'",
                advice=f"impl= may be {', '.join(found) or 'left out'}",
            )
        return forced, every
    return next(iter(found), ""), every


# --- products and reductions ----------------------------------------------------------------------


@candidate("Gemm", "tensor", "vector")
def _engine(request: Request, kind: str) -> int | None:
    """Return what the timing rule of the command says that does it on the nearest engine of a kind."""
    from megatile.timing.rules import Command, rule_of  # only those who ask for times load them

    found = request.engine(kind, request.dtype)
    if found is None:
        return None
    engine, count = found
    rate, extents = (engine.rate(request.dtype) or 1) * count, request.extents[:2]
    command = Command(request.primitive.lower(), request.operations, request.dtype, engine, rate, 0, extents)
    return rule_of(command.operation)(command)


def by_blocks_ps(request: Request) -> int | None:
    """Every block of a larger unit has its rows of the result; what others hold comes over their network."""
    hda = request.machine
    block = hda.scale("block")
    blocks = hda.count(block.name, within=request.scale) if request.scale in _scales_above(hda) else 1
    if blocks < 2:
        return None
    rows, *rest = request.extents
    part = replace(
        request,
        scale=block.name,
        operations=request.operations // blocks,
        extents=(-(-rows // blocks), *rest),
    )
    one = _engine(part, "tensor")
    return None if one is None else one + transfer_ps(replace(request, reach=block.name), 1 / blocks)


def _scales_above(hda: HDA) -> list[str]:
    low, high = hda.scale("block").position, hda.scale("device").position
    return [s.name for s in hda.scales if low < s.position < high]


@candidate("Reduce", "shuffle", "shared")
def _reduce(request: Request, name: str) -> int | None:
    """Lanes put their terms together by shuffles, or through shared memory and back."""
    vector = _engine(request, "vector")
    if vector is None or name == "shuffle" or request.position < _level(request, "l1"):
        return vector if name == "shuffle" else None
    memory = request.machine.memory("l1")
    return vector + 2 * memory.latency_ps + _serialise_ps(2 * request.nbytes, memory.effective_bandwidth)


def _serialise_ps(nbytes: float, rate: float) -> int:
    from megatile.timing.fabric import serialise_ps

    return serialise_ps(nbytes, rate)


def _level(request: Request, memory: str) -> int:
    return request.machine.level(request.machine.memory(memory).level).position


@candidate("Fill", "vector")
@candidate("Cumsum", "vector")
def _vector(request: Request, _: str) -> int | None:
    return _engine(request, "vector")


# --- copies ---------------------------------------------------------------------------------------


def transfer_ps(request: Request, part: float = 1.0, by: str = "tma") -> int:
    """Return a part of the bytes over the slowest of DMA engine, memories and network, with their
    latencies."""
    hda, count = request.machine, request.machine.count(request.scale)
    rates, latency = [], 0
    found = request.mover(by) or request.engine("dma")
    if found is not None:
        engine, many = found
        latency += engine.startup_ps + (0 if request.ahead else engine.latency_ps)
        rates.append((engine.bandwidth or float("inf")) * engine.efficiency * many)
    for name in request.memories:
        layer = hda.memory(name)
        rates.append(layer.effective_bandwidth * max(1.0, hda.level(layer.level).total / count))
        latency += layer.latency_ps
    if request.reach is not None:
        level = hda.level(hda.scale(request.reach).level).position
        for network in [n for n in hda.networks if hda.level(n.connects).position >= level][:1]:
            rates.append(network.bandwidth * network.efficiency)
            latency += network.latency_ps
    return latency + (_serialise_ps(part * request.nbytes, min(rates)) if rates else 0)


def _carrier(request: Request) -> str:
    """Return what carries a put or get: the network of the smallest unit that both are in."""
    hda, reach = request.machine, request.machine.scale(request.reach or "block").position
    return BY_SCALE[(reach >= hda.scale("device").position) + (reach >= hda.scale("node").position)]


def _fits(request: Request, name: str) -> bool:
    """Return whether the engine for copies of a name takes these rows, between memories that it reaches."""
    found = request.mover(name)
    if found is None:
        return False
    engine = found[0]
    registers = request.in_registers and request.machine.memory("l0") is not request.machine.memory("l1")
    return request.row % engine.least == 0 and not (registers and engine.copies and not engine.lanes)


def lanes_ps(request: Request, each: int) -> int | None:
    """Return the lanes' own time for ``each`` operations on every element."""
    return _engine(replace(request, operations=each * request.elements), "vector")


@candidate("Copy", "lsu")
def _lsu(request: Request, _: str) -> int | None:
    """Return the lanes' loads and stores: of the unit's own memories, and through registers of those above it
    and of other devices in its node."""
    apart = request.reach is not None and not request.inside
    if _at_device(request) or (apart and _carrier(request) != "copy_engine"):
        return None
    if not request.far and not apart:
        return lanes_ps(request, 1)
    lanes = lanes_ps(request, 2)
    if lanes is None or not _fits(request, "lsu"):
        return None
    return transfer_ps(request, by="lsu") + (0 if request.in_registers else lanes + _near_ps(request))


def _near_ps(request: Request) -> int:
    """Return what storing out of registers adds: the latency of the unit's own memory."""
    hda = request.machine
    near = [m for m in request.memories if hda.level(hda.memory(m).level).position <= request.position]
    return max((hda.memory(m).latency_ps for m in near), default=0)


@candidate("Copy", *BULK, *BY_SCALE)
def _bulk(request: Request, name: str) -> int | None:
    """Bulk copies by a DMA engine: between a unit's memory and one above it or another device's (tma, or dma
    where the machine has none), blocks of a device (dsmem), memories of a node (copy_engine), nodes (nic)."""
    apart = request.reach is not None and not request.inside
    has_tma = any("tma" in engine.copies for engine in request.machine.engines)
    wanted = "copy_engine" if _at_device(request) else BULK[not has_tma]
    if apart and (_at_device(request) or _carrier(request) != "copy_engine"):
        wanted = _carrier(request)
    moves = _at_device(request) or request.far or apart
    return transfer_ps(request, by=name) if name == wanted and moves and _fits(request, name) else None


@candidate("Copy", "software_channel")
def _channel(request: Request, _: str) -> int | None:
    """Return messages through a queue with slots in the receiver's memory: every unit sends its part and
    takes out what is sent to it."""
    if request.reach is None or not request.paired:
        return None
    hda = request.machine
    credit = sum(n.latency_ps for n in hda.networks[:1])
    pieces = -(-request.nbytes // (channel_of(request)[1] or max(1, request.nbytes)))
    direct = [_lsu(request, "lsu"), *(_bulk(request, name) for name in (*BULK, *BY_SCALE))]
    there = min((p for p in direct if p is not None), default=transfer_ps(request))
    out = transfer_ps(replace(request, reach=None), by="software_channel")
    return there + out + max(0, pieces - channel_of(request)[0]) * credit


def channel_of(request: Request) -> tuple[int, int]:
    """Return slots of a software channel's queues, and the bytes of one (0: whatever a message has)."""
    found = request.mover("software_channel") or request.engine("dma")
    return (found[0].slots, found[0].chunk or 0) if found is not None else (2, 0)


def _at_device(request: Request) -> bool:
    hda = request.machine
    return request.position >= hda.level(hda.scale("device").level).position


for _name in (
    "nccl",
    "rccl",
    "custom",
    "trtllm",
    "kernel",
    "copy_engine",
    "lsu",
    "in_network",
    "multicast",
    "shared",
):
    CANDIDATES.setdefault("Collective", {})[_name] = Candidate(_name, lambda request: None)
