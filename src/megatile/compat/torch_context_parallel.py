"""``context_parallel`` of torch.distributed.tensor.experimental, with megatile's attention inside.

with context_parallel(mesh, buffers=[q, k, v], buffer_seq_dims=[2, 2, 2]):
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
(whole,) = context_parallel_unshard(mesh, [out], [2])
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from megatile.attention.errors import AttentionError
from megatile.attention.sdpa import sequence_parallel_attention
from megatile.attention.sharding import shard_sequence, unshard_sequence

__all__ = ["context_parallel", "context_parallel_unshard", "set_rotate_method"]

_LAYOUT = "zigzag"  # torch calls it head-tail load balancing
_SCHEDULES = {"allgather": "direct", "alltoall": "zigzag"}
_rotation = {"schedule": "auto"}


def set_rotate_method(rotate_method: str) -> None:
    """How KV travels: ``allgather`` (straight from its owner) or ``alltoall`` (around a ring).

    Without a call of this function it travels as ``schedule="auto"`` says.
    """
    if rotate_method not in _SCHEDULES:
        raise NotImplementedError(f"there is no rotation '{rotate_method}', use allgather or alltoall")
    _rotation["schedule"] = _SCHEDULES[rotate_method]


@contextmanager
def context_parallel(
    mesh: Any,
    *,
    buffers: list[Tensor] | None = None,
    buffer_seq_dims: list[int] | None = None,
    no_restore_buffers: set[Tensor] | None = None,
) -> Iterator[None]:
    """Divide ``buffers`` in place along their sequence dimensions, and make torch's attention work on such
    parts; both until the context ends. Buffers of ``no_restore_buffers`` stay divided.

    Any length can be divided (torch's own needs a multiple of twice the ranks).
    """
    given, dims = buffers or [], buffer_seq_dims or []
    if len(given) != len(dims):
        raise ValueError(f"there are {len(given)} buffers and {len(dims)} sequence dimensions")
    stay = {id(x) for x in no_restore_buffers or ()}
    if stay - {id(x) for x in given}:
        raise ValueError("no_restore_buffers must be some of buffers")
    with torch.no_grad():
        parts = [
            shard_sequence(x, dim=d, group=mesh, layout=_LAYOUT) for x, d in zip(given, dims, strict=True)
        ]
        whole = [None if id(x) in stay else x.clone() for x in given]
        for buffer, part in zip(given, parts, strict=True):
            _become(buffer, part)
    try:
        with sequence_parallel_attention(group=mesh, schedule=_rotation["schedule"], layout=_LAYOUT):
            yield
    finally:
        with torch.no_grad():
            for buffer, before in zip(given, whole, strict=True):
                if before is not None:
                    _become(buffer, before)


def _become(buffer: Tensor, content: Tensor) -> None:
    buffer.resize_(content.shape)
    buffer.copy_(content)


@torch.no_grad()
def context_parallel_unshard(
    mesh: Any, buffers: Sequence[Tensor], seq_dims: Sequence[int], load_balancer: Any = None
) -> list[Tensor]:
    """The whole of tensors that were computed inside the context."""
    if load_balancer is not None:
        raise AttentionError("other load balancers than torch's default are not supported, leave it out")
    return [
        unshard_sequence(x, dim=d, group=mesh, layout=_LAYOUT) for x, d in zip(buffers, seq_dims, strict=True)
    ]
