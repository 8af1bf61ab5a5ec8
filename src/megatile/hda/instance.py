"""A launch laid on a machine: how many instances of each scale, and on which hardware each one sits.

    >>> from megatile.hda import ScaleView, machine
    >>> launch = machine("dgx-h100").instantiate([
    ...     ScaleView("gpu"),
    ...     ScaleView("block", instance_num=512, is_flatten=True),
    ...     ScaleView("thread", instance_num=256, is_flatten=True),
    ... ])
    >>> launch.shape, launch.count("warp"), launch.waves()
    ((8, 512, 256), 8, 1)

Views go from the largest scale to the smallest; a count is what one instance of the view before it holds
(of the machine, for the first). Instances below the device are dispatched: when there are more than fit,
they run in waves. Below the block they share units instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from megatile.core.errors import InstanceError, did_you_mean
from megatile.core.frozen import Frozen
from megatile.core.quantities import format_bytes, size, whole
from megatile.hda.inference import Dim, LaunchViews
from megatile.hda.model import Scale, Unit
from megatile.hda.schema import ScaleView
from megatile.hda.topology import coords_of

if TYPE_CHECKING:
    from megatile.hda.hda import HDA

Coord = int | tuple[int, ...]
Uses = Mapping[str, int | str]  # memory layer → bytes of one block, as a number or like "48 KiB"
_current: ContextVar[tuple[Instance, ...]] = ContextVar("megatile_instances", default=())


class Seat(NamedTuple):
    """Where an instance sits: the hardware unit, which of its places, and in which wave."""

    unit: Unit
    slot: int
    wave: int


@dataclass(frozen=True)
class Instance:
    """Counts per scale, coordinates ↔ ranks, seats, residency, waves. A context manager for the language."""

    hda: HDA
    dims: tuple[Dim, ...]
    inferred: Mapping[str, Dim] = field(default_factory=Frozen)

    @classmethod
    def make(cls, hda: HDA, views: Sequence[ScaleView]) -> Instance:
        """Check the views against each other and the machine, and infer what they leave open."""
        dims, inferred = LaunchViews(hda, views).result()
        return cls(hda, dims, Frozen(inferred))

    # counts

    @property
    def names(self) -> tuple[str, ...]:
        """The scales of the launch, largest first."""
        return tuple(dim.scale.name for dim in self.dims)

    @property
    def shape(self) -> tuple[int, ...]:
        """Instances of each scale inside one instance of the scale before it."""
        return tuple(dim.count for dim in self.dims)

    @property
    def size(self) -> int:
        """Instances of the smallest scale, in all."""
        return math.prod(self.shape)

    def dim(self, scale: str) -> Dim:
        """Return what is known of one scale; inferred ones (warps of 256 threads) too."""
        wanted = self.hda.scale(scale)
        for dim in self.dims:
            if dim.scale == wanted:
                return dim
        if wanted.name in self.inferred:
            dim = self.inferred[wanted.name]
            if dim.problem:
                raise InstanceError(dim.problem)
            return dim
        raise InstanceError(
            f"this launch has no scale '{scale}'",
            advice=did_you_mean(scale, [*self.names, *self.inferred], what="scales"),
        )

    def count(self, scale: str) -> int:
        """Return instances of a scale inside one instance of the named scale around it."""
        return self.dim(scale).count

    def extents(self, scale: str) -> tuple[int, ...]:
        """Return the same as a grid, x first."""
        return self.dim(scale).extents

    def total(self, scale: str) -> int:
        """Return instances of a scale in the whole launch."""
        return math.prod(dim.count for dim in self._path(scale))

    def _path(self, scale: str) -> tuple[Dim, ...]:
        """Return the named scales around this one, and itself at the end."""
        last = self.dim(scale)
        around = tuple(dim for dim in self.dims if dim.scale.position > last.scale.position)
        return (*around, last)

    # coordinates

    def coords(self, scale: str, rank: int) -> tuple[Coord, ...]:
        """Return one coordinate per named scale down to this one: a number, or a tuple where the scale is a
        grid."""
        path = self._path(scale)
        indices = self._indices(scale, path, rank)
        return tuple(
            index if len(dim.extents) == 1 else dim.split(index)
            for dim, index in zip(path, indices, strict=True)
        )

    def rank(self, scale: str, coords: Sequence[Coord]) -> int:
        """Return the number of the instance at these coordinates: the inverse of :meth:`coords`."""
        path = self._path(scale)
        given = len(coords) if isinstance(coords, (tuple, list)) else 0
        if given != len(path):
            names = ", ".join(dim.scale.name for dim in path)
            raise InstanceError(f"{given} coordinates were given for {len(path)} scales ({names})")
        rank = 0
        for dim, coord in zip(path, coords, strict=True):
            rank = rank * dim.count + dim.join(coord)
        return rank

    # residency and seats

    def _dispatched(self) -> tuple[Dim, ...]:
        """Return the named scales that may wait for a place: below the device, down to the block."""
        return tuple(dim for dim in self.dims if self._waits(dim.scale))

    def residency(self, memory: Uses | None = None) -> int:
        """Return blocks that one hardware unit holds at a time; ``memory`` is the bytes a block uses, per
        layer."""
        dispatched = self._dispatched()
        if not dispatched:
            return 1
        block = dispatched[-1].scale
        limits = [block.max_resident or 1]
        for scale in self.hda.scales:
            if scale.max_resident and scale.position < block.position:
                used = self._inside(scale, block)
                room = scale.max_resident * self.hda.count(scale.name, within=block.name)
                if used:
                    limits.append(room // used)
                    self._fits(room // used, f"{used} {scale.name}s", block, f"{room}")
        for name, amount in (memory or {}).items():
            space, used = self._room(name, block), size(amount)
            if space is not None and used:
                limits.append(space // used)
                self._fits(space // used, f"{format_bytes(used)} of '{name}'", block, format_bytes(space))
        return min(limits)

    def _inside(self, scale: Scale, block: Scale) -> int:
        """Return instances of a smaller scale in one block, 0 if the launch does not say."""
        named = [d for d in self.dims if scale.position <= d.scale.position < block.position]
        if named and named[-1].scale == scale:
            return math.prod(d.count for d in named)
        inferred = self.inferred.get(scale.name)
        if inferred is None or inferred.problem:
            return 0
        outer = [d for d in self.dims if scale.position < d.scale.position < block.position]
        return inferred.count * math.prod(d.count for d in outer)

    def _room(self, name: str, block: Scale) -> int | None:
        layer = self.hda.memory(name)
        if layer.cache:
            raise InstanceError(f"'{name}' is a cache: a {block.name} cannot keep bytes there")
        inside = self.hda.level(layer.level).total
        units = self.hda.count(block.name)
        return layer.available * (inside // units) if inside >= units else None

    def _fits(self, places: int, asked: str, block: Scale, room: str) -> None:
        if not places:
            raise InstanceError(
                f"one {block.name} asks for {asked}, but a {block.level} has {room}",
                advice=f"make the {block.name} smaller",
            )

    def waves(self, memory: Uses | None = None) -> int:
        """Return how many rounds the dispatched instances need."""
        dispatched = self._dispatched()
        if not dispatched:
            return 1
        capacity = self._capacity(dispatched, self.residency(memory))
        return -(-math.prod(dim.count for dim in dispatched) // capacity)

    def _capacity(self, dispatched: tuple[Dim, ...], resident: int) -> int:
        """Return blocks that run at a time inside one parent: whole groups only (a cluster starts
        together)."""
        group = math.prod(dim.count for dim in dispatched[1:])
        above = [dim.scale.name for dim in self.dims if dim.scale.position > dispatched[0].scale.position]
        block = dispatched[-1].scale.name
        places = self.hda.count(block, within=above[-1] if above else None) * resident
        if places < group:
            top = dispatched[0].scale.name
            raise InstanceError(
                f"a {top} of {group} {block}s does not fit: there is room for {places}",
                advice=f"make the {top} smaller",
            )
        return places // group * group

    def seat(self, scale: str, rank: int, memory: Uses | None = None) -> Seat:
        """Return the hardware an instance sits on. Within a wave, blocks fill all units once before any
        twice."""
        path = self._path(scale)
        indices = self._indices(scale, path, rank)
        dispatched = self._dispatched()
        here, slot, wave = Unit(self.hda.levels[-1].name, 0), 0, 0
        queue: int | None = None
        for dim, index in zip(path, indices, strict=True):
            if self._waits(dim.scale):
                inner = math.prod(d.count for d in dispatched if d.scale.position < dim.scale.position)
                # An inferred scale has no dimension of its own: its instances divide the one below.
                queue = (queue or 0) + index * (inner if dim in dispatched else inner // dim.count)
                continue
            if queue is not None:
                here, slot, wave = self._dispatch(here, queue, dispatched, memory)
                queue = None
            inside = self.hda.children(here, dim.scale.level)
            here, slot = inside[index % len(inside)], index // len(inside)
        if queue is not None:
            here, slot, wave = self._dispatch(here, queue, dispatched, memory)
            here = self.hda.parent(here, path[-1].scale.level)
        return Seat(here, slot, wave)

    def _indices(self, scale: str, path: tuple[Dim, ...], rank: int) -> list[int]:
        total = math.prod(dim.count for dim in path)
        rest = whole(rank)
        if rest is None or not 0 <= rest < total:
            raise InstanceError(f"there is no {scale} {rank!r}", advice=f"there are {total}, from 0")
        return list(coords_of(rest, (dim.count for dim in reversed(path))))[::-1]

    def _waits(self, scale: Scale) -> bool:
        return self.hda.scale("block").position <= scale.position < self.hda.scale("device").position

    def _dispatch(self, parent: Unit, queue: int, dispatched: tuple[Dim, ...], memory: Uses | None) -> Seat:
        """Return the place of the block that stands at ``queue`` in its parent's line."""
        units = self.hda.children(parent, dispatched[-1].scale.level)
        wave, place = divmod(queue, self._capacity(dispatched, self.residency(memory)))
        return Seat(units[place % len(units)], place // len(units), wave)

    # the language's context

    recorder: ClassVar[Callable[[Instance], Any] | None] = None
    """Records statements that stand in a ``with`` block outside every kernel; the tile language sets it."""

    def __enter__(self) -> Instance:
        _current.set((*_current.get(), self))
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        # No token is kept: one instance may be entered in several threads at once.
        _current.set(_current.get()[:-1])
        recording = self.__dict__.pop("_recording", None)
        if recording is not None:
            self.__dict__["_program"] = recording.finish(kind is None)

    def recording(self) -> Any:
        """Return what records the statements of the ``with`` block; None without the tile language."""
        if "_recording" not in self.__dict__ and Instance.recorder is not None:
            self.__dict__["_recording"] = Instance.recorder(self)
        return self.__dict__.get("_recording")

    @property
    def program(self) -> Any:
        """The Program of the statements in the last ``with`` block of this instance."""
        if self.__dict__.get("_program") is None:
            raise InstanceError(
                "no statement was recorded for this launch",
                advice='write with instance: with T.Scale("block"): ... outside a kernel first',
            )
        return self.__dict__["_program"]

    @staticmethod
    def current() -> Instance | None:
        """Return the launch whose ``with`` block is being executed, if any."""
        stack = _current.get()
        return stack[-1] if stack else None
