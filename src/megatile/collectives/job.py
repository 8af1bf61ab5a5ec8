"""What is to be done: an operation over n ranks, its buffers, and what is known about how the ranks lie.

Sizes count elements of the *whole* buffer, as nccl-tests does: the one that holds a block of every rank
(``reduce_scatter`` reads it, ``all_gather`` writes it). Blocks follow ``numpy.array_split``: the first
``count % n`` blocks have one element more, so any count goes with any number of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from megatile.core.dtypes import itemsize
from megatile.core.errors import MegatileError, did_you_mean
from megatile.core.expr import Expr, IntLike, expr, table, unit
from megatile.core.quantities import size, whole

REDUCTIONS = ("sum", "max", "min", "prod", "avg")
REDUCING = ("all_reduce", "reduce_scatter", "reduce")
OPERATIONS = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "reduce",
    "all_to_all",
    "gather",
    "scatter",
    "send_recv",
    "barrier",
)
_SPELLINGS = {
    "allreduce": "all_reduce",
    "reducescatter": "reduce_scatter",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "sendrecv": "send_recv",
    "send": "send_recv",
    "recv": "send_recv",
}


class CollectiveError(MegatileError, ValueError):
    """A collective that cannot be planned as asked; says why."""


def operation_name(spelling: str) -> str:
    """Return the operation's name, whatever its spelling (``AllReduce``, ``all-reduce``, ``all_reduce``)."""
    if not isinstance(spelling, str):
        raise CollectiveError(f"{spelling!r} is not a collective operation", advice="use 'all_reduce', …")
    plain = spelling.lower().replace("-", "_")
    name = _SPELLINGS.get(plain.replace("_", ""), plain)
    if name not in OPERATIONS:
        raise CollectiveError(
            f"'{spelling}' is not a collective operation",
            advice=did_you_mean(name, OPERATIONS, what="operations"),
        )
    return name


