"""Messages, flags and groups between the processes of a plan, over torch.distributed."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megatile.plan.model import Plan, ReceiveAny, statements
from megatile.runtime.control import Coming
from megatile.runtime.errors import LaunchError
from megatile.runtime.failures import explained, wait_for
from megatile.runtime.torch_rules import DTYPES

POLL_SECONDS = 0.002


class Transport:
    """What one unit needs to talk to the others. Tags tell the queues of a pair of units apart."""

    def __init__(self, plan: Plan, unit: int, store: Any, timeout: float):
        self.plan, self.unit, self.store, self.timeout = plan, unit, store, timeout
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
        """Per group of the plan: the process group of this unit and its members."""
        found: dict[str, tuple[Any, list[int]]] = {}
        for group in self.plan.groups:
            keys = [int(group.key.evaluate({"unit": u})) for u in range(self.plan.units)]
            for key in sorted({k for k in keys if k >= 0}):
                members = [u for u, k in enumerate(keys) if k == key]
                process_group = dist.new_group(members)  # every process must take part in making every group
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
            wait_for(queue.popleft()[0], _world(), to, f"a message to unit {to}")
        flat = message.reshape(-1).view(torch.uint8)
        try:
            queue.append((dist.isend(flat, dst=to, tag=self.tags[channel] + member), flat))
        except RuntimeError as error:
            raise explained(error, _world(), to, f"a message to unit {to}") from error

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
                work = dist.irecv(flat, src=source, tag=tag)
            except RuntimeError as error:
                raise explained(error, _world(), source, what) from error

        def arrived() -> Tensor:
            wait_for(work, _world(), source, what)
            self.taken[channel, member] += 1
            return buffer

        return arrived

    def choose(self, channel: str, members: Sequence[int]) -> int:
        """The first of ``members`` that has a message; waits for one."""
        end = time.monotonic() + self.timeout
        while time.monotonic() < end:
            for member in members:
                if self.store.add(f"sent/{channel}/{self.unit}/{member}", 0) > self.taken[channel, member]:
                    return member
            time.sleep(POLL_SECONDS)
        raise LaunchError(f"no message on any queue of '{channel}' within {self.timeout:g} s")

    def signal(self, flag: str, to: int, member: int, amount: int) -> None:
        self.store.add(f"flag/{flag}/{to}/{member}", amount)

    def wait(self, flag: str, member: int, value: int) -> None:
        end = time.monotonic() + self.timeout
        while self.store.add(f"flag/{flag}/{self.unit}/{member}", 0) < value:
            if time.monotonic() > end:
                raise LaunchError(f"flag '{flag}' did not reach {value} within {self.timeout:g} s")
            time.sleep(POLL_SECONDS)

    def gather(self, group: str, data: Tensor) -> list[Tensor]:
        """The tensors of all members of my group, in unit order."""
        process_group, members = self.groups[group]
        mine = data.contiguous().reshape(-1).view(torch.uint8)
        everyone = [torch.empty_like(mine) for _ in members]
        work = dist.all_gather(everyone, mine, group=process_group, async_op=True)
        wait_for(work, process_group, None, f"a collective of group '{group}'")
        return [x.view(data.dtype).reshape(data.shape) for x in everyone]

    def finish(self) -> None:
        """Everything sent has been taken."""
        for (_, to, _), queue in self.sending.items():
            while queue:
                wait_for(queue.popleft()[0], _world(), to, f"a message to unit {to}")


def _world() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group
