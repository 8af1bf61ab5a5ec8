"""Moving chunks between ranks: one exchange at a time, started early and awaited late."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch.distributed as dist
from torch import Tensor

from megatile.attention.chunks import joined
from megatile.attention.errors import AttentionError
from megatile.attention.settings import setting
from megatile.runtime.agreement import start_all_to_all
from megatile.runtime.errors import PeerError
from megatile.runtime.failures import explained, wait_for_all
from megatile.runtime.rank_liveness import Limit


@dataclass
class Pending:
    """Messages in flight. ``wait`` returns what came from each peer; buffers stay alive until then."""

    received: dict[int, Tensor]
    works: list[tuple[Any, int | None]]
    group: dist.ProcessGroup | None
    doing: str
    kept: list[Tensor]
    started: float = field(default_factory=time.monotonic)
    limit: Limit | None = None

    def wait(self) -> dict[int, Tensor]:
        if self.works and self.group is not None:
            wait_for_all(self.works, self.group, self.doing, self.started, self.limit)
        self.kept.clear()
        return self.received


@dataclass(frozen=True)
class Communicator:
    """Exchanges in a group. A schedule's peer p is rank ``p * stride + offset`` of the group."""

    group: dist.ProcessGroup | None
    transport: str = "point_to_point"
    stride: int = 1
    offset: int = 0

    def exchange(
        self, sends: Mapping[int, Tensor], sizes: Mapping[int, int], like: Tensor, doing: str
    ) -> Pending:
        """Send a flat tensor to each peer and receive ``sizes[peer]`` elements of ``like``'s dtype."""
        same = self.stride == 1 and not self.offset
        outgoing = sends if same else {self._rank(peer): tensor for peer, tensor in sends.items()}
        incoming = sizes if same else {self._rank(peer): size for peer, size in sizes.items()}
        if self.group is None or not (outgoing or incoming or self.transport != "point_to_point"):
            return Pending({}, [], None, doing, [])
        try:
            pending = _TRANSPORTS[self.transport](self.group, outgoing, incoming, like, doing)
        except RuntimeError as error:
            if isinstance(error, PeerError):
                raise
            raise explained(error, self.group, None, doing) from error
        pending.limit = self._limit
        if not same:
            pending.received = {peer: pending.received[self._rank(peer)] for peer in sizes}
        return pending

    @cached_property
    def _limit(self) -> Limit | None:
        return None if self.group is None else Limit.of(self.group)

    def _rank(self, peer: int) -> int:
        return peer * self.stride + self.offset


Transport = Callable[[dist.ProcessGroup, Mapping[int, Tensor], Mapping[int, int], Tensor, str], Pending]


def _point_to_point(
    group: dist.ProcessGroup, sends: Mapping[int, Tensor], sizes: Mapping[int, int], like: Tensor, doing: str
) -> Pending:
    received = {peer: like.new_empty(size) for peer, size in sizes.items()}
    messages = [(dist.irecv, received[peer], peer) for peer, size in sizes.items() if size]
    messages += [(dist.isend, tensor, peer) for peer, tensor in sends.items() if tensor.numel()]
    works = post_messages(group, messages, doing)
    return Pending(received, works, group, doing, list(sends.values()))


def post_messages(
    group: dist.ProcessGroup, messages: list[tuple[Callable[..., Any], Tensor, int]], doing: str
) -> list[tuple[Any, int | None]]:
    """Start sends and receives; return each work with its peer (None: several peers)."""
    if str(dist.get_backend(group)) == "nccl":
        operations = [dist.P2POp(op, x, dist.get_global_rank(group, peer), group) for op, x, peer in messages]
        return [(work, None) for work in (dist.batch_isend_irecv(operations) if operations else [])]
    works: list[tuple[Any, int | None]] = []
    for op, tensor, peer in messages:
        start = group.send if op is dist.isend else group.recv  # what these call after checks made here
        try:
            works.append((start([tensor], peer, 0), peer))
        except RuntimeError as error:
            raise explained(error, group, peer, doing) from error
    return works


def _all_to_all_single(
    group: dist.ProcessGroup, sends: Mapping[int, Tensor], sizes: Mapping[int, int], like: Tensor, doing: str
) -> Pending:
    out_sizes, in_sizes = [0] * group.size(), [0] * group.size()
    for peer, tensor in sends.items():
        out_sizes[peer] = tensor.numel()
    for peer, size in sizes.items():
        in_sizes[peer] = size
    parts = [sends[peer] for peer in sorted(sends)]
    outgoing = joined(parts).contiguous() if parts else like.new_empty(0)
    incoming = like.new_empty(sum(in_sizes))
    work = start_all_to_all(group, incoming, outgoing, in_sizes, out_sizes)
    if len(sizes) == 1:
        received = dict.fromkeys(sizes, incoming)
    else:
        received = {p: x for p, x in enumerate(incoming.split(in_sizes)) if p in sizes}
    return Pending(received, [(work, None)], group, doing, [outgoing])


def _all_to_all(
    group: dist.ProcessGroup, sends: Mapping[int, Tensor], sizes: Mapping[int, int], like: Tensor, doing: str
) -> Pending:
    ranks = range(dist.get_world_size(group))
    nothing = like.new_empty(_filler(group, sends, sizes))
    outgoing = [sends.get(p, nothing) for p in ranks]
    incoming = [like.new_empty(sizes.get(p, nothing.numel())) for p in ranks]
    work = dist.all_to_all(incoming, outgoing, group=group, async_op=True)
    return Pending({p: incoming[p] for p in sizes}, [(work, None)], group, doing, outgoing)


def _filler(group: dist.ProcessGroup, sends: Mapping[int, Tensor], sizes: Mapping[int, int]) -> int:
    """Return how long the tensors for ranks without a message are: gloo's list form wants all of them
    equal."""
    if str(dist.get_backend(group)) != "gloo":
        return 0
    lengths = {tensor.numel() for tensor in sends.values()} | set(sizes.values())
    if len(lengths) > 1:
        raise AttentionError(
            "gloo's all_to_all with lists needs messages of one size",
            advice="all_to_all_single or point_to_point",
        )
    return lengths.pop() if lengths else 0


_TRANSPORTS: dict[str, Transport] = {
    "point_to_point": _point_to_point,
    "all_to_all_single": _all_to_all_single,
    "all_to_all": _all_to_all,
}
# What each backend does best when most ranks talk to each other; others get point-to-point.
_DENSE = {
    "nccl": "all_to_all",
    "gloo": "all_to_all_single",
    "mpi": "all_to_all_single",
    "ucc": "all_to_all_single",
}


MAX_GLOO_RANKS_TOGETHER = 4
"""Ranks up to which gloo sends every exchange as an all-to-all, which its own threads do. Messages are sent
by the caller while it holds a lock; where it loses its core then, gloo's thread spins for milliseconds."""


def choose_transport(group: dist.ProcessGroup | None, dense: bool) -> str:
    """Return the transport for a backend; ``MEGATILE_ATTENTION_TRANSPORT`` overrides it (on every rank)."""
    asked = setting("TRANSPORT")
    if asked:
        return asked
    if group is None:
        return "point_to_point"
    backend = str(dist.get_backend(group))
    if dense or (backend == "gloo" and dist.get_world_size(group) <= MAX_GLOO_RANKS_TOGETHER):
        return _DENSE.get(backend, "point_to_point")
    return "point_to_point"
