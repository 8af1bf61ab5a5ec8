"""What a machine description may contain: the keys of the YAML file, declared once.

Reading, checking, writing back and the reference page all follow from these classes. Every number with a
dimension is a :class:`~megatile.core.quantities.Quantity`; what it means on a machine is in ``model``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    PlainSerializer,
    PlainValidator,
)

from megatile.core.arithmetic import Lambda
from megatile.core.errors import MegatileError
from megatile.core.quantities import Quantity, quantity

FORBID: Any = {"extra": "forbid"}


def _reject(problem: MegatileError) -> ValueError:
    return ValueError(problem.message + (f" (try: {problem.advice})" if problem.advice else ""))


def _reader(dimension: str) -> Any:
    def read(raw: Any) -> Quantity:
        try:
            return quantity(raw, dimension)
        except MegatileError as problem:
            raise _reject(problem) from None

    return BeforeValidator(read)


def _whole(raw: Any) -> Any:
    if isinstance(raw, float) and raw.is_integer():
        return int(raw)
    if isinstance(raw, bool) or not isinstance(raw, int):
        raise ValueError(f"a whole number is needed, not {raw!r}")
    return raw


def _count(raw: Any) -> Any:
    if _whole(raw) < 1:
        raise ValueError(f"a count must be at least 1, not {raw}")
    if raw > 10**15:
        raise ValueError(f"a count of {raw} is beyond any machine")
    return raw


def _name(raw: Any) -> Any:
    if not isinstance(raw, str) or not raw.strip() or not raw.isprintable():
        raise ValueError(f"a name is needed, not {raw!r}")
    return raw


def _lambda(raw: Any) -> Any:
    if raw is None:
        return raw
    try:
        Lambda.parse(raw, arity=2)
    except MegatileError as problem:
        raise _reject(problem) from None
    return raw


# Of a union pydantic would report every branch, so a value of several kinds is read by one function.


def _source(raw: Any) -> Any:
    texts = raw.values() if isinstance(raw, dict) else [raw]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"a text is needed, or a text for each key, not {raw!r}")
    return raw


def _instances(raw: Any) -> Any:
    return tuple(_whole(extent) for extent in raw) if isinstance(raw, (list, tuple)) else _whole(raw)


def _tuple(raw: Any) -> Any:
    return tuple(raw) if isinstance(raw, (list, tuple)) else (raw,)


def _edge(raw: Any) -> Any:
    parts = list(raw) if isinstance(raw, (list, tuple)) else []
    if len(parts) == 2:
        parts.append(1)
    if len(parts) != 3:
        raise ValueError(f"an edge is [a, b] or [a, b, cables], not {raw!r}")
    return _whole(parts[0]), _whole(parts[1]), _count(parts[2])


def _ratio(raw: Any) -> Any:
    parts = raw.split("/") if isinstance(raw, str) else [raw]
    try:
        numbers = [float(part) for part in parts]
        found = numbers[0] / (numbers[1] if len(numbers) == 2 else 1.0)
    except (ValueError, TypeError, ZeroDivisionError):
        found = -1.0
    if len(parts) > 2 or not 0 < found < 1e9 or isinstance(raw, bool):
        raise ValueError(f"a ratio above 0 is needed, such as 0.5 or 14/6.6, not {raw!r}")
    return found


def _by_dtype(raw: Any) -> Any:
    return raw if isinstance(raw, dict) or raw is None else {"any": raw}


_AS_TEXT = PlainSerializer(str, return_type=str)
Size = Annotated[InstanceOf[Quantity], _reader("bytes"), _AS_TEXT]
Rate = Annotated[InstanceOf[Quantity], _reader("bytes/s"), _AS_TEXT]
Time = Annotated[InstanceOf[Quantity], _reader("time"), _AS_TEXT]
Frequency = Annotated[InstanceOf[Quantity], _reader("Hz"), _AS_TEXT]
Throughput = Annotated[InstanceOf[Quantity], _reader("ops/s"), _AS_TEXT]
Share = Annotated[InstanceOf[Quantity], _reader("share"), _AS_TEXT]
Count = Annotated[int, BeforeValidator(_count)]
Ratio = Annotated[float, BeforeValidator(_ratio)]
Name = Annotated[str, BeforeValidator(_name)]
InferLambda = Annotated[str, BeforeValidator(_lambda)]
Source = Annotated[str | dict[str, str], PlainValidator(_source)]
Instances = Annotated[int | tuple[int, ...], PlainValidator(_instances)]


@dataclass(frozen=True)
class ComputeUnit:
    """One level of the hardware: how many units of the next smaller level one of it holds."""

    name: Name
    num_units: Count
    source: Source | None = field(default=None, hash=False)

    __pydantic_config__ = FORBID


@dataclass(frozen=True)
class ScaleView:
    """A scale to program at; in ``hw_abstr`` its declaration, in ``instantiate`` how many are wanted.

    ``instance_num`` is a count, a tuple of counts (x first) or -1 to infer it. With ``is_flatten`` the scales
    between this one and the one before are collapsed. ``max_resident`` says how many instances one unit of
    ``target`` holds at a time, ``limits`` how many may be in one instance of a larger scale, ``begin`` how
    long one takes to begin where another has ended.
    """

    name: Name
    target: Name | None = None
    infer_lambda: InferLambda | None = None
    instance_num: Instances = -1
    is_flatten: bool = False
    aliases: tuple[Name, ...] = ()
    max_resident: Count | None = None
    limits: dict[str, Count] = field(default_factory=dict, hash=False)
    begin: Time | None = None
    source: Source | None = field(default=None, hash=False)

    __pydantic_config__ = FORBID


@dataclass(frozen=True)
class HardwareSpecification:
    """The levels: inside a processing element, and groups of processing elements, smallest first."""

    pe: list[ComputeUnit]
    pe_groups: list[ComputeUnit] = field(default_factory=list)

    __pydantic_config__ = FORBID


@dataclass(frozen=True)
class HardwareAbstraction:
    """The scales a program may name, smallest first."""

    scales: list[ScaleView]

    __pydantic_config__ = FORBID


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    source: Source | None = None
    note: str | None = None


class MemorySpec(_Part):
    """A memory layer: one memory per unit of ``level``, shared by what is inside it or divided among it.

    A ``cache`` stands in front of memory ``of`` and holds blocks of ``block`` bytes, least recently used
    first out: hits are served at ``bandwidth``, blocks come in at ``fill`` (that of the memory behind, unless
    given).
    """

    name: Name
    level: Name
    size: Size
    bandwidth: Rate
    latency: Time
    shared: bool = True
    cache: bool = False
    aliases: tuple[Name, ...] = ()
    reserved: Size | None = None
    slices: Count = 1
    page: Size | None = None
    efficiency: Share | None = None
    roofline: bool | None = None
    unit_bandwidth: Rate | None = None
    unit_size: Size | None = None
    sector: Size | None = None
    banks: Count | None = None
    bank: Size | None = None
    per_thread: Size | None = None
    of: Name | None = None
    block: Size | None = None
    fill: Rate | None = None
    write: Literal["write_through", "write_back"] = "write_back"


TopologyName = Literal[
    "ring", "line", "mesh", "torus", "switch", "full_mesh", "tree", "fat_tree", "rails", "edges"
]


class NetworkSpec(_Part):
    """A network inside one unit of ``level`` that joins the units of level ``connects`` in it."""

    name: Name
    level: Name
    connects: Name | None = None
    topology: TopologyName
    bandwidth: Rate
    latency: Time
    dims: tuple[Count, ...] | None = None
    wrap: Annotated[tuple[bool, ...], BeforeValidator(_tuple)] | None = None
    arity: Annotated[tuple[Count, ...], BeforeValidator(_tuple)] | None = None
    oversubscription: tuple[Annotated[float, Field(ge=1, allow_inf_nan=False)], ...] = ()
    rails: Count | None = None
    edges: tuple[Annotated[tuple[int, int, int], BeforeValidator(_edge)], ...] | None = None
    hop_overhead: Time | None = None
    duplex: Literal["full", "half"] = "full"
    virtual_channels: Count = 1
    granule: Size | None = None
    gateway: Annotated[int, BeforeValidator(_whole), Field(ge=0)] | None = None
    in_network_reduction: tuple[Literal["sum", "min", "max", "prod", "avg"], ...] = ()
    efficiency: Share | None = None
    share: Share | None = None


DtypeKey = Literal[
    "any", "f64", "f32", "tf32", "f16", "bf16", "f8", "f8e4m3", "f8e5m2", "f4", "i64", "i32", "i8", "u8"
]


class EngineSpec(_Part):
    """Something that works: ``count`` of them in each unit of ``level``."""

    name: Name
    kind: Literal["tensor", "vector", "scalar", "dma"]
    level: Name
    count: Count = 1
    throughput: Annotated[dict[DtypeKey, Throughput] | None, BeforeValidator(_by_dtype)] = None
    bandwidth: Rate | None = None
    startup: Time | None = None
    latency: Time | None = None
    tile: tuple[Count, ...] | None = None
    channels: Count = 1
    chunk: Size | None = None
    efficiency: Share | None = None
    sustained: Share | None = None
    shares: Name | None = None
    prefetch: bool = False
    copies: tuple[Name, ...] = ()
    lanes: bool = False
    least: Size | None = None
    slots: Count = 2
    fetch: tuple[Count, Count] | None = None
    clips: tuple[Count, Count] | None = None


class HostLinkSpec(_Part):
    """The link between the host and the machine."""

    bandwidth: Rate
    latency: Time
    kind: str | None = None


class LaunchSpec(_Part):
    """One station that a launch passes on its way from the host to the units."""

    level: Name
    overhead: Time
    name: Name | None = None


class ControlSpec(_Part):
    """The control path, from the host downwards, and the sizes of small messages: of the host to a unit, a
    returned credit (where ``channels`` does not say it), a signal."""

    host_link: HostLinkSpec | None = None
    launch: tuple[LaunchSpec, ...] = ()
    message: Size | None = None
    credit: Size | None = None
    signal: Size | None = None


class ChannelSpec(_Part):
    """Hardware queues between units: how many directions, what a returned credit costs on the wire."""

    name: Name
    level: Name
    directions: Count = 8
    credit: Size | None = None


class ProtocolSpec(_Part):
    """What collective kernels add to the bare wires: at most six of these constants in one machine.

    ``launch`` is the host's time from one collective to the next. ``start`` is spent once in a collective on
    the bulk and the small path, ``switch_step`` once with in-switch reduction. ``step`` and ``small_step``
    are what a message takes besides its bytes on the bulk and on the small path, in place of the latencies of
    memory and innermost network; ``far_step`` is added to each message that leaves the innermost network.
    ``share``, ``small_share`` (half: a flag beside every word) and ``switch_share`` are what the bulk path,
    the small path and in-switch reduction achieve of the link rate.
    """

    launch: Time | None = None
    start: Time | None = None
    step: Time | None = None
    small_step: Time | None = None
    far_step: Time | None = None
    share: Share | None = None
    small_share: Share | None = None
    switch_share: Share | None = None
    switch_step: Time | None = None


class LibrarySpec(_Part):
    """How the machine's communication library sends, as its own sources have it; nothing here is fitted.

    ``small_wire`` and ``line_wire`` are what flags leave of the wire on these paths. ``filling`` channels
    fill a link. ``queues`` messages of a unit are under way side by side. The line path has a start beside
    that of the small path (``line_start``), and by algorithm a step and a far step beside the others'.
    """

    small_wire: Share | None = None
    line_wire: Share | None = None
    filling: Count | None = None
    queues: Count = 64
    line_start: Ratio = 1.0
    line_step: dict[Name, Ratio] = Field(default_factory=dict)
    line_far_step: dict[Name, Ratio] = Field(default_factory=dict)


class HeldUnitsSpec(_Part):
    """Compute units that messages hold while they travel: for each peer, and at most."""

    peer: Annotated[int, BeforeValidator(_whole), Field(ge=0)] = 0
    most: Annotated[int, BeforeValidator(_whole), Field(ge=0)] = 0


class KernelSpec(_Part):
    """How fast a known kernel of a device is, by name: ``attention`` is the local kernel of a schedule.

    ``share`` of the tensor engines' peak is what its inner loop reaches. ``rows`` are those of one
    work-group; work-groups run in waves over the compute units. ``ramp`` is what a work-group spends beside
    its inner loop, as columns of that loop. ``interval`` lies between the beginnings of two short kernels of
    a queue (as the control path has it for a launch, unless given). ``channels``: compute units that messages
    hold. ``merge``: results are merged by one kernel (``fused``), by torch's operations, or as named.

    Library kernels (``gemm``, ``gemm_f8``, ``quantise``, ``prefill``, ``decode``, ``moe``, ``moe_f8``,
    ``moe_f8_tensor``; ``timing/formulas.py``) take ``start`` once and ``wave`` for each wave of work-groups
    of ``rows`` by ``columns``; they reach ``bandwidth`` of the memory's peak. Of the shorter of work and
    traffic ``exposed`` does not hide behind the longer. A softmax takes as long as so many dimensions of a
    head more. Work-groups
    that are too few are divided where ``split`` says what it costs to join the parts. ``dispatch`` and
    ``combine`` of experts: one compute unit fills a ``share`` of a device's link and spends ``wave`` on each
    message.
    """

    name: Name
    share: Share
    rows: Count
    ramp: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    interval: Time | None = None
    channels: HeldUnitsSpec = HeldUnitsSpec()
    merge: Literal["fused", "torch", "ring-flash-attention"] = "torch"
    columns: Count = 1
    bandwidth: Share | None = None
    start: Time | None = None
    wave: Time | None = None
    exposed: Share | None = None
    softmax: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] = 0.0
    split: Time | None = None


class MachineSpec(BaseModel):
    """A whole machine description. ``extends`` and ``parameters`` were applied before and are gone."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Name = "machine"
    description: str | None = None
    source: Source | None = None
    hw_spec: HardwareSpecification
    hw_abstr: tuple[ScaleView, ...]
    clocks: dict[str, Frequency] = Field(default_factory=dict)
    memory: tuple[MemorySpec, ...] = ()
    networks: tuple[NetworkSpec, ...] = ()
    engines: tuple[EngineSpec, ...] = ()
    control: ControlSpec | None = None
    channels: tuple[ChannelSpec, ...] = ()
    protocol: ProtocolSpec | None = None
    library: LibrarySpec | None = None
    kernels: tuple[KernelSpec, ...] = ()
