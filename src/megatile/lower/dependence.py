"""What a region touches, and which commands of the larger unit it need not wait for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from megatile.plan import model as pm
from megatile.plan.statements import reads_of, write_of


@dataclass
class Touched:
    """Tiles that commands read and write."""

    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)

    def conflicts(self, other: Touched) -> bool:
        return bool(self.writes & (other.reads | other.writes) or self.reads & other.writes)


def touched(body: Iterable[Any], units: int = 0) -> Touched | None:
    """What statements touch; None where they wait for or meet others. With ``units``, what is another
    unit's own copy in every unit is left out."""
    found = Touched()
    for s in body:
        if isinstance(s, (pm.Loop, pm.If)):
            continue
        if not isinstance(s, (pm.Compute, pm.Signal, pm.Wait, pm.ReadScalar, pm.Collective)):
            return None
        if units and not isinstance(s, pm.Compute):
            return None
        write = write_of(s)
        for region, where in (
            *((r, found.reads) for r in reads_of(s)),
            *(((write, found.writes),) if write else ()),
        ):
            if not (units and region.at is not None and _elsewhere(region.at, units)):
                where.add(region.tile)
    return found


def _elsewhere(at: Any, units: int) -> bool:
    """Whether an owner is another unit for every unit, whatever loops count."""
    numbers = np.arange(units)
    try:
        return bool(np.all(np.broadcast_to(at.evaluate({"unit": numbers}), numbers.shape) != numbers))
    except KeyError:  # it depends on a loop
        return False


def earliest(out: list[Any], region: Touched, units: int) -> int:
    """From which place in a stream on nothing concerns a region: it may begin there."""
    place = len(out)
    while place:
        last = out[place - 1]
        inside = touched(pm.statements((last,)), units)
        if inside is None or inside.conflicts(region) or isinstance(last, pm.Loop):
            break
        place -= 1
    return place
