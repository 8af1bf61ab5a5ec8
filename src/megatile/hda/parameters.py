"""The figures of a machine by name, and the machine with some of them multiplied.

>>> from megatile.hda import machine
>>> figures(machine("dgx-h100"))["networks.nvlink.bandwidth"]
'450 GB/s'
>>> scaled(machine("dgx-h100"), {"networks.nvlink.bandwidth": 2}).network("nvlink").bandwidth
900000000000.0
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from megatile.core.errors import MachineError, did_you_mean
from megatile.core.quantities import times
from megatile.hda.catalog import machine
from megatile.hda.hda import HDA

PARTS = {
    "memory": ("bandwidth", "latency", "size", "atomic"),
    "networks": ("bandwidth", "latency", "hop_overhead"),
    "engines": ("throughput", "bandwidth", "startup", "latency"),
}
"""The figures that decide times, by part of the description."""
RATES = ("bandwidth", "throughput", "size")
"""Of these more is better; of the others less."""


def figures(hda: HDA | str | Path) -> dict[str, str]:
    """Return rates, latencies and capacities as the description of a machine (or of its name or file) writes
    them: ``memory.hbm.bandwidth`` and the like.

    A throughput given per dtype is one figure: the text of its first dtype stands for it.
    """
    return {name: _first(value) for name, value in _found(machine(hda))}


def scaled(hda: HDA | str | Path, factors: Mapping[str, float], name: str | None = None) -> HDA:
    """Return the machine with figures multiplied, under ``name`` if one is given."""
    hda = machine(hda)
    known = dict(_found(hda))
    overrides: dict[str, Any] = {}
    for figure, factor in factors.items():
        if figure not in known:
            raise MachineError(
                f"machine '{hda.name}' has no figure '{figure}'",
                advice=did_you_mean(figure, known, what="figures"),
            )
        value = known[figure]
        if isinstance(value, Mapping):
            overrides.update({f"{figure}.{key}": _times(text, factor) for key, text in value.items()})
        else:
            overrides[figure] = _times(value, factor)
    return HDA.from_dict({**hda.to_dict(), **({"name": name} if name else {})}, **overrides)


def _found(hda: HDA) -> Iterator[tuple[str, Any]]:
    described = hda.to_dict()
    for part, fields in PARTS.items():
        for entry in described.get(part, ()):
            for field in fields:
                value = entry.get(field)
                if value is not None and _scales(value):
                    yield f"{part}.{entry['name']}.{field}", value


def _scales(value: Any) -> bool:
    """Return whether a value is a number (with a unit) that is not zero."""
    if isinstance(value, Mapping):
        return bool(value) and all(_scales(v) for v in value.values())
    return times(value, 1.0) is not None


def _times(value: Any, factor: float) -> str:
    found = times(value, factor)
    assert found is not None
    return found


def _first(value: Any) -> str:
    return _first(next(iter(value.values()))) if isinstance(value, Mapping) else str(value)
