"""``torch.launch``: a ``tl`` kernel on the PEs where its tensors lie.

Every PE that holds a shard runs the kernel; ``program_id(0)`` counts PEs of a cube, ``program_id(1)`` cubes.
A tensor argument is a pointer to its virtual range, so that ``pointer + pid * stride`` is a PE's own shard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

from megatile.core.cached import cached_in_owner
from megatile.core.dtypes import itemsize
from megatile.core.errors import MegatileError, did_you_mean
from megatile.core.expr import symbols, table, unit
from megatile.hda import HDA
from megatile.hda.addresses import DeviceShape
from megatile.language.kernel.symbols import NoBlockError
from megatile.language.kernel.to_plan import read_kernel
from megatile.language.kernel.values import Computed, Tensor as KernelTensor
from megatile.plan.check import check
from megatile.plan.cohort import InvalidDirection
from megatile.plan.deadlock import PlanDeadlock
from megatile.plan.memory import blocks
from megatile.plan.model import Plan, statements
from megatile.plan.storage import OutsideError
from megatile.runtime.errors import LaunchError
from megatile.runtime.host.products import product_plan
from megatile.runtime.host.relayout import Move, relayout
from megatile.runtime.host.storage import TensorError
from megatile.runtime.host.tensor import Tensor
from megatile.timing.placement import place_names


class LaunchDeadlock(LaunchError, PlanDeadlock):
    """A kernel that cannot go on; the text and ``graph`` have every queue's pointers."""

    def __init__(self, message: str, problem: PlanDeadlock, **options: Any) -> None:
        PlanDeadlock.__init__(self, message, problem.waits, problem.graph, **options)
        self.units = tuple(dict.fromkeys(unit for unit, _, _ in problem.waits))


class LaunchDirection(LaunchError, InvalidDirection):
    """A kernel that uses a direction in which its PE has no neighbour."""


DIFFERS = object()
"""Placeholder of an argument that differs between devices."""
OPTIONS = ("topology", "neighbors", "n_slots", "slot_size", "buffer_kind", "scratch")
"""What a launch may say of its queues and scratch memory; see ``tl.read_kernel``."""


@dataclass(frozen=True)
class HostKernel:
    """A plan for PEs counted from the device's first, and the tensors that it names."""

    plan: Plan
    tiles: Mapping[str, tuple[str, Sequence[int] | None]]
    """What its tiles are: a tensor, and which of its shards are the rows (None: all)."""
    written: frozenset[str]
    made: frozenset[str] = frozenset()
    """Tiles that are written whole, so that nothing is read from their tensors."""
    scratch_bytes: int = 0
    """What it needs of the near memory of each PE: tiles and queues."""

    @property
    def communicates(self) -> bool:
        return bool(self.plan.channels or self.plan.groups)

    @cached_in_owner
    def on(self, device: int, shape: DeviceShape) -> Plan:
        """Return the plan on a device."""
        first = device * (1 if self.plan.levels else shape.cubes * shape.pes)
        return replace(self.plan, place=self.plan.place + first) if first else self.plan


