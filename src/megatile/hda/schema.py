"""What a machine description may contain: the keys of the YAML file, declared once.

Most keys are the fields of a machine's parts (``model``), which also say what they mean; numbers with a
dimension are written as a :class:`~megatile.core.quantities.Quantity`. Reading, checking, writing back and
the reference page all follow from these classes.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from typing import Annotated, Any, Literal, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model

from megatile.hda import model
from megatile.hda.values import (
    Arities,
    Count,
    Edge,
    Frequency,
    InferLambda,
    Instances,
    Name,
    Source,
    Time,
    Wraps,
    Written,
)

FORBID: Any = {"extra": "forbid"}
TopologyName = Literal[
    "ring", "line", "mesh", "torus", "switch", "full_mesh", "tree", "fat_tree", "rails", "edges"
]


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


def key_of(field_name: str) -> str:
    """Return the key that a field is written as: ``latency_ps`` as ``latency``, ``start_us`` as ``start``."""
    return field_name.removesuffix("_ps").removesuffix("_us")


def _spec(part: type, **other: Any) -> Any:
    """Return the keys that describe a part of a machine: its fields as they are written, and ``other`` ones
    that it is made from, each as (type, default)."""
    required: dict[str, Any] = {}
    optional: dict[str, Any] = {}
    hints = get_type_hints(part, include_extras=True)
    for f in fields(part):
        key, hint = key_of(f.name), hints[f.name]
        marks = [getattr(h, "__metadata__", (None,))[0] for h in (hint, *get_args(hint))]
        written = next((mark.kind for mark in marks if isinstance(mark, Written)), None)
        if f.default is MISSING and f.default_factory is MISSING:
            required[key] = (written or hint, ...)
        elif written is not None:
            optional[key] = (written | None, None)
        else:
            factory = f.default_factory
            optional[key] = (hint, f.default if factory is MISSING else Field(default_factory=factory))
    new = {key: value for key, value in other.items() if key not in optional}
    keys = {**required, **new, **optional, **other}
    made = create_model(f"{part.__name__}Spec", __base__=_Part, __doc__=part.__doc__, **keys)
    return globals().setdefault(
        made.__name__, made
    )  # machines are sent to other processes: pickle asks for it


def _many(spec: Any) -> tuple[Any, Any]:
    return tuple[spec, ...], ()


MemorySpec = _spec(model.MemoryLayer)
NetworkSpec = _spec(
    model.Network,
    connects=(Name | None, None),
    topology=(TopologyName, ...),
    dims=(tuple[Count, ...] | None, None),
    wrap=(Wraps | None, None),
    arity=(Arities | None, None),
    oversubscription=(tuple[Annotated[float, Field(ge=1, allow_inf_nan=False)], ...], ()),
    rails=(Count | None, None),
    edges=(tuple[Edge, ...] | None, None),
    duplex=(Literal["full", "half"], "full"),
)
EngineSpec = _spec(model.Engine)
HostLinkSpec = _spec(model.HostLink, kind=(str | None, None))
LaunchSpec = _spec(model.Station, name=(Name | None, None))
ControlSpec = _spec(
    model.Control,
    host_link=(HostLinkSpec | None, None),
    launch=_many(LaunchSpec),
)
ChannelSpec = _spec(model.ChannelQueues)
LibraryName = Literal["nccl", "rccl", "custom", "trtllm", "deepep"]
ProtocolName = Literal[
    "LL", "LL128", "Simple", "tree_LL", "tree_LL128", "tree_Simple", "NVLS", "NVLSTree",
    "pairs_LL", "pairs_Simple", "pairs_MSCCL++", "peer_LL", "peer_Simple", "one_shot",
    "two_shot", "dispatch", "combine", "dispatch_low_latency", "combine_low_latency",
]  # fmt: skip
"""Members of ``protocols``: of rings, trees over nodes, in-switch reduction, all pairs, point to point,
kernels of engines, DeepEP."""
ProtocolFiguresSpec: Any = _spec(model.ProtocolFigures)
TransportSpec: Any = _spec(
    model.TransportFigures, protocols=(dict[ProtocolName, ProtocolFiguresSpec], Field(default_factory=dict))
)


KernelSpec = _spec(model.KernelFigures)


MachineSpec: Any = create_model(
    "MachineSpec",
    __config__=ConfigDict(extra="forbid", frozen=True),
    __doc__="A whole machine description. ``extends`` and ``parameters`` were applied before and are gone.",
    name=(Name, "machine"),
    description=(str | None, None),
    kind=(str | None, None),
    source=(Source | None, None),
    hw_spec=(HardwareSpecification, ...),
    hw_abstr=(tuple[ScaleView, ...], ...),
    clocks=(dict[str, Frequency], Field(default_factory=dict)),
    memory=_many(MemorySpec),
    networks=_many(NetworkSpec),
    engines=_many(EngineSpec),
    control=(ControlSpec | None, None),
    channels=_many(ChannelSpec),
    transports=(dict[Name, dict[LibraryName, TransportSpec]], Field(default_factory=dict)),
    kernels=_many(KernelSpec),
)
