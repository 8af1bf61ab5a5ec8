"""Ranks compare what they were given: a mistake on one of them is one clear error on all, not a hang."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from megatile.core.cached import cached
from megatile.core.errors import MegatileError
from megatile.runtime.board import BITS, Board, make_board
from megatile.runtime.failures import explained, wait_for

RECORD_BYTES = 1024
"""Bytes that each rank sends to compare its arguments."""
Record = dict[str, Any]
MAX_SIGNATURES = 256
"""Agreements that a group keeps; then all of them are forgotten."""
_NOT_AGREED = 0
"""Number of a call whose arguments no rank has compared yet."""


class Agreement(list[Record]):
    """The records of all ranks. ``number``: the same on each of them; ``facts``: what follows from it."""

    def __init__(self, records: Iterable[Record]):
        super().__init__(records)
        self.facts: dict[str, Any] = {}

    @cached_property
    def number(self) -> int:
        return int(hashlib.sha256(json.dumps(self).encode()).hexdigest(), 16) % (2**BITS - 1) + 1


_AGREED: WeakKeyDictionary[dist.ProcessGroup, dict[str, Agreement]] = WeakKeyDictionary()
"""By group and own record."""
_BOARDS: WeakKeyDictionary[dist.ProcessGroup, Board | None] = WeakKeyDictionary()
"""Of groups that have agreed once; None where the ranks are on several computers."""


class Members:
    """The processes of a group, this one's rank and their number. Without torch.distributed: one.

    ``group`` is a process group, a DeviceMesh of one dimension, or None for all ranks; ``error`` is what is
    raised when ranks were given something wrong.
    """

    def __init__(self, group: Any = None, error: type[MegatileError] = MegatileError):
        self.error = error
        self.group = _process_group(group, error)
        self.rank = dist.get_rank(self.group) if self.group is not None else 0
        self.size = dist.get_world_size(self.group) if self.group is not None else 1

    def agree(
        self,
        record: Record,
        problem: str | None,
        device: torch.device,
        same: tuple[str, ...],
        compare: bool = True,
        cached: bool = False,
        details: Callable[[], Record] | None = None,
        signature: str | None = None,
    ) -> Agreement:
        """Return every rank's record. Raises on all if one has a ``problem`` or a field of ``same`` differs.

        Without ``compare`` the others are taken to have the same record. With ``cached``, records that were
        compared before are not sent again: the ranks only make sure that they mean the same ones, on a board
        that they share if they run on one computer, by messages of 8 bytes otherwise.
        ``details`` are further fields, found only when records are sent. ``signature``: of the record, where
        it is known.
        """
        if self.group is None or self.size == 1 or not compare:
            if problem:
                raise self.error(problem)
            return Agreement([record] * self.size)
        if not cached:
            return self._compared(record, problem, device, same)
        known, signature = _AGREED.setdefault(self.group, {}), signature or self.signature(record)
        agreed = known.get(signature) if problem is None else None
        if self._same_number(agreed.number if agreed else _NOT_AGREED, device) and agreed is not None:
            return agreed
        more = details() if details is not None and problem is None else {}
        records = self._compared({**record, **more}, problem, device, same)
        if self.group not in _BOARDS:
            _BOARDS[self.group] = make_board(self.rank, self.size, lambda said: self._gather(said, device))
        if len(known) >= MAX_SIGNATURES:
            known.clear()
        known[signature] = records
        return records

    @staticmethod
    def signature(record: Record) -> str:
        return json.dumps(record)

    def _same_number(self, number: int, device: torch.device) -> bool:
        """Return whether all ranks have the number of one agreement: each shows or sends its own to all."""
        assert self.group is not None
        board = _BOARDS.get(self.group)
        if board is not None:
            shown = board.show(number)
            if not shown.same():
                self._wait(lambda: shown)
            return number != _NOT_AGREED and shown.same()
        where = device if self.backend == "nccl" else "cpu"
        mine = torch.full((self.size,), number, dtype=torch.int64, device=where)
        others, group = mine.clone(), self.group
        self._wait(lambda: start_all_to_all(group, others, mine, [], []))
        return number != _NOT_AGREED and others.tolist() == [number] * self.size

    @property
    def backend(self) -> str:
        assert self.group is not None
        return backend_of(self.group)

    def _compared(
        self, record: Record, problem: str | None, device: torch.device, same: tuple[str, ...]
    ) -> Agreement:
        records = self._gather({**record, "problem": problem}, device)
        for rank, found in enumerate(records):
            if found["problem"]:
                raise self.error(f"rank {rank}: {found['problem']}")
        for name in same:
            values: Mapping[str, list[int]] = defaultdict(list)
            for rank, found in enumerate(records):
                values[json.dumps(found.get(name))].append(rank)
            if len(values) > 1:
                each = "; ".join(f"{json.loads(x)} on rank {_list(ranks)}" for x, ranks in values.items())
                raise self.error(f"the ranks disagree on {name}: {each}")
        return records

    def _gather(self, record: Record, device: torch.device) -> Agreement:
        assert self.group is not None
        where = device if self.backend == "nccl" else torch.device("cpu")
        mine = _packed(record).to(where)
        everyone = [torch.empty_like(mine) for _ in range(self.size)]
        self._wait(lambda: dist.all_gather(everyone, mine, group=self.group, async_op=True))
        return Agreement(map(_unpacked, everyone))

    def _wait(self, start: Callable[[], Any]) -> None:
        assert self.group is not None
        doing = "comparing arguments between ranks"
        try:
            work = start()
        except RuntimeError as error:
            raise explained(error, self.group, None, doing) from error
        wait_for(work, self.group, None, doing)


_BACKENDS: WeakKeyDictionary[dist.ProcessGroup, str] = WeakKeyDictionary()


def backend_of(group: dist.ProcessGroup) -> str:
    """Return the name of a group's backend, which does not change."""
    found = _BACKENDS.get(group)
    if found is None:
        found = _BACKENDS[group] = str(dist.get_backend(group))
    return found