class KernelCache:
    """Kernels that were read, by function, arguments and placement."""

    def __init__(self, machine: HDA, shape: DeviceShape) -> None:
        self.machine, self.shape = machine, shape

    def checked(
        self, name: str, fn: Callable[..., Any], args: Sequence[Any], options: dict[str, Any]
    ) -> HostKernel:
        """As `find`; what is wrong with a kernel is said of the caller's tensors."""
        try:
            return self.find(name, fn, args, options)
        except MegatileError:
            with self._explaining(name, args):
                raise

    @contextmanager
    def _explaining(self, name: str, args: Sequence[Any]) -> Iterator[None]:
        try:
            yield
        except (LaunchError, TensorError):
            raise
        except MegatileError as problem:
            raise explained(problem, name, args, self.machine, self.shape) from problem

    def find(
        self, name: str, fn: Callable[..., Any], args: Sequence[Any], options: dict[str, Any]
    ) -> HostKernel:
        """Return the kernel for these arguments, read when they are first seen."""
        unknown = [o for o in options if o not in OPTIONS]
        if unknown:
            advice = did_you_mean(unknown[0], OPTIONS, what="options")
            raise LaunchError(f"a launch has no option '{unknown[0]}'", advice=advice)
        tensors = [a for a in args if isinstance(a, Tensor)]
        if not tensors:
            raise LaunchError(f"kernel '{name}' has no tensor, so it is not known where to run it")
        read = self._read_once if all(map(_hashable, args)) else self._read
        return read(name, fn, args, tensors, options)

    def _read(
        self,
        name: str,
        fn: Callable[..., Any],
        args: Sequence[Any],
        tensors: list[Tensor],
        options: dict[str, Any],
    ) -> HostKernel:
        seats = _seats(name, tensors)
        cubes = len({cube for cube, _ in seats})
        if len(seats) % cubes or seats != [(c, p) for c in range(cubes) for p in range(len(seats) // cubes)]:
            raise LaunchError(f"kernel '{name}': its PEs {seats} are not a rectangle of cubes and PEs")
        pes = len(seats) // cubes
        kernel = self._planned(name, fn, args, (pes, cubes), options)
        if pes == self.shape.pes:
            return kernel
        return replace(kernel, plan=replace(kernel.plan, place=unit // pes * self.shape.pes + unit % pes))

    _read_once = cached_in_owner(
        _read, key=lambda name, fn, args, _, options: (name, fn, _keys(args), tuple(sorted(options.items())))
    )

    def joint(
        self, name: str, fn: Callable[..., Any], given: Sequence[Sequence[Any]], options: dict[str, Any]
    ) -> HostKernel | None:
        """Return the kernel on several devices at a time, each with its arguments (`joint_launch`); None
        where these differ so that it is not one kernel."""
        if len({len(args) for args in given}) > 1 or not all(_hashable(v) for args in given for v in args):
            return None
        return self._joined(name, fn, given, options)

    @partial(cached_in_owner, key=lambda name, fn, given, options: (name, fn, tuple(map(_keys, given))))
    def _joined(
        self, name: str, fn: Callable[..., Any], given: Sequence[Sequence[Any]], options: dict[str, Any]
    ) -> HostKernel | None:
        args = [_for_all(values) for values in zip(*given, strict=True)]
        if any(value is DIFFERS for value in args):
            return None
        seats = _seats(name, [a for a in args if isinstance(a, Tensor)])
        cubes, devices = len({cube for cube, _ in seats}), len(given)
        with self._explaining(name, args):
            kernel = self._planned(name, fn, args, (len(seats) // cubes, cubes, devices), options)
        each = self.shape.cubes * self.shape.pes
        places = [d * each + c * self.shape.pes + p for d in range(devices) for c, p in seats]
        return replace(kernel, plan=replace(kernel.plan, place=table(places, unit)))

    def _planned(
        self, name: str, fn: Callable[..., Any], args: Sequence[Any], grid: tuple[int, ...], options: Any
    ) -> HostKernel:
        names: dict[int, str] = {}
        values: list[Any] = []
        for number, value in enumerate(args):
            if isinstance(value, Tensor):
                names.setdefault(id(value), f"t{number}")
                made = _kernel_tensor(value, names[id(value)], self.shape)
                if len(grid) > 2 and not made.replicated:  # every device has all parts
                    made = replace(made, period=made.period or grid[0] * grid[1])
                values.append(made)
            else:
                values.append(value)
        settings = {
            "memory": self.shape.hbm,
            "scratch": self.shape.l1,
            "buffer_kind": self.shape.l1,
            **options,
        }
        plan = read_kernel(
            fn, values, grid=grid, scale=self.shape.pe_scale, name=name, split=True, **settings
        )
        written = frozenset(
            region.tile
            for stream in plan.streams
            for s in statements(stream.body)
            for region in (getattr(s, "write", None), getattr(s, "into", None))
            if region is not None
        )
        roles = (
            replace(t, role="input") if t.role == "inout" and t.name not in written else t for t in plan.tiles
        )
        plan = replace(plan, tiles=tuple(roles))
        check(plan, self.machine)
        near = [b for b in blocks(plan) if b[1] == self.shape.l1]
        scratch = sum(
            size for what, _, size, _ in near if what not in {f"tile '{n}'" for n in names.values()}
        )
        return HostKernel(plan, {n: (n, None) for n in names.values()}, written, scratch_bytes=scratch)

    @partial(cached_in_owner, key=lambda *asked: tuple(map(_lies, asked)))
    def relayout(self, source: Tensor, target: Tensor, moves: tuple[Move, ...], zero: bool) -> HostKernel:
        """Return the copies that lay a tensor anew."""
        one, two = source._there(), target._there()
        whole = zero or sum(prod(m.extent) for m in moves) == prod(two.shape)
        plan, x, y = relayout(one, two, moves, zero, whole, self.shape)
        check(plan, self.machine)
        tiles = {
            name: (side.letter, side.classes[shape]) for side in (x, y) for shape, name in side.names.items()
        }
        written = frozenset(y.names.values())
        return HostKernel(plan, tiles, written, written if whole else frozenset())

    @partial(cached_in_owner, key=lambda *asked: tuple(map(_lies, asked)))
    def product(self, x: Tensor, w: Tensor, y: Tensor) -> HostKernel:
        """Return the tiled product of two matrices that lie in one piece each, in a memory that all PEs
        reach."""
        (m, k), width = x.shape, y.shards[0].spec.shape[1]
        plan = product_plan(m, k, width, len(y.shards), x.dtype, self.machine, self.shape)
        check(plan, self.machine)
        scratch = sum(size for _, memory, size, _ in blocks(plan) if memory == self.shape.l1)
        tiles = {name: (name, None) for name in "xwy"}
        return HostKernel(plan, tiles, frozenset("y"), frozenset("y"), scratch)


def explained(
    problem: MegatileError, name: str, args: Sequence[Any], machine: HDA, shape: DeviceShape
) -> LaunchError:
    """Return the problem with the names and addresses of the tensors that it speaks of, and the PE."""
    message, where = problem.message, []
    tensors = {f"t{number}": tensor for number, tensor in enumerate(args) if isinstance(tensor, Tensor)}
    parts = message.split("'")
    for name_in_plan, tensor in tensors.items():
        if name_in_plan in parts or f"<{name_in_plan} +" in message:
            base = tensor.va_base or 0
            span = f"{base:#x} to {base + tensor.handle.nbytes:#x}" if tensor.handle else "nothing"
            where.append(f"'{tensor.name}' is mapped at {span} of device {tensor.device_index}")
            where += _access(problem, tensor, machine, shape)
    for i, part in enumerate(parts[1:], start=1):
        if part in tensors:
            parts[i - 1] = parts[i - 1].removesuffix("tensor ").removesuffix("tile ") + "tensor "
            parts[i] = tensors[part].name
    pointers = "'".join(parts).split("<")
    for i, part in enumerate(pointers[1:], start=1):
        pointed, plus, offset = part.partition(" +")
        if plus and pointed in tensors:
            pointers[i] = tensors[pointed].name + plus + offset
    message = "<".join(pointers)
    text = f"kernel '{name}': {message}" + "".join(f"; {w}" for w in where)
    options: dict[str, Any] = {"place": problem.place, "advice": problem.advice}
    if isinstance(problem, PlanDeadlock):
        return LaunchDeadlock(text, problem, **options)
    return (LaunchDirection if isinstance(problem, InvalidDirection) else LaunchError)(text, **options)


def _access(problem: MegatileError, tensor: Tensor, machine: HDA, shape: DeviceShape) -> list[str]:
    """Return which PE reaches for which address, if that is the problem."""
    shards, cubes = tensor.shards, len({s.cube for s in tensor.shards})
    found: BaseException | None = problem
    while found is not None and not isinstance(found, (OutsideError, NoBlockError)):
        found = found.__cause__
    if isinstance(found, OutsideError):
        number, local = found.unit, shards[0].spec.shape
        strides = [prod(local[i + 1 :]) for i in range(len(local))]
        first = sum(i * stride for i, stride in zip(found.start, strides, strict=False))
        own = len({s.offset_bytes for s in shards}) > 1
        at = (found.owner * shards[0].nbytes if own else 0) + first * itemsize(tensor.dtype)
    elif found is not None and symbols(found.offset) <= {"unit"}:
        number, at = 0, int(found.offset.evaluate({"unit": 0}))
    else:
        return []
    cube, pe = divmod(number, len(shards) // cubes)
    place = (tensor.device_index * shape.cubes + cube) * shape.pes + pe
    (name,) = place_names(machine, shape.pe_scale, [place])
    return [f"{name} is the first to reach for it, at {(tensor.va_base or 0) + at:#x}"]


def _hashable(value: Any) -> bool:
    """Return whether an argument can be part of a key."""
    return all(map(_hashable, value)) if isinstance(value, tuple) else type(value).__hash__ is not None


def _lies(value: Any) -> Any:
    """Return how a tensor lies; other values themselves."""
    return value._there().layout_key if isinstance(value, Tensor) else value


def _keys(args: Sequence[Any]) -> tuple[Any, ...]:
    """Return what a reading depends on: numbers with their types, tensors by how they lie and which are the
    same."""
    first: dict[int, int] = {}
    keys = [
        (value._there().layout_key, first.setdefault(id(value), number))
        if isinstance(value, Tensor)
        else (type(value), value)
        for number, value in enumerate(args)
    ]
    return tuple(keys)


def _seats(name: str, tensors: list[Tensor]) -> list[tuple[int, int]]:
    """Return the PEs of the device that hold the tensors, which must be the same for all of them."""
    first = tensors[0]
    wanted = sorted((s.cube, s.pe) for s in first.shards)
    for tensor in tensors:
        found = sorted((s.cube, s.pe) for s in tensor.shards)
        if len(set(found)) < len(found):
            raise LaunchError(f"kernel '{name}': tensor '{tensor.name}' has several shards in one PE")
        if found != wanted or tensor.device_index != first.device_index:
            raise LaunchError(
                f"kernel '{name}': '{first.name}' lies on {len(wanted)} PEs of device {first.device_index}, "
                f"'{tensor.name}' on {len(found)} of device {tensor.device_index}",
                advice="give them policies with the same num_cubes and num_pes, on one device",
            )
    return wanted


def _kernel_tensor(tensor: Tensor, name: str, shape: DeviceShape) -> KernelTensor:
    tensor.rows()  # uneven shards are refused
    shards = sorted(tensor.shards, key=lambda s: (s.cube, s.pe))
    local = shards[0].spec.shape
    memory = {"hbm": shape.hbm, "tcm": shape.l1, "sram": shape.sram}[tensor.shards[0].address.component]
    size = max(1, shards[0].nbytes)
    owners = [s.offset_bytes // size for s in shards]
    copies = next((i for i, q in enumerate(owners) if q != owners[0]), len(owners))
    different = len(set(owners))
    if different == 1:
        return KernelTensor(name, local, tensor.dtype, memory=memory, replicated=True)
    period = copies * different
    period = 0 if period == len(shards) else period
    return KernelTensor(name, local, tensor.dtype, memory=memory, copies=copies, period=period)


def _for_all(values: Sequence[Any]) -> Any:
    """Return an argument for all devices: the value they share, a number that grows evenly, or DIFFERS."""
    first = values[0]
    if isinstance(first, Tensor):
        alike = all(isinstance(v, Tensor) for v in values)
        return first if alike and len({t._there().layout_key for t in values}) == 1 else DIFFERS
    if all(type(v) is type(first) and v == first for v in values):
        return first
    if all(type(v) is int for v in values):
        step = values[1] - first
        if list(values) == [first + step * i for i in range(len(values))]:
            return Computed(lambda tl: first + step * tl.program_id(2))
    return DIFFERS
