"""The parts of a machine with every number resolved: bytes, bytes/s, picoseconds, operations/s.

Their fields are the keys of the description too (``schema``): a field of a marked kind, such as ``Bytes``, is
written as a quantity with its unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple, overload

from pydantic import Field

from megatile.core.frozen import Frozen
from megatile.hda.topology import Topology
from megatile.hda.values import (
    Bytes,
    Count,
    Factor,
    Microseconds,
    Name,
    PerSecond,
    Picoseconds,
    Portion,
    Throughputs,
    Whole,
)

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
ALIAS_USES = {"l0": "tiles in registers", "l1": "shared tiles of a block", "l2": "tensors"}
"""What programs keep in the memory of each standard name."""


class Unit(NamedTuple):
    """One unit of the hardware: a level and a number within the whole machine."""

    level: str
    index: int  # type: ignore[assignment]  # tuple.index is not used on units

    def __str__(self) -> str:
        return f"{self.level}:{self.index}"


@dataclass(slots=True, eq=False, repr=False)
class UnitRange(Sequence[Unit]):
    """Units of one level, counted but not stored."""

    level: str
    indices: Sequence[int]

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
        """Return where a unit stands, without a look at the others."""
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
    """A memory layer: one memory per unit of ``level``, shared by what is inside it or divided among the
    smallest units in it.

    A ``cache`` stands in front of memory ``of`` and holds blocks of ``block`` bytes, least recently used
    first out: hits are served at ``bandwidth``, blocks come in at ``fill`` (that of the memory behind, unless
    given).
    """

    name: Name
    level: Name
    size: Bytes
    bandwidth: PerSecond
    latency_ps: Picoseconds
    shared: bool = True
    cache: bool = False
    aliases: tuple[Name, ...] = ()
    reserved: Bytes = 0
    slices: Count = 1
    page: Bytes | None = None
    efficiency: Portion = 1.0
    roofline: bool | None = None
    """Whether operands of commands cost its bandwidth; None: where it stands above the engine."""
    unit_bandwidth: PerSecond | None = None
    """What one unit alone gets of it in copies."""
    unit_size: Bytes | None = None
    """What one unit alone gets of a cache that others use too."""
    sector: Bytes | None = None
    """The least that is moved: rows of a copy begin and end at multiples of it, and lanes of elementwise code
    share it only as neighbours."""
    banks: Count | None = None
    bank: Bytes = 4
    """Words of ``bank`` bytes lie in ``banks`` in turn; lanes that want different words of one take turns."""
    atomic_ps: Picoseconds | None = None
    """How long an atomic keeps its address: the next one there follows."""
    per_thread: Bytes | None = None
    """The most bytes that one thread can have of it."""
    thread_overhead: Bytes = 0
    """What a thread takes of it beside its tiles: addresses and counters."""
    product_overhead: Bytes = 0
    """What a thread takes of it for operands and pipelines of products: so much times the square root of its
    accumulators, as operands are the edges of a tile."""
    of: Name | None = None
    """Of a cache: the memory it stands in front of."""
    block: Bytes | None = None
    fill: PerSecond | None = None
    write: Literal["write_through", "write_back"] = "write_back"

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

    name: Name
    level: Name
    connects: str
    topology: Topology
    bandwidth: PerSecond
    latency_ps: Picoseconds
    hop_overhead_ps: Picoseconds = 0
    duplex: bool = True
    virtual_channels: Count = 1
    granule: Bytes | None = None
    gateway: Whole | None = None
    in_network_reduction: tuple[Literal["sum", "min", "max", "prod", "avg"], ...] = ()
    efficiency: Portion = 1.0
    share: Portion = 1.0
    """What library kernels achieve of it, where ``transports`` do not say it."""
    measured_latency_ps: Picoseconds | None = None
    measured_hop_overhead_ps: Picoseconds | None = None
    """Those with which the figures of ``transports`` were measured, where they are others now."""

    @property
    def effective_bandwidth(self) -> float:
        return self.bandwidth * self.efficiency

    def bisection(self) -> float:
        """Return bytes per second, one direction, across a cut of one such network into halves."""
        return self.topology.bisection_links() * self.effective_bandwidth


@dataclass(frozen=True)
class Engine:
    """Something that works: ``count`` in each unit of ``level``; ``throughput`` (operations/s) is of one."""

    name: Name
    kind: Literal["tensor", "vector", "scalar", "dma"]
    level: Name
    count: Count = 1
    throughput: Throughputs = field(default_factory=Frozen)
    bandwidth: PerSecond | None = None
    startup_ps: Picoseconds = 0
    latency_ps: Picoseconds = 0
    """What a transfer takes longer, while the engine already works on the next; what a command waits for its
    first special function."""
    tile: tuple[Count, ...] | None = None
    channels: Count = 1
    chunk: Bytes | None = None
    efficiency: Portion = 1.0
    sustained: Portion = 1.0
    """Share of the rate that remains under load, when products lower the clock of the whole unit."""
    shares: Name | None = None
    """Engines of a unit that share something, by its name, take turns."""
    prefetch: bool = False
    """Whether copies do not wait for the latency of memories."""
    copies: tuple[Name, ...] = ()
    """The implementations of copies that this engine does; none named: those that no other does."""
    lanes: bool = False
    """Whether the lanes that ask for a copy carry it, through their registers."""
    least: Bytes = 1
    """Rows of a copy are whole multiples of so many bytes."""
    slots: Count = 2
    """Slots of the queues of a software channel, each of ``chunk`` bytes."""
    fetch: tuple[Count, Count] | None = None
    """Rows, and bytes of each, that are read at once from an operand's banks; None: it lies as suits."""
    clips: tuple[Count, Count] | None = None
    """Rows and columns: a product of a tile that reaches over the edge of a tensor stops at a multiple of
    these; None: they do all of the tiles."""

    def rate(self, dtype: str) -> float | None:
        """Return operations per second for a dtype; ``f8`` and ``f4`` stand for all floats of these widths,
        ``any`` for the rest."""
        for key in (dtype, dtype[:2] if dtype.startswith(("f8", "f4")) else dtype, "any"):
            if key in self.throughput:
                return self.throughput[key] * self.efficiency
        return None


