"""The parts of a machine with every number resolved: bytes, bytes/s, picoseconds, operations/s."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, overload

from megatile.core.frozen import Frozen
from megatile.hda.topology import Topology

STANDARD_SCALES = ("thread", "warp", "warpgroup", "block", "cluster", "device", "node")
SAME_SCALE = (
    ("thread", "threads"),
    ("warp", "warps"),
    ("warpgroup", "warp_group", "warpgroups"),
    ("block", "blocks", "cta"),
    ("cluster", "cta_cluster", "tbc"),
    ("device", "gpu", "devices"),
    ("node", "nodes"),
)


class Unit(NamedTuple):
    """One unit of the hardware: a level and a number within the whole machine."""

    level: str
    index: int  # type: ignore[assignment]  # tuple.index is not used on units

    def __str__(self) -> str:
        return f"{self.level}:{self.index}"


class UnitRange(Sequence[Unit]):
    """Units of one level, counted but not stored."""

    __slots__ = ("indices", "level")

    def __init__(self, level: str, indices: Sequence[int]):
        self.level = level
        self.indices = indices

    def __len__(self) -> int:
        return len(self.indices)

    @overload
    def __getitem__(self, i: int) -> Unit: ...
    @overload
    def __getitem__(self, i: slice) -> UnitRange: ...
    def __getitem__(self, i: int | slice) -> Unit | UnitRange:
        if isinstance(i, slice):
            return UnitRange(self.level, self.indices[i])
        return Unit(self.level, self.indices[i])

    def __iter__(self) -> Iterator[Unit]:
        return (Unit(self.level, i) for i in self.indices)

    def __contains__(self, unit: object) -> bool:
        return (
            isinstance(unit, tuple) and len(unit) == 2 and unit[0] == self.level and unit[1] in self.indices
        )

    def index(self, unit: object, start: int = 0, stop: int | None = None) -> int:
        """Where a unit stands, without a look at the others."""
        if isinstance(unit, tuple) and unit in self:
            place = self.indices.index(unit[1])
            if start <= place and (stop is None or place < stop):
                return place
        raise ValueError(f"{unit} is not among these units of {self.level}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, UnitRange) or (self.level, len(self)) != (other.level, len(other)):
            return False
        if isinstance(self.indices, range) and isinstance(other.indices, range):
            return self.indices == other.indices
        return all(a == b for a, b in zip(self.indices, other.indices, strict=True))

    def __repr__(self) -> str:
        return f"UnitRange({self.level!r}, {len(self)} units)"


@dataclass(frozen=True)
class Level:
    """A level of the hardware. One unit holds ``num_units`` of the next smaller level."""

    name: str
    num_units: int
    total: int
    position: int
    clock_hz: float | None = None


@dataclass(frozen=True)
class Scale:
    """A named level to program at. ``implied``: not declared, so it has one unit in what encloses it."""

    name: str
    level: str
    position: int
    aliases: tuple[str, ...] = ()
    infer_lambda: str | None = None
    max_resident: int | None = None
    limits: Mapping[str, int] = field(default_factory=Frozen)
    implied: bool = False
    begin_ps: int = 0
    """From a slot being free to the first command of the instance that takes it."""


@dataclass(frozen=True)
class MemoryLayer:
    """One memory per unit of ``level``. Not ``shared``: divided among the smallest units inside."""

    name: str
    level: str
    size: int
    bandwidth: float
    latency_ps: int
    shared: bool = True
    cache: bool = False
    aliases: tuple[str, ...] = ()
    reserved: int = 0
    slices: int = 1
    page: int | None = None
    efficiency: float = 1.0
    roofline: bool | None = None
    """Whether operands of commands cost its bandwidth; None: where it stands above the engine."""
    per_thread: int | None = None
    """The most bytes that one thread can have of it."""
    of: str | None = None
    """Of a cache: the memory it stands in front of."""
    block: int | None = None
    fill: float | None = None
    write: str = "write_back"
    unit_bandwidth: float | None = None
    """What one unit alone gets of it in copies."""
    unit_size: int | None = None
    """What one unit alone gets of a cache that others use too."""
    sector: int | None = None
    """The least that is moved: rows of a copy begin and end at multiples of it."""
    banks: int | None = None
    bank: int = 4
    """Words of ``bank`` bytes lie in ``banks`` in turn; lanes that want different words of one take turns."""

    @property
    def available(self) -> int:
        """Bytes that programs may allocate in one unit."""
        return self.size - self.reserved

    @property
    def effective_bandwidth(self) -> float:
        return self.bandwidth * self.efficiency


@dataclass(frozen=True)
class Network:
    """A network in each unit of ``level`` that joins the units of level ``connects`` inside it.

    ``bandwidth`` is of one link in one direction, ``latency_ps`` of one link, ``hop_overhead_ps`` of every
    switch or router between two links.
    """

    name: str
    level: str
    connects: str
    topology: Topology
    bandwidth: float
    latency_ps: int
    hop_overhead_ps: int = 0
    duplex: bool = True
    virtual_channels: int = 1
    granule: int | None = None
    gateway: int | None = None
    in_network_reduction: tuple[str, ...] = ()
    efficiency: float = 1.0
    share: float = 1.0
    """What library kernels achieve of it; of the innermost network ``protocol.share`` says it."""

    @property
    def effective_bandwidth(self) -> float:
        return self.bandwidth * self.efficiency

    def bisection(self) -> float:
        """Bytes per second, one direction, across a cut of one such network into halves."""
        return self.topology.bisection_links() * self.effective_bandwidth


@dataclass(frozen=True)
class Engine:
    """Something that works: ``count`` in each unit of ``level``; ``throughput`` (operations/s) is of one."""

    name: str
    kind: str
    level: str
    count: int = 1
    throughput: Mapping[str, float] = field(default_factory=Frozen)
    bandwidth: float | None = None
    startup_ps: int = 0
    tile: tuple[int, ...] | None = None
    channels: int = 1
    chunk: int | None = None
    efficiency: float = 1.0
    latency_ps: int = 0
    """What a transfer takes longer, while the engine already works on the next; what a command waits for its
    first special function."""
    sustained: float = 1.0
    """Share of the rate that remains under load, when long products lower the clock."""
    shares: str | None = None
    """Engines of a unit that share something, by its name, take turns."""
    prefetch: bool = False
    """Whether copies do not wait for the latency of memories."""
    copies: tuple[str, ...] = ()
    """The implementations of copies that this engine does; none named: those that no other does."""
    lanes: bool = False
    """Whether the lanes that ask for a copy carry it, through their registers."""
    least: int = 1
    """Rows of a copy are whole multiples of so many bytes."""
    slots: int = 2
    """Slots of the queues of a software channel, each of ``chunk`` bytes."""
    fetch: tuple[int, int] | None = None
    """Rows, and bytes of each, that are read at once from an operand's banks; None: it lies as suits."""
    clips: tuple[int, int] | None = None
    """Rows and columns at multiples of which products of tiles that reach over the edge of a tensor stop;
    None: they do all of the tiles."""

    def rate(self, dtype: str) -> float | None:
        """Operations per second for a dtype; ``f8`` stands for both 8-bit floats, ``any`` for the rest."""
        for key in (dtype, "f8" if dtype.startswith("f8") else dtype, "any"):
            if key in self.throughput:
                return self.throughput[key] * self.efficiency
        return None


