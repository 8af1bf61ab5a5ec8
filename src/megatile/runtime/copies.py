"""Copies between ranks that share no memory: a barrier completes them.

A put waits for the next collective of its rank, which takes it to the owner. What a rank will get before the
collective after is found ahead (``Foresight``), asked for at the collective, and answered there. So both ends
of every copy take part in it; what needs only one of them (signals, atomics, copies that no collective
completes) is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from megatile.core.expr import Expr, symbols
from megatile.plan.model import Plan, Signal, Stream, statements
from megatile.plan.statements import ReadScalar, regions_of
from megatile.plan.text import statement_text
from megatile.runtime.errors import OneSidedError
from megatile.runtime.tile_memory import RankMemory, homes
from megatile.runtime.torch_rules import DTYPES
from megatile.runtime.transport import Transport


class MovedBlock(NamedTuple):
    """A block of an owner's copy of a tile; no ``start`` is all of it."""

    tile: str
    owner: int
    start: tuple[int, ...]
    shape: tuple[int, ...]

    def of(self, tensor: Tensor) -> Tensor:
        for axis, (start, extent) in enumerate(zip(self.start, self.shape, strict=True)):
            tensor = tensor.narrow(axis, start, extent)
        return tensor


def one_sided(statement: Any, why: str) -> OneSidedError:
    """Return the error for a command that cannot run between hosts."""
    text = statement_text(statement)
    return OneSidedError(
        f"'{text}' cannot run between hosts: {why}",
        place=statement.source,
        advice="use messages, collectives, or copies that a barrier follows; or run all ranks on one host",
    )