@dataclass(frozen=True)
class Station:
    """One station that a launch passes on its way from the host to the units."""

    level: Name
    overhead_ps: Picoseconds
    name: Name


@dataclass(frozen=True)
class HostLink:
    """The link between the host and the machine."""

    bandwidth: PerSecond
    latency_ps: Picoseconds


@dataclass(frozen=True)
class Control:
    """The path of a launch: the host's link, then the stations from the outermost level inwards; and the
    bytes of a message of the host to a unit, of a returned credit (where ``channels`` does not say it) and of
    a signal."""

    host_link: HostLink | None = None
    launch: tuple[Station, ...] = ()
    message: Bytes = 64
    credit: Bytes = 16
    signal: Bytes = 8


@dataclass(frozen=True)
class ChannelQueues:
    """Hardware queues between units of a level: how many directions, the bytes of a returned credit."""

    name: Name
    level: Name
    directions: Count = 8
    credit: Bytes = 0


@dataclass(frozen=True)
class KernelFigures:
    """How fast a known kernel of a device is, by name: ``attention`` is the local kernel of a schedule.

    ``share`` of the tensor engines' peak is what its inner loop reaches. ``rows`` are those of one
    work-group; work-groups run in waves over the compute units. ``ramp`` is what a work-group spends beside
    its inner loop, as columns of that loop. ``interval`` lies between the beginnings of two short kernels of
    a queue (as the control path has it for a launch, unless given). ``merge``: results are merged by one
    kernel (``fused``), by torch's operations, or as named.

    Library kernels (``gemm``, ``prefill``, ``moe``, …; ``timing/formulas.py``) are named after the framework
    that calls them where it is not the usual one (``trtllm.gemm``). They take ``start`` once and ``wave`` for
    each wave of work-groups of ``rows`` by ``columns``, and reach ``bandwidth`` of the memory's peak. Of the
    shorter of work and traffic ``exposed`` does not hide behind the longer. A softmax takes as long as so
    many dimensions of a head more. Work-groups that are too few are divided where ``split`` says what it
    costs to join the parts. Heads that share keys share work-groups if ``packed``; rows are permuted around
    experts at ``passes`` of the memory's peak, only those of the rank if ``packed``, and ``split`` is spent
    on each expert. A call outside a captured graph takes at least ``issue``. ``error`` is the median error on
    measured rows.
    """

    name: Name
    share: Portion
    rows: Count
    ramp: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    interval_ps: Picoseconds | None = None
    merge: Literal["fused", "torch", "ring-flash-attention"] = "torch"
    columns: Count = 1
    bandwidth: Portion = 1.0
    start_us: Microseconds = 0.0
    wave_us: Microseconds = 0.0
    exposed: Portion = 0.0
    softmax: Factor = 0.0
    split_us: Microseconds | None = None
    packed: bool = True
    passes: Portion = 1.0
    issue_us: Microseconds = 0.0
    error: Portion | None = None


