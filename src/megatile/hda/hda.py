"""The HDA: a machine that answers questions about its units, memories, networks and engines.

    >>> from megatile.hda import machine
    >>> hda = machine("dgx-h100")
    >>> len(hda.units("block"))
    1056
    >>> hda.route(("gpu", 0), ("gpu", 5)).hop_count
    2

Nothing is enumerated: questions are arithmetic, whatever the size.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from megatile.core.errors import MachineError, MissingDescriptionError, RouteError, did_you_mean
from megatile.core.files import write_text
from megatile.core.frozen import Frozen
from megatile.core.quantities import Quantity
from megatile.hda import load
from megatile.hda.build import build
from megatile.hda.document import MAX_NESTING_LEVELS, Document, read_document
from megatile.hda.model import (
    ALIAS_USES,
    ChannelQueues,
    Engine,
    KernelFigures,
    MemoryLayer,
    Network,
    Unit,
    UnitRange,
)
from megatile.hda.places import Places, UnitLike
from megatile.hda.routing import Route, Router
from megatile.hda.schema import HardwareAbstraction, HardwareSpecification, ScaleView

if TYPE_CHECKING:
    from megatile.hda.instance import Instance


class HDA(Places):
    """A machine: levels of units, scales, memory layers, networks, engines, control path. Immutable."""

    def __init__(
        self,
        hw_spec: HardwareSpecification | Mapping[str, Any],
        hw_abstr: HardwareAbstraction | Sequence[ScaleView] | Sequence[Mapping[str, Any]],
        **parts: Any,
    ):
        if hw_spec is None or hw_abstr is None:
            raise MachineError("a machine needs hw_spec and hw_abstr", advice="HDA.from_yaml reads a file")
        scales = hw_abstr.scales if isinstance(hw_abstr, HardwareAbstraction) else list(hw_abstr)
        document = Document(_plain({"hw_spec": hw_spec, "hw_abstr": scales, **parts}))
        self._set(load.validate(document), document)

    def _set(self, spec: Any, document: Document) -> None:
        parts = build(spec, document)
        self.__dict__.update(
            spec=spec,
            name=spec.name,
            file=document.file,
            parameters=Frozen(document.parameters),
            **vars(parts),
            _levels={level.name: level for level in parts.levels},
            _named={},
            _router=Router(parts.levels, parts.networks),
        )

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("an HDA cannot be changed; load it again with overrides")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("an HDA cannot be changed; load it again with overrides")

    if TYPE_CHECKING:
        spec: Any
        name: str
        file: str | None
        parameters: Frozen[str, Any]

    # making and writing

    @classmethod
    def from_document(
        cls, document: Document, overrides: Mapping[str, Any] | None = None, *, trust: bool = False
    ) -> HDA:
        """Resolve, check and build a description that was read already."""
        document = load.resolve(document, overrides or {}, trust)
        if document.file:
            document.data.setdefault("name", Path(document.file).stem)
        form = load.other_form(document.data)
        if form is not None:
            document = form.to_hda(document)
        hda = cls.__new__(cls)
        hda._set(load.validate(document), document)
        return hda

    @classmethod
    def from_yaml(cls, yaml_file: str | Path, *, trust: bool = False, **overrides: Any) -> HDA:
        """Load a machine file: the HDA form or the KernBench ``topology.yaml`` form.

        ``trust`` lets it extend files outside its folder.
        """
        return cls.from_document(read_document(yaml_file), overrides, trust=trust)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], **overrides: Any) -> HDA:
        """Return the same from plain data."""
        if not isinstance(data, Mapping):
            raise MachineError(f"a machine description is keys and values, not {type(data).__name__}")
        return cls.from_document(Document(_plain(data)), overrides)

    def to_dict(self) -> dict[str, Any]:
        """Return the resolved description as plain data; ``HDA.from_dict`` of it is equal to this machine."""
        return self.spec.model_dump(mode="json", exclude_defaults=True)

    def to_yaml(self, path: str | Path | None = None) -> str:
        """Return the resolved description as YAML text, also written to ``path`` if given."""
        text = yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True, width=120)
        if path is not None:
            write_text(path, text, MachineError)
        return text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HDA) and self.spec == other.spec

    def __hash__(self) -> int:
        # Not of the text: 0.5 TB/s and 500 GB/s are equal.
        return hash((self.name, self.levels))

    def fingerprint(self) -> str:
        """Return a stable hash of the description."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()

    def __repr__(self) -> str:
        pairs = reversed(list(zip(self.levels[1:], self.levels, strict=False)))
        shape = " × ".join(f"{above.num_units} {level.name}" for above, level in pairs if above.num_units > 1)
        return f"HDA({self.name}: {shape or '1 unit'})"

    def _repr_html_(self) -> str:
        text = escape(self.to_yaml())
        return f"<details><summary>{escape(repr(self))}</summary><pre>{text}</pre></details>"

    # parts

    @property
    def hw_spec(self) -> HardwareSpecification:
        """The levels as the description lists them; a copy, as its lists can be changed."""
        levels = self.spec.hw_spec
        return HardwareSpecification(list(levels.pe), list(levels.pe_groups))

    @property
    def hw_abstr(self) -> HardwareAbstraction:
        return HardwareAbstraction(list(self.spec.hw_abstr))

    def kernel(self, name: str) -> KernelFigures | None:
        """Return how fast a known kernel is on this machine, where that was measured; DeepEP's are
        transports."""
        found = next((k for k in self.kernels if k.name == name), None)
        section = self.transports.get("device", {}).get("deepep")
        p = section.protocols.get(name) if section is not None else None
        if found is not None or p is None:
            return found
        start, wave, split = (ps / 1e6 for ps in (p.start_ps, p.step_ps, p.peer_ps))
        return KernelFigures(
            name, p.share, 1, start_us=start, wave_us=wave, split_us=split or None, error=p.error
        )

    def queues_of(self, level: str) -> ChannelQueues | None:
        """Return the hardware queues that units of a level have, where the machine describes some."""
        return next((queues for queues in self.channels if queues.level == level), None)

    def memory(self, name: str) -> MemoryLayer:
        """Return a memory layer by name or alias (``l0 l1 l2``)."""
        found = self.memory_names.get(name)
        if found is None:
            self.require("memory")
            advice = did_you_mean(name, self.memory_names, what="memories")
            if use := ALIAS_USES.get(name):
                advice = f"add 'aliases: [{name}]' to the memory that holds {use}; {advice}"
            raise MachineError(f"machine '{self.name}' has no memory '{name}'", advice=advice)
        return found

    def network(self, name: str) -> Network:
        """Return a network by name."""
        self.require("networks")
        for network in self.networks:
            if network.name == name:
                return network
        raise MachineError(
            f"machine '{self.name}' has no network '{name}'",
            advice=did_you_mean(name, [n.name for n in self.networks], what="networks"),
        )

    def engines_of(self, scale: str, kind: str | None = None) -> tuple[Engine, ...]:
        """Return engines of a unit of this scale, of one kind if asked."""
        level = self.level(scale).name
        return tuple(e for e in self.engines if e.level == level and kind in (None, e.kind))

    def throughput(self, scale: str, dtype: str, kind: str | None = None) -> float:
        """Return the peak operations/s of one unit of a scale: the fastest kind of engine inside it, all of
        them."""
        self.require("engines")
        span = self._router.span[self.level(scale).name]
        peaks = [0.0]
        for engine in self.engines:
            if kind in (None, engine.kind) and self._router.span[engine.level] <= span:
                peaks.append(
                    (engine.rate(dtype) or 0) * engine.count * (span // self._router.span[engine.level])
                )
        return max(peaks)

    def require(self, *keys: str) -> None:
        """Refuse, with the names of the missing YAML keys, if the description lacks something."""
        lacking = [key for key in keys if not getattr(self.spec, key)]
        if lacking:
            raise MissingDescriptionError(
                f"machine '{self.name}' does not describe: {', '.join(lacking)}",
                advice=f"add the key{'s' if len(lacking) > 1 else ''} {', '.join(lacking)} to "
                f"{self.file or 'the description'}, as in 'megatile machine show dgx-h100 --yaml'",
            )

    # networks

    def route(self, a: UnitLike, b: UnitLike, via: str | None = None) -> Route:
        """Return the route from ``a`` to ``b``: through the innermost unit that holds both and has a network.

        Units smaller than the network's endpoints enter it through their endpoint; where an inner network
        has a ``gateway``, the path from the unit to that gateway is part of the route.
        """
        ua, ub = self.unit(a), self.unit(b)
        route = self._router.route(ua, ub, via)
        if route is None:
            raise self._no_route(ua, ub, via)
        return route

    def _no_route(self, a: Unit, b: Unit, via: str | None) -> Exception:
        self.require("networks")
        if via is not None:
            self.network(via)
        shared = self.shared_memory(a, b)
        advice = f"they share memory '{shared.name}'" if shared else "describe a network that joins them"
        return RouteError(f"no network{f' {via}' if via else ''} joins {a} and {b}", advice=advice)

    def shared_memory(self, a: UnitLike, b: UnitLike) -> MemoryLayer | None:
        """Return the nearest memory that both units can reach: the place for a software channel."""
        ua, ub = self.unit(a), self.unit(b)
        span = self._router.span
        first, second = ua.index * span[ua.level], ub.index * span[ub.level]
        for layer in sorted(self.memories, key=lambda m: span[m.level]):
            size = span[layer.level]
            fits = size >= max(span[ua.level], span[ub.level]) and first // size == second // size
            if fits and layer.shared and not layer.cache:
                return layer
        return None

    def neighbors(self, unit: UnitLike, via: str | None = None) -> UnitRange:
        """Return units one link away, or behind the same switch, in every network that joins units of this
        level."""
        self.require("networks")
        if via is not None:
            self.network(via)
        return self._router.neighbors(self.unit(unit), via)

    def bisection(self, scale: str) -> float:
        """Bytes/s, one direction, between two halves of all units of a scale, over the outermost network."""
        self.require("networks")
        width = self._router.bisection(self.level(scale))
        if width is None:
            joined = [n.connects for n in self.networks]
            raise RouteError(
                f"no network joins units of '{scale}'",
                advice=did_you_mean(scale, joined, what="levels with a network"),
            )
        return width

    # instances

    def instantiate(self, scale_views: Sequence[ScaleView]) -> Instance:
        """Lay a launch on the machine; see :class:`~megatile.hda.instance.Instance`."""
        from megatile.hda.instance import Instance

        return Instance.make(self, scale_views)


def _plain(value: Any, depth: int = 0) -> Any:
    """Return dictionaries, lists and plain values; of parts given as objects, the fields that were set."""
    if depth > MAX_NESTING_LEVELS:
        raise MachineError("the description is nested too deeply")
    if is_dataclass(value) and not isinstance(value, (type, Quantity)):
        defaults = {f.name: f.default for f in fields(value)}
        given = {name: getattr(value, name) for name in defaults}
        value = {k: v for k, v in given.items() if v != defaults[k] and v != {}}
    if isinstance(value, Mapping):
        return {str(k): _plain(v, depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v, depth + 1) for v in value]
    return str(value) if isinstance(value, Quantity) else value
