"""Ranks compare what they were given: a mistake on one of them is one clear error on all, not a hang."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from megatile.core.errors import MegatileError
from megatile.runtime.failures import explained, wait_for

RECORD_BYTES = 1024
"""Bytes that each rank sends to compare its arguments."""
Record = dict[str, Any]
MAX_SIGNATURES = 256
"""Agreements that a group keeps; then all of them are forgotten."""
_NOT_AGREED = -1
"""Number of a call whose arguments no rank has compared yet."""
_AGREED: WeakKeyDictionary[dist.ProcessGroup, dict[str, tuple[int, list[Record]]]] = WeakKeyDictionary()
"""By group and own record: the number of an agreement, the same on all ranks, and all records."""


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
    ) -> list[Record]:
        """Every rank's record. Raises on all if one has a ``problem`` or a field of ``same`` differs.

        Without ``compare`` the others are taken to have the same record. With ``cached``, records that were
        compared before are not sent again: the ranks only make sure (16 bytes) that they mean the same ones.
        ``details`` are further fields, found only when records are sent.
        """
        if self.group is None or self.size == 1 or not compare:
            if problem:
                raise self.error(problem)
            return [record] * self.size
        if not cached:
            return self._compared(record, problem, device, same)
        known, signature = _AGREED.setdefault(self.group, {}), json.dumps(record)
        number, agreed = _NOT_AGREED, list[Record]()
        if problem is None and signature in known:
            number, agreed = known[signature]
        if self._same_number(number, device):
            return agreed
        more = details() if details is not None and problem is None else {}
        records = self._compared({**record, **more}, problem, device, same)
        if len(known) >= MAX_SIGNATURES:
            known.clear()
        known[signature] = _number(records), records
        return records

    def _same_number(self, number: int, device: torch.device) -> bool:
        """Whether all ranks have the number of one agreement."""
        where = device if str(dist.get_backend(self.group)) == "nccl" else torch.device("cpu")
        limits = torch.tensor([number, -number], device=where)
        self._wait(lambda: dist.all_reduce(limits, dist.ReduceOp.MAX, group=self.group, async_op=True))
        highest, lowest = limits.tolist()
        return bool(highest == -lowest != _NOT_AGREED)

    def _compared(
        self, record: Record, problem: str | None, device: torch.device, same: tuple[str, ...]
    ) -> list[Record]:
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

    def _gather(self, record: Record, device: torch.device) -> list[Record]:
        assert self.group is not None
        where = device if str(dist.get_backend(self.group)) == "nccl" else torch.device("cpu")
        mine = _packed(record).to(where)
        everyone = [torch.empty_like(mine) for _ in range(self.size)]
        self._wait(lambda: dist.all_gather(everyone, mine, group=self.group, async_op=True))
        return [_unpacked(tensor) for tensor in everyone]

    def _wait(self, start: Callable[[], Any]) -> None:
        assert self.group is not None
        doing = "comparing arguments between ranks"
        try:
            work = start()
        except RuntimeError as error:
            raise explained(error, self.group, None, doing) from error
        wait_for(work, self.group, None, doing)


def _number(records: list[Record]) -> int:
    """A number of the records of all ranks, the same on each of them."""
    return int.from_bytes(hashlib.sha256(json.dumps(records).encode()).digest()[:7], "big")


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
