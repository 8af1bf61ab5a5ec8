"""Collective kernels for processing elements: modules with ``kernel`` and ``kernel_args``.

What a module may bring: ``kernel(t_ptr, ..., tl)``; ``kernel_args(*, n_elem, world_size, **config)``, the
arguments between ``t_ptr`` and ``tl``; ``neighbors(rank, world_size)`` or ``neighbors(rank, world_size,
base)``, which get the neighbours of the entry's topology as ``base``; ``TOPOLOGY`` and ``MAPPER``, what holds
where an entry says topology ``none``; ``TOPOLOGIES``, the only ones it runs on; ``REDUCE_OPS``, the
reductions that it can do beside ``sum``.

In every installed kernel ``program_id(0)`` is the PE in its cube, ``program_id(1)`` the cube in its SIP and
``program_id(2)`` the SIP; ``tl.rank`` counts the participants.

A tile of more bytes than a queue holds (``n_slots × slot_size``) would leave every sender of a ring waiting
for a slot, so these kernels reduce one piece of the tensor after the other.
"""

from collections.abc import Callable
from typing import Any

from megatile.core.dtypes import itemsize

REDUCE_OPS = ("sum", "max", "min", "prod")
KERNEL_HELPERS = ("in_pieces", "merged", "passed_round")


def merged(tl: Any, op: str, a: Any, b: Any) -> Any:
    """Return two tiles reduced."""
    if op == "sum":
        return a + b
    if op == "prod":
        return a * b
    return tl.maximum(a, b) if op == "max" else tl.minimum(a, b)


def passed_round(tl: Any, total: Any, extent: int, low: str, high: str, **how: Any) -> Any:
    """Reduce over a ring: pass each unit's tile on, from ``low`` to ``high``."""
    current = total
    for _ in range(extent - 1):
        tl.send(dir=high, src=current)
        current = tl.recv(dir=low, shape=how["shape"], dtype=how["dtype"])
        total = merged(tl, how["op"], total, current)
    return total


def elements_in_flight(n_elem: int, dtype: str, config: Any) -> int:
    """Return how many elements a queue (``n_slots × slot_size`` bytes) holds, at most ``n_elem``."""
    if "slot_size" not in config:
        return n_elem
    return max(1, min(n_elem, config.get("n_slots", 1) * (config["slot_size"] // itemsize(dtype))))


def in_pieces(
    tl: Any, reduce: Callable[..., None], t_ptr: Any, n_elem: int, dtype: str, piece: int, *how: Any
) -> None:
    """Call ``reduce(tl, pointer, count, *how)`` for the rank's tensor, ``piece`` elements after the other."""
    size, piece = itemsize(dtype), piece or n_elem
    mine, before_last = t_ptr + tl.rank * n_elem * size, (n_elem - 1) // piece
    for number in range(before_last):
        reduce(tl, mine + number * piece * size, piece, *how)
    done = before_last * piece
    reduce(tl, mine + done * size, n_elem - done, *how)