def start_all_to_all(
    group: dist.ProcessGroup, incoming: Tensor, outgoing: Tensor, in_sizes: list[int], out_sizes: list[int]
) -> Any:
    """Start what ``dist.all_to_all_single`` does after its checks, which take longer than small messages."""
    start = getattr(group, "all_to_all_single", None) or group.alltoall_base  # renamed in torch 2.13
    return start(incoming, outgoing, in_sizes, out_sizes, _all_to_all_options())


@cached()
def _all_to_all_options() -> Any:
    options = dist.AllToAllOptions()
    if hasattr(options, "asyncOp"):
        options.asyncOp = True
    return options


def _process_group(group: Any, error: type[MegatileError]) -> dist.ProcessGroup | None:
    if group is None:
        if not (dist.is_available() and dist.is_initialized()):
            return None
        return dist.group.WORLD
    if hasattr(group, "get_group") and not isinstance(group, dist.ProcessGroup):
        if group.ndim != 1:
            names = group.mesh_dim_names
            raise error(
                f"a sequence is divided along one dimension of a DeviceMesh, this one has {group.ndim}",
                advice=" or ".join(f'mesh["{name}"]' for name in names)
                if names
                else 'name the dimensions (mesh_dim_names=("dp", "cp")) and give one of them: mesh["cp"]',
            )
        group = group.get_group()
    outside = group is dist.GroupMember.NON_GROUP_MEMBER
    if not outside and not isinstance(group, dist.ProcessGroup):
        raise error(
            f"group must be a torch.distributed process group, got {type(group).__name__}",
            advice="torch.distributed.new_group(ranks), or None for all ranks",
        )
    if outside or dist.get_rank(group) < 0:
        raise error(f"this process (rank {dist.get_rank()}) is not a member of the group it calls with")
    return group


def _list(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (" …" if len(ranks) > 8 else "")


def _packed(record: Record) -> Tensor:
    text = json.dumps(record).encode()
    if len(text) > RECORD_BYTES:
        problem = str(record.get("problem") or "the arguments are too long to compare between ranks")
        text = json.dumps({"problem": problem[:200]}).encode()
    return torch.frombuffer(bytearray(text.ljust(RECORD_BYTES)), dtype=torch.uint8)


def _unpacked(tensor: Tensor) -> Record:
    record: Record = json.loads(bytes(tensor.cpu().tolist()))
    return record
