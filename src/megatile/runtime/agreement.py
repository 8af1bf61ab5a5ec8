"""Ranks compare what they were given: a mistake on one of them is one clear error on all, not a hang."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megatile.core.errors import MegatileError
from megatile.runtime.failures import explained, wait_for

RECORD_BYTES = 1024
Record = dict[str, Any]


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
    ) -> list[Record]:
        """Every rank's record. Raises on all if one has a ``problem`` or a field of ``same`` differs.

        Without ``compare`` the others are taken to have the same record.
        """
        if self.size == 1 or not compare:
            if problem:
                raise self.error(problem)
            return [record] * self.size
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
        doing = "comparing arguments between ranks"
        try:
            work = dist.all_gather(everyone, mine, group=self.group, async_op=True)
        except RuntimeError as error:
            raise explained(error, self.group, None, doing) from error
        wait_for(work, self.group, None, doing)
        return [_unpacked(tensor) for tensor in everyone]


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
        problem = str(record.get("problem") or "the arguments are too long to be compared between ranks")
        text = json.dumps({"problem": problem[:200]}).encode()
    return torch.frombuffer(bytearray(text.ljust(RECORD_BYTES)), dtype=torch.uint8)


def _unpacked(tensor: Tensor) -> Record:
    record: Record = json.loads(bytes(tensor.cpu().tolist()))
    return record
