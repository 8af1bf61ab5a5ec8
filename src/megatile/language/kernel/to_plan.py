"""``read_kernel``: from a kernel to its Plan."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from megatile.core.errors import MegatileError, did_you_mean
from megatile.core.expr import symbols
from megatile.core.quantities import whole
from megatile.hda import HDA, machine as find_machine
from megatile.hda.model import MemoryLayer
from megatile.language.common.rewrite import bind
from megatile.language.kernel.context import QUEUES, Settings, Tl
from megatile.language.kernel.directions import wiring
from megatile.language.kernel.reader import Reader
from megatile.language.kernel.symbols import PYTHON_ERRORS, KernelError, NeedsValue, explained
from megatile.language.kernel.values import Computed, Pointer, Tensor
from megatile.plan.build import PlanBuilder
from megatile.plan.liveness import with_frees
from megatile.plan.model import Channel, Plan, Stream, runs, statements

STANDARD = {"scale": "pe", "memory": "hbm", "scratch": "tcm", "buffer_kind": "tcm"}
"""What holds without a machine: the names of KernBench."""


def wrong(argument: str, value: Any, needed: str) -> KernelError:
    return KernelError(f"read_kernel: {argument}={value!r} is not a {needed}")


def check_kernel(kernel: Any, arguments: Any, neighbors: Any) -> None:
    if not isinstance(kernel, Callable):  # type: ignore[arg-type]
        raise wrong("kernel", kernel, "function")
    if isinstance(arguments, (str, bytes)) or not isinstance(arguments, Sequence):
        raise wrong("arguments", arguments, "list of what comes before tl")
    if neighbors is not None and not callable(neighbors):
        raise wrong("neighbors", neighbors, "function of (rank, world_size)")


def extents_of(grid: Any, world_size: Any) -> tuple[int, ...]:
    """Return the axes of ``program_id``."""
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


def read_kernel(
    kernel: Callable[..., Any],
    arguments: Sequence[Any],
    *,
    world_size: int | None = None,
    grid: Sequence[int] | None = None,
    topology: Any = "ring_1d",
    neighbors: Any = None,
    machine: HDA | str | None = None,
    scale: str | None = None,
    name: str | None = None,
    memory: str | None = None,
    scratch: str | None = None,
    buffer_kind: str | None = None,
    n_slots: int = 4,
    slot_size: int | None = None,
    split: bool = False,
) -> Plan:
    """Return the Plan of a kernel.

    ``arguments`` come before ``tl``: ``Tensor``s become pointers, everything else is passed as it is.
    ``grid`` gives the axes of ``program_id`` (the first varies fastest). Queues have ``n_slots`` slots in
    memory ``buffer_kind``; without ``slot_size`` they are as large as the largest message. ``machine`` gives
    what is not named: the scale of its smallest units with a memory of their own, that memory for tiles and
    queues, and its largest memory for tensors; without it they are those of KernBench (``pe``, ``tcm``,
    ``hbm``).
    """
    check_kernel(kernel, arguments, neighbors)
    extents = extents_of(grid, world_size)
    n_slots, slot_size = slots_of(n_slots, slot_size)
    names = names_of(machine, scale=scale, memory=memory, scratch=scratch, buffer_kind=buffer_kind)
    scale = names.pop("scale")
    wires = wiring(topology, prod(extents), neighbors)
    settings = Settings(
        extents,
        wires,
        **names,
        n_slots=n_slots,
        slot_size=slot_size,
        split=split,
    )
    title = str(name or kernel.__name__)
    plan = PlanBuilder(title, scale=scale, grid=extents)
    try:
        largest = _read(kernel, arguments, settings, plan, 0 if settings.units == 1 else None, "")
        streams = [Stream(((0, settings.units, 1),), with_frees(tuple(plan.body)))]
    except NeedsValue as error:
        if not symbols(error.node) & {"unit"}:
            raise
        plan = PlanBuilder(title, scale=scale, grid=extents)
        streams, largest = _read_each(kernel, arguments, settings, plan)
    plan.body, plan.streams = [], streams
    if wires.names and any(getattr(s, "channel", None) for one in streams for s in statements(one.body)):
        plan.channels[QUEUES] = _queues(settings, slot_size or max(largest, 1))
    return plan.finish()


def _queues(settings: Settings, slot_bytes: int) -> Channel:
    wires = settings.wires
    count = max(1, len(wires.names))
    return Channel(
        QUEUES, count, wires.source(), settings.n_slots, slot_bytes, settings.buffer_kind, wires.names
    )


def _read(
    kernel: Callable[..., Any],
    arguments: Sequence[Any],
    settings: Settings,
    plan: PlanBuilder,
    number: int | None,
    prefix: str,
) -> int:
    """Read the kernel into ``plan.body``; the size of its largest message."""
    reader = Reader(plan, settings.units)
    plan.prefix = ""
    context = Tl(reader, settings, _queues(settings, 1), number)
    values = [
        a.make(context) if isinstance(a, Computed) else _argument(a, plan, settings, reader)
        for a in arguments
    ]
    plan.prefix = prefix
    function = bind(kernel, reader)
    named = "tl" in inspect.signature(kernel).parameters
    try:
        function(*values, tl=context) if named else function(*values, context)
    except PYTHON_ERRORS as error:
        if isinstance(error, MegatileError):
            raise
        raise explained(error, reader.here, context) from error
    plan.prefix = ""
    return reader.largest_message


def _argument(value: Any, plan: PlanBuilder, settings: Settings, reader: Reader) -> Any:
    if not isinstance(value, Tensor):
        return value
    if value.name not in plan.tiles:
        memory = value.memory or settings.memory
        plan.tile(value.name, value.shape, value.dtype, memory=memory, role=value.role)
    return Pointer(value, 0, reader)


def _read_each(
    kernel: Callable[..., Any], arguments: Sequence[Any], settings: Settings, plan: PlanBuilder
) -> tuple[list[Stream], int]:
    """Read unit by unit; units whose streams are equal share one."""
    groups: dict[Any, list[int]] = {}
    largest = 0
    for number in range(settings.units):
        trial = PlanBuilder(plan.plan.name, scale=plan.plan.scale, grid=settings.grid)
        largest = max(largest, _read(kernel, arguments, settings, trial, number, ""))
        groups.setdefault((tuple(trial.body), tuple(trial.tiles.values())), []).append(number)
    streams = []
    for count, members in enumerate(groups.values()):
        plan.body = []
        _read(kernel, arguments, settings, plan, members[0], f"c{count}_")
        streams.append(Stream(runs(members), with_frees(tuple(plan.body))))
    return streams, largest
