"""``torch.distributed`` of a host: torch's names and argument order, on simulated devices.

A rank is a device. Collectives of the library (``collective``) take any tensor of the rank's device; with a
``ccl.yaml``, ``all_reduce`` over all ranks is the kernel that it names.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from megatile.core.errors import did_you_mean
from megatile.core.quantities import whole
from megatile.runtime.host.groups import ProcessGroup, Work, for_members
from megatile.runtime.host.messages import Messages, PointToPoint
from megatile.runtime.host.state import missing
from megatile.runtime.host.storage import ShapeMismatch
from megatile.runtime.host.tensor import Tensor
from megatile.runtime.host.workers import DistributedError


class ReduceOp:
    """Reductions by torch's names."""

    SUM, AVG, PRODUCT, MIN, MAX = "sum", "avg", "prod", "min", "max"


REDUCTIONS = {value: value for value in ("sum", "avg", "prod", "min", "max")} | {"product": "prod"}


ONE_PART = ("all_gather", "gather", "scatter")
"""Where a rank's own tensor is one part of the whole buffer."""


class Distributed(Messages):
    """The functions; one object per host. State of a rank is that of the worker whose turn it is."""

    ReduceOp, P2POp = ReduceOp, PointToPoint

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise missing(self, "torch.distributed", name)

    def participants(self) -> tuple[tuple[int, int], ...]:
        """Return the (cube, pe) of a device on which ``all_reduce`` needs a tensor's shards; () if it takes
        any."""
        return self._context.ccl.participants if self._context.ccl is not None else ()

    @property
    def algorithm(self) -> str:
        """What ``all_reduce`` over all ranks runs; where the library chooses, what it chose last."""
        context = self._context
        return context.ccl.name if context.ccl is not None else context.collectives.chosen("all_reduce")

    def cooperative_yield(self) -> None:
        """Let the other workers have a turn, in a long loop of the host."""
        self._context.workers.give_way()

    # collectives

    def _call(
        self,
        operation: str,
        group: ProcessGroup | None,
        async_op: bool,
        inputs: Sequence[Tensor] = (),
        outputs: Sequence[Tensor] = (),
        op: Any = "sum",
        root: int = 0,
        splits: Any = None,
    ) -> Work | None:
        members = self._group(group)
        each = sum(_numel(tensor) for tensor in (outputs if operation == "scatter" else inputs))
        count = each * members.size() if operation in ONE_PART else each
        reduction = REDUCTIONS.get(str(op).lower().removeprefix("reduceop.").removeprefix("redoptype."))
        if reduction is None:
            raise DistributedError(
                f"'{op}' is not a reduction", advice=did_you_mean(str(op), REDUCTIONS, what="reductions")
            )
        start = members.rank_of(root) if operation in ("broadcast", "reduce", "gather", "scatter") else 0
        call = self._asked(
            operation, inputs, outputs, count=count, reduction=reduction, root=start, splits=splits
        )
        if start < 0:
            raise DistributedError(f"rank {root} is not in {members}")
        work = members.join(call)
        if async_op:
            return work
        work.wait()
        return None

    @for_members
    def all_reduce(
        self, tensor: Tensor, op: Any = "sum", group: Any = None, async_op: bool = False
    ) -> Work | None:
        """Every rank gets the reduction of all tensors, in place."""
        return self._call("all_reduce", group, async_op, [tensor], [tensor], op)

    @for_members
    def broadcast(
        self, tensor: Tensor, src: int = 0, group: Any = None, async_op: bool = False
    ) -> Work | None:
        return self._call("broadcast", group, async_op, [tensor], [tensor], root=src)

    @for_members
    def reduce(
        self, tensor: Tensor, dst: int = 0, op: Any = "sum", group: Any = None, async_op: bool = False
    ) -> Work | None:
        """Only ``dst`` gets the reduction; the other tensors stay as they are."""
        return self._call("reduce", group, async_op, [tensor], [tensor], op, dst)

    @for_members
    def all_gather_into_tensor(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any = None, async_op: bool = False
    ) -> Work | None:
        _same(_numel(input_tensor) * self._group(group).size(), [output_tensor], "all_gather_into_tensor")
        return self._call("all_gather", group, async_op, [input_tensor], [output_tensor])

    @for_members
    def all_gather(
        self, tensor_list: Sequence[Tensor], tensor: Tensor, group: Any = None, async_op: bool = False
    ) -> Work | None:
        self._list_of(tensor_list, group, tensor, "all_gather")
        return self._call("all_gather", group, async_op, [tensor], tensor_list)

    @for_members
    def gather(
        self, tensor: Tensor, gather_list: Sequence[Tensor] | None = None, dst: int = 0, group: Any = None,
        async_op: bool = False,
    ) -> Work | None:  # fmt: skip
        mine = self._root_list(gather_list, dst, group, tensor, "gather_list")
        return self._call("gather", group, async_op, [tensor], mine, root=dst)

    @for_members
    def scatter(
        self, tensor: Tensor, scatter_list: Sequence[Tensor] | None = None, src: int = 0, group: Any = None,
        async_op: bool = False,
    ) -> Work | None:  # fmt: skip
        mine = self._root_list(scatter_list, src, group, tensor, "scatter_list")
        return self._call("scatter", group, async_op, mine, [tensor], root=src)

    @for_members
    def reduce_scatter_tensor(
        self, output: Tensor, input: Tensor, op: Any = "sum", group: Any = None, async_op: bool = False
    ) -> Work | None:
        _same(_numel(output) * self._group(group).size(), [input], "reduce_scatter_tensor")
        return self._call("reduce_scatter", group, async_op, [input], [output], op)

    @for_members
    def reduce_scatter(
        self,
        output: Tensor,
        input_list: Sequence[Tensor],
        op: Any = "sum",
        group: Any = None,
        async_op: bool = False,
    ) -> Work | None:
        self._list_of(input_list, group, output, "reduce_scatter")
        return self._call("reduce_scatter", group, async_op, input_list, [output], op)

    @for_members
    def all_to_all_single(
        self, output: Tensor, input: Tensor, output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None, group: Any = None, async_op: bool = False,
    ) -> Work | None:  # fmt: skip
        """Splits count rows (elements of the first dimension); without them all blocks are equal."""
        size = self._group(group).size()
        if input_split_sizes is None and output_split_sizes is None:
            _same(_numel(input), [output], "all_to_all_single")
            if _numel(input) % size:
                raise ShapeMismatch(
                    f"all_to_all_single: {_numel(input)} elements do not divide into {size} equal blocks"
                )
            return self._call("all_to_all", group, async_op, [input], [output])
        splits = (_splits(input, input_split_sizes, size), _splits(output, output_split_sizes, size))
        return self._call("all_to_all", group, async_op, [input], [output], splits=splits)

    @for_members
    def all_to_all(
        self, output_tensor_list: Sequence[Tensor], input_tensor_list: Sequence[Tensor], group: Any = None,
        async_op: bool = False,
    ) -> Work | None:  # fmt: skip
        size = self._group(group).size()
        for name, tensors in (("output", output_tensor_list), ("input", input_tensor_list)):
            if len(tensors) != size:
                raise ShapeMismatch(f"all_to_all: {len(tensors)} {name} tensors for {size} ranks")
        splits = tuple(tuple(_numel(t) for t in ts) for ts in (input_tensor_list, output_tensor_list))
        given, got = list(input_tensor_list), list(output_tensor_list)
        return self._call("all_to_all", group, async_op, given, got, splits=splits)

    @for_members
    def barrier(self, group: Any = None, async_op: bool = False, device_ids: Any = None) -> Work | None:
        return self._call("barrier", group, async_op)

    def monitored_barrier(self, group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        self.barrier(group)

    def _list_of(self, tensors: Sequence[Tensor], group: Any, like: Tensor, what: str) -> None:
        size = self._group(group).size()
        if not isinstance(tensors, (list, tuple)):
            raise DistributedError(f"{what} takes a list of tensors, not {type(tensors).__name__}")
        if len(tensors) != size or any(_numel(t) != _numel(like) for t in tensors):
            sizes = [_numel(t) for t in tensors]
            raise ShapeMismatch(f"{what} needs {size} tensors of {_numel(like)} elements, not {sizes}")

    def _root_list(self, tensors: Any, root: int, group: Any, like: Tensor, what: str) -> Sequence[Tensor]:
        if self._context.rank != root:
            if tensors:
                raise DistributedError(f"{what} is given on rank {root} only")
            return ()
        self._list_of(tensors or (), group, like, what)
        return list(tensors)

    # objects

    @for_members
    def all_gather_object(self, object_list: list[Any], obj: Any, group: Any = None) -> None:
        object_list[:] = self._exchanged(obj, object_list, group)

    @for_members
    def gather_object(
        self, obj: Any, object_gather_list: list[Any] | None = None, dst: int = 0, group: Any = None
    ) -> None:
        found = self._exchanged(obj, object_gather_list if self._context.rank == dst else None, group)
        if self._context.rank == dst:
            if object_gather_list is None:
                raise DistributedError(f"gather_object: rank {dst} gives a list to gather into")
            object_gather_list[:] = found

    @for_members
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

    @for_members
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
        """Return what every rank of the group gave, copied."""
        members, context = self._group(group), self._context
        if room is not None and len(room) != members.size():
            raise DistributedError(f"a list of {len(room)} has no room for {members.size()} objects")
        given = self._objects.setdefault((id(members), members.joined(context.rank)), {})
        given[context.rank] = deepcopy(obj)
        one = context.zeros((1,), dtype="i64")
        self.all_gather_into_tensor(context.zeros((members.size(),), dtype="i64"), one, group=members)
        size = max(len(repr(value).encode()) for value in given.values())
        text = context.zeros((size,), dtype="u8")
        self.all_gather_into_tensor(context.zeros((members.size() * size,), dtype="u8"), text, group=members)
        return [deepcopy(given[rank]) for rank in members.ranks]


def _numel(tensor: Any) -> int:
    if not isinstance(tensor, Tensor):
        raise DistributedError(f"a collective takes tensors, not {type(tensor).__name__}")
    return tensor.numel()


def _same(count: int, tensors: Sequence[Tensor], what: str) -> None:
    found = sum(_numel(t) for t in tensors)
    if found != count:
        raise ShapeMismatch(f"{what}: {count} elements are needed, the tensor has {found}")


def _splits(tensor: Tensor, sizes: Sequence[int] | None, ranks: int) -> tuple[int, ...]:
    """Return elements per rank from rows per rank."""
    rows = tensor.shape[0] if tensor.shape else 0
    if sizes is None:
        if rows % ranks:
            raise ShapeMismatch(f"all_to_all_single: {rows} rows do not divide into {ranks} equal blocks")
        sizes = [rows // ranks] * ranks
    if len(sizes) != ranks or sum(sizes) != rows or any(whole(s) is None or s < 0 for s in sizes):
        raise ShapeMismatch(
            f"all_to_all_single: splits {list(sizes)} do not make up {rows} rows of {ranks} ranks"
        )
    each = tensor.numel() // rows if rows else 0
    return tuple(int(s) * each for s in sizes)
