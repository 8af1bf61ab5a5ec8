"""Networks whose endpoints are wired to switches: one switch, a fat tree, rails."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from megatile.hda.topology import Others, Run, Topology


@dataclass(frozen=True)
class Switched(Topology):
    """Endpoints behind switches: one switch, a fat tree of several tiers, or rails.

    ``arity[t]`` groups of tier ``t`` share a switch of tier ``t+1``. Every group has a trunk of cables to the
    switch above (endpoints: one; groups: as many as endpoints below, divided by the oversubscription), and a
    message takes cable ``destination mod cables`` both ways, so the choice is the same in every run.
    With ``rails`` > 1, endpoint ``i`` stands on rail ``i mod rails``: those of one rail are neighbours.
    """

    arity: tuple[int, ...] = ()
    oversubscription: tuple[float, ...] = ()
    rails: int = 1

    _rail: int = field(default=0, init=False, repr=False, compare=False)  # plugs of one rail
    _spans: tuple[int, ...] = field(default=(), init=False, repr=False, compare=False)
    _cables: tuple[int, ...] = field(default=(), init=False, repr=False, compare=False)
    _offsets: tuple[int, ...] = field(default=(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        on_rail = self.size // self.rails
        leaf = min(self.arity[0] if self.arity else on_rail, on_rail)
        # A leaf switch serves one rail only: the last leaf of a rail may have free plugs.
        rail = -(-on_rail // leaf) * leaf
        plugs = rail * self.rails
        arity = [leaf]
        for count in self.arity[1:]:
            if math.prod(arity) < plugs:
                arity.append(min(count, -(-plugs // math.prod(arity))))
        if math.prod(arity) < plugs:
            arity.append(-(-plugs // math.prod(arity)))
        spans, cables, offsets = [1], [1], [0]
        share = 1.0
        for tier, count in enumerate(arity):
            groups = -(-plugs // spans[-1])
            offsets.append(offsets[-1] + groups * cables[-1])
            spans.append(spans[-1] * count)
            share *= self.oversubscription[tier] if tier < len(self.oversubscription) else 1
            cables.append(max(1, round(spans[-1] / share)))
        self._set(arity=tuple(arity), dims=(self.size,), link_count=2 * offsets[-1])
        self._set(_rail=rail, _spans=tuple(spans), _cables=tuple(cables), _offsets=tuple(offsets))

    def _position(self, a: int) -> int:
        """Return where an endpoint is plugged in: rails come one after the other."""
        return a if self.rails == 1 else a % self.rails * self._rail + a // self.rails

    def _endpoint(self, position: int) -> int:
        if self.rails == 1:
            return position
        rail, place = divmod(position, self._rail)
        return place * self.rails + rail

    def route(self, a: int, b: int) -> tuple[Run, ...]:
        if a == b:
            return ()
        pa, pb = self._position(a), self._position(b)
        tiers = 1
        for span in self._spans[1:]:
            if pa // span == pb // span:
                break
            tiers += 1
        return (Run("up", a, b, tiers), Run("down", b, a, tiers))

    def links(self, run: Run) -> Iterator[int]:
        target = self._position(run.step if run.axis == "up" else run.start)
        place = self._position(run.start)
        down = run.axis == "down"
        tiers: Sequence[int] = range(run.hops)
        for tier in reversed(tiers) if down else tiers:
            cables = self._cables[tier]
            group = place // self._spans[tier]
            cable = target % cables
            yield 2 * (self._offsets[tier] + group * cables + cable) + down

    def neighbors(self, a: int) -> Sequence[int]:
        leaf = self.arity[0]
        plug = self._position(a)
        first = plug // leaf * leaf
        last_of_rail = plug // self._rail * self._rail + self.size // self.rails
        return Others(range(first, min(first + leaf, last_of_rail)), plug, self._endpoint)

    def ends(self, link: int) -> tuple[str, str]:
        link, down = divmod(link, 2)
        tier = 0
        while link >= self._offsets[tier + 1]:
            tier += 1
        group = (link - self._offsets[tier]) // self._cables[tier]
        low = str(self._endpoint(group)) if tier == 0 else f"switch {tier}.{group}"
        high = f"switch {tier + 1}.{group // self.arity[tier]}"
        return (high, low) if down else (low, high)

    def bisection_links(self) -> float:
        """Half the endpoints, or half of the top switch's trunks, whichever is narrower.

        Rails are cut so that each rail is halved: that is how a job is split into halves of nodes.
        """
        if self.size < 2:
            return 0
        if self.rails > 1:
            rail = Switched(self.size // self.rails, self.kind, self.arity, self.oversubscription)
            return rail.bisection_links() * self.rails
        return self._cut(self.size // 2, len(self.arity))

    def _cut(self, wanted: int, tier: int) -> int:
        """Return links to cut so that this many endpoints leave the switch of a tier: whole groups, then a
        part."""
        if wanted <= 0 or tier == 0:
            return 0
        span, cables = self._spans[tier - 1], self._cables[tier - 1]
        groups, rest = divmod(wanted, span)
        part = min(self._cut(rest, tier - 1), cables + self._cut(span - rest, tier - 1)) if rest else 0
        return min(wanted, groups * cables + part)
