"""Who wrote what: kept when a run is recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from megatile.core.errors import Place
from megatile.targets.interpret.errors import RunError
from megatile.targets.interpret.units import Unit, describe

if TYPE_CHECKING:
    from megatile.targets.interpret.machine import Interpreter
    from megatile.targets.interpret.storage import Storage


@dataclass(frozen=True)
class Write:
    """The last write of an element: by which unit, by which statement, at which step of the run."""

    unit: str
    statement: str
    step: int
    place: Place | None

    def __str__(self) -> str:
        where = f" at {self.place}" if self.place else ""
        return f"{self.unit}, step {self.step}: {self.statement}{where}"


class Recorder:
    """A list of writes; every element of every storage points to its last one."""

    def __init__(self) -> None:
        self.writes: list[Write] = []
        self.storages: dict[str, list[Storage]] = {}
        self.machine: Interpreter | None = None
        self._last: tuple[int, int] = (-1, -1)

    def entry(self, unit: Unit) -> int:
        from megatile.ir.printer import show_node

        machine, node = self.machine, unit.node
        assert machine is not None
        key = (unit.number, machine.steps)
        if key != self._last or not self.writes:
            self._last = key
            text = show_node(node) if node is not None else ""
            place = node.span.place() if node is not None and node.span else None
            self.writes.append(Write(describe(unit, machine.launch), text, machine.steps, place))
        return len(self.writes) - 1

    def last_write(self, storage: Storage, index: tuple[int, ...], copy: int = 0) -> Write | None:
        """The last write of an element; None if the run did not write it."""
        if len(index) != len(storage.shape):
            raise RunError(
                f"'{storage.name}' has {len(storage.shape)} dimensions, {len(index)} indices were given"
            )
        if storage.writers is None:
            return None
        place = (copy, *index)
        at = int(storage.writers[place])
        return self.writes[at] if at >= 0 else None
