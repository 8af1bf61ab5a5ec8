"""Process groups: who takes part, and the epochs in which calls of the ranks meet.

The k-th collective of every rank of a group is one epoch. It runs when the last rank has joined it; calls
that differ (operation, size, type, root) are an error that names both places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from megatile.runtime.host.tensor import Tensor
from megatile.runtime.host.workers import DistributedError, Stuck, ranks_text

if TYPE_CHECKING:
    from megatile.runtime.host.context import RuntimeContext
    from megatile.runtime.host.engine import Launch


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
        count = "any" if self.splits else self.count
        return self.operation, count, self.dtype, self.reduction, self.root

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
        """Whether it is done; asking takes the worker a microsecond, so that loops of it end."""
        self._context.workers.give_way()
        self._context.wait_for(self._context.clock_ps + 1_000_000)
        work = self._epoch.work
        return work is not None and work.end_ps <= self._context.clock_ps

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
        """How many collectives a rank has joined."""
        return self._next[rank]

    def rank_of(self, rank: int) -> int:
        """The number of a rank in this group, -1 if it is not in it."""
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

    def waiting(self, rank: int) -> bool:
        """Whether a rank has joined something that others have yet to join."""
        return any(rank in epoch.calls for epoch in self.epochs.values())

    def unfinished(self) -> list[Stuck]:
        """Calls that some rank never joined."""
        return [self._waiting(call, e) for e in self.epochs.values() for call in e.calls.values()]
