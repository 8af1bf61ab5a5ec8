"""A rank's part of whole tensors, [batch, tokens, …], as the layers expect it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megatile.attention.errors import AttentionError
from megatile.compat.yunchang.groups import PROCESS_GROUP

Extract = Callable[..., Tensor]


def basic_extract_local(value: Tensor, rank: int, world_size: int, *args: Any, **kwargs: Any) -> Tensor:
    """Consecutive tokens."""
    return value.chunk(world_size, dim=1)[rank].detach().clone()


def stripe_extract_local(
    value: Tensor, rank: int, world_size: int, rd: int, ud: int, *args: Any, **kwargs: Any
) -> Tensor:
    """Every ``rd``-th token to a ring rank, divided over the Ulysses ranks."""
    ring, ulysses = _places(rd, ud)
    return value[:, ring::rd].chunk(ud, dim=1)[ulysses].contiguous()


def zigzag_extract_local(
    value: Tensor, rank: int, world_size: int, rd: int, ud: int, dim: int = 1, *args: Any, **kwargs: Any
) -> Tensor:
    """Blocks r and 2·rd-1-r of 2·rd to a ring rank, divided over the Ulysses ranks."""
    ring, ulysses = _places(rd, ud)
    blocks = value.chunk(2 * rd, dim=dim)
    both = torch.cat([blocks[ring], blocks[2 * rd - 1 - ring]], dim)
    return both.chunk(ud, dim=dim)[ulysses].contiguous()


def _places(rd: int, ud: int) -> tuple[int, int]:
    """This process's rank in its ring and in its Ulysses group, which must have these sizes."""
    groups = PROCESS_GROUP.RING_PG, PROCESS_GROUP.ULYSSES_PG
    if None in groups or tuple(map(dist.get_world_size, groups)) != (rd, ud):
        raise AttentionError(
            f"there are no rings of {rd} and Ulysses groups of {ud}", advice="call set_seq_parallel_pg first"
        )
    return dist.get_rank(groups[0]), dist.get_rank(groups[1])


EXTRACT_FUNC_DICT: dict[str, Extract] = {
    "basic": basic_extract_local,
    "strip": stripe_extract_local,
    "zigzag": zigzag_extract_local,
    "basic_pytorch": basic_extract_local,
    "basic_flashinfer": basic_extract_local,
    "basic_npu": basic_extract_local,
}
