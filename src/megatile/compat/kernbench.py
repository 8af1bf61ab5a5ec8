"""The KernBench form of a machine file (``topology.yaml``) → the HDA form.

Four sections, from the outside in: ``system`` (SIPs and the host), ``sip`` (a mesh of cubes), ``cube`` (PEs,
NoC, HBM, SRAM) and ``pe`` (engines and TCM). Overheads of components become stations of the control path.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from megatile.core.errors import did_you_mean
from megatile.hda.document import Document, KeyPath
from megatile.hda.load import describe
from megatile.hda.values import Count, Frequency, Name, Rate, Size, Time, Whole

SECTIONS = ("system", "sip", "cube", "pe")
# In KernBench a plain mesh_2d wraps round.
GRIDS = {"ring_1d": "ring", "torus_2d": "torus", "mesh_2d": "torus", "mesh_2d_no_wrap": "mesh"}
STATIONS = (
    ("sip", "pcie_ep"),
    ("sip", "io_cpu"),
    ("cube", "m_cpu"),
    ("pe", "pe_cpu"),
    ("pe", "pe_scheduler"),
)
# The kinds of components and the attributes each may have.
KINDS: dict[str, tuple[str, ...]] = {
    **{kind: ("overhead_ns",) for _, kind in STATIONS},
    "switch": ("overhead_ns",),
    "pe_dma": ("channels", "chunk_bytes", "setup_ns"),
    "pe_gemm": ("tile", "macs_per_cycle"),
    "pe_math": ("lanes", "start_ns"),
    "pe_ipcq": ("directions", "credit_bytes"),
    "pe_mmu": ("page",),
}
GridName = Literal["ring_1d", "torus_2d", "mesh_2d", "mesh_2d_no_wrap"]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Link(_Part):
    bandwidth: Rate
    latency: Time
    kind: str | None = None


class _Component(_Part):
    """A station or an engine: what it is, which implementation, its attributes."""

    kind: Name
    impl: str | None = None
    attrs: dict[str, Any] = Field(default_factory=dict)

    @field_validator("kind")
    @classmethod
    def known(cls, kind: str) -> str:
        if kind not in KINDS:
            raise ValueError(f"kind '{kind}' is unknown (try: {did_you_mean(kind, KINDS, what='kinds')})")
        return kind

    @model_validator(mode="after")
    def known_attributes(self) -> _Component:
        allowed = KINDS[self.kind]
        for key in self.attrs:
            if key not in allowed:
                advice = did_you_mean(key, allowed, what="attributes")
                raise ValueError(f"a {self.kind} has no attribute '{key}' (try: {advice})")
        return self


Components = dict[str, _Component]


class _Host(_Part):
    link: _Link


class _Sips(_Part):
    count: Count
    topology: GridName = "ring_1d"
    link: _Link


class _System(_Part):
    host: _Host | None = None
    sips: _Sips
    components: Components = Field(default_factory=dict)


class _CubeMesh(_Part):
    w: Count
    h: Count
    link: _Link
    gateway: Whole = 0
    """The cube at which the SIP's outer links end."""


class _Sip(_Part):
    cube_mesh: _CubeMesh
    components: Components = Field(default_factory=dict)


class _PeLayout(_Part):
    corners: tuple[Name, ...] = Field(min_length=1)
    pe_per_corner: Count


class _Noc(_Part):
    topology: GridName = "mesh_2d_no_wrap"
    link: _Link
    gateway: Whole = 0
    """The PE at whose router the cube's links to other cubes and SIPs end."""


class _Memory(_Part):
    size: Size
    bandwidth: Rate
    latency: Time
    slices: Count = 1
    reserved: Size | None = None


class _Cube(_Part):
    pe_layout: _PeLayout
    noc: _Noc
    hbm: _Memory | None = None
    sram: _Memory | None = None
    components: Components = Field(default_factory=dict)


class _Pe(_Part):
    clock: Frequency
    tcm: _Memory | None = None
    components: Components = Field(default_factory=dict)


class _Topology(_Part):
    name: Name = "ahbm"
    description: str | None = None
    kind: str | None = None
    source: str | None = None
    system: _System
    sip: _Sip
    cube: _Cube
    pe: _Pe


def reads(data: dict[str, Any]) -> bool:
    """Whether a description without ``hw_spec`` has the KernBench form."""
    return any(section in data for section in SECTIONS)


def to_hda(document: Document) -> Document:
    """The same machine in the HDA form; mistakes are reported at their place in the topology file."""
    try:
        topology = _Topology.model_validate(document.data)
    except ValidationError as failed:
        raise _problem(document, failed) from None
    result = Document(_Writer(topology, document).data(), document.file, parameters=document.parameters)
    for to, key_path in _origins(result.data):
        result.places[to] = document.place(key_path)
    return result