@dataclass(frozen=True)
class ProtocolFigures:
    """How one protocol of a communication library's kernels spends its time; the figures are fitted, or say
    that they are an estimate.

    A collective takes ``start`` once. A message takes ``step`` (data ready at the sender until ready at the
    receiver), ``far_step`` more if it leaves the node, and its bytes at ``share`` of the rank's links. LL
    moves ``pass_bytes`` in a pass of a channel's threads: the first takes ``first``, each other ``next``.
    Beside what it sends a rank copies one block at ``copy_rate`` (the extra slot of a ring, its own block of
    an all-to-all), and the pipeline fills in ``fill`` of the time of a block of up to ``fill_bytes``. Across
    nodes the network cards give ``far_share`` of their rate, and ``far_fill`` and ``far_fill_bytes`` say how
    the pipeline over them fills. Kernels of engines and DeepEP (``timing/engine_rules.py``) add ``peer`` for
    each other rank or expert. ``error`` is the median error on measured rows.
    """

    start_ps: Picoseconds = 0
    step_ps: Picoseconds = 0
    far_step_ps: Picoseconds = 0
    share: Portion = 1.0
    far_share: Portion = 1.0
    first_ps: Picoseconds = 0
    next_ps: Picoseconds = 0
    pass_bytes: Bytes | None = None
    copy_rate: PerSecond | None = None
    fill: Factor = 0.0
    fill_bytes: Bytes | None = None
    far_fill: Factor = 0.0
    far_fill_bytes: Bytes | None = None
    peer_ps: Picoseconds = 0
    error: Portion | None = None


@dataclass(frozen=True)
class TransportFigures:
    """How a library's kernels move data between the units of a scale: ``transports`` of a machine file, by
    scale and library (``nccl``, ``rccl``; ``custom`` and ``trtllm``, all-reduce kernels of vLLM and
    TensorRT-LLM; ``deepep``).

    ``generation`` and ``cpu`` choose the rows of the library's own tuning tables, ``links`` and ``cards`` are
    what it counts of a device and a node. ``channels`` are its thread blocks, each with ``channel`` bytes per
    second at most; of small sizes every ``small_channel``, ``line_channel`` or ``bulk_channel`` bytes (LL,
    LL128, Simple) take another channel. A ring cuts blocks larger than ``ring_piece``. ``launch`` is the
    host's time from one collective to the next, which captured graphs do not spend. Point to point goes by
    ``peer_LL`` up to ``peer_bytes`` for each peer and by ``peer_Simple`` above.
    """

    protocols: Mapping[str, ProtocolFigures] = field(default_factory=Frozen)
    generation: Literal["volta", "ampere", "hopper", "blackwell", "cdna3", "any"] = "any"
    cpu: Literal["intel", "amd"] = "intel"
    links: Whole = 0
    cards: Whole = 0
    channels: Count = 1
    channel: PerSecond | None = None
    small_channel: Bytes | None = None
    line_channel: Bytes | None = None
    bulk_channel: Bytes | None = None
    ring_piece: Bytes | None = None
    peer_bytes: Bytes = 16 << 10
    launch_ps: Picoseconds = 0


@dataclass(frozen=True, eq=False)
class Parts:
    """Everything a machine is made of; levels and scales smallest first."""

    levels: tuple[Level, ...]
    scales: tuple[Scale, ...]
    """The scales it declares."""
    memories: tuple[MemoryLayer, ...]
    networks: tuple[Network, ...]
    engines: tuple[Engine, ...]
    control: Control | None
    channels: tuple[ChannelQueues, ...]
    transports: Mapping[str, Mapping[str, TransportFigures]]
    """How libraries move data between the units of a scale: by scale, then by library."""
    kernels: tuple[KernelFigures, ...]
    scale_names: Mapping[str, Scale]
    """By name and alias, those that are not declared too."""
    memory_names: Mapping[str, MemoryLayer]
