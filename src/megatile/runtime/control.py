"""Control flow of a stream: loops, branches and the integers they depend on, for one unit; and receives that
are posted before the unit asks for them, so that messages travel while it works."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from megatile.plan.code import Instruction
from megatile.plan.cohort import Cohort
from megatile.plan.control import STRUCTURE, ControlFlow
from megatile.plan.model import Channel
from megatile.plan.statements import integers_bound

MAX_ANNOUNCED_COLLECTIVES = 64
"""Messages that the scout may have found while there is no free slot for them."""
MAX_STEPS_AHEAD = 4096
"""Instructions that the scout takes in search of one message: a long loop without messages is not its own."""


class Control(ControlFlow):
    """One unit on its way through a stream; what commands do is left to others."""

    def __init__(self, code: Sequence[Instruction], unit: int):
        self.code = code
        self.cohort = Cohort(0, np.asarray([unit]))
        self.ints = self.cohort.ints

    def value(self, instruction: Instruction, name: str) -> int:
        return int(instruction.functions[name](self.ints))

    def go(self, instruction: Instruction) -> None:
        """Past one instruction: where the structure of the stream leads, or to the next."""
        if instruction.kind in STRUCTURE:
            getattr(self, f"step_{instruction.kind}")(self.cohort, instruction)
        else:
            self.cohort.pc += 1


class Coming(NamedTuple):
    """A message that the unit will receive."""

    channel: str
    member: int
    source: int
    shape: tuple[int, ...]
    dtype: str


class Scout(Control):
    """Goes ahead of a unit through its stream and finds the messages it is going to receive, in order.

    Integers that the unit finds out when it gets there (``read_scalar``, ``receive_any``) are given through
    ``learned``; until then the scout waits in front of them.
    """

    def __init__(self, code: Sequence[Instruction], unit: int, channels: Mapping[str, Channel]):
        super().__init__(code, unit)
        self.unit, self.channels = unit, channels
        self.learned: deque[int] = deque()

    def next(self) -> Coming | None:
        """Return the next message; None at the end of the stream, in front of an integer not known yet, and
        where no message is near."""
        for _ in range(MAX_STEPS_AHEAD):
            instruction = self.code[self.cohort.pc]
            if instruction.kind == "end":
                return None
            kind, statement = instruction.kind, instruction.statement
            if kind in ("read_scalar", "receive_any"):
                if not self.learned:
                    return None
                for name in integers_bound(statement):
                    self.ints[name] = self.learned.popleft()
            self.go(instruction)
            if kind == "receive":
                return self._coming(instruction, self.value(instruction, "member"))
            if kind == "receive_any":
                return self._coming(instruction, self.ints[statement.chosen])
        return None

    def handle(self, cohort: Cohort, name: str) -> None:
        """Tiles do not matter here."""

    def _coming(self, instruction: Instruction, member: int) -> Coming:
        statement: Any = instruction.statement
        source = self.channels[statement.channel].source.evaluate({"unit": self.unit, "member": member})
        shape = tuple(int(function(self.ints)) for function in instruction.shape)
        return Coming(statement.channel, member, int(source), shape, statement.dtype)


Receive = Callable[[Coming], Callable[[], Tensor]]
"""Posts a receive; what it gives waits for the message."""


class Inbox:
    """Messages of one unit. A queue has as many receives posted as it has slots.

    From one source they are posted in the order in which the unit takes them; those of different sources do
    not wait for each other. The message that is taken next can always be posted: all before it in its queue
    are gone.
    """

    def __init__(
        self, scout: Scout, receive: Callable[[Coming], Callable[[], Tensor]], channels: Mapping[str, Channel]
    ):
        self._scout, self._receive, self._channels = scout, receive, channels
        self._announced: dict[int, deque[Coming]] = defaultdict(deque)
        self._count = 0
        self._posted: dict[tuple[str, int], deque[Callable[[], Tensor]]] = defaultdict(deque)

    def learn(self, value: int) -> None:
        """An integer on which the unit's control flow depends is known."""
        self._scout.learned.append(value)
        self.look_ahead()

    def look_ahead(self) -> None:
        """Post what is sure to come and has a free slot."""
        while self._count < MAX_ANNOUNCED_COLLECTIVES and (coming := self._scout.next()) is not None:
            self._announced[coming.source].append(coming)
            self._count += 1
            self._post(coming.source)

    def take(self, channel: str, member: int, source: int) -> Tensor:
        """Take the next message of a queue; its slot is free again."""
        while not self._posted[channel, member]:  # the scout was not near it yet
            self.look_ahead()
        message = self._posted[channel, member].popleft()()
        self._post(source)
        self.look_ahead()
        return message

    def _post(self, source: int) -> None:
        waiting = self._announced[source]
        while waiting:
            queue = self._posted[waiting[0].channel, waiting[0].member]
            if len(queue) >= self._channels[waiting[0].channel].slots:
                return
            queue.append(self._receive(waiting.popleft()))
            self._count -= 1