def _origins(data: dict[str, Any]) -> Iterator[tuple[KeyPath, KeyPath]]:
    """Parts of the HDA form → where they come from, so that later findings have a line too."""
    sections: dict[str, KeyPath] = {
        **{"tcm": ("pe", "tcm"), "sram": ("cube", "sram"), "hbm": ("cube", "hbm")},
        **{"noc": ("cube", "noc"), "cubes": ("sip", "cube_mesh"), "sips": ("system", "sips")},
    }
    for key in ("memory", "networks", "engines"):
        for i, part in enumerate(data[key]):
            yield (key, i), sections.get(part["name"]) or ("pe", "components", part["name"])
    for i, level in enumerate(("cube", "sip", "system")):
        yield ("hw_spec", "pe_groups", i), (level,)
    yield ("hw_spec",), ("system",)
    yield ("control",), ("system", "host")
    yield ("clocks",), ("pe", "clock")


def _problem(document: Document, failed: ValidationError) -> Exception:
    found = failed.errors(include_url=False)
    return describe(document, min(found, key=lambda error: error["type"] == "missing"), _keys_at)


def _keys_at(key_path: tuple[str | int, ...]) -> list[str]:
    model: Any = _Topology
    for before, step in zip(("", *key_path), key_path, strict=False):
        if before == "components":  # any name, then the keys of a component
            continue
        info = getattr(model, "model_fields", {}).get(step)
        if info is None:
            return []
        kinds = [info.annotation, *getattr(info.annotation, "__args__", ())]
        model = next((k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)), None)
    return list(getattr(model, "model_fields", {}))


