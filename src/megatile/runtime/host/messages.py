"""Messages between two ranks: sends and receives that meet by sender, receiver and tag."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from megatile.runtime.host.groups import Call, Epoch, Groups, ProcessGroup, Work, for_members
from megatile.runtime.host.tensor import Tensor
from megatile.runtime.host.workers import DistributedError, Stuck


@dataclass
class PointToPoint:
    """One of the sends and receives of ``batch_isend_irecv``: ``op`` is ``isend`` or ``irecv``."""

    op: Callable[..., Any]
    tensor: Tensor
    peer: int
    group: ProcessGroup | None = None
    tag: int = 0


class Messages(Groups):
    """The part of `Distributed` for two ranks."""

    @for_members
    def send(self, tensor: Tensor, dst: int, group: Any = None, tag: int = 0) -> None:
        self.isend(tensor, dst, group, tag).wait()

    @for_members
    def recv(self, tensor: Tensor, src: int | None = None, group: Any = None, tag: int = 0) -> int:
        """Receive from ``src``, or from the first sender; return the sender's rank."""
        if src is None:
            src = self._any_sender(group, tag)
        self.irecv(tensor, src, group, tag).wait()
        return src

    @for_members
    def isend(self, tensor: Tensor, dst: int, group: Any = None, tag: int = 0) -> Work:
        return self._message("send", tensor, self._context.rank, dst, group, tag)

    @for_members
    def irecv(self, tensor: Tensor, src: int | None = None, group: Any = None, tag: int = 0) -> Work:
        return self._message(
            "recv",
            tensor,
            self._any_sender(group, tag) if src is None else src,
            self._context.rank,
            group,
            tag,
        )

    def batch_isend_irecv(self, p2p_op_list: Sequence[PointToPoint]) -> list[Work]:
        wrong = [one for one in p2p_op_list if not isinstance(one, PointToPoint)]
        if wrong:
            raise DistributedError(f"batch_isend_irecv takes P2POps, not {wrong[0]!r}")
        return [one.op(one.tensor, one.peer, one.group, one.tag) for one in p2p_op_list]

    @for_members
    def send_object_list(
        self, object_list: Sequence[Any], dst: int, group: Any = None, device: Any = None
    ) -> None:
        """Send picklable objects: their sizes, then their bytes."""
        given = deepcopy(list(object_list))
        self._parcels.setdefault((self._context.rank, dst), deque()).append(given)
        self.send(self._parcel(max(1, len(given)), "i64"), dst, group)
        self.send(self._parcel(len(repr(given)), "u8"), dst, group)

    @for_members
    def recv_object_list(
        self, object_list: list[Any], src: int | None = None, group: Any = None, device: Any = None
    ) -> int:
        """Receive as many objects into a list; the sender's rank."""
        found = self.recv(self._parcel(max(1, len(object_list)), "i64"), src, group)
        parcels = self._parcels[found, self._context.rank]
        given = parcels.popleft()
        if len(given) != len(object_list):
            raise DistributedError(
                f"recv_object_list: rank {found} sends {len(given)} objects, the list has {len(object_list)}"
            )
        self.recv(self._parcel(len(repr(given)), "u8"), found, group)
        object_list[:] = given
        return found

    def _parcel(self, count: int, dtype: str) -> Tensor:
        return self._context.zeros((count,), dtype=dtype)

    def _any_sender(self, group: Any, tag: int) -> int:
        me = self._context.rank

        def senders() -> list[int]:
            return [
                src for (src, dst, t), (sends, _) in self._mail.items() if (dst, t) == (me, tag) and sends
            ]

        self._context.workers.wait_until(
            lambda: bool(senders()), lambda: Stuck(me, f"rank {me} waits in recv for any sender", ())
        )
        return senders()[0]

    def _message(self, operation: str, tensor: Tensor, src: int, dst: int, group: Any, tag: int) -> Work:
        context, members = self._context, self._group(group)
        for rank in (src, dst):
            if rank not in members.ranks:
                raise DistributedError(f"{operation}: rank {rank} is not in {members}")
        if src == dst:
            raise DistributedError(f"{operation}: rank {src} cannot send to itself")
        given, got = ([tensor], []) if operation == "send" else ([], [tensor])
        call = self._asked(operation, given, got, kind="send_recv")
        sends, receives = self._mail.setdefault((src, dst, tag), (deque(), deque()))
        mine, theirs = (sends, receives) if operation == "send" else (receives, sends)
        peer = dst if operation == "send" else src
        if theirs:
            other, meeting = theirs.popleft()
            pair = (call, other) if operation == "send" else (other, call)
            meeting.join(call)
            meeting.work = context.collectives.message(*pair)
        else:
            meeting = Epoch(len(mine), {call.rank: call})
            mine.append((call, meeting))
        return Work(context, meeting, lambda: _waits(call, operation, peer))

    def unfinished(self) -> list[Stuck]:
        """Also sends and receives without their other half."""
        return super().unfinished() + [
            _waits(call, name, peer)
            for (src, dst, _), queues in self._mail.items()
            for name, queue, peer in (("send", queues[0], dst), ("recv", queues[1], src))
            for call, _ in queue
        ]


def _waits(call: Call, operation: str, peer: int) -> Stuck:
    return Stuck(call.rank, f"rank {call.rank} waits in {operation} at {call.site} for rank {peer}", (peer,))
