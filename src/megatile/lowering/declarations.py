"""What a Plan declares as it is written, what is known of its Program, and what writing it found out."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from megatile.core.expr import Expr
from megatile.hda import HDA
from megatile.ir import nodes as n
from megatile.ir.program import Program
from megatile.lowering.banks import arranged
from megatile.lowering.levels import LoweredLevel
from megatile.lowering.storage import Home, Homes, uneven
from megatile.lowering.swizzle import swizzled
from megatile.plan import model as pm


class Declarations:
    """Tiles and how many versions of them, flags, channels and groups; and names that are free."""

    def __init__(self, used: set[str], versions: dict[str, int]):
        self.tiles: dict[str, pm.Tile] = {}
        self.versions = versions
        self.flags: dict[str, pm.Flag] = {}
        self.channels: dict[pm.Channel, str] = {}
        """By what they are, under the name that the library gave them."""
        self.groups: dict[tuple[str | None, Expr, str, str | None], pm.Group] = {}
        self.transports: dict[Any, pm.Transport] = {}
        """By what they are and what they have been asked for."""
        self._count, self._used = 0, used

    def fresh(self) -> int:
        """Return a number that no other has."""
        self._count += 1
        return self._count

    def name(self, word: str) -> str:
        """Return a name for a number of a stream that no other has."""
        while word in self._used:
            word = f"{word}_{self.fresh()}"
        self._used.add(word)
        return word

    def home(self, home: Home, level: LoweredLevel) -> None:
        """Declare the tile or flag of a home, owned by the units of a level."""
        if home.flag:
            self.flags[home.name] = pm.Flag(home.name, math.prod(home.extents), level.name)
        elif home.name not in self.tiles:
            self.tiles[home.name] = pm.Tile(
                home.name, home.extents, home.dtype, home.memory, level=level.name
            )

    def barrier(self, level: LoweredLevel, key: Expr, name: str = "", transport: str | None = None) -> str:
        """Return the group of units of a level with the same key, for barriers of a name or a transport."""
        one = (level.name, key, name, transport)
        found = self.groups.get(one)
        if found is None:
            word = f"group_{len(self.groups) + 1}"
            found = self.groups[one] = pm.Group(word, key, level.name, transport)
        return found.name

    def transport(self, transport: pm.Transport, asked: tuple[str, int]) -> str:
        """Return the name of a transport like that, for an operation over so many ranks."""
        found = self.transports.get((transport, asked))
        if found is None:
            found = replace(transport, name=self.name(transport.name))
            self.transports[transport, asked] = found
        return found.name

    def channel(self, channel: pm.Channel) -> str:
        """Return the name of a channel like that, made if there is none."""
        found = self.channels.get(channel)
        if found is None:
            found = self.channels[channel] = self.name(channel.name)
        return found


class Facts:
    """What is known of a Program on a machine."""

    def __init__(self, program: Program, hda: HDA, homes: Homes):
        self.statements = list(n.walk(program.body))
        self.hda = hda
        self.arranged = arranged(self.statements)
        """Tiles whose layout in banks a hint takes care of."""
        self.swizzled = swizzled(program)
        """Tiles whose chunks are exchanged, as the CUDA text does it."""
        tiles = [b for b in homes.table.values() if b.base not in homes.found]
        self.picks = any(uneven(view.layout) for b in tiles for view in b.owner)
        """Whether units have elements of a tile that are no run."""

    @cached_property
    def _assigned(self) -> Counter[str]:
        return Counter(m.name for m in self.statements if isinstance(m, n.Let))

    def assigned_once(self, name: str) -> bool:
        """Return whether a variable gets its value in one place only."""
        return self._assigned[name] == 1

    @cached_property
    def puts(self) -> bool:
        """Whether units reach into each other's memory."""
        return any(n.remote(node) is not None for node in self.statements)

    @cached_property
    def lanes(self) -> int:
        """Lanes that take their elements together: those of a warp; 0 where the machine has none."""
        own = {scale.name for scale in self.hda.scales if not scale.implied}
        return self.hda.count("thread") // self.hda.count("warp") if {"thread", "warp"} <= own else 0

    @cached_property
    def special(self) -> tuple[int | None, int]:
        """How many operations of the vector engine take as long as a special function (None: it has no
        engine), and how many as long as the first one of a command is under way."""
        hda = self.hda
        first = {e.kind: e for e in reversed(hda.engines) if e.kind in ("vector", "scalar")}
        own = {kind: (e.rate("f32") or 0) * e.count for kind, e in first.items()}
        rates = {kind: rate * hda.level(first[kind].level).total for kind, rate in own.items()}
        if len(rates) < 2 or not rates["scalar"]:
            return None, 0
        wait = round(first["scalar"].latency_ps * own["vector"] / 1e12)
        return max(1, round(rates["vector"] / rates["scalar"])), wait


@dataclass
class Notes:
    """What writing a Plan found out, to explain it."""

    choices: dict[Any, Any]
    """What does each statement: `commands.Choice`."""
    waste: dict[str, tuple[str, int, float]] = field(default_factory=dict)
    """By source line: the memory, the bytes of a row, and how many times those its sectors are."""
    conflicts: dict[str, tuple[str, str, int]] = field(default_factory=dict)
    """By source line: the memory, the tile, and the turns that lanes take in its banks."""