def refuse_one_sided(plan: Plan) -> None:
    """Refuse one-sided commands that can be found without running the plan."""
    spread = {
        tile.name for tile in plan.tiles if tile.shared and len(set(homes(plan, tile))) < plan.units > 1
    }
    for stream in plan.streams:
        if plan.per(stream.level, None) is None:
            raise OneSidedError(f"level '{stream.level}' belongs to no rank of plan '{plan.name}'")
        for statement in statements(stream.body):
            if isinstance(statement, Signal):
                level = next(flag.level for flag in plan.flags if flag.name == statement.flag)
                if _leaves(plan, stream, statement.to, level):
                    raise one_sided(statement, "a signal needs nothing of the rank that it goes to")
            for region in regions_of(statement):
                away = region.at is not None and _leaves(
                    plan, stream, region.at, plan.tile(region.tile).level
                )
                if _is_atomic(statement) and (away or region.tile in spread):
                    raise one_sided(statement, "an atomic needs nothing of the rank that owns its element")
                if region.at is not None and plan.tile(region.tile).versions > 1:
                    raise one_sided(statement, f"'{region.tile}' has several versions")
    for group in plan.groups:
        per = plan.per(group.level, None) or 1
        ranks: dict[int, int] = {}
        for number, key in enumerate(_values(group.key, np.arange(plan.instances(group.level)))):
            if group.level is not None and key >= 0 and ranks.setdefault(key, number // per) != number // per:
                raise OneSidedError(
                    f"group '{group.name}' of level '{group.level}' has members on several ranks"
                )


def _is_atomic(statement: Any) -> bool:
    if isinstance(statement, ReadScalar):
        return bool(statement.combine)
    return any(name == "combine" for name, _ in getattr(statement, "attributes", ()))


def _values(expr: Expr, units: Any) -> list[int]:
    found: list[int] = np.broadcast_to(np.asarray(expr.evaluate({"unit": units})), len(units)).tolist()
    return found


def _leaves(plan: Plan, stream: Stream, to: Expr, level: str | None) -> bool:
    """Return whether an instance that a stream names is on another rank; False where only a run tells."""
    if symbols(to) - {"unit"}:
        return False
    units = np.asarray(list(stream.unit_numbers()))
    own, other = plan.per(stream.level, None) or 1, plan.per(level, None) or 1
    return any(a // other != u // own for a, u in zip(_values(to, units), units.tolist(), strict=True))


class Copies:
    """Puts and gets of one rank that wait for a collective."""

    def __init__(self, memory: RankMemory, transport: Transport):
        self.memory, self.transport = memory, transport
        self._puts: list[tuple[MovedBlock, Tensor, Any]] = []
        self._got: dict[MovedBlock, Tensor] = {}

    def put(self, block: MovedBlock, data: Tensor, statement: Any) -> None:
        """Take ``data`` to its owner at the next collective."""
        self._puts.append((block, data, statement))

    def get(self, block: MovedBlock, statement: Any) -> Tensor:
        """Return what the last collective brought."""
        if any((p.tile, p.owner) == (block.tile, block.owner) for p, _, _ in self._puts):
            raise one_sided(statement, "it reads what this rank has put since the last barrier")
        if block not in self._got:
            raise one_sided(statement, "at the barrier before it, the owner cannot know of it")
        return self._got[block]

    def after_receive(self) -> None:
        """Forget what was brought: the owner may have changed it before it sent the message."""
        self._got = {}

    def before_send(self) -> None:
        """Refuse a message that could tell another rank of a put that has not left yet."""
        if self._puts:
            raise one_sided(self._puts[0][2], "a message follows it before a barrier does")

    def complete(self, group: str | None, wanted: Iterable[MovedBlock]) -> None:
        """Exchange puts, and the gets that are to come, with the ranks of a group (None: all)."""
        members, me = self.transport.members(group), self.memory.unit
        home = self.memory.home
        for block, _, statement in self._puts:
            if home(block.tile, block.owner) not in members:
                raise one_sided(statement, "the next barrier is not one of both ranks")
        asked: dict[int, list[MovedBlock]] = {rank: [] for rank in members}
        for block in dict.fromkeys(wanted):
            if (rank := home(block.tile, block.owner)) in asked:
                asked[rank].append(block)
        given = {r: [(b, d) for b, d, _ in self._puts if home(b.tile, b.owner) == r] for r in members}
        came = self.transport.exchange(group, {r: _packed(given[r], asked[r]) for r in members if r != me})
        requests: dict[int, list[MovedBlock]] = {}
        for rank in members:  # in the order of ranks, so that results do not depend on who came first
            puts, requests[rank] = self._unpacked(came[rank]) if rank != me else (given[me], asked[me])
            for block, data in puts:
                block.of(self.memory.of(block.tile, block.owner)[0]).copy_(data.reshape(block.shape))
        answers = {r: _bytes([block.of(self.memory.of(block.tile, block.owner)[0]) for block in requests[r]])
                   for r in members if r != me}  # fmt: skip
        came = self.transport.exchange(group, answers)
        self._puts, self._got = [], {}
        for rank in members:
            if rank != me:
                self._got.update(zip(asked[rank], self._split(asked[rank], came[rank]), strict=True))

    def _split(self, blocks: list[MovedBlock], data: Tensor) -> Iterator[Tensor]:
        at = 0
        for block in blocks:
            dtype = DTYPES[self.memory.tiles[block.tile].dtype]
            size = prod(block.shape) * dtype.itemsize
            yield data[at : at + size].clone().view(dtype).reshape(block.shape)
            at += size

    def _unpacked(self, message: Tensor) -> tuple[list[tuple[MovedBlock, Tensor]], list[MovedBlock]]:
        if not message.numel():
            return [], []
        length = int(message[:8].clone().view(torch.int64)[0])
        puts, asks = json.loads(bytes(message[8 : 8 + length].tolist()))
        blocks, wanted = (
            [MovedBlock(t, o, tuple(s), tuple(n)) for t, o, s, n in part] for part in (puts, asks)
        )
        return list(zip(blocks, self._split(blocks, message[8 + length :]), strict=True)), wanted


def _packed(puts: list[tuple[MovedBlock, Tensor]], asks: list[MovedBlock]) -> Tensor:
    """Return eight bytes of length, that many of JSON, and the data of puts."""
    if not puts and not asks:
        return torch.empty(0, dtype=torch.uint8)
    text = json.dumps([[block for block, _ in puts], asks]).encode()
    head = torch.tensor([len(text)]).view(torch.uint8)
    return torch.cat(
        [head, torch.frombuffer(bytearray(text), dtype=torch.uint8), _bytes([d for _, d in puts])]
    )


def _bytes(tensors: list[Tensor]) -> Tensor:
    flat = [t.contiguous().reshape(-1).view(torch.uint8) for t in tensors if t.numel()]
    return torch.cat(flat) if flat else torch.empty(0, dtype=torch.uint8)