class _Writer:
    def __init__(self, topology: _Topology, document: Document):
        self.top = topology
        self.document = document
        self.source = topology.source or "topology file in the KernBench form"

    def data(self) -> dict[str, Any]:
        top = self.top
        mesh = top.sip.cube_mesh
        pes = len(top.cube.pe_layout.corners) * top.cube.pe_layout.pe_per_corner
        return {
            "name": top.name,
            "description": top.description,
            "kind": top.kind,
            "hw_spec": {
                "pe": [self.level("pe", 1)],
                "pe_groups": [
                    self.level("cube", pes),
                    self.level("sip", mesh.w * mesh.h),
                    self.level("system", top.system.sips.count),
                ],
            },
            "hw_abstr": [
                {"name": "pe", "target": "pe", "aliases": ["block"]},
                {"name": "cube", "target": "cube", "aliases": ["cluster"]},
                {"name": "sip", "target": "sip", "aliases": ["device", "rank"]},
                {"name": "system", "target": "system", "aliases": ["node"]},
            ],
            "clocks": {"pe": str(top.pe.clock)},
            "memory": self.memories(),
            "networks": self.networks(),
            "engines": self.engines(),
            "control": self.control(),
            "channels": self.channels(),
        }

    def level(self, name: str, count: int) -> dict[str, Any]:
        return {"name": name, "num_units": count, "source": self.source}

    def memories(self) -> list[dict[str, Any]]:
        layers = [
            ("tcm", "pe", self.top.pe.tcm, ["l0", "l1"]),
            ("sram", "cube", self.top.cube.sram, []),
            ("hbm", "cube", self.top.cube.hbm, ["l2"]),
        ]
        return [self.memory(name, level, spec, names) for name, level, spec, names in layers if spec]

    def memory(self, name: str, level: str, spec: _Memory, aliases: list[str]) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "name": name,
            "level": level,
            "size": str(spec.size),
            "bandwidth": str(spec.bandwidth),
            "latency": str(spec.latency),
            "slices": spec.slices,
            "source": self.source,
        }
        if aliases:
            entry["aliases"] = aliases
        if spec.reserved:
            entry["reserved"] = str(spec.reserved)
        page = self.attribute("pe", self.named("pe", "pe_mmu"), "page", Size)
        if name == "hbm" and page:
            entry["page"] = str(page)
        return entry

    def networks(self) -> list[dict[str, Any]]:
        top = self.top
        sips = self.network("sips", "system", top.system.sips.topology, top.system.sips.link)
        overhead = self.attribute("system", self.named("system", "switch"), "overhead_ns", Nanoseconds)
        if overhead is not None:
            sips["hop_overhead"] = overhead
        mesh = top.sip.cube_mesh
        cubes = self.network("cubes", "sip", "mesh_2d_no_wrap", mesh.link)
        noc = self.network("noc", "cube", top.cube.noc.topology, top.cube.noc.link)
        channels = self.attribute("pe", self.named("pe", "pe_dma"), "channels", Count)
        if channels:
            noc["virtual_channels"] = cubes["virtual_channels"] = channels
        noc["gateway"], cubes["gateway"] = top.cube.noc.gateway, mesh.gateway
        return [{**noc, **self.pe_grid()}, {**cubes, "dims": [mesh.w, mesh.h]}, sips]

    def network(self, name: str, level: str, topology: str, link: _Link) -> dict[str, Any]:
        return {
            "name": name,
            "level": level,
            "topology": GRIDS[topology],
            "bandwidth": str(link.bandwidth),
            "latency": str(link.latency),
            "source": self.source,
        }

    def pe_grid(self) -> dict[str, Any]:
        """Corners form a square, each with its PEs in a row: four corners of two are a 4×2 grid."""
        layout = self.top.cube.pe_layout
        if self.top.cube.noc.topology == "ring_1d":
            return {}
        rows = math.isqrt(len(layout.corners))
        while len(layout.corners) % rows:
            rows -= 1
        return {"dims": [len(layout.corners) // rows * layout.pe_per_corner, rows]}

    def engines(self) -> list[dict[str, Any]]:
        found = []
        for name, component in self.top.pe.components.items():
            if component.kind in _ENGINES:
                found.append({"name": name, "level": "pe", "source": self.source, **self.part(name)})
        return found

    def part(self, name: str) -> dict[str, Any]:
        """What a component of a PE is in the HDA form: what always holds, and the attributes it has."""
        standard, attributes = _PARTS[self.top.pe.components[name].kind]
        given = {
            key: write(value)
            for attribute, (key, kind, write) in attributes.items()
            if (value := self.attribute("pe", name, attribute, kind))
        }
        return {**standard, **given}

    def control(self) -> dict[str, Any]:
        host = self.top.system.host
        link = {"bandwidth": str(host.link.bandwidth), "latency": str(host.link.latency)} if host else None
        stations = []
        for section, kind in STATIONS:
            name = self.named(section, kind)
            if name:
                overhead = self.attribute(section, name, "overhead_ns", Nanoseconds) or "0 ns"
                stations.append({"name": name, "level": section, "overhead": overhead, "source": self.source})
        control: dict[str, Any] = {"launch": stations, "source": self.source}
        if link and host:
            control["host_link"] = {**link, "kind": host.link.kind, "source": self.source}
        return control

    def channels(self) -> list[dict[str, Any]]:
        name = self.named("pe", "pe_ipcq")
        if not name:
            return []
        return [{"name": "ipcq", "level": "pe", "source": self.source, **self.part(name)}]

    def named(self, section: str, kind: str) -> str | None:
        """The name of the section's component of a kind."""
        parts: Components = getattr(self.top, section).components
        return next((name for name, component in parts.items() if component.kind == kind), None)

    def attribute(self, section: str, name: str | None, key: str, kind: Any) -> Any:
        """A checked attribute of a component, None if it is not given."""
        component = getattr(self.top, section).components.get(name)
        if name is None or component is None or key not in component.attrs:
            return None
        key_path = (section, "components", name, "attrs", key)
        try:
            return TypeAdapter(kind).validate_python(component.attrs[key])
        except ValidationError as failed:
            message = failed.errors()[0]["msg"].removeprefix("Value error, ")
            raise self.document.error(message[:1].lower() + message[1:], key_path) from None


def _nanoseconds(raw: Any) -> str:
    if isinstance(raw, bool) or not isinstance(raw, (int, float)) or not 0 <= raw < 1e12:
        raise ValueError(f"must be a number of nanoseconds, got {raw!r}")
    return f"{raw:g} ns"


Nanoseconds = Annotated[str, BeforeValidator(_nanoseconds)]
_ENGINES = ("pe_gemm", "pe_math", "pe_dma")
_PARTS: dict[str, tuple[dict[str, Any], dict[str, tuple[str, Any, Callable[[Any], Any]]]]] = {
    "pe_gemm": (
        {"kind": "tensor", "throughput": {}},
        {
            "macs_per_cycle": ("throughput", dict[str, Count], lambda macs: {
                dtype: f"{count} MAC/cycle" for dtype, count in macs.items()
            }),
            "tile": ("tile", tuple[Count, ...], list),
        },
    ),
    "pe_math": (
        {"kind": "vector", "throughput": "1 OP/cycle"},
        {"lanes": ("throughput", Count, "{} OP/cycle".format), "start_ns": ("startup", Nanoseconds, str)},
    ),
    "pe_dma": (
        {"kind": "dma"},
        {
            "channels": ("channels", Count, int),
            "chunk_bytes": ("chunk", Count, "{} B".format),
            "setup_ns": ("startup", Nanoseconds, str),
        },
    ),
    "pe_ipcq": (
        {"directions": 8},
        {"directions": ("directions", Count, int), "credit_bytes": ("credit", Count, "{} B".format)},
    ),
}  # fmt: skip
"""Components of a PE: what always holds, and for each attribute its key in the HDA form, type and form."""