@dataclass(frozen=True)
class Station:
    """One stop of the control path."""

    name: str
    level: str
    overhead_ps: int


@dataclass(frozen=True)
class HostLink:
    """The link from the host to the machine."""

    bandwidth: float
    latency_ps: int


@dataclass(frozen=True)
class Control:
    """The path of a launch: the host's link, then the stations from the outermost level inwards; and the
    bytes of a message of the host, of a returned credit and of a signal."""

    host_link: HostLink | None = None
    launch: tuple[Station, ...] = ()
    message: int = 64
    credit: int = 16
    signal: int = 8


@dataclass(frozen=True)
class ChannelQueues:
    """Hardware queues of a level: directions, and the bytes of a returned credit."""

    name: str
    level: str
    directions: int
    credit: int = 0


@dataclass(frozen=True)
class LibraryFigures:
    """How a communication library sends; see ``LibrarySpec``. Without ``line_step`` there is no line path."""

    small_wire: float = 0.5
    line_wire: float = 1.0
    filling: int | None = None
    queues: int = 64
    line_start: float = 1.0
    line_step: Mapping[str, float] = field(default_factory=Frozen)
    line_far_step: Mapping[str, float] = field(default_factory=Frozen)


@dataclass(frozen=True)
class KernelFigures:
    """How fast a known kernel is; see ``KernelSpec``."""

    name: str
    share: float
    rows: int
    ramp: float = 0.0
    interval_ps: int | None = None
    channels: tuple[int, int] = (0, 0)
    merge: str = "torch"
    columns: int = 1
    bandwidth: float = 1.0
    start_us: float = 0.0
    wave_us: float = 0.0
    exposed: float = 0.0
    softmax: float = 0.0
    split_us: float | None = None


@dataclass(frozen=True)
class Protocol:
    """What collective kernels add to the wires; see ``ProtocolSpec`` for the meaning of each constant."""

    launch_ps: int = 0
    start_ps: int = 0
    step_ps: int = 0
    small_step_ps: int = 0
    far_step_ps: int = 0
    switch_step_ps: int = 0
    share: float = 1.0
    small_share: float = 0.5
    switch_share: float = 1.0
