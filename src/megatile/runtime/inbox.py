"""Receives that are posted before the unit asks for them, so that messages travel while it works."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from megatile.plan.model import Channel
from megatile.runtime.control import Coming, Scout

MOST_ANNOUNCED = 64
"""Messages that the scout may have found while there is no free slot for them."""


class Arriving(Protocol):
    """A receive that was posted; ``wait`` returns the message."""

    def wait(self) -> Tensor: ...


class Receiver(Protocol):
    """What posts a receive."""

    def receive(self, coming: Coming) -> Arriving: ...


class Inbox:
    """Messages of one unit. A queue has as many receives posted as it has slots.

    From one source they are posted in the order in which the unit takes them; those of different sources do
    not wait for each other. The message that is taken next can always be posted: all before it in its queue
    are gone.
    """

    def __init__(self, scout: Scout, receiver: Receiver, channels: Mapping[str, Channel]):
        self._scout, self._receiver, self._channels = scout, receiver, channels
        self._announced: dict[int, deque[Coming]] = defaultdict(deque)
        self._count = 0
        self._posted: dict[tuple[str, int], deque[Arriving]] = defaultdict(deque)

    def learn(self, value: int) -> None:
        """An integer on which the unit's control flow depends is known."""
        self._scout.learned.append(value)
        self.look_ahead()

    def look_ahead(self) -> None:
        """Post what is sure to come and has a free slot."""
        while self._count < MOST_ANNOUNCED and (coming := self._scout.next()) is not None:
            self._announced[coming.source].append(coming)
            self._count += 1
            self._post(coming.source)

    def take(self, channel: str, member: int, source: int) -> Tensor:
        """The next message of a queue; its slot is free again."""
        message = self._posted[channel, member].popleft().wait()
        self._post(source)
        self.look_ahead()
        return message

    def _post(self, source: int) -> None:
        waiting = self._announced[source]
        while waiting:
            queue = self._posted[waiting[0].channel, waiting[0].member]
            if len(queue) >= self._channels[waiting[0].channel].slots:
                return
            queue.append(self._receiver.receive(waiting.popleft()))
            self._count -= 1
