"""How a tensor lies on the PEs of one device: policies, the shards they make, and the memory of each.

    policy = DPPolicy(cube="row_wise", pe="column_wise", num_cubes=2)
    shards = resolve_dp_policy(policy, shape=(8, 64), itemsize=2, num_pe=8, num_cubes=16, target_sip=0)

A shard is packed in its PE. The virtual range of a tensor concatenates the shards that differ, in (cube, pe)
order; copies lie at the same virtual address, each in its own PE. Uneven sizes leave the last shards short or
empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from megatile.core.dtypes import dtype as dtype_name, itemsize as size_of
from megatile.core.errors import MegatileError, did_you_mean
from megatile.core.placement import Mesh, Replicate, Shard, part
from megatile.core.quantities import whole
from megatile.hda.addresses import PhysAddr
from megatile.runtime.host.allocators import AllocationError, Allocators, PEMemAllocator, VirtualAllocator

Slices = tuple[slice, ...]
POLICIES: dict[str, Callable[[int], Shard | Replicate]] = {
    "replicate": lambda rank: Replicate(),
    "row_wise": lambda rank: Shard(0),
    "column_wise": lambda rank: Shard(rank - 1),
}


class PlacementError(MegatileError, ValueError):
    """A tensor that cannot lie as asked."""


@dataclass(frozen=True)
class DPPolicy:
    """Division over the cubes of a device, then over the PEs of each cube; a number of None means all.

    It says nothing about devices: every rank has a tensor of its own.
    """

    cube: str = "replicate"
    pe: str = "replicate"
    num_pes: int | None = None
    num_cubes: int | None = None

    def __post_init__(self) -> None:
        for axis in ("cube", "pe"):
            policy = getattr(self, axis)
            if policy not in POLICIES:
                advice = did_you_mean(str(policy), POLICIES, what="policies")
                raise PlacementError(f"unknown policy {policy!r} for {axis}", advice=advice)
        for axis in ("num_pes", "num_cubes"):
            number = getattr(self, axis)
            if number is not None and (whole(number) is None or number < 1):
                raise PlacementError(f"{axis} cannot be {number!r}", advice="use 1 or more, or None for all")


@dataclass(frozen=True)
class ShardSpec:
    """One shard: its PE, its bytes in the tensor's virtual range, and the indices that it holds."""

    sip: int
    cube: int
    pe: int
    offset_bytes: int
    nbytes: int
    slices: Slices = ()

    local_pe = property(lambda self: self.pe)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(s.stop - s.start for s in self.slices)


def resolve_dp_policy(
    policy: DPPolicy,
    *,
    shape: Sequence[int],
    itemsize: int,
    num_pe: int,
    num_cubes: int = 1,
    target_sip: int,
) -> tuple[ShardSpec, ...]:
    """Return the shards of a tensor on device ``target_sip``, which has so many cubes and PEs per cube."""
    if not isinstance(policy, DPPolicy):
        raise PlacementError(
            f"{policy!r} is not a DPPolicy", advice='DPPolicy(cube="row_wise", pe="replicate")'
        )
    shape = _shape(shape)
    cubes, pes = policy.num_cubes or num_cubes, policy.num_pes or num_pe
    if cubes > num_cubes or pes > num_pe:
        raise PlacementError(
            f"{cubes} cubes of {pes} PEs are asked for, the device has {num_cubes} of {num_pe}",
            advice="use a smaller num_cubes or num_pes",
        )
    if not shape and (policy.cube, policy.pe) != ("replicate", "replicate"):
        raise PlacementError("a tensor without dimensions cannot be divided", advice="replicate it")
    layout = Mesh((POLICIES[policy.cube](len(shape)), POLICIES[policy.pe](len(shape))))
    held = []
    for cube in range(cubes):
        for pe in range(pes):
            runs = part(layout, shape, (cubes, pes), cube + pe * cubes)
            held.append((cube, pe, tuple(slice(int(start), int(stop)) for start, stop in runs)))
    return packed(held, itemsize, target_sip)


