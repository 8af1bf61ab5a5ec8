"""Colours and sizes of text in pictures. The hues differ for every kind of colour vision."""

from __future__ import annotations

from zlib import crc32

from megatile.hda import HDA

TITLE, SUBTITLE, HEADING, TEXT, SMALL = 25.0, 15.5, 18.0, 13.0, 12.0

INK, SOFT = "#1b2733", "#566573"
PANEL, PANEL_EDGE = "#ffffff", "#9aa8b5"
UNIT, UNIT_EDGE = "#eef2f6", "#6b7b8c"
PART, PART_EDGE = "#cfd9e3", "#7d8d9d"
PICKED, PICKED_EDGE = "#fff1cc", "#b86e00"
BEAM, ZOOM = "#fff8e6", "#b86e00"
NETWORK, NETWORK_FAINT, SWITCH = "#0067a8", "#a9cce3", "#d6e8f5"
MEMORY, MEMORY_EDGE = "#cdebdf", "#00795a"
CACHE, CACHE_EDGE = "#f0f9f5", "#00795a"
ENGINES = {
    "tensor": ("#f9d9c4", "#b34700"),
    "vector": ("#ead6ec", "#8a4a91"),
    "scalar": ("#f3ecc8", "#857200"),
    "dma": ("#e3e6e9", "#5d6b78"),
}

OPERATIONS = {
    "gemm": "#b34700", "gemm_add": "#b34700", "copy": "#2878b5", "send": "#8c5bb5", "put": "#8c5bb5",
    "get": "#b58ad6", "add": "#3a9d5d", "reduce": "#7fb800", "nest": "#17a589", "fill": "#c9a227",
    "cast": "#8c6d31", "attention": "#c0392b", "attention_add": "#c0392b", "signal": "#5d6b78",
}  # fmt: skip
"""The colour of an operation in every picture."""
OTHER_OPERATIONS = (
    "#393b79", "#637939", "#843c39", "#7b4173", "#1f9e89", "#d6616b", "#5254a3", "#ad494a", "#a55194",
    "#31a354", "#e6550d", "#636363",
)  # fmt: skip


def operation_colour(name: str) -> str:
    """Return the colour of an operation: the same on every page, whatever else a run does."""
    return OPERATIONS.get(name) or OTHER_OPERATIONS[crc32(name.encode()) % len(OTHER_OPERATIONS)]


def legend(hda: HDA) -> list[tuple[str, str, str, bool]]:
    """Name, fill, edge and whether dashed, of what this machine has."""
    entries = []
    if hda.networks:
        entries.append(("network", SWITCH, NETWORK, False))
    if any(not m.cache for m in hda.memories):
        entries.append(("memory", MEMORY, MEMORY_EDGE, False))
    if any(m.cache for m in hda.memories):
        entries.append(("cache", CACHE, CACHE_EDGE, True))
    kinds = [kind for kind in ENGINES if any(e.kind == kind for e in hda.engines)]
    return entries + [(f"{kind} engine", *ENGINES[kind], False) for kind in kinds]
