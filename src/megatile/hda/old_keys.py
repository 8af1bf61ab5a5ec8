"""Keys of earlier machine files as they are called now: ``protocol``, ``library`` became ``transports``."""

from __future__ import annotations

from typing import Any

from megatile.core.errors import MegatileError, did_you_mean
from megatile.core.quantities import quantity
from megatile.hda.document import Document

OLD_KEYS = ("protocol", "library")
_SMALL, _BULK = ("LL", "tree_LL"), ("Simple", "tree_Simple")
_FIGURES = {
    "start": ("start", (*_SMALL, *_BULK)),
    "step": ("step", _BULK),
    "small_step": ("step", _SMALL),
    "far_step": ("far_step", (*_SMALL, *_BULK, "NVLSTree")),
    "share": ("share", _BULK),
    "small_share": ("share", _SMALL),
    "switch_step": ("start", ("NVLS", "NVLSTree")),
    "switch_share": ("share", ("NVLS", "NVLSTree")),
}
"""Keys of ``protocol``: the figure, and the protocols that have it now."""
_KEPT = ("small_channel", "line_channel", "bulk_channel", "ring_piece")
_GONE = (
    "small_wire", "line_wire", "filling", "queues", "line_start", "line_step", "line_far_step", "ring_block",
)  # fmt: skip
"""Keys of ``library``: those that ``transports`` has too, and those that are no longer needed."""


def convert_old_keys(document: Document) -> None:
    """Put the figures of ``protocol`` and ``library`` into ``transports``, over what is there."""
    found = {key: document.data.pop(key) for key in OLD_KEYS if key in document.data}
    if not found:
        return
    for key, section in found.items():
        if not isinstance(section, dict):
            raise document.error(f"keys and values are needed, not {section!r}", (key,))
    device = _section(document, document.data, "transports", "device")
    mesh = any(
        isinstance(n, dict) and n.get("topology") == "full_mesh" for n in document.data.get("networks") or ()
    )
    name = next(iter(device), "rccl" if mesh else "nccl")
    library, new = _section(document, device, name), not device.get(name)
    _put_protocol(document, library, found.get("protocol") or {}, new)
    for key, value in (found.get("library") or {}).items():
        if key in _KEPT:
            library[key] = value
        elif key not in (*_GONE, "source", "note"):
            raise _unknown(document, "library", key, (*_KEPT, *_GONE))


def _put_protocol(document: Document, library: dict[str, Any], old: dict[str, Any], new: bool) -> None:
    protocols = _section(document, library, "protocols")
    names = {name for _, those in _FIGURES.values() for name in those} if new else set(protocols)
    source = old.get("source")
    for key, value in old.items():
        if key == "launch":
            library["launch"] = value
        elif key in _FIGURES:
            figure, those = _FIGURES[key]
            for name in (name for name in those if name in names):
                figures = _section(document, protocols, name)
                figures[figure] = _doubled(document, value) if key == "small_share" else value
                if isinstance(source, str):
                    figures["source"] = source
        elif key not in ("source", "note"):
            raise _unknown(document, "protocol", key, (*_FIGURES, "launch"))


def _section(document: Document, data: Any, *path: str) -> dict[str, Any]:
    for step in path:
        data = data.setdefault(step, {})
        if not isinstance(data, dict):
            raise document.error(f"keys and values are needed, not {data!r}", path)
    return data


def _doubled(document: Document, value: Any) -> str:
    """LL's share is of what its flags leave of the wire, which is half."""
    try:
        return f"{min(100.0, 200 * quantity(value, 'share').value):.12g} %"
    except MegatileError as problem:
        raise document.error(problem.message, ("protocol", "small_share"), problem.advice) from None


def _unknown(document: Document, section: str, key: str, known: tuple[str, ...]) -> MegatileError:
    return document.error(f"unknown key '{key}'", (section, key), did_you_mean(str(key), known, what="keys"))
