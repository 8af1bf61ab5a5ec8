"""The process groups of Ulysses and of rings."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist

from megatile.attention.errors import AttentionError


@dataclass
class ProcessGroups:
    """Of this process; None before :func:`set_seq_parallel_pg`."""

    ULYSSES_PG: dist.ProcessGroup | None = None
    RING_PG: dist.ProcessGroup | None = None


PROCESS_GROUP = ProcessGroups()


def set_seq_parallel_pg(
    sp_ulysses_degree: int, sp_ring_degree: int, rank: int, world_size: int, use_ulysses_low: bool = True
) -> None:
    """Divide the ranks into Ulysses groups and rings; ``use_ulysses_low``: Ulysses groups are consecutive.

    Ranks beyond ``sp_ulysses_degree`` times ``sp_ring_degree`` are further copies (data parallel).
    """
    degree = sp_ulysses_degree * sp_ring_degree
    if min(sp_ulysses_degree, sp_ring_degree) < 1 or world_size % degree:
        raise AttentionError(
            f"{world_size} ranks are not a multiple of {sp_ulysses_degree} x {sp_ring_degree} (Ulysses, ring)"
        )
    low, high = (
        (sp_ulysses_degree, sp_ring_degree) if use_ulysses_low else (sp_ring_degree, sp_ulysses_degree)
    )
    own: dict[bool, dist.ProcessGroup] = {}
    for offset in range(0, world_size, degree):
        near = [range(offset + i * low, offset + (i + 1) * low) for i in range(high)]
        far = [range(offset + i, offset + degree, low) for i in range(low)]
        for consecutive, groups in ((True, near), (False, far)):
            for ranks in groups:  # every process makes all groups
                group = dist.new_group(list(ranks))
                if rank in ranks:
                    own[consecutive] = group
    PROCESS_GROUP.ULYSSES_PG, PROCESS_GROUP.RING_PG = own[use_ulysses_low], own[not use_ulysses_low]
