"""Which ranks divide a model's tensors, and which its data: groups of the active host."""

from __future__ import annotations

import weakref
from typing import Any

from megatile.core.errors import MegatileError
from megatile.core.quantities import whole
from megatile.runtime.host.context import RuntimeContext


class ParallelError(MegatileError, RuntimeError):
    """Groups that are missing, or sizes that do not go together."""


_states: weakref.WeakKeyDictionary[RuntimeContext, tuple[int, int]] = weakref.WeakKeyDictionary()
"""By host: how many ranks share a model's tensors, and how many there are."""


def active(torch: Any = None) -> Any:
    """Return the host in use: the one given, or the one whose ``with`` block this is."""
    found = torch if torch is not None else RuntimeContext.active()
    if found is None:
        raise ParallelError("there is no active host", advice="with mt.host(machine=…) as torch:")
    return found


def initialize_model_parallel(tensor_model_parallel_size: int = 1, *, torch: Any = None) -> None:
    """Divide the ranks: neighbours share a model's tensors, ranks with the same place in them its data.

    Call it after ``init_process_group``; the size must divide the number of ranks.
    """
    host = active(torch)
    if not host.distributed.is_initialized():
        raise ParallelError("call torch.distributed.init_process_group() first")
    world = host.distributed.get_world_size()
    size = whole(tensor_model_parallel_size)
    if size is None or size < 1 or world % size:
        raise ParallelError(
            f"a tensor-parallel size of {tensor_model_parallel_size!r} does not divide {world} ranks",
            advice=f"use one of {', '.join(str(n) for n in range(1, world + 1) if world % n == 0)}",
        )
    _states[host] = size, world


def destroy_model_parallel(torch: Any = None) -> None:
    """Forget the groups."""
    _states.pop(active(torch), None)


def _state(torch: Any = None) -> tuple[Any, int, int]:
    """Return the host, how many of its ranks share tensors, and how many there are."""
    host = active(torch)
    if host not in _states:
        raise ParallelError("TP group not initialised; call initialize_model_parallel() first")
    return host, *_states[host]


def get_tensor_model_parallel_world_size(torch: Any = None) -> int:
    return _state(torch)[1]


def get_tensor_model_parallel_rank(torch: Any = None) -> int:
    host, size, _ = _state(torch)
    return int(host.distributed.get_rank()) % size


def get_data_parallel_world_size(torch: Any = None) -> int:
    _, size, world = _state(torch)
    return world // size


def get_data_parallel_rank(torch: Any = None) -> int:
    host, size, _ = _state(torch)
    return int(host.distributed.get_rank()) // size


def get_tensor_model_parallel_group(torch: Any = None) -> Any:
    """Return the ranks that share this rank's tensors."""
    host, size, _ = _state(torch)
    first = int(host.distributed.get_rank()) // size * size
    return group_of(host, range(first, first + size))


def get_data_parallel_group(torch: Any = None) -> Any:
    """Return the ranks that hold the same part of the tensors."""
    host, size, world = _state(torch)
    return group_of(host, range(int(host.distributed.get_rank()) % size, world, size))


def group_of(host: Any, ranks: Any) -> Any:
    """Return the group of these ranks, made once by every worker."""
    chosen = tuple(ranks)
    if len(chosen) == host.distributed.get_world_size():
        return host.distributed.world
    known = host.__dict__.setdefault("_parallel_groups", {}).setdefault(host.rank, {})
    if chosen not in known:
        known[chosen] = host.distributed.new_group(list(chosen))
    return known[chosen]
