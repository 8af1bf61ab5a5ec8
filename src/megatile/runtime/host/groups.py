"""Process groups: who takes part, and the epochs in which calls of the ranks meet.

The k-th collective of every rank of a group is one epoch. It runs when the last rank has joined it; calls
that differ (operation, size, type, root) are an error that names both places.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from inspect import signature
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from megatile.core.errors import did_you_mean
from megatile.core.quantities import whole
from megatile.runtime.host.storage import Stored
from megatile.runtime.host.tensor import Tensor
from megatile.runtime.host.workers import DistributedError, Stuck, call_site, ranks_text

if TYPE_CHECKING:
    from megatile.runtime.host.context import RuntimeContext
    from megatile.sim import Launch


@dataclass
class Call:
    """What one rank wants: the tensors it gives and gets (each list is one after the other), and when."""

    operation: str
    rank: int
    count: int
    """Elements of the whole buffer."""
    dtype: str
    inputs: Sequence[Tensor] = ()
    outputs: Sequence[Tensor] = ()
    reduction: str = "sum"
    root: int = 0
    at_ps: int = 0
    site: str = "?"
    splits: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    """Of an uneven all-to-all: elements given to, and got from, every rank."""

    @property
    def agreement(self) -> tuple[Any, ...]:
        """What must be the same on all ranks."""
        return self.operation, ("any" if self.splits else self.count), self.dtype, self.reduction, self.root

    def __str__(self) -> str:
        size = f" of {self.dtype}[{self.count}]" if self.operation != "barrier" else ""
        return f"{self.operation}{size} at {self.site}"


@dataclass
class Epoch:
    """One meeting of the ranks of a group."""

    number: int
    calls: dict[int, Call] = field(default_factory=dict)
    work: Launch | None = None
    """What they do, once all have joined."""

    def join(self, call: Call) -> None:
        if call.rank in self.calls:
            raise DistributedError(f"rank {call.rank} attempted duplicate join to epoch {self.number}")
        for other in self.calls.values():
            if other.agreement != call.agreement:
                raise DistributedError(
                    f"ranks disagree in collective {self.number} of their group: rank {other.rank} calls "
                    f"{other}"
                    f"{_settings(other, call)}, rank {call.rank} calls {call}{_settings(call, other)}",
                    advice="call the same collectives in the same order on all ranks",
                )
        self.calls[call.rank] = call


def _settings(call: Call, other: Call) -> str:
    """Root and reduction, where these are the difference."""
    shown = [
        f"{n} {getattr(call, n)}" for n in ("root", "reduction") if getattr(call, n) != getattr(other, n)
    ]
    return f" ({', '.join(shown)})" if shown else ""


class Work:
    """A handle of work that goes on: ``wait`` ends when it is done, in the worker's simulated time."""

    def __init__(self, context: RuntimeContext, epoch: Epoch, what: Callable[[], Stuck]) -> None:
        self._context, self._epoch, self._what = context, epoch, what

    def wait(self, timeout: Any = None) -> bool:
        self._context.workers.wait_until(lambda: self._epoch.work is not None, self._what)
        assert self._epoch.work is not None
        self._context.wait_on(self._epoch.work)
        return True

    def is_completed(self) -> bool:
        """Return whether it is done; asking takes the worker a microsecond, so that loops of it end."""
        self._context.wait_for(self._context.clock_ps + 1_000_000)
        self._context.engine.settle(until_ps=self._context.clock_ps)
        work = self._epoch.work
        return work is not None and self._context.are_over([work])

    is_success = is_completed


class ProcessGroup:
    """Some ranks, in order. ``runner`` does what they agree on."""

    def __init__(
        self,
        context: RuntimeContext,
        ranks: Sequence[int],
        runner: Callable[[ProcessGroup, list[Call]], Launch],
    ) -> None:
        self.context, self.ranks, self._runner = context, tuple(ranks), runner
        self.reset()

    def reset(self) -> None:
        """Forget calls that nobody will complete."""
        self.epochs: dict[int, Epoch] = {}
        self._next = dict.fromkeys(self.ranks, 0)

    def size(self) -> int:
        return len(self.ranks)

    def __repr__(self) -> str:
        return f"ProcessGroup({list(self.ranks)})"

    def joined(self, rank: int) -> int:
        """Return how many collectives a rank has joined."""
        return self._next[rank]

    def rank_of(self, rank: int) -> int:
        """Return the number of a rank in this group, -1 if it is not in it."""
        return self.ranks.index(rank) if rank in self.ranks else -1

    def join(self, call: Call, epoch: int | None = None) -> Work:
        """Add a rank's call to its next epoch (or the one given); the last one runs it."""
        if call.rank not in self.ranks:
            raise DistributedError(f"rank {call.rank} is not in the group of {list(self.ranks)}")
        number = self._next[call.rank] if epoch is None else epoch
        meeting = self.epochs.setdefault(number, Epoch(number))
        meeting.join(call)
        self._next[call.rank] = max(self._next[call.rank], number + 1)
        if len(meeting.calls) == len(self.ranks):
            del self.epochs[number]
            meeting.work = self._runner(self, [meeting.calls[r] for r in self.ranks])
        return Work(self.context, meeting, lambda: self._waiting(call, meeting))

    def _waiting(self, call: Call, meeting: Epoch) -> Stuck:
        missing = tuple(r for r in self.ranks if r not in meeting.calls)
        return Stuck(call.rank, f"rank {call.rank} waits in {call} for {ranks_text(missing)}", missing)

    def unfinished(self) -> list[Stuck]:
        """Return calls that some rank never joined."""
        return [self._waiting(call, e) for e in self.epochs.values() for call in e.calls.values()]