def _over_pes(policy: str) -> Callable[..., tuple[ShardSpec, ...]]:
    """Return the function ``(shape=, itemsize=, num_pe=)`` of a policy over the PEs of one cube."""

    def shards(*, shape: Sequence[int], itemsize: int, num_pe: int) -> tuple[ShardSpec, ...]:
        one_cube = DPPolicy(pe=policy)
        return resolve_dp_policy(one_cube, shape=shape, itemsize=itemsize, num_pe=num_pe, target_sip=0)

    shards.__name__, shards.__doc__ = policy, f"Return the shards of a tensor {policy} over ``num_pe`` PEs."
    return shards


column_wise, row_wise, replicate = map(_over_pes, ("column_wise", "row_wise", "replicate"))


def packed(held: Iterable[tuple[int, int, Slices]], itemsize: int, sip: int) -> tuple[ShardSpec, ...]:
    """Return shards of (cube, pe, indices): those that differ one after the other, copies at the same
    place."""
    offsets: dict[Any, int] = {}
    shards, end = [], 0
    for cube, pe, slices in held:
        nbytes = prod(s.stop - s.start for s in slices) * itemsize
        offset = offsets.setdefault(tuple((s.start, s.stop) for s in slices), end)
        end += nbytes if offset == end else 0
        shards.append(ShardSpec(sip, cube, pe, offset, nbytes, slices))
    return tuple(shards)


def alike(shards: Sequence[PlacedShard], size: int, new_size: int, sip: int | None = None) -> list[ShardSpec]:
    """Return the same placement for elements of another size, on the same or another device."""
    return [
        replace(
            s.spec,
            sip=s.sip if sip is None else sip,
            offset_bytes=s.offset_bytes // size * new_size,
            nbytes=s.nbytes // size * new_size,
        )
        for s in shards
    ]


def tiled_column_major(
    shape: Sequence[int], itemsize: int, num_pe: int, tile_m: int, tile_k: int, *, target_sip: int = 0
) -> tuple[ShardSpec, ...]:
    """Return tiles of (tile_m, tile_k) dealt out to the PEs in turn, along K first."""
    return _tiled(shape, itemsize, num_pe, tile_m, tile_k, target_sip, k_first=True)


def tiled_row_major(
    shape: Sequence[int], itemsize: int, num_pe: int, tile_m: int, tile_k: int, *, target_sip: int = 0
) -> tuple[ShardSpec, ...]:
    """Return tiles of (tile_m, tile_k) dealt out to the PEs in turn, along M first."""
    return _tiled(shape, itemsize, num_pe, tile_m, tile_k, target_sip, k_first=False)


def _tiled(
    shape: Sequence[int], itemsize: int, num_pe: int, tile_m: int, tile_k: int, sip: int, k_first: bool
) -> tuple[ShardSpec, ...]:
    extents = _shape(shape)
    if len(extents) != 2 or min(tile_m, tile_k, num_pe) < 1:
        raise PlacementError(
            f"tiles of ({tile_m}, {tile_k}) over {num_pe} PEs need a matrix, not {extents}",
            advice="give two extents and positive numbers",
        )
    m, k = extents
    rows = [slice(i, min(i + tile_m, m)) for i in range(0, m, tile_m)]
    columns = [slice(j, min(j + tile_k, k)) for j in range(0, k, tile_k)]
    order = [(r, c) for r in rows for c in columns] if k_first else [(r, c) for c in columns for r in rows]
    return packed(((0, number % num_pe, tile) for number, tile in enumerate(order)), itemsize, sip)


def _shape(shape: Any) -> tuple[int, ...]:
    found = [whole(extent) for extent in (shape if isinstance(shape, (tuple, list)) else (shape,))]
    if any(extent is None or extent < 0 for extent in found):
        raise PlacementError(f"{shape!r} is not a shape", advice="use non-negative integers")
    return tuple(int(extent) for extent in found if extent is not None)


