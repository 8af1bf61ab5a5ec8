"""What a breakpoint shows of a unit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from megatile.core.errors import did_you_mean
from megatile.targets.interpret.errors import RunError
from megatile.targets.interpret.units import Unit, describe

if TYPE_CHECKING:
    from megatile.targets.interpret.machine import Interpreter


class UnitView:
    """A stopped unit: ``view["A_local"]`` is its tile as an array, ``view.vars`` its scalars by name."""

    def __init__(self, machine: Interpreter, unit: Unit, scalars: dict[str, Any]):
        self._machine = machine
        self._unit = unit
        self.rank = unit.group.rank(unit) if unit.group is not None else 0
        self.unit = describe(unit, machine.launch)
        self.vars = {**unit.vars, **scalars}
        node = unit.node
        self.place = node.span.place() if node is not None and node.span else None

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
        if shares is None:
            return array.copy()
        return array[np.ix_(*(np.arange(*s) if isinstance(s, tuple) else s for s in shares))]