UNINITIALIZED = "Default process group has not been initialized, please make sure to call init_process_group."


Method = TypeVar("Method", bound=Callable[..., Any])


def for_members(method: Method) -> Method:
    """Let a call by a rank that is not in the ``group`` warn and return None, as torch's does."""
    place = list(signature(method).parameters).index("group") - 1  # after ``self``

    @wraps(method)
    def call(self: Groups, *given: Any, **named: Any) -> Any:
        group = named.get("group", given[place] if place < len(given) else None)
        rank = self._context.rank
        if group is None or rank in self._group(group).ranks:
            return method(self, *given, **named)
        text = f"Running {method.__name__} on global rank {rank} which does not belong to the given group."
        warnings.warn(text, stacklevel=2)
        return None

    return cast(Method, call)


class Groups:
    """The part of `Distributed` that knows who takes part."""

    def __init__(self, context: RuntimeContext) -> None:
        self._context = context
        self.reset()

    def reset(self) -> None:
        """Forget all groups, and messages that nobody took."""
        self._world: ProcessGroup | None = None
        self._groups: dict[tuple[int, ...], list[ProcessGroup]] = {}
        self._made: dict[int, dict[tuple[int, ...], int]] = {}
        self._mail: dict[tuple[int, int, int], tuple[deque[Any], deque[Any]]] = {}
        """By sender, receiver and tag: sends, and receives, that wait for their other half."""
        self._objects: dict[tuple[int, int], dict[int, Any]] = {}
        """By group and number of the exchange: what every rank gave."""
        self._parcels: dict[tuple[int, int], deque[list[Any]]] = {}
        """By sender and receiver: lists of objects on their way."""

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
        size = context.rank_count if world_size in (-1, context.world_size) else world_size
        if whole(size) is None or not 1 <= size <= context.shape.devices:
            raise DistributedError(f"world_size {size} does not fit {context.shape.devices} devices")
        if rank not in (-1, context.rank):
            raise DistributedError(f"rank {rank} is given, but this worker has rank {context.rank}")
        worker = context.workers.current
        if worker is not None and worker.device is None:
            worker.device = worker.rank  # as scripts for CPUs expect, which choose no device
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
            raise DistributedError(f"{group!r} is not a group", advice="new_group(ranks) makes one")
        return self.world if group is None else group

    def get_rank(self, group: ProcessGroup | None = None) -> int:
        """Return this worker's number; outside workers 0."""
        if self._context.workers.current is None:
            self._context.warn("get_rank outside a worker is 0")
        found = self._context.rank
        return found if group is None else self._group(group).rank_of(found)

    def get_world_size(self, group: ProcessGroup | None = None) -> int:
        if group is None and (self._world is None or self._world.size() == self._context.rank_count):
            return self._context.world_size
        members = self._group(group)
        return members.size() if self._context.rank in members.ranks else -1

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
        """Return a group of some ranks. Every worker calls it for every group, in the same order, as in
        torch."""
        given = self.world.ranks if ranks is None else ranks
        if not isinstance(given, (list, tuple, range)) or any(whole(r) is None for r in given):
            raise DistributedError(f"{ranks!r} is not a list of ranks", advice="new_group([0, 1])")
        chosen = tuple(sorted(given))
        if not chosen or len(set(chosen)) < len(chosen) or not set(chosen) <= set(self.world.ranks):
            raise DistributedError(f"{list(chosen)} is not a group of the ranks {list(self.world.ranks)}")
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

    def new_subgroups_by_enumeration(
        self, ranks_per_subgroup_list: Sequence[Sequence[int]], **_: Any
    ) -> tuple[ProcessGroup | None, list[ProcessGroup]]:
        """Make disjoint groups; return this rank's (None if it is in none) and all groups."""
        every = [rank for ranks in ranks_per_subgroup_list for rank in ranks]
        if not every or len(set(every)) < len(every):
            raise DistributedError(f"{ranks_per_subgroup_list!r} share a rank, so they are not groups")
        made = [self.new_group(ranks) for ranks in ranks_per_subgroup_list]
        return next((g for g in made if self._context.rank in g.ranks), None), made

    def _all_groups(self) -> list[ProcessGroup]:
        return [*([self._world] if self._world else []), *(g for gs in self._groups.values() for g in gs)]

    def unfinished_on(self, tensor: Stored) -> bool:
        """Return whether a collective that some rank has yet to join will write a tensor."""
        calls = [
            call for group in self._all_groups() for e in group.epochs.values() for call in e.calls.values()
        ]
        return any(tensor in call.outputs for call in calls)

    def unfinished(self) -> list[Stuck]:
        """Return calls that cannot complete any more."""
        return [s for group in self._all_groups() for s in group.unfinished()]

    def _asked(
        self,
        name: str,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        kind: str = "",
        count: int | None = None,
        **settings: Any,
    ) -> Call:
        """Return the call of this rank, whose tensors lie on its device."""
        context, tensors = self._context, (*inputs, *outputs)
        for tensor in tensors:
            self._check_there(tensor, context.rank, name)
        for tensor in outputs:
            tensor.check_writable()
        types = {t.dtype for t in tensors}
        if len(types) > 1:
            raise DistributedError(f"{name} takes tensors of one type, not {', '.join(sorted(types))}")
        size = tensors[0].numel() if count is None else count
        call = Call(
            kind or name, context.rank, size, next(iter(types), "f32"), inputs, outputs,
            at_ps=context.clock_ps, site=call_site(), **settings,
        )  # fmt: skip
        if context.workers.current is not None:
            context.workers.current.last = str(call)
        return call

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