@dataclass(frozen=True)
class PlacedShard:
    """A shard with its physical address, also as the encoded number ``pa``."""

    spec: ShardSpec
    address: PhysAddr

    pa = property(lambda self: self.address.encode())
    sip = property(lambda self: self.spec.sip)
    cube = property(lambda self: self.spec.cube)
    pe = property(lambda self: self.spec.pe)
    nbytes = property(lambda self: self.spec.nbytes)
    offset_bytes = property(lambda self: self.spec.offset_bytes)
    slices = property(lambda self: self.spec.slices)


@dataclass
class TensorHandle:
    """A tensor in device memory: shard i lies at ``va_base + offset_bytes`` for the PE that holds it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    mem_kind: str
    shards: tuple[PlacedShard, ...]
    va_base: int | None
    freed: bool = False

    @cached_property
    def nbytes(self) -> int:
        """Bytes of the virtual range."""
        return max((s.offset_bytes + s.nbytes for s in self.shards), default=0)

    @cached_property
    def even(self) -> bool:
        """Whether all shards have the same shape."""
        return len({s.spec.shape for s in self.shards}) <= 1

    @cached_property
    def layout_key(self) -> tuple[Any, ...]:
        """How it lies, without where: what a kernel's reading depends on."""
        held = (tuple((span.start, span.stop) for span in s.slices) for s in self.shards)
        places = tuple((s.cube, s.pe, s.offset_bytes, h) for s, h in zip(self.shards, held, strict=True))
        return self.shape, self.dtype, self.mem_kind, places

    def pack(self, array: Any) -> list[Any]:
        """Return the contents of every shard."""
        return [np.ascontiguousarray(array[s.slices]) for s in self.shards]

    def unpack(self, parts: Sequence[Any]) -> Any:
        """Return the whole tensor from its shards; copies are taken from the first."""
        whole = np.empty(self.shape, dtype=parts[0].dtype if len(parts) else None)
        for shard, data in zip(reversed(self.shards), reversed(parts), strict=True):
            whole[shard.slices] = data.reshape(shard.spec.shape)
        return whole


def deploy_tensor(
    name: str,
    shape: Sequence[int],
    dtype: Any,
    placement: Sequence[ShardSpec],
    allocators: Mapping[tuple[int, int, int], PEMemAllocator] | Allocators,
    mem_kind: str = "hbm",
    va_allocator: VirtualAllocator | None = None,
) -> TensorHandle:
    """Return memory for every shard; if one does not fit, none is taken."""
    if mem_kind not in ("hbm", "tcm", "sram"):
        advice = did_you_mean(str(mem_kind), ("hbm", "tcm", "sram"), what="memories")
        raise PlacementError(f"a tensor cannot lie in {mem_kind!r}", advice=advice)
    extents, element = _shape(shape), dtype_name(dtype)
    total = sum(nbytes for _, nbytes in {(s.offset_bytes, s.nbytes) for s in placement})
    if total != prod(extents) * size_of(element):
        raise PlacementError(
            f"the shards of '{name}' hold {total} bytes, {element}{list(extents)} has "
            f"{prod(extents) * size_of(element)}"
        )
    placed: list[PlacedShard] = []
    try:
        for spec in placement:
            memory = allocators[spec.sip, spec.cube, spec.pe]
            placed.append(PlacedShard(spec, memory.alloc(mem_kind, spec.nbytes, f"tensor '{name}'")))
        va = va_allocator.alloc(total, f"tensor '{name}'") if va_allocator else None
    except AllocationError:
        release(placed, allocators)
        raise
    return TensorHandle(name, extents, element, mem_kind, tuple(placed), va)


def release(
    shards: Sequence[PlacedShard], allocators: Mapping[tuple[int, int, int], PEMemAllocator] | Allocators
) -> None:
    for shard in shards:
        allocators[shard.sip, shard.cube, shard.pe].free(shard.address, shard.nbytes)
