"""Where times come from: measured, interpolated, a rule over figures of the machine file, or assumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from megatile.core.operations import spoken_operation
from megatile.plan import model as pm
from megatile.timing.library_commands import LIBRARY_KERNEL, command_origin
from megatile.timing.machine_timing import Origin

if TYPE_CHECKING:
    from megatile.timing.resources import Resources

GUESSED = ("estimate", "assumed", "typical")
"""Words by which a machine file says that a figure has no better source."""

SPOKEN = {"rule": "from the machine file"}
"""What kinds of origins are called in text, other than by their names."""


def origins(resources: Resources) -> dict[str, Origin]:
    """By class of commands, where their times come from."""
    hda, plan, known = resources.hda, resources.plan, resources.view.origins
    found: dict[str, Origin] = {}
    computing = [(stream.level, s) for stream in plan.streams for s in pm.statements(stream.body)]
    for level, s in computing:
        if isinstance(s, pm.Start) and plan.kernel is None:
            view = resources.of(plan.level(level).name).on(s.transport, 0).view
            if "start" in view.origins:
                found[plan.transport(s.transport).model_name()] = view.origins["start"]
        if not isinstance(s, pm.Compute) or (s.by and s.engine != "dma"):
            continue  # what a library's kernel computes is part of its time
        if s.operation == LIBRARY_KERNEL:
            found[str(dict(s.attributes).get("name", "kernel"))] = command_origin(hda, s.attributes)
            continue
        engine = resources.of(plan.level(level).name).engine(s.engine)
        if s.engine == "dma":
            found["copies"] = known.get("copies") or _origin(engine, hda.spec.engines, "bandwidth")
        else:
            own = known.get(s.engine) or _origin(engine, hda.spec.engines, "throughput")
            found[f"{spoken_operation(s.operation)} on {s.engine}"] = own
    kernels = {t.name for t in plan.transports if t.kind == "kernel"} if plan.kernel is None else set()
    if any(channel.transport not in kernels for channel in plan.channels):
        outside = [n for n in hda.networks if hda.level(n.level).position > resources.level.position]
        own = _origin(outside[0] if outside else None, hda.spec.networks, "bandwidth")
        found["messages"] = known.get("messages", own)
    if pm.Start in plan.kinds and "start" in known:
        found["start"] = known["start"]
    if hda.control is not None and hda.control.launch:
        stations = hda.spec.control.launch if hda.spec.control is not None else ()
        found["launch"] = known.get("launch") or _origin(hda.control.launch[0], stations, "overhead")
    return found


def origin_lines(found: Mapping[str, Origin]) -> list[str]:
    """Return where times come from as text, one line for each source."""
    together: dict[Origin, list[str]] = {}
    for name, origin in found.items():
        together.setdefault(origin, []).append(name)
    return [
        f"times of {', '.join(names)}: {SPOKEN.get(o.kind, o.kind)} ({o.source})"
        for o, names in together.items()
    ]


def _origin(part: Any, specs: Any, figure: str) -> Origin:
    """Return the origin of a figure of a machine's part: what the file says about it."""
    if part is None:
        return Origin("assumed", "the machine file describes no such engine or network, so it adds no time")
    source = next((spec.source for spec in specs if part.name in (spec.name, spec.level)), None)
    text = source.get(figure, "") if isinstance(source, dict) else source or ""
    guessed = not text or any(word in text for word in GUESSED)
    kind = "measured" if text.startswith("measured") else "assumed" if guessed else "rule"
    return Origin(kind, f"{part.name}: {text or 'no source'}")
