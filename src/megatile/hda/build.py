"""From a checked description to the parts of a machine: names and units resolved, contradictions refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from megatile.core.arithmetic import Lambda
from megatile.core.errors import did_you_mean
from megatile.core.frozen import Frozen
from megatile.hda import schema
from megatile.hda.document import Document, KeyPath
from megatile.hda.figures import Figures, T
from megatile.hda.model import (
    ALIAS_USES,
    SAME_SCALE,
    STANDARD_SCALES,
    ChannelQueues,
    Control,
    Engine,
    HostLink,
    KernelFigures,
    MemoryLayer,
    Network,
    Parts,
    ProtocolFigures,
    Scale,
    Station,
    TransportFigures,
)
from megatile.hda.wiring import wire


def build(spec: Any, document: Document) -> Parts:
    """Resolve a description; every contradiction is an error with its place in the file."""
    builder = _Builder(spec, document)
    levels = builder.build_levels()
    scales, names = builder.build_scales()
    memories, memory_names = builder.build_memories()
    return Parts(
        levels=levels,
        scales=scales,
        memories=memories,
        networks=builder.each("networks", builder.network),
        engines=builder.each("engines", builder.engine),
        control=builder.build_control(),
        channels=builder.each("channels", builder.channel),
        transports=builder.build_transports(names),
        kernels=builder.each("kernels", builder.kernel),
        scale_names=names,
        memory_names=memory_names,
    )


class _Builder(Figures):
    def each(self, key: str, make: Callable[[Any, KeyPath], T]) -> tuple[T, ...]:
        """Return the members of a list of the description, each with a name of its own."""
        members = getattr(self.spec, key)
        self.unique((m.name for m in members), lambda i: (key, i, "name"), key.removesuffix("s"))
        return tuple(make(member, (key, i)) for i, member in enumerate(members))

    # scales

    def build_scales(self) -> tuple[tuple[Scale, ...], dict[str, Scale]]:
        views = self.spec.hw_abstr
        if not views:
            self.fail("hw_abstr needs at least one scale", ("hw_abstr",))
        self.unique((v.name for v in views), lambda i: ("hw_abstr", i, "name"), "scale")
        self.check_order(views)
        ordered = [self.declared(view, i) for i, view in enumerate(views)]
        taken: dict[str, str] = {}
        for i, view in enumerate(views):
            for name in (view.name, *view.aliases):
                if taken.setdefault(name, view.name) != view.name:
                    self.fail(
                        f"'{name}' means both '{taken[name]}' and '{view.name}'",
                        ("hw_abstr", i, "aliases"),
                        f"remove '{name}' from the names of one of them",
                    )
                if name in self.levels and name != view.target:
                    self.fail(
                        f"scale '{name}' has the name of a level but belongs to '{view.target}'",
                        ("hw_abstr", i, "name" if name == view.name else "aliases"),
                        "give the scale another name",
                    )
        ordered = self.with_implied(ordered, taken)
        names: dict[str, Scale] = {}
        scales = [replace(s, position=i) for i, s in enumerate(ordered)]
        for scale in scales:
            for name in (scale.name, *scale.aliases):
                names[name] = scale
        for spellings in SAME_SCALE:
            known = next((names[s] for s in spellings if s in names), None)
            for spelling in spellings if known else ():
                names.setdefault(spelling, known)  # type: ignore[arg-type]
        self.check_limits(views, names)
        return tuple(s for s in scales if not s.implied), names

    def declared(self, view: schema.ScaleView, i: int) -> Scale:
        level = self.levels[str(view.target)]
        return self.resolved(Scale, view, level, ("hw_abstr", i), level=level.name, position=i)

    def check_order(self, views: tuple[schema.ScaleView, ...]) -> None:
        before = -1
        for i, view in enumerate(views):
            if view.target is None:
                self.fail(f"scale '{view.name}' needs a target level", ("hw_abstr", i), "add target: LEVEL")
            position = self.level(str(view.target), ("hw_abstr", i, "target")).position
            if position < before:
                self.fail(
                    f"scale '{view.name}' is smaller than '{views[i - 1].name}' but is listed after it",
                    ("hw_abstr", i),
                    "list the scales from the smallest to the largest",
                )
            before = position
            if view.infer_lambda:
                Lambda.parse(view.infer_lambda, arity=2)

    def check_limits(self, views: tuple[schema.ScaleView, ...], names: dict[str, Scale]) -> None:
        for i, view in enumerate(views):
            for other in view.limits:
                if other not in names:
                    self.fail(
                        f"there is no scale '{other}'",
                        ("hw_abstr", i, "limits", other),
                        did_you_mean(other, names, what="scales"),
                    )

    def with_implied(self, declared: list[Scale], taken: dict[str, str]) -> list[Scale]:
        """Insert standard scales that are not declared: on the level of that name, if the hardware has one in
        the right place, else one unit in the next larger standard scale there is."""
        spellings = {group[0]: group for group in SAME_SCALE}
        result = list(declared)
        larger: Scale | None = None
        for name in reversed(STANDARD_SCALES):
            own = next((taken[s] for s in spellings[name] if s in taken), None)
            if own is not None:
                larger = next(s for s in result if s.name == own)
                continue
            at = result.index(larger) if larger else len(result)
            level = self.levels[larger.level] if larger else self.top
            same = next((self.levels[s] for s in spellings[name] if s in self.levels), level)
            fits = sum(self.levels[s.level].position <= same.position for s in result[:at])
            standard = {taken[s] for group in SAME_SCALE for s in group if s in taken}
            if same.position < level.position and not any(s.name in standard for s in result[fits:at]):
                at, level = fits, same
            larger = Scale(name, level.name, 0, implied=True)
            result.insert(at, larger)
        return result

    # memories

    def build_memories(self) -> tuple[tuple[MemoryLayer, ...], dict[str, MemoryLayer]]:
        layers = self.each("memory", self.memory)
        names: dict[str, MemoryLayer] = {m.name: m for m in layers}
        for i, layer in enumerate(layers):
            for alias in layer.aliases:
                if names.setdefault(alias, layer) is not layer:
                    self.fail(
                        f"'{alias}' means both '{names[alias].name}' and '{layer.name}'",
                        ("memory", i, "aliases"),
                        f"remove '{alias}' from the names of one of them",
                    )
        for i, layer in enumerate(layers):
            self.check_cache(layer, names, ("memory", i))
        if "l1" in names:  # without registers, their tiles lie in the scratchpad
            names.setdefault("l0", names["l1"])
        return layers, names

    def check_cache(self, layer: MemoryLayer, names: dict[str, MemoryLayer], key_path: KeyPath) -> None:
        """Check that what a cache stands in front of lies further out, and that only caches have blocks."""
        given = [key for key in ("of", "block", "fill") if getattr(layer, key) is not None]
        if given and not layer.cache:
            self.fail(f"'{layer.name}' is not a cache, so it has no '{given[0]}'", (*key_path, given[0]))
        if layer.of is None:
            return
        behind = names.get(layer.of)
        if behind is None:
            self.fail(f"there is no memory '{layer.of}'", (*key_path, "of"), did_you_mean(layer.of, names))
        elif self.levels[behind.level].position < self.levels[layer.level].position or behind is layer:
            self.fail(f"'{layer.of}' does not lie behind '{layer.name}'", (*key_path, "of"))
        if layer.block is not None and layer.size % layer.block:
            self.fail(f"{layer.size} B are not a multiple of blocks of {layer.block} B", (*key_path, "block"))

    def memory(self, m: Any, key_path: KeyPath) -> MemoryLayer:
        level = self.level(m.level, (*key_path, "level"))
        size = self.bytes(m.size, (*key_path, "size"))
        reserved = self.bytes(m.reserved, (*key_path, "reserved")) if m.reserved and m.reserved.value else 0
        if reserved >= size:
            self.fail(f"'{m.reserved}' reserved leaves nothing of {m.size}", (*key_path, "reserved"))
        if m.cache and (bad := next((n for n in (m.name, *m.aliases) if n in ALIAS_USES), None)):
            self.fail(
                f"'{bad}' names memory to allocate in, but '{m.name}' is a cache",
                key_path,
                f"call it '{bad}_cache'",
            )
        layer = self.resolved(MemoryLayer, m, level, key_path, reserved=reserved)
        if layer.unit_size is not None and layer.unit_size > layer.size:
            self.fail(f"one unit cannot have {m.unit_size} of {m.size}", (*key_path, "unit_size"))
        return layer

    # networks

    def network(self, n: Any, key_path: KeyPath) -> Network:
        owner = self.level(n.level, (*key_path, "level"))
        if owner.position == 0:
            self.fail(
                f"'{n.level}' is the smallest level: nothing in it can be connected", (*key_path, "level")
            )
        below = list(self.levels.values())[owner.position - 1]
        ends = self.level(n.connects, (*key_path, "connects")) if n.connects else below
        if ends.position >= owner.position:
            self.fail(
                f"'{ends.name}' does not lie inside '{owner.name}'",
                (*key_path, "connects"),
                f"a network of '{owner.name}' connects a smaller level, like '{below.name}'",
            )
        topology = wire(n, ends.total // owner.total, self.document, key_path)
        if n.gateway is not None and n.gateway >= topology.size:
            self.fail(
                f"gateway {n.gateway} is not among the {topology.size} units of '{n.name}'",
                (*key_path, "gateway"),
                f"write the number of a {ends.name}, from 0 to {topology.size - 1}",
            )
        return self.resolved(
            Network,
            n,
            owner,
            key_path,
            connects=ends.name,
            topology=topology,
            latency_ps=max(1, self.picoseconds(n.latency, owner, (*key_path, "latency"))),
            duplex=n.duplex == "full",
        )

    # engines, control, channels

    def engine(self, e: Any, key_path: KeyPath) -> Engine:
        level = self.level(e.level, (*key_path, "level"))
        if e.kind != "dma" and not e.throughput:
            self.fail(
                f"a {e.kind} engine needs its throughput", key_path, "add throughput: {f16: 1024 FLOP/cycle}"
            )
        return self.resolved(Engine, e, level, key_path)

    def build_control(self) -> Control | None:
        control = self.spec.control
        if control is None:
            return None
        stations = []
        before = len(self.levels)
        for i, stop in enumerate(control.launch):
            key_path: KeyPath = ("control", "launch", i)
            level = self.level(stop.level, (*key_path, "level"))
            if level.position > before:
                self.fail(
                    f"'{stop.level}' is larger than the station before it",
                    key_path,
                    "list them from the host inwards",
                )
            before = level.position
            overhead = self.picoseconds(stop.overhead, level, (*key_path, "overhead"))
            stations.append(Station(stop.level, overhead, stop.name or stop.level))
        host = control.host_link
        link = None if host is None else self.resolved(HostLink, host, self.top, ("control", "host_link"))
        return self.resolved(Control, control, self.top, ("control",), host_link=link, launch=tuple(stations))

    def channel(self, c: Any, key_path: KeyPath) -> ChannelQueues:
        level = self.level(c.level, (*key_path, "level"))
        credit = round(c.credit.value) if c.credit else 0
        return self.resolved(ChannelQueues, c, level, key_path, credit=credit)

    def build_transports(self, scales: dict[str, Scale]) -> Mapping[str, Mapping[str, TransportFigures]]:
        """Return how libraries move data, by scale and library."""
        for scale in self.spec.transports:
            if scale not in scales:
                advice = did_you_mean(scale, scales, what="scales")
                self.fail(f"there is no scale '{scale}'", ("transports", scale), advice)
        return Frozen(
            {
                scales[scale].name: Frozen(
                    {name: self.transport(t, ("transports", scale, name)) for name, t in libraries.items()}
                )
                for scale, libraries in self.spec.transports.items()
            }
        )

    def transport(self, t: Any, key_path: KeyPath) -> TransportFigures:
        protocols = {
            name: self.resolved(ProtocolFigures, p, self.top, (*key_path, "protocols", name))
            for name, p in t.protocols.items()
        }
        return self.resolved(TransportFigures, t, self.top, key_path, protocols=Frozen(protocols))

    def kernel(self, k: Any, key_path: KeyPath) -> KernelFigures:
        exposed = k.exposed.value if k.exposed is not None else 0.0
        if not 0 <= exposed <= 1:
            self.fail(f"exposed must be between 0 and 1, got {k.exposed}", (*key_path, "exposed"))
        return self.resolved(KernelFigures, k, self.top, key_path, exposed=exposed)
