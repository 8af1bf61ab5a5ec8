"""``torch.distributed`` of a host: torch's names and argument order, on simulated devices.

A rank is a device. Collectives of the library (``collective``) take any tensor of the rank's device; with a
``ccl.yaml``, ``all_reduce`` over all ranks is the kernel that it names.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from megatile.core.errors import did_you_mean
from megatile.core.quantities import whole
from megatile.runtime.host.groups import Call, ProcessGroup, Work
from megatile.runtime.host.messages import Messages, Objects, PointToPoint
from megatile.runtime.host.namespace import missing
from megatile.runtime.host.tensor import ShapeMismatch, Tensor
from megatile.runtime.host.workers import DistributedError, Stuck, call_site

if TYPE_CHECKING:
    from megatile.runtime.host.context import RuntimeContext


class ReduceOp:
    """Reductions by torch's names."""

    SUM, AVG, PRODUCT, MIN, MAX = "sum", "avg", "prod", "min", "max"


REDUCTIONS = {value: value for value in ("sum", "avg", "prod", "min", "max")} | {"product": "prod"}
UNINITIALIZED = "Default process group has not been initialized, please make sure to call init_process_group."


class Distributed(Messages, Objects):
    """The functions; one object per host. State of a rank is that of the worker whose turn it is."""

    ReduceOp, P2POp = ReduceOp, PointToPoint

    def __init__(self, context: RuntimeContext) -> None:
        self._context = context
        self.reset()

    def reset(self) -> None:
        """Forget all groups, and messages that nobody took."""
        self._world: ProcessGroup | None = None
        self._groups: dict[tuple[int, ...], list[ProcessGroup]] = {}
        self._made: dict[int, dict[tuple[int, ...], int]] = {}
        self._mail = {}
        self._objects = {}

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise missing(self, "torch.distributed", name)

    # the group of all

    def init_process_group(
        self, backend: str | None = None, init_method: Any = None, timeout: Any = None,
        world_size: int = -1, rank: int = -1, **_: Any,
    ) -> None:  # fmt: skip
        """Join all ranks; the first call installs the queues. Every worker calls it, or nobody but the
        host."""
        context = self._context
        if backend is not None and backend not in (context.backend, "ahbm", "nccl", "gloo"):
            advice = did_you_mean(backend, (context.backend, "ahbm", "nccl", "gloo"), what="backends")
            raise DistributedError(f"there is no backend '{backend}'", advice=advice)
        size = context.world_size if world_size == -1 else world_size
        if whole(size) is None or not 1 <= size <= context.shape.devices:
            raise DistributedError(f"world_size {size} does not fit {context.shape.devices} devices")
        if rank not in (-1, context.rank):
            raise DistributedError(f"rank {rank} is given, but this worker has rank {context.rank}")
        if self._world is None:
            context.install()
            self._world = ProcessGroup(context, range(size), context.collectives.run)
        elif self._world.size() != size:
            raise DistributedError(f"there is a process group of {self._world.size()} ranks, not {size}")

    def destroy_process_group(self, group: ProcessGroup | None = None) -> None:
        if group is None or group is self._world:
            self.reset()

    def is_initialized(self) -> bool:
        return self._world is not None

    def is_available(self) -> bool:
        return True

    is_nccl_available = is_gloo_available = is_available

    @property
    def group(self) -> Any:
        """``group.WORLD`` is the group of all ranks."""
        return SimpleNamespace(WORLD=self._world)

    def get_backend(self, group: ProcessGroup | None = None) -> str:
        self._group(group)
        return self._context.backend

    @property
    def world(self) -> ProcessGroup:
        if self._world is None:
            raise DistributedError(UNINITIALIZED)
        return self._world

    def _group(self, group: ProcessGroup | None) -> ProcessGroup:
        if group is not None and not isinstance(group, ProcessGroup):
            raise DistributedError(f"{group!r} is no group", advice="new_group(ranks) makes one")
        return self.world if group is None else group

    def get_rank(self, group: ProcessGroup | None = None) -> int:
        """This worker's number; outside workers 0."""
        if self._context.workers.current is None:
            self._context.warn("get_rank outside a worker is 0")
        found = self._context.rank
        return found if group is None else group.rank_of(found)

    def get_world_size(self, group: ProcessGroup | None = None) -> int:
        if group is None and self._world is None:
            return self._context.world_size
        return self._group(group).size()

    def get_process_group_ranks(self, group: ProcessGroup | None = None) -> list[int]:
        return list(self._group(group).ranks)

    def get_global_rank(self, group: ProcessGroup, group_rank: int) -> int:
        if whole(group_rank) is None or not 0 <= group_rank < len(group.ranks):
            raise DistributedError(f"{group} has no rank {group_rank!r}")
        return group.ranks[group_rank]

    def get_group_rank(self, group: ProcessGroup, global_rank: int) -> int:
        found = group.rank_of(global_rank)
        if found < 0:
            raise DistributedError(f"rank {global_rank} is not in {group}")
        return found

    def new_group(
        self, ranks: Sequence[int] | None = None, timeout: Any = None, backend: Any = None, **_: Any
    ) -> ProcessGroup:
        """A group of some ranks. Every worker calls it for every group, in the same order, as in torch."""
        given = self.world.ranks if ranks is None else ranks
        if not isinstance(given, (list, tuple, range)) or any(whole(r) is None for r in given):
            raise DistributedError(f"{ranks!r} is no list of ranks", advice="new_group([0, 1])")
        chosen = tuple(sorted(given))
        wrong = [r for r in chosen if r not in self.world.ranks]
        if wrong or len(set(chosen)) < len(chosen) or not chosen:
            raise DistributedError(f"{list(chosen)} is no group of the ranks {list(self.world.ranks)}")
        mine = self._made.setdefault(self._context.rank, {})
        number = mine.get(chosen, 0)
        mine[chosen] = number + 1
        there = self._groups.setdefault(chosen, [])
        if number == len(there):
            there.append(ProcessGroup(self._context, chosen, self._context.collectives.run))
        return there[number]

    def new_subgroups(
        self, group_size: int | None = None, group: ProcessGroup | None = None, **_: Any
    ) -> tuple[ProcessGroup | None, list[ProcessGroup]]:
        """Groups of so many neighbours each (by default all): this rank's, and all of them."""
        ranks = self._group(group).ranks
        size = len(ranks) if group_size is None else group_size
        if whole(size) is None or size < 1 or len(ranks) % size:
            raise DistributedError(f"{len(ranks)} ranks do not divide into groups of {group_size!r}")
        made = [self.new_group(ranks[i : i + size]) for i in range(0, len(ranks), size)]
        return next((g for g in made if self._context.rank in g.ranks), None), made

    def participants(self) -> tuple[tuple[int, int], ...]:
        """The (cube, pe) of a device on which ``all_reduce`` needs a tensor's shards; () if it takes any."""
        return self._context.ccl.participants if self._context.ccl is not None else ()

    @property
    def algorithm(self) -> str:
        """What ``all_reduce`` over all ranks runs; where the library chooses, what it chose last."""
        context = self._context
        return context.ccl.name if context.ccl is not None else context.collectives.chosen("all_reduce")

    def install_ipcq(self, *_: Any, **__: Any) -> None:
        """Deprecated: ``init_process_group`` installs the queues."""
        import warnings

        warnings.warn(
            "install_ipcq: init_process_group installs the queues", DeprecationWarning, stacklevel=2
        )
        self._context.install()

    def cooperative_yield(self) -> None:
        """Let the other workers have a turn, in a long loop of the host."""
        self._context.workers.give_way()

    # collectives

    def _call(
        self,
        operation: str,
        group: ProcessGroup | None,
        async_op: bool,
        count: int,
        inputs: Sequence[Tensor] = (),
        outputs: Sequence[Tensor] = (),
        op: Any = "sum",
        root: int = 0,
        splits: Any = None,
    ) -> Work | None:
        context, members = self._context, self._group(group)
        rank = context.rank
        reduction = REDUCTIONS.get(str(op).lower().removeprefix("reduceop.").removeprefix("redoptype."))
        if reduction is None:
            raise DistributedError(
                f"'{op}' is not a reduction", advice=did_you_mean(str(op), REDUCTIONS, what="reductions")
            )
        tensors = (*inputs, *outputs)
        for tensor in tensors:
            self._check_there(tensor, rank, operation)
        for tensor in outputs:
            tensor.check_writable()
        types = {t.dtype for t in tensors}
        if len(types) > 1:
            raise DistributedError(f"{operation} takes tensors of one type, not {', '.join(sorted(types))}")
        start = members.rank_of(root) if operation in ("broadcast", "reduce", "gather", "scatter") else 0
        if start < 0:
            raise DistributedError(f"rank {root} is not in {members}")
        call = Call(
            operation, rank, count, next(iter(types), "f32"), inputs, outputs, reduction, start,
            context.clock_ps, call_site(), splits,
        )  # fmt: skip
        if context.workers.current is not None:
            context.workers.current.last = str(call)
        work = members.join(call)
        if async_op:
            return work
        work.wait()
        return None

    def _check_there(self, tensor: Any, rank: int, operation: str) -> None:
        if not isinstance(tensor, Tensor):
            raise DistributedError(f"{operation} takes tensors, not {type(tensor).__name__}")
        if tensor.handle is None:
            raise DistributedError(
                f"{operation}: the tensor is the host's and has no shards",
                advice="torch.empty(...).copy_(tensor) puts it on a device",
            )
        if tensor.device_index != rank:
            raise DistributedError(
                f"{operation}: tensor has no shards on SIP {rank}: "
                f"'{tensor.name}' lies on {tensor.device_index}",
                advice="call torch.accelerator.set_device_index(rank) before making tensors",
            )

    def all_reduce(
        self, tensor: Tensor, op: Any = "sum", group: Any = None, async_op: bool = False
    ) -> Work | None:
        """Every rank gets the reduction of all tensors, in place."""
        return self._call("all_reduce", group, async_op, _numel(tensor), [tensor], [tensor], op)

    def broadcast(
        self, tensor: Tensor, src: int = 0, group: Any = None, async_op: bool = False
    ) -> Work | None:
        return self._call("broadcast", group, async_op, _numel(tensor), [tensor], [tensor], root=src)

    def reduce(
        self, tensor: Tensor, dst: int = 0, op: Any = "sum", group: Any = None, async_op: bool = False
    ) -> Work | None:
        """Only ``dst`` gets the reduction; the other tensors stay as they are."""
        return self._call("reduce", group, async_op, _numel(tensor), [tensor], [tensor], op, dst)

    def all_gather_into_tensor(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any = None, async_op: bool = False
    ) -> Work | None:
        count = _numel(input_tensor) * self._group(group).size()
        _same(count, [output_tensor], "all_gather_into_tensor")
        return self._call("all_gather", group, async_op, count, [input_tensor], [output_tensor])

    def all_gather(
        self, tensor_list: Sequence[Tensor], tensor: Tensor, group: Any = None, async_op: bool = False
    ) -> Work | None:
        self._list_of(tensor_list, group, tensor, "all_gather")
        count = _numel(tensor) * len(tensor_list)
        return self._call("all_gather", group, async_op, count, [tensor], tensor_list)

    def gather(
        self, tensor: Tensor, gather_list: Sequence[Tensor] | None = None, dst: int = 0, group: Any = None,
        async_op: bool = False,
    ) -> Work | None:  # fmt: skip
        mine = self._root_list(gather_list, dst, group, tensor, "gather_list")
        count = _numel(tensor) * self._group(group).size()
        return self._call("gather", group, async_op, count, [tensor], mine, root=dst)

    def scatter(
        self, tensor: Tensor, scatter_list: Sequence[Tensor] | None = None, src: int = 0, group: Any = None,
        async_op: bool = False,
    ) -> Work | None:  # fmt: skip
        mine = self._root_list(scatter_list, src, group, tensor, "scatter_list")
        count = _numel(tensor) * self._group(group).size()
        return self._call("scatter", group, async_op, count, mine, [tensor], root=src)

    def reduce_scatter_tensor(
        self, output: Tensor, input: Tensor, op: Any = "sum", group: Any = None, async_op: bool = False
    ) -> Work | None:
        _same(_numel(output) * self._group(group).size(), [input], "reduce_scatter_tensor")
        return self._call("reduce_scatter", group, async_op, _numel(input), [input], [output], op)

    def reduce_scatter(
        self,
        output: Tensor,
        input_list: Sequence[Tensor],
        op: Any = "sum",
        group: Any = None,
        async_op: bool = False,
    ) -> Work | None:
        self._list_of(input_list, group, output, "reduce_scatter")
        count = _numel(output) * len(input_list)
        return self._call("reduce_scatter", group, async_op, count, input_list, [output], op)

    def all_to_all_single(
        self, output: Tensor, input: Tensor, output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None, group: Any = None, async_op: bool = False,
    ) -> Work | None:  # fmt: skip
        """Splits count rows (elements of the first dimension); without them all blocks are equal."""
        size = self._group(group).size()
        if input_split_sizes is None and output_split_sizes is None:
            _same(_numel(input), [output], "all_to_all_single")
            if _numel(input) % size:
                raise ShapeMismatch(f"all_to_all_single: {_numel(input)} elements are no {size} equal blocks")
            return self._call("all_to_all", group, async_op, _numel(input), [input], [output])
        splits = (_splits(input, input_split_sizes, size), _splits(output, output_split_sizes, size))
        return self._call("all_to_all", group, async_op, _numel(input), [input], [output], splits=splits)

    def all_to_all(
        self, output_tensor_list: Sequence[Tensor], input_tensor_list: Sequence[Tensor], group: Any = None,
        async_op: bool = False,
    ) -> Work | None:  # fmt: skip
        size = self._group(group).size()
        for name, tensors in (("output", output_tensor_list), ("input", input_tensor_list)):
            if len(tensors) != size:
                raise ShapeMismatch(f"all_to_all: {len(tensors)} {name} tensors for {size} ranks")
        splits = tuple(tuple(_numel(t) for t in ts) for ts in (input_tensor_list, output_tensor_list))
        count = sum(splits[0])
        return self._call(
            "all_to_all",
            group,
            async_op,
            count,
            list(input_tensor_list),
            list(output_tensor_list),
            splits=splits,
        )

    def barrier(self, group: Any = None, async_op: bool = False, device_ids: Any = None) -> Work | None:
        return self._call("barrier", group, async_op, 0)

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

    def waiting(self, rank: int) -> bool:
        """Whether a rank has joined a collective that others have yet to join."""
        return any(group.waiting(rank) for group in self._all_groups())

    def _all_groups(self) -> list[ProcessGroup]:
        return [*([self._world] if self._world else []), *(g for gs in self._groups.values() for g in gs)]

    def unfinished_on(self, tensor: Tensor) -> bool:
        """Whether a collective that some rank has yet to join will write a tensor."""
        calls = [
            call for group in self._all_groups() for e in group.epochs.values() for call in e.calls.values()
        ]
        return any(tensor in call.outputs for call in calls)

    def unfinished(self) -> list[Stuck]:
        """Calls that cannot complete any more."""
        return [s for group in self._all_groups() for s in group.unfinished()] + self.undelivered()


def _numel(tensor: Any) -> int:
    if not isinstance(tensor, Tensor):
        raise DistributedError(f"a collective takes tensors, not {type(tensor).__name__}")
    return tensor.numel()


def _same(count: int, tensors: Sequence[Tensor], what: str) -> None:
    found = sum(_numel(t) for t in tensors)
    if found != count:
        raise ShapeMismatch(f"{what}: {count} elements are needed, the tensor has {found}")


def _splits(tensor: Tensor, sizes: Sequence[int] | None, ranks: int) -> tuple[int, ...]:
    """Elements per rank from rows per rank."""
    rows = tensor.shape[0] if tensor.shape else 0
    if sizes is None:
        if rows % ranks:
            raise ShapeMismatch(f"all_to_all_single: {rows} rows are no {ranks} equal blocks")
        sizes = [rows // ranks] * ranks
    if len(sizes) != ranks or sum(sizes) != rows or any(whole(s) is None or s < 0 for s in sizes):
        raise ShapeMismatch(
            f"all_to_all_single: splits {list(sizes)} do not make up {rows} rows of {ranks} ranks"
        )
    each = tensor.numel() // rows if rows else 0
    return tuple(int(s) * each for s in sizes)
