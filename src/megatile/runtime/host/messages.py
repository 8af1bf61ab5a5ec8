"""Messages between two ranks: sends and receives that meet by sender, receiver and tag."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from megatile.runtime.host.groups import Call, Epoch, ProcessGroup, Work
from megatile.runtime.host.tensor import Tensor
from megatile.runtime.host.workers import DistributedError, Stuck, call_site

if TYPE_CHECKING:
    from megatile.runtime.host.context import RuntimeContext


@dataclass
class PointToPoint:
    """One of the sends and receives of ``batch_isend_irecv``: ``op`` is ``isend`` or ``irecv``."""

    op: Callable[..., Any]
    tensor: Tensor
    peer: int
    group: ProcessGroup | None = None
    tag: int = 0


class Messages:
    """The part of `Distributed` for two ranks."""

    _mail: dict[tuple[int, int, int], tuple[deque[Any], deque[Any]]]
    """By sender, receiver and tag: sends, and receives, that wait for their other half."""

    if TYPE_CHECKING:
        _context: RuntimeContext

        def _group(self, group: Any) -> ProcessGroup: ...

        def _check_there(self, tensor: Any, rank: int, operation: str) -> None: ...

    def send(self, tensor: Tensor, dst: int, group: Any = None, tag: int = 0) -> None:
        self.isend(tensor, dst, group, tag).wait()

    def recv(self, tensor: Tensor, src: int | None = None, group: Any = None, tag: int = 0) -> int:
        """Receive from ``src``, or from whoever sends first; the sender's rank."""
        if src is None:
            src = self._any_sender(group, tag)
        self.irecv(tensor, src, group, tag).wait()
        return src

    def isend(self, tensor: Tensor, dst: int, group: Any = None, tag: int = 0) -> Work:
        return self._message("send", tensor, self._context.rank, dst, group, tag)

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
        self._check_there(tensor, context.rank, operation)
        if operation == "recv":
            tensor.check_writable()
        call = Call(
            "send_recv",
            context.rank,
            tensor.numel(),
            tensor.dtype,
            [tensor],
            [tensor],
            at_ps=context.clock_ps,
            site=call_site(),
        )
        if context.workers.current is not None:
            context.workers.current.last = str(call)
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

    def undelivered(self) -> list[Stuck]:
        """Sends and receives without their other half."""
        return [
            _waits(call, name, peer)
            for (src, dst, _), queues in self._mail.items()
            for name, queue, peer in (("send", queues[0], dst), ("recv", queues[1], src))
            for call, _ in queue
        ]


def _waits(call: Call, operation: str, peer: int) -> Stuck:
    return Stuck(call.rank, f"rank {call.rank} waits in {operation} at {call.site} for rank {peer}", (peer,))


class Objects:
    """The part of `Distributed` for objects."""

    _objects: dict[tuple[int, int], dict[int, Any]]
    """By group and number of the exchange: what every rank gave."""

    if TYPE_CHECKING:
        _context: RuntimeContext

        def _group(self, group: Any) -> ProcessGroup: ...

        def all_gather_into_tensor(self, output_tensor: Any, input_tensor: Any, group: Any = None) -> Any: ...

        def broadcast(self, tensor: Any, src: int = 0, group: Any = None) -> Any: ...

    def all_gather_object(self, object_list: list[Any], obj: Any, group: Any = None) -> None:
        object_list[:] = self._exchanged(obj, object_list, group)

    def gather_object(
        self, obj: Any, object_gather_list: list[Any] | None = None, dst: int = 0, group: Any = None
    ) -> None:
        found = self._exchanged(obj, object_gather_list if self._context.rank == dst else None, group)
        if self._context.rank == dst:
            if object_gather_list is None:
                raise DistributedError(f"gather_object: rank {dst} gives a list to gather into")
            object_gather_list[:] = found

    def broadcast_object_list(
        self, object_list: list[Any], src: int = 0, group: Any = None, device: Any = None
    ) -> None:
        members = self._group(group)
        if src not in members.ranks:
            raise DistributedError(f"rank {src} is not in {members}")
        found = self._exchanged(
            list(object_list) if self._context.rank == src else [None] * len(object_list), None, group
        )
        given = found[members.rank_of(src)]
        if len(given) != len(object_list):
            raise DistributedError(
                f"broadcast_object_list: rank {src} gives {len(given)} objects, rank {self._context.rank} "
                f"has room for {len(object_list)}"
            )
        object_list[:] = given

    def scatter_object_list(
        self,
        scatter_object_output_list: list[Any],
        scatter_object_input_list: list[Any] | None = None,
        src: int = 0,
        group: Any = None,
    ) -> None:
        members, rank = self._group(group), self._context.rank
        given = scatter_object_input_list if rank == src else None
        if rank == src and (given is None or len(given) != members.size()):
            raise DistributedError(f"scatter_object_list: rank {src} gives one object per rank")
        found = self._exchanged(given, None, group)
        scatter_object_output_list[0] = found[members.rank_of(src)][members.rank_of(rank)]

    def _exchanged(self, obj: Any, room: list[Any] | None, group: Any) -> list[Any]:
        """What every rank of the group gave, copied."""
        members, context = self._group(group), self._context
        if room is not None and len(room) != members.size():
            raise DistributedError(f"a list of {len(room)} has no room for {members.size()} objects")
        key = (id(members), members.joined(context.rank))
        given = self._objects.setdefault(key, {})
        given[context.rank] = deepcopy(obj)
        one = context.zeros((1,), dtype="i64")
        self.all_gather_into_tensor(context.zeros((members.size(),), dtype="i64"), one, group=members)
        size = max(len(repr(value).encode()) for value in given.values())
        text = context.zeros((size,), dtype="u8")
        everything = context.zeros((members.size() * size,), dtype="u8")
        self.all_gather_into_tensor(everything, text, group=members)
        return [deepcopy(given[rank]) for rank in members.ranks]