@dataclass(frozen=True)
class Job:
    """One collective to plan.

    ``levels``: how ranks are nested, innermost first (8 GPUs in each of 4 nodes: ``(8, 4)``); ``dims`` and
    ``wrap``: the grid they stand on, x first; ``reduces``: for every level the reductions that its network
    does by itself; ``place``: rank → hardware unit of ``scale``; ``cables``: pairs of ranks and how many
    cables join them, where their network is a list of these. ``peer`` is the receiver of a ``send_recv`` from
    ``root``; without it every rank sends to the next one, as in nccl-tests. ``near`` is the unit's own memory
    where buffers lie in a farther one, and ``near_bytes`` how much of it a collective may use. ``splits``: of
    an uneven all-to-all, the elements that each rank sends to each (a row per sender); every block has the
    room of the largest.
    """

    operation: str
    ranks: int
    count: int
    dtype: str = "f32"
    reduction: str = "sum"
    root: int = 0
    peer: int | None = None
    in_place: bool = False
    scale: str = "device"
    memory: str = "l2"
    slot_memory: str | None = None
    levels: tuple[int, ...] = ()
    dims: tuple[int, ...] = ()
    wrap: tuple[bool, ...] = ()
    reduces: tuple[tuple[str, ...], ...] = ()
    place: Expr = unit
    cables: tuple[tuple[int, int, int], ...] = ()
    near: str | None = None
    near_bytes: int = 0
    splits: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        if self.operation not in OPERATIONS:
            operation_name(self.operation)
        if self.ranks < 1 or self.count < 0:
            raise CollectiveError(f"{self.ranks} ranks and {self.count} elements are not a collective")
        if self.reduction not in REDUCTIONS:
            advice = did_you_mean(str(self.reduction), REDUCTIONS, what="reductions")
            raise CollectiveError(f"'{self.reduction}' is not a reduction", advice=advice)
        for name in ("root", "peer"):
            rank = getattr(self, name)
            if rank is not None and (whole(rank) is None or not 0 <= rank < self.ranks):
                raise CollectiveError(
                    f"{name} {rank} is not a rank", advice=f"there are {self.ranks}, from 0"
                )
        if self.splits:
            self._check_splits()
        if self.operation == "all_to_all" and self.in_place and self.count % self.ranks:
            raise CollectiveError(
                f"all_to_all in place needs equal blocks, but {self.count} elements over {self.ranks} ranks "
                "are uneven",
                advice="use out of place, or a multiple of the number of ranks",
            )

    def _check_splits(self) -> None:
        if self.operation != "all_to_all" or self.in_place:
            raise CollectiveError(
                f"{self.operation} takes no splits", advice="only all_to_all out of place does"
            )
        sizes = [len(row) for row in self.splits]
        if sizes != [self.ranks] * self.ranks:
            raise CollectiveError(
                f"splits need {self.ranks} rows of {self.ranks} numbers, got rows of {sizes}",
                advice="a row per sender: the elements for each receiver",
            )
        wrong = [value for row in self.splits for value in row if whole(value) is None or value < 0]
        if wrong:
            raise CollectiveError(f"a split must be a whole number of elements, got {wrong[0]!r}")

    def sent(self, sender: IntLike, receiver: IntLike) -> Expr:
        """Return the elements that a rank sends to another, of an uneven all-to-all."""
        return table([n for row in self.splits for n in row], expr(sender) * self.ranks + receiver)

    @property
    def most_moved(self) -> Expr:
        """The elements that a rank sends or receives, whichever are more, of an uneven all-to-all."""
        received = [sum(column) for column in zip(*self.splits, strict=True)]
        return table([max(sum(row), came) for row, came in zip(self.splits, received, strict=True)], unit)

    @property
    def itemsize(self) -> int:
        return itemsize(self.dtype)

    @property
    def nbytes(self) -> int:
        return self.count * self.itemsize

    @property
    def library_call(self) -> tuple[str, int]:
        """Return the operation, and its bytes, that libraries do for it: a barrier is an all-reduce of one
        element, as in torch's NCCL backend."""
        return ("all_reduce", self.itemsize) if self.operation == "barrier" else (self.operation, self.nbytes)

    @property
    def combined(self) -> str:
        """The reduction that commands do; an average is a sum that is divided at the end."""
        return "sum" if self.reduction == "avg" else self.reduction

    @property
    def block(self) -> int:
        """Elements of the largest block."""
        return -(-self.count // self.ranks)

    @cached_property
    def nesting(self) -> tuple[int, ...]:
        """``levels`` if they multiply up to the ranks, else one level."""
        return self.levels if self.levels and prod(self.levels) == self.ranks else (self.ranks,)

    @cached_property
    def grid(self) -> tuple[int, ...]:
        """``dims`` if they multiply up to the ranks, else the most square two dimensions."""
        if self.dims and prod(self.dims) == self.ranks:
            return self.dims
        side = next(s for s in range(int(self.ranks**0.5), 0, -1) if self.ranks % s == 0)
        return (self.ranks // side, side)

    @property
    def shapes(self) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
        """Shapes of a rank's input and output; in place there is only the input, which is both."""
        whole, block = (max(1, self.count),), (max(1, self.block),)
        if self.operation == "barrier":
            return None, None
        if self.in_place:
            return whole, None
        first = block if self.operation in ("all_gather", "gather") else whole
        second = {
            "reduce_scatter": block,
            "scatter": block,
            "all_to_all": (max(1, self.block * self.ranks),),
        }.get(self.operation, whole)
        return first, second


def read_bytes(nbytes: Any) -> int:
    """Return a size in bytes: a whole number, or text such as ``1 MiB`` or ``1M``."""
    found = size(nbytes) if isinstance(nbytes, str) else whole(nbytes)
    if found is None or found < 0:
        raise CollectiveError(f"{nbytes!r} is not a size in bytes", advice="use a whole number, or '1 MiB'")
    return found
