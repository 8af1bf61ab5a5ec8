"""What surrounds a kernel: units, scale and memories, checked, or taken from a machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from megatile.core.errors import did_you_mean
from megatile.core.quantities import whole
from megatile.hda import HDA
from megatile.hda import machine as find_machine
from megatile.hda.model import MemoryLayer
from megatile.language.kernel.symbols import KernelError

STANDARD = {"scale": "pe", "memory": "hbm", "scratch": "tcm", "buffer_kind": "tcm"}
"""What holds without a machine: the names of KernBench."""


def wrong(argument: str, value: Any, needed: str) -> KernelError:
    return KernelError(f"read_kernel: {argument}={value!r} is no {needed}")


def check_kernel(kernel: Any, arguments: Any, neighbors: Any) -> None:
    if not isinstance(kernel, Callable):  # type: ignore[arg-type]
        raise wrong("kernel", kernel, "function")
    if isinstance(arguments, (str, bytes)) or not isinstance(arguments, Sequence):
        raise wrong("arguments", arguments, "list of what comes before tl")
    if neighbors is not None and not callable(neighbors):
        raise wrong("neighbors", neighbors, "function of (rank, world_size)")


def extents_of(grid: Any, world_size: Any) -> tuple[int, ...]:
    """The axes of ``program_id``."""
    if grid is None:
        return (_number("world_size", 1 if world_size is None else world_size),)
    if not isinstance(grid, Sequence) or isinstance(grid, str) or not grid:
        raise wrong("grid", grid, "sequence of counts")
    return tuple(_number("grid", count) for count in grid)


def slots_of(n_slots: Any, slot_size: Any) -> tuple[int, int | None]:
    return _number("n_slots", n_slots), None if slot_size is None else _number("slot_size", slot_size)


def _number(argument: str, value: Any) -> int:
    number = whole(value)
    if number is None or number < 1:
        raise wrong(argument, value, "number of 1 or more")
    return number


def names_of(machine: HDA | str | None, **named: str | None) -> dict[str, str]:
    """Scale and memories: those that are named, else those of the machine, else the standard.

    A machine gives the smallest units with a memory of their own, that memory for tiles and queues, and the
    largest one for tensors.
    """
    for argument, name in named.items():
        if name is not None and not isinstance(name, str):
            raise wrong(argument, name, "name")
    given = {argument: name for argument, name in named.items() if name is not None}
    if machine is None:
        return {**STANDARD, **given}
    hda = find_machine(machine)
    usable = [memory for memory in hda.memories if not memory.cache and memory.shared]
    if not usable:
        raise KernelError(f"machine '{hda.name}' has no memory for the tiles of a kernel")
    if "scale" not in given:
        own = min(usable, key=lambda m: hda.level(m.level).position)
        on = [scale for scale in hda.scales if hda.level(scale.level) is hda.level(own.level)]
        if not on:
            raise KernelError(
                f"machine '{hda.name}' has no scale at level '{own.level}'", advice="give scale="
            )
        given["scale"] = on[-1].name
    known = [scale.name for scale in hda.scales]
    if given["scale"] not in known:
        raise KernelError(
            f"read_kernel: machine '{hda.name}' has no scale '{given['scale']}' (scale=)",
            advice=did_you_mean(given["scale"], known, what="scales"),
        )
    for argument in ("memory", "scratch", "buffer_kind"):
        if argument in given and given[argument] not in [m.name for m in hda.memories]:
            raise KernelError(
                f"read_kernel: machine '{hda.name}' has no memory '{given[argument]}' ({argument}=)",
                advice=did_you_mean(given[argument], [m.name for m in usable], what="memories"),
            )
    base = hda.level(hda.scale(given["scale"]).level).position
    reached = [m for m in usable if hda.level(m.level).position >= base] or usable

    def nearness(memory: MemoryLayer) -> tuple[int, int]:
        return hda.level(memory.level).position, memory.size

    near, large = min(reached, key=nearness).name, max(reached, key=lambda m: m.size).name
    scratch = given.get("scratch", near)
    return {"memory": large, "scratch": scratch, "buffer_kind": scratch, **given}
