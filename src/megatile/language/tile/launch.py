"""From ``T.Kernel(device=4, block=(8, 8), threads=256)`` and a machine to the scales of a launch."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from megatile.core.errors import MegatileError, did_you_mean
from megatile.hda import HDA, Instance, Scale, ScaleView, divided
from megatile.hda.model import STANDARD_SCALES
from megatile.ir.launch import ROOT, Launch, LaunchScale
from megatile.language.tile.errors import ProgramError
from megatile.language.tile.scalars import Value, plain


def instance_of(machine: HDA, wanted: Mapping[str, Any]) -> Instance:
    """Return the machine's instance for the scales of a ``T.Kernel``."""
    views: dict[str, tuple[Scale, tuple[int, ...]]] = {}
    for word, extents in wanted.items():
        scale = find_scale(machine, word, what="T.Kernel")
        if scale.name in views:
            raise ProgramError(
                f"scale '{scale.name}' is given twice to T.Kernel", advice="name each scale once"
            )
        views[scale.name] = (scale, extents_of(word, extents))
    device = machine.scale("device")
    if views and all(scale.position < device.position for scale, _ in views.values()):
        views[device.name] = (device, (1,))
    ordered = sorted(views.values(), key=lambda v: -v[0].position)
    if not ordered:
        raise ProgramError("T.Kernel without scales", advice="e.g. T.Kernel(block=64, threads=128)")
    scale_views = [
        ScaleView(scale.name, instance_num=e if len(e) > 1 else e[0], is_flatten=True) for scale, e in ordered
    ]
    asked = math.prod(math.prod(extents) for scale, extents in ordered if scale.position >= device.position)
    try:
        return divided(machine, asked).instantiate(scale_views)
    except MegatileError as error:
        advice = error.advice or f"launch fewer, or run it on a machine with more than '{machine.name}'"
        raise ProgramError(error.message, advice=advice) from None


UNKNOWN_EXTENTS: ContextVar[dict[str, tuple[Any, ...]] | None] = ContextVar("megatile_extents", default=None)
"""Where extents of a launch are noted that are known only with the arrays, when text is written."""
STANDS_FOR_UNKNOWN = 61
"""Units of a scale whose number is not known."""


CLUSTER_SIZE = "cta_cluster"
"""``T.Kernel(cta_cluster=2, block=grid)``: not the number of clusters, but how many blocks are in one."""


def clusters_of(wanted: dict[str, Any]) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Keywords in which a cluster size beside a grid of blocks has become clusters and the blocks in each,
    and that size for every dimension of the grid (or nothing)."""
    if CLUSTER_SIZE not in wanted or "block" not in wanted:
        return wanted, ()
    rest = {word: extents for word, extents in wanted.items() if word != CLUSTER_SIZE}
    size, grid = extents_of(CLUSTER_SIZE, wanted[CLUSTER_SIZE]), extents_of("block", wanted["block"])
    size += (1,) * (len(grid) - len(size))
    if len(size) > len(grid) or any(extent % part for extent, part in zip(grid, size, strict=True)):
        raise ProgramError(
            f"a grid of {grid} blocks is not made of clusters of {size}",
            advice=f"each extent of block= must be a multiple of that of {CLUSTER_SIZE}=",
        )
    groups = tuple(extent // part for extent, part in zip(grid, size, strict=True))
    return {"cluster": groups, **rest, "block": size}, size


def find_scale(machine: HDA, word: str, what: str) -> Scale:
    """Return a scale by name or alias."""
    try:
        scale = machine.scale(word)
        if scale.position >= 0:
            return scale
    except MegatileError:
        pass
    known = (
        [s.name for s in all_scales(machine)] + [a for s in machine.scales for a in s.aliases] + ["threads"]
    )
    raise ProgramError(
        f"{what}: there is no scale '{word}' on machine '{machine.name}'",
        advice=did_you_mean(word, known, what="scales"),
    )


def extents_of(word: str, value: Any) -> tuple[int, ...]:
    """Return whole numbers from 1, of a number or a tuple."""
    extents = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    extents = tuple(plain(e) for e in extents)
    if UNKNOWN_EXTENTS.get() is not None and any(isinstance(e, Value) for e in extents):
        UNKNOWN_EXTENTS.get()[word] = extents  # type: ignore[index]
        extents = tuple(STANDS_FOR_UNKNOWN if isinstance(e, Value) else e for e in extents)
    for extent in extents:
        if isinstance(extent, Value):
            raise ProgramError(
                f"{word}={value!r} depends on a symbolic extent",
                advice="run it with arrays: mt.run binds extents",
            )
        if isinstance(extent, bool) or not isinstance(extent, int) or extent < 1:
            raise ProgramError(f"{word}={value!r}", advice="a scale needs whole numbers from 1")
    return extents


def all_scales(machine: HDA) -> list[Scale]:
    """Return declared and standard scales, largest first."""
    found = {s.name: s for s in machine.scales}
    for name in STANDARD_SCALES:
        scale = machine.scale(name)
        found.setdefault(scale.name, scale)
    return sorted(found.values(), key=lambda s: -s.position)


def launch_of(instance: Instance) -> Launch:
    """Return every scale of the machine with its units under the next larger one."""
    scales: list[LaunchScale] = []
    named = {d.scale.name: d for d in instance.dims}
    inside = 1  # units so far below the last named scale
    for scale in all_scales(instance.hda):
        if scale.name in named:
            dim = named[scale.name]
            extents = dim.extents if inside == 1 else (math.prod(dim.extents) // inside,)
            scales.append(LaunchScale(scale.name, extents))
            inside = 1
            continue
        inferred = instance.inferred.get(scale.name)
        count = 1
        if inferred is not None and not inferred.problem and inferred.count % inside == 0:
            count = inferred.count // inside
            inside = inferred.count
        scales.append(LaunchScale(scale.name, (count,), named=False))
    dispatch, device = _dispatch(instance), instance.hda.scale("device")
    resident = instance.hda.scale(dispatch).position >= device.position
    host = ROOT if resident else device.name
    return Launch(tuple(scales), dispatch, host=host, resident=resident, device_scale=device.name)


def _dispatch(instance: Instance) -> str:
    """Return the scale whose instances run in waves: the block, or the smallest named scale above it."""
    block = instance.hda.scale("block")
    larger = [d.scale for d in instance.dims if d.scale.position >= block.position]
    return larger[-1].name if larger else block.name


def with_slots(launch: Launch, instance: Instance, memory: Mapping[str, int]) -> Launch:
    """Return the launch with the number of dispatched instances that fit at once below the scale above
    them."""
    try:
        if instance.waves(memory) == 1:
            return launch
        ranks = range(launch.count(launch.dispatch, launch.host))
        slots = bisect(ranks, 0, lo=1, key=lambda rank: instance.seat(launch.dispatch, rank, memory).wave)
    except MegatileError as error:
        raise ProgramError(error.message, advice=error.advice) from None
    return replace(launch, slots=slots)
