"""The way through a stream: loops, branches and the integers they depend on, for one unit."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from megatile.plan.code import Instruction
from megatile.plan.model import Channel


class Control:
    """Follows jumps; what commands do is left to others. Every step returns where to go on, if not next."""

    def __init__(self, code: Sequence[Instruction], unit: int):
        self.code = code
        self.ints: dict[str, int] = {"unit": unit}

    def value(self, instruction: Instruction, name: str) -> int:
        return int(instruction.functions[name](self.ints))

    def bind(self, instruction: Instruction) -> None:
        """Give names to what a loop carries or a branch leaves, all at once."""
        self.ints.update([(name, int(function(self.ints))) for name, function in instruction.ints])

    def step_enter(self, instruction: Instruction, pc: int) -> None:
        loop: Any = instruction.statement
        self.bind(instruction)
        for key in ("start", "stop", "step"):
            self.ints[loop.index if key == "start" else f"{loop.index}.{key}"] = self.value(instruction, key)

    def step_test(self, instruction: Instruction, pc: int) -> int | None:
        index = instruction.statement.index  # type: ignore[union-attr]
        at, stop, step = (self.ints[f"{index}{suffix}"] for suffix in ("", ".stop", ".step"))
        return None if (at < stop if step > 0 else at > stop) else instruction.target

    def step_again(self, instruction: Instruction, pc: int) -> int:
        index = instruction.statement.index  # type: ignore[union-attr]
        self.bind(instruction)
        self.ints[index] += self.ints[f"{index}.step"]
        return instruction.target

    def step_branch(self, instruction: Instruction, pc: int) -> int | None:
        return None if self.value(instruction, "condition") else instruction.target

    def step_jump(self, instruction: Instruction, pc: int) -> int:
        return instruction.target

    def step_merge(self, instruction: Instruction, pc: int) -> None:
        self.bind(instruction)


class Coming(NamedTuple):
    """A message that the unit will receive."""

    channel: str
    member: int
    source: int
    shape: tuple[int, ...]
    dtype: str


class Scout(Control):
    """Goes ahead of a unit through its stream and finds the messages it is going to receive, in order.

    Integers that the unit finds out when it gets there (``read_scalar``, ``receive_any``) are told through
    ``learned``; until then the scout waits in front of them.
    """

    def __init__(self, code: Sequence[Instruction], unit: int, channels: Mapping[str, Channel]):
        super().__init__(code, unit)
        self.unit, self.channels = unit, channels
        self.learned: deque[int] = deque()
        self._pc = 0

    def next(self) -> Coming | None:
        """The next message; None at the end of the stream and in front of an integer not known yet."""
        while (kind := self.code[self._pc].kind) != "end":
            instruction = self.code[self._pc]
            if kind in ("read_scalar", "receive_any") and not self.learned:
                return None
            follow = getattr(self, f"step_{kind}", None)
            following = follow(instruction, self._pc) if follow is not None else None
            self._pc = self._pc + 1 if following is None else following
            if kind == "receive":
                return self._coming(instruction, self.value(instruction, "member"))
            if kind == "receive_any":
                return self._coming(instruction, self.ints[instruction.statement.chosen])  # type: ignore[union-attr]
        return None

    def step_read_scalar(self, instruction: Instruction, pc: int) -> None:
        statement: Any = instruction.statement
        self.ints[statement.name] = self.learned.popleft()

    def step_receive_any(self, instruction: Instruction, pc: int) -> None:
        statement: Any = instruction.statement
        self.ints[statement.chosen] = self.learned.popleft()

    def _coming(self, instruction: Instruction, member: int) -> Coming:
        statement: Any = instruction.statement
        source = self.channels[statement.channel].source.evaluate({"unit": self.unit, "member": member})
        shape = tuple(int(function(self.ints)) for function in instruction.shape)
        return Coming(statement.channel, member, int(source), shape, statement.dtype)
