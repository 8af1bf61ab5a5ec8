"""Units of a machine: by name and number, by coordinates, inside each other. All of it is arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from megatile.core.errors import MachineError, RouteError, did_you_mean
from megatile.core.quantities import whole
from megatile.hda.model import Level, Parts, Scale, Unit, UnitRange
from megatile.hda.routing import Router

UnitLike = Unit | tuple[str, int] | tuple[str, Sequence[int]] | str
LONGEST_NUMBER = 20  # digits; Python itself refuses to read thousands of them


class Places(Parts):
    """The part of an `HDA` that finds units."""

    if TYPE_CHECKING:
        name: str
        _levels: dict[str, Level]
        _named: dict[str, Level]  # names of units seen so far, as questions come by the million
        _router: Router

    def level(self, name: str) -> Level:
        """Return a level, by its own name or through a scale."""
        return self._levels.get(name) or self._levels[self.scale(name).level]

    def scale(self, name: str) -> Scale:
        """Return a scale by name or alias. Standard scales always resolve; so do the names of levels."""
        found = self.scale_names.get(name)
        if found is None and name in self._levels:
            return Scale(name, name, -1)
        if found is None:
            known = [*(s.name for s in self.scales), *self.scale_names, *self._levels]
            raise MachineError(
                f"machine '{self.name}' has no scale '{name}'",
                advice=did_you_mean(name, known, what="scales"),
            )
        return found

    def units(self, scale: str) -> UnitRange:
        """Return all units of a scale, as a lazy sequence."""
        level = self.level(self.scale(scale).level)
        return UnitRange(level.name, range(level.total))

    def count(self, scale: str, within: str | None = None) -> int:
        """Return units of a scale in the machine, or inside one unit of a larger scale."""
        small = self.level(self.scale(scale).level)
        if within is None:
            return small.total
        large = self.level(self.scale(within).level)
        if small.position > large.position:
            raise MachineError(f"'{scale}' is larger than '{within}', so none is inside it")
        return small.total // large.total

    def unit(self, what: UnitLike) -> Unit:
        """Return a unit from ``Unit``, ``("gpu", 3)``, ``("core", (x, y))`` or ``"gpu:3"``."""
        if isinstance(what, str):
            name, _, number = what.rpartition(":")
            if not name or not number.removeprefix("-").isdecimal() or len(number) > LONGEST_NUMBER:
                raise RouteError(f"'{what}' is not a unit", advice="write it like gpu:3")
            what = (name, int(number))
        if not (isinstance(what, tuple) and len(what) == 2 and isinstance(what[0], str)):
            raise RouteError(f"{what!r} is not a unit", advice="write it like ('gpu', 3) or 'gpu:3'")
        name, place = what
        level = self._named.get(name) or self._named.setdefault(name, self.level(self.scale(name).level))
        index: int | None
        if type(place) is int:  # first, as questions come by the million
            index = place
        else:
            index = self._by_coords(level, place) if isinstance(place, (tuple, list)) else whole(place)
        if index is None or not 0 <= index < level.total:
            raise RouteError(f"{name} {place!r} does not exist", advice=f"there are {level.total}, from 0")
        return Unit(level.name, index)

    def _by_coords(self, level: Level, coords: Sequence[int]) -> int:
        """Return coordinates in the network that joins units of this level, if there is just one such
        network."""
        joined = [n for n in self.networks if n.connects == level.name and self._levels[n.level].total == 1]
        if not joined:
            raise RouteError(f"{level.name} has no coordinates", advice="give its number")
        return joined[0].topology.index(coords)

    def coords(self, unit: UnitLike) -> dict[str, tuple[int, ...]]:
        """Return where a unit stands: per level, from the largest, its coordinates inside the level above."""
        here = self.unit(unit)
        result: dict[str, tuple[int, ...]] = {}
        above: Level | None = None
        for level in reversed(self.levels):
            if level.position < self._levels[here.level].position:
                break
            index = here.index * self._router.span[here.level] // self._router.span[level.name]
            if above is not None:
                index %= above.num_units
            grid = next(
                (n for n in self.networks if above and n.level == above.name and n.connects == level.name),
                None,
            )
            result[level.name] = grid.topology.coords(index) if grid else (index,)
            above = level
        return result

    def parent(self, unit: UnitLike, scale: str) -> Unit:
        """Return the unit of a larger (or the same) scale that holds this one."""
        here = self.unit(unit)
        level = self.level(scale)
        if self._router.span[level.name] < self._router.span[here.level]:
            raise RouteError(f"{here} is not inside a {level.name}, it is larger")
        return Unit(level.name, here.index * self._router.span[here.level] // self._router.span[level.name])

    def children(self, unit: UnitLike, scale: str) -> UnitRange:
        """Return the units of a smaller scale inside this one."""
        here = self.unit(unit)
        level = self.level(scale)
        if self._router.span[level.name] > self._router.span[here.level]:
            raise RouteError(f"a {level.name} is larger than {here}, not inside it")
        inside = self._router.span[here.level] // self._router.span[level.name]
        return UnitRange(level.name, range(here.index * inside, (here.index + 1) * inside))
