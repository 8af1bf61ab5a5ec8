"""What one may look at: who wrote what, kept when a run is recorded, and a unit stopped at a breakpoint."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from megatile.core.errors import Place, did_you_mean
from megatile.core.placement import numpy_index
from megatile.ir.printer import show_node
from megatile.targets.interpret.errors import ArgumentError, RunError
from megatile.targets.interpret.expressions import flatten
from megatile.targets.interpret.units import Unit, describe

if TYPE_CHECKING:
    from megatile.targets.interpret.machine import Interpreter
    from megatile.targets.interpret.storage import StoredArray


@dataclass(frozen=True)
class Write:
    """The last write of an element: by which unit, by which statement, at which step of the run."""

    unit: str
    statement: str
    step: int
    place: Place | None
    value: Any = None
    """What was written, if it is a scalar."""

    def __str__(self) -> str:
        where = f" at {self.place}" if self.place else ""
        value = f" = {self.value}" if self.value is not None else ""
        return f"{self.unit}, step {self.step}: {self.statement}{value}{where}"


class Recorder:
    """A list of writes; every element of every storage points to its last one."""

    def __init__(self, machine: Interpreter) -> None:
        self.writes: list[Write] = []
        self.machine = machine
        self.tiles: dict[tuple[str, tuple[int, ...]], StoredArray] = {}
        """Tensors and tiles, by name and the path of the unit they belong to."""
        self.scalars: dict[str, dict[tuple[int, ...], Write]] = {}
        self._last: tuple[int, int] = (-1, -1)
        machine.places.made = self.tiles

    def entry(self, unit: Unit) -> int:
        key = (unit.number, self.machine.steps)
        if key != self._last or not self.writes:
            self._last = key
            self.writes.append(self._write(unit))
        return len(self.writes) - 1

    def _write(self, unit: Unit, value: Any = None) -> Write:
        node = unit.node
        text = show_node(node) if node is not None else ""
        place = node.place if node is not None else None
        return Write(describe(unit, self.machine.launch), text, self.machine.steps, place, value)

    def note_scalar(self, name: str, unit: Unit, value: Any) -> None:
        self.scalars.setdefault(name, {})[unit.path] = self._write(unit, value)

    def last(self, name: str, index: tuple[int, ...], copy: int, unit: int | None) -> Write | None:
        """Return the last write of an element or a scalar, by any unit or to the tile of one."""
        if name in self.scalars:
            return _latest(w for path, w in self.scalars[name].items() if self._is(unit, path))
        tiles = {path: tile for (known, path), tile in self.tiles.items() if known == name}
        if not tiles:
            names = {*self.scalars, *(known for known, _ in self.tiles)}
            raise ArgumentError(
                f"nothing called '{name}' was written", advice=did_you_mean(name, names, what="names")
            )
        chosen = [tile for path, tile in tiles.items() if self._is(unit, path)]
        if not chosen:
            raise ArgumentError(
                f"no unit {unit} has a tile '{name}'", advice=f"there are {len(tiles)} units, from 0"
            )
        return _latest(self.last_write(tile, index, copy) for tile in chosen)

    def _is(self, unit: int | None, path: tuple[int, ...]) -> bool:
        counts = [scale.count for scale in self.machine.launch.scales[: len(path)]]
        return unit is None or flatten(path, counts) == unit

    def last_write(self, storage: StoredArray, index: tuple[int, ...], copy: int = 0) -> Write | None:
        """Return the last write of an element; None if the run did not write it."""
        if len(index) == 1 and isinstance(index[0], tuple):
            index = index[0]
        if len(index) != len(storage.shape):
            raise ArgumentError(
                f"'{storage.name}' has {len(storage.shape)} dimensions, {len(index)} indices were given",
                advice=f"its shape is {storage.shape}",
            )
        if not all(0 <= i < n for i, n in zip(index, storage.shape, strict=True)):
            raise ArgumentError(
                f"'{storage.name}' has no element {index}", advice=f"its shape is {storage.shape}"
            )
        if not 0 <= copy < storage.copies:
            raise ArgumentError(
                f"'{storage.name}' has no copy {copy}", advice=f"there are {storage.copies} of them, from 0"
            )
        if storage.writers is None:
            return None
        place = (copy, *index)
        at = int(storage.writers[place])
        return self.writes[at] if at >= 0 else None


def _latest(writes: Iterable[Write | None]) -> Write | None:
    return max((w for w in writes if w is not None), key=lambda w: w.step, default=None)


class UnitView:
    """A stopped unit: ``view["A_local"]`` is its tile as an array, ``view.vars`` its scalars by name."""

    def __init__(self, machine: Interpreter, unit: Unit, scalars: dict[str, Any]):
        self._machine = machine
        self._unit = unit
        self.rank = unit.group.rank(unit) if unit.group is not None else 0
        self.unit = describe(unit, machine.launch)
        self.vars = {**unit.vars, **scalars}
        self.place = unit.node.place if unit.node is not None else None

    def __getitem__(self, name: str) -> np.ndarray:
        places = self._machine.places
        if name not in places.names:
            raise RunError(
                f"there is no tile '{name}'", advice=did_you_mean(name, places.names, what="tiles")
            )
        found = places.names[name]
        storage = places.storage(found, self._unit)
        shares = places.share(found, self._unit)
        array = storage.array[places.copies(found, self._unit)[0]]
        return np.array(array if shares is None else array[numpy_index(shares)])
