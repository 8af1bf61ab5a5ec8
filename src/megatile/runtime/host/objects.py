"""Collectives of Python objects. They go from rank to rank as what they are; the machine is busy with as many
bytes as their text has, after everybody has been told how many."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

from megatile.runtime.host.groups import ProcessGroup
from megatile.runtime.host.workers import DistributedError

if TYPE_CHECKING:
    from megatile.runtime.host.context import RuntimeContext


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
