"""Ranks tell each other what they were given: a mistake is one clear error everywhere, not a hang."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megatile.attention.errors import AttentionError
from megatile.attention.failures import explained, wait_for

RECORD_BYTES = 1024
Record = dict[str, Any]


class Members:
    """The processes of a group, this one's rank and their number. Without torch.distributed: one."""

    def __init__(self, group: Any = None):
        self.group = _process_group(group)
        self.rank = dist.get_rank(self.group) if self.group is not None else 0
        self.size = dist.get_world_size(self.group) if self.group is not None else 1

    def agree(
        self, record: Record, problem: str | None, device: torch.device, same: tuple[str, ...]
    ) -> list[Record]:
        """Every rank's record. Raises on all if one has a ``problem`` or a field of ``same`` differs."""
        if self.size == 1 or os.environ.get("MEGATILE_ATTENTION_CHECK", "1") == "0":
            if problem:
                raise AttentionError(problem)
            return [{**record, "checksum": None}] * self.size  # nothing was compared
        records = self._gather({**record, "problem": problem}, device)
        _raise_problems(records)
        _raise_differences(records, same)
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


def checksum(x: Tensor) -> str:
    """A number that differs between tensors with different content, in practice."""
    values = x.detach().double()
    return f"{values.sum().item():.12e}/{values.abs().sum().item():.12e}"


def refuse_unsharded(records: list[Record]) -> None:
    """Raise if two ranks hold the same keys: a whole sequence was given where a rank's own part belongs."""
    seen: dict[str, list[int]] = defaultdict(list)
    for rank, record in enumerate(records):
        if record.get("checksum"):
            seen[record["checksum"]].append(rank)
    for ranks in seen.values():
        if len(ranks) > 1:
            names = ", ".join(map(str, ranks))
            raise AttentionError(
                f"ranks {names} hold the same keys: the sequence was not divided",
                advice="give each rank its own part, for example shard_sequence(k, causal=…)",
            )


def _process_group(group: Any) -> dist.ProcessGroup | None:
    if group is None:
        if not (dist.is_available() and dist.is_initialized()):
            return None
        return dist.group.WORLD
    if hasattr(group, "get_group") and not isinstance(group, dist.ProcessGroup):
        group = _group_of_mesh(group)
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise AttentionError(
            f"this process (rank {dist.get_rank()}) is not a member of the group it calls with"
        )
    if not isinstance(group, dist.ProcessGroup):
        raise AttentionError(
            f"group must be a torch.distributed process group, got {type(group).__name__}",
            advice="torch.distributed.new_group(ranks), or None for all ranks",
        )
    if dist.get_rank(group) < 0:
        raise AttentionError(
            f"this process (rank {dist.get_rank()}) is not a member of the group it calls with"
        )
    return group


def _group_of_mesh(mesh: Any) -> Any:
    """The process group of a DeviceMesh of one dimension."""
    if mesh.ndim != 1:
        names = mesh.mesh_dim_names
        raise AttentionError(
            f"a sequence is divided along one dimension of a DeviceMesh, this one has {mesh.ndim}",
            advice=" or ".join(f'mesh["{name}"]' for name in names)
            if names
            else 'name the dimensions (mesh_dim_names=("dp", "cp")) and give one of them: mesh["cp"]',
        )
    return mesh.get_group()


def _raise_problems(records: list[Record]) -> None:
    for rank, record in enumerate(records):
        if record["problem"]:
            raise AttentionError(f"rank {rank}: {record['problem']}")


def _raise_differences(records: list[Record], same: tuple[str, ...]) -> None:
    for name in same:
        values: Mapping[str, list[int]] = defaultdict(list)
        for rank, record in enumerate(records):
            values[json.dumps(record.get(name))].append(rank)
        if len(values) > 1:
            told = "; ".join(f"{json.loads(value)} on rank {_list(ranks)}" for value, ranks in values.items())
            raise AttentionError(f"the ranks disagree on {name}: {told}")


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
