"""Which levels of a machine get a panel, and what stands in each.

A level with nothing of its own is drawn inside the panel of the level above; one that only wraps a single
unit is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from megatile.hda import HDA, Engine, Level, MemoryLayer, Network
from megatile.report.machine_words import dims, scales_of, several
from megatile.report.sketch import Inside


@dataclass(frozen=True)
class Panel:
    """One unit of ``level``: the units inside it, the networks that join them, memories and engines."""

    level: Level
    inside: Inside | None = None
    caption: str = ""
    networks: tuple[Network, ...] = ()
    memories: tuple[MemoryLayer, ...] = ()
    engines: tuple[Engine, ...] = ()
    zoom: str | None = "unit"  # which of the drawn boxes the next panel enlarges


def panels(hda: HDA) -> list[Panel]:
    """Return the panels from the outermost level inwards."""
    levels = visible_levels(hda)
    result: list[Panel] = []
    at = 0
    while at < len(levels):
        rest = levels[at:]
        if len(rest) == 1 and result and not _has_content(hda, rest[0]):
            break
        skip = len(rest) > 2 and not _has_content(hda, rest[1])
        result.append(_panel(hda, rest, skip))
        at += 2 if skip else 1
        while skip and not _has_content(hda, levels[at]) and any(_has_content(hda, v) for v in levels[at:]):
            at += 1
    return [*result[:-1], replace(result[-1], zoom=None)]


def visible_levels(hda: HDA) -> list[Level]:
    """Return levels worth drawing, largest first."""
    return [
        level
        for level in reversed(hda.levels)
        if level.num_units > 1 or level.position == hda.levels[0].position or _has_content(hda, level)
    ]


def _has_content(hda: HDA, level: Level) -> bool:
    owners = (
        {m.level for m in hda.memories} | {n.level for n in hda.networks} | {e.level for e in hda.engines}
    )
    return level.name in owners


def _panel(hda: HDA, levels: list[Level], skip: bool) -> Panel:
    """Return the panel of the first level. ``skip``: the second has no panel, it is drawn with what is inside
    it."""
    level = levels[0]
    networks = tuple(sorted((n for n in hda.networks if n.level == level.name), key=_drawable, reverse=True))
    inside, caption, zoom = None, "", None
    if len(levels) > 1:
        child = levels[1]
        nested = levels[2].name if skip else None
        if networks and networks[0].connects != child.name and not _is_same(hda, networks[0].connects, child):
            nested = networks[0].connects
        inside, caption, zoom = _inside(hda, level, child, nested, networks, skip)
    return Panel(
        level,
        inside,
        caption,
        networks,
        tuple(m for m in hda.memories if m.level == level.name),
        tuple(e for e in hda.engines if e.level == level.name),
        zoom,
    )


def _drawable(network: Network) -> bool:
    """Direct wiring decides where units stand; switches can be drawn above any arrangement."""
    return network.topology.kind not in ("switch", "fat_tree", "rails")


def _is_same(hda: HDA, name: str, level: Level) -> bool:
    """Return whether a level wraps a single unit: the two are drawn as one."""
    return hda.level(name).total == level.total


def _inside(
    hda: HDA, level: Level, child: Level, nested: str | None, networks: tuple[Network, ...], skip: bool
) -> tuple[Inside, str, str | None]:
    """Return what is drawn inside, what is written below it, and which of the boxes the next panel
    enlarges."""
    count = child.total // level.total
    if nested is None:
        caption = several(count, child.name)
        if networks and len(networks[0].topology.dims) > 1:
            caption += f" = {dims(networks[0])}"
            if len(networks[0].topology.dims) > 3:
                caption += ", three dimensions drawn"
        return Inside(count, child.name), caption, "unit"
    parts = hda.level(nested).total // child.total
    if networks and networks[0].connects == nested and _drawable(networks[0]):
        # The network runs across the units in between, so its own endpoints are what can be drawn.
        caption = f"{several(count * parts, nested)} in {several(count, child.name)}"
        return Inside(count * parts, nested), caption, "unit" if skip and nested != child.name else None
    called = "" if _has_content(hda, child) else scales_of(hda, child.name)
    caption = several(count, child.name) + (f" ({called})" if called else "")
    caption += f", {several(parts, nested)} each" if count > 1 else f" with {several(parts, nested)}"
    return Inside(count, child.name, parts), caption, "part" if skip else "unit"
