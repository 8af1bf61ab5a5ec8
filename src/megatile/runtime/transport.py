"""Messages, flags and groups between the processes of a plan, over torch.distributed."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megatile.core.cached import cached
from megatile.plan.model import Plan, ReceiveAny, statements
from megatile.runtime.control import Coming
from megatile.runtime.errors import LATE_SECONDS, LaunchError
from megatile.runtime.failures import explained, wait_for
from megatile.runtime.rank_liveness import Limit
from megatile.runtime.torch_rules import DTYPES

POLL_SECONDS = 0.002
"""Time between two looks at queues that are received from in any order."""


class Transport:
    """What one unit needs to talk to the others. Tags tell the queues of a pair of units apart."""

    def __init__(self, plan: Plan, unit: int, store: Any, timeout: float, world: Any = None):
        """``world`` is the process group of all units, if it is not torch's default one."""
        self.plan, self.unit, self.store, self.timeout = plan, unit, store, timeout
        self.world = _world() if world is None else world
        self.end = time.monotonic() + timeout
        self.limit = None if world is None else Limit(time.monotonic(), timeout + LATE_SECONDS, "timeout=")
        self.tags: dict[str, int] = {}
        for channel in plan.channels:
            self.tags[channel.name] = sum(c.members for c in plan.channels[: len(self.tags)])
        bodies = [statement for stream in plan.streams for statement in statements(stream.body)]
        self.counted = {s.channel for s in bodies if isinstance(s, ReceiveAny)}
        self.sending: dict[tuple[str, int, int], deque[tuple[Any, Tensor]]] = defaultdict(deque)
        self.own: dict[tuple[str, int], deque[Tensor]] = defaultdict(deque)
        self.taken: dict[tuple[str, int], int] = defaultdict(int)
        self.groups = self._groups()

    def _groups(self) -> dict[str, tuple[Any, list[int]]]:
        """Per group of units: the process group of this unit and its members."""
        found: dict[str, tuple[Any, list[int]]] = {}
        for group in self.plan.groups:
            if group.level is not None:
                continue  # its members are in one process
            keys = [int(group.key.evaluate({"unit": u})) for u in range(self.plan.units)]
            for key in sorted({k for k in keys if k >= 0}):
                members = [u for u, k in enumerate(keys) if k == key]
                everyone = len(members) == self.plan.units
                process_group = self.world if everyone else _subgroup(tuple(members))
                if self.unit in members:
                    found[group.name] = (process_group, members)
        return found

    def send(self, channel: str, to: int, member: int, data: Tensor, slots: int) -> None:
        """Post a message; waits while all slots hold messages that were not taken."""
        message = data.detach().clone().contiguous()
        if channel in self.counted:
            self.store.add(f"sent/{channel}/{to}/{member}", 1)
        if to == self.unit:
            self.own[channel, member].append(message)
            return
        if not message.numel():
            return
        queue = self.sending[channel, to, member]
        while len(queue) >= slots:
            wait_for(queue.popleft()[0], self.world, to, f"a message to unit {to}", self.limit)
        flat = message.reshape(-1).view(torch.uint8)
        try:
            queue.append((dist.isend(flat, dst=to, tag=self.tags[channel] + member, group=self.world), flat))
        except RuntimeError as error:
            raise explained(error, self.world, to, f"a message to unit {to}") from error

    def receive(self, coming: Coming) -> Callable[[], Tensor]:
        """Post a receive: what arrives is the next message of the queue that has no receive yet. The function
        waits for it."""
        channel, member, source, shape, dtype = coming
        what, queue = f"a message from unit {source}", self.own[channel, member]

        def own() -> Tensor:
            if not queue:
                raise LaunchError(f"unit {self.unit} waits for a message that it sends itself, later")
            self.taken[channel, member] += 1
            return queue.popleft().reshape(shape)

        if source == self.unit:
            return own
        buffer, work = torch.empty(shape, dtype=DTYPES[dtype]), None
        if buffer.numel():
            flat, tag = buffer.reshape(-1).view(torch.uint8), self.tags[channel] + member
            try:
                work = dist.irecv(flat, src=source, tag=tag, group=self.world)
            except RuntimeError as error:
                raise explained(error, self.world, source, what) from error

        def arrived() -> Tensor:
            self._check_time()
            wait_for(work, self.world, source, what, self.limit)
            self.taken[channel, member] += 1
            return buffer

        return arrived

    def choose(self, channel: str, members: Sequence[int]) -> int:
        """Return the first of ``members`` that has a message; waits for one."""
        end = time.monotonic() + self.timeout
        while time.monotonic() < end:
            for member in members:
                if self.store.add(f"sent/{channel}/{self.unit}/{member}", 0) > self.taken[channel, member]:
                    return member
            time.sleep(POLL_SECONDS)
        raise LaunchError(f"no message on any queue of '{channel}' within {self.timeout:g} s")

    def signal(self, flag: str, to: int, member: int, amount: int) -> None:
        self.store.add(f"flag/{flag}/{to}/{member}", amount)

    def signals(self, flag: str, member: int) -> int:
        """Return how far other units have counted a flag of this one up."""
        return int(self.store.add(f"flag/{flag}/{self.unit}/{member}", 0))

    def members(self, group: str | None) -> list[int]:
        """Return the units of my group (None: all units)."""
        return list(range(self.plan.units)) if group is None else self.groups[group][1]

    def exchange(self, group: str | None, messages: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """Send each other member of my group its bytes (none where it is left out); return what came."""
        members = self.members(group)
        mine = torch.tensor([messages[unit].numel() if unit in messages else 0 for unit in members])
        sizes, at = self.gather(group, mine), members.index(self.unit)
        came, works, tag = {}, [], sum(channel.members for channel in self.plan.channels)
        for unit, counts in zip(members, sizes, strict=True):
            if unit == self.unit:
                continue
            came[unit] = torch.empty(int(counts[at]), dtype=torch.uint8)
            try:
                if came[unit].numel():
                    works.append((dist.irecv(came[unit], src=unit, tag=tag, group=self.world), unit))
                if unit in messages and messages[unit].numel():
                    works.append((dist.isend(messages[unit], dst=unit, tag=tag, group=self.world), unit))
            except RuntimeError as error:
                raise explained(error, self.world, unit, f"a copy of unit {unit}") from error
        for work, unit in works:
            wait_for(work, self.world, unit, f"a copy of unit {unit}", self.limit)
        return came

    def gather(self, group: str | None, data: Tensor) -> list[Tensor]:
        """Return the tensors of all members of my group (None: of all units), in unit order."""
        self._check_time()
        members = self.members(group)
        process_group = self.world if group is None else self.groups[group][0]
        mine = data.contiguous().reshape(-1).view(torch.uint8)
        everyone = [torch.empty_like(mine) for _ in members]
        work = dist.all_gather(everyone, mine, group=process_group, async_op=True)
        wait_for(work, process_group, None, f"a collective of group '{group}'", self.limit)
        return [x.view(data.dtype).reshape(data.shape) for x in everyone]

    def _check_time(self) -> None:
        """Raise when the run has taken longer than it may."""
        if self.limit is not None and time.monotonic() > self.end:
            raise LaunchError(
                f"plan '{self.plan.name}' did not finish within {self.timeout:g} s",
                advice="give a larger timeout=",
            )

    def finish(self) -> None:
        """Wait until everything sent has been taken."""
        for (_, to, _), queue in self.sending.items():
            while queue:
                wait_for(queue.popleft()[0], self.world, to, f"a message to unit {to}", self.limit)


@cached()
def _subgroup(members: tuple[int, ...]) -> Any:
    """Return the process group of some units; every process must take part in making it."""
    return dist.new_group(list(members), backend="gloo")


def _world() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group
