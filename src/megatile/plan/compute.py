"""Doing one command on arrays: for one unit, or for a batch of units with a leading axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from megatile.core.dtypes import accumulator, dtype, numpy_dtype
from megatile.core.operations import REDUCTIONS, Operation, apply, cast
from megatile.plan.cohort import Value, spread
from megatile.plan.storage import Access

Array = Any
# Below this many bytes per unit, gathering all units into one array beats a loop over views of each.
GATHER_BYTES = 2048


def reduce_values(reduction: str, values: list[Array]) -> Array:
    """Reduce in unit order, accumulating as wide as gemm does, rounding once."""
    name = dtype(values[0].dtype)
    wide = numpy_dtype(accumulator(name))
    total = values[0].astype(wide)
    for value in values[1:]:
        total = apply(REDUCTIONS[reduction], [total, value.astype(wide)], accumulator(name))
    return cast(total, name)


def target_bytes(access: Access) -> int:
    return int(np.prod(access.shape)) * access.array.dtype.itemsize


def axes_from_the_end(attributes: dict[str, Any], reads: list[Access]) -> dict[str, Any]:
    """Axes counted from the end, so that a leading axis of units does not matter."""
    axis = attributes.get("axis")
    if isinstance(axis, int) and axis >= 0 and reads:
        return attributes | {"axis": axis - len(reads[0].shape)}
    return attributes


def deliver(target: Array, read: Access, to: Value, member: Value, slot: Value, count: int) -> None:
    """Copy each unit's region into its slot: one copy of the data, whatever the shape of the traffic."""
    if read.empty:
        return
    source = read.batch()
    even = not isinstance(member, np.ndarray) and not isinstance(slot, np.ndarray)
    if source is not None and even and count == len(target):
        shift = _shift(to, count)
        if shift is not None:
            queue = target[:, member, slot]
            queue[shift:] = source[: count - shift]
            queue[:shift] = source[count - shift :]
            return
    if target_bytes(read) < GATHER_BYTES:
        target[to, member, slot] = source if source is not None else read.gather(count)
        return
    members, slots = spread(member, count), spread(slot, count)
    for at in range(count):
        target[int(to[at]), int(members[at]), int(slots[at])] = read.one(at)


def _shift(to: Array, count: int) -> int | None:
    """k if ``to`` is (unit + k) % count for units 0, 1, 2, ..."""
    first = int(to[0])
    expected = np.arange(first, first + count)
    expected[count - first :] -= count
    return first if np.array_equal(to, expected) else None


def compute(
    operation: Operation, target: Array, sources: list[Array], attributes: dict[str, Any], batched: bool
) -> None:
    """target = operation(sources), rounded once to the target's type."""
    lead = 1 if batched else 0
    if operation.name in ("copy", "cast"):
        source = sources[0]
        if source.shape != target.shape:
            source = source.reshape(target.shape)
        if source.dtype == target.dtype:
            np.copyto(target, source)
        else:
            target[...] = cast(source, _name(target))
        return
    if operation.name in ("gemm", "gemm_add"):  # matrices of tiles with further axes, of extent 1
        sources = [s.reshape(s.shape[:lead] + s.shape[-2:]) for s in sources]
    if not operation.attributes:
        rank = target.ndim - lead
        sources = [padded(s, rank, lead) for s in sources]
    if operation.into is not None and all(s.dtype == target.dtype for s in sources):
        operation.into(*sources, out=target)
        return
    result = cast(operation.meaning(*sources, **attributes), _name(target))
    same = result.size == target.size and result.shape != target.shape
    target[...] = result.reshape(target.shape) if same else result


def _name(array: Array) -> str:
    return dtype(array.dtype)


def padded(source: Array, rank: int, lead: int) -> Array:
    """Return extra axes of extent 1 after the unit axis, so that operands of lower rank broadcast; of a
    higher rank those of extent 1 are left out."""
    missing = rank - (source.ndim - lead)
    if missing == 0:
        return source
    if missing < 0:
        first, rest = source.shape[lead : lead - missing], source.shape[lead - missing :]
        return source.reshape(source.shape[:lead] + rest) if set(first) == {1} else source
    return source.reshape(source.shape[:lead] + (1,) * missing + source.shape[lead:])
