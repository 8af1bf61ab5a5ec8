"""How many instances of each scale a launch has: what was asked, what follows, what contradicts it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from megatile.core.arithmetic import Lambda
from megatile.core.errors import InstanceError, MegatileError
from megatile.core.quantities import whole
from megatile.hda.model import Scale
from megatile.hda.schema import ScaleView
from megatile.hda.topology import coords_of, index_of

if TYPE_CHECKING:
    from megatile.hda.hda import HDA


@dataclass(frozen=True)
class Dim:
    """Instances of one scale inside one instance of the named scale around it, as a grid, x first.

    ``problem`` says why an inferred scale cannot be used (96 threads make 3 warps, not a warp group).
    """

    scale: Scale
    extents: tuple[int, ...]
    problem: str | None = None

    @property
    def count(self) -> int:
        return math.prod(self.extents)

    def split(self, index: int) -> tuple[int, ...]:
        """Return a number → its coordinates in the grid."""
        return coords_of(index, self.extents)

    def join(self, coord: int | tuple[int, ...]) -> int:
        """Return coordinates (or already a number) → the number."""
        if isinstance(coord, (tuple, list)):
            index = index_of(coord, self.extents)
        else:
            index = index_of((coord,), (self.count,))
        if index is None:
            shown = "×".join(map(str, self.extents))
            raise InstanceError(f"coordinate {coord!r} is outside the {shown} {self.scale.name}s")
        return index


class LaunchViews:
    """Views of a launch, checked against each other and the machine."""

    def __init__(self, hda: HDA, views: Sequence[ScaleView]):
        self.hda = hda
        if isinstance(views, (str, ScaleView)) or not isinstance(views, Iterable):
            raise InstanceError(
                f"{views!r} is not a list of scale views",
                advice="write [ScaleView('block', instance_num=512)]",
            )
        self.views = [_view(view) for view in views]
        if not self.views:
            raise InstanceError(
                "a launch needs at least one scale", advice="name one, like ScaleView('block')"
            )
        self.scales = [self.scale(view) for view in self.views]
        self.check_order()

    def result(self) -> tuple[tuple[Dim, ...], dict[str, Dim]]:
        """Return the dimensions of a launch, largest scale first, and what is inferred of the collapsed
        scales."""
        asked = self.asked()
        dims: list[Dim] = []
        inferred: dict[str, Dim] = {}
        for i, (view, dim) in enumerate(zip(self.views, asked, strict=True)):
            between = self.between(i, asked)
            if view.is_flatten:
                inferred.update({d.scale.name: d for d in between if d.scale.infer_lambda})
                dims.append(dim)
            else:
                dims += self.unflattened(dim, between)
        for dim in dims:
            self.check_count(dim, dims)
        return tuple(dims), inferred

    # the views themselves

    def scale(self, view: ScaleView) -> Scale:
        scale = self.hda.scale(view.name)
        if scale.position < 0:
            names = ", ".join(s.name for s in self.hda.scales)
            raise InstanceError(
                f"'{view.name}' is a level of the hardware, not a scale", advice=f"scales: {names}"
            )
        if view.target is not None and view.target != scale.level:
            raise InstanceError(f"scale '{view.name}' lies on level '{scale.level}', not '{view.target}'")
        if view.infer_lambda is not None:
            Lambda.parse(view.infer_lambda, arity=2)
            return replace(scale, infer_lambda=view.infer_lambda)
        return scale

    def check_order(self) -> None:
        seen: dict[int, str] = {}
        for view, scale in zip(self.views, self.scales, strict=True):
            if scale.position in seen:
                first = seen[scale.position]
                also = f" (as '{first}' and '{view.name}')" if first != view.name else ""
                raise InstanceError(
                    f"scale '{scale.name}' appears twice{also}", advice="name each scale once"
                )
            larger = [name for position, name in seen.items() if position < scale.position]
            if larger:
                raise InstanceError(
                    f"scale '{view.name}' is larger than '{larger[0]}' but comes after it",
                    advice="list the scales from the largest to the smallest",
                )
            seen[scale.position] = view.name

    # counts

    def asked(self) -> list[Dim]:
        """Return the named scales with their counts; -1 is resolved from the smallest upwards."""
        dims: list[Dim] = [
            Dim(scale, _extents(view)) for scale, view in zip(self.scales, self.views, strict=True)
        ]
        for i in reversed(range(len(dims))):
            if dims[i].extents != (-1,):
                continue
            scale = dims[i].scale
            if scale.infer_lambda is None:
                dims[i] = Dim(scale, (self.hardware(scale, i),))
                continue
            count = self.infer(scale, self.smaller(scale, i, dims), self.larger(scale, i, dims))
            dims[i] = Dim(scale, (self.whole(count, scale),))
            if i + 1 < len(dims) and self.next_smaller(scale) == dims[i + 1].scale.name:
                # 256 threads asked for in 8 inferred warps are 32 threads in each.
                dims[i + 1] = self.divided(dims[i + 1], count, scale.name)
        return dims

    def parent(self, i: int) -> str | None:
        return self.scales[i - 1].name if i else None

    def hardware(self, scale: Scale, i: int) -> int:
        """Return units of a scale inside one hardware unit of the view before it."""
        return self.hda.count(scale.name, within=self.parent(i))

    def next_smaller(self, scale: Scale) -> str | None:
        below = [s for s in self.hda.scales if s.position < scale.position]
        return below[-1].name if below else None

    def smaller(self, scale: Scale, i: int, dims: list[Dim]) -> int:
        """``_b``: the count of the next smaller scale; inferred first where it is not named."""
        name = self.next_smaller(scale)
        if name is None:
            return 1
        if i + 1 < len(dims):
            if dims[i + 1].scale.name == name:
                return dims[i + 1].count
            below = {d.scale.name: d for d in self.between(i + 1, dims)}
            if name in below and not below[name].problem:
                return below[name].count
        return self.hda.count(name, within=self.parent(i))

    def larger(self, scale: Scale, i: int, dims: list[Dim]) -> int:
        """``_t``: the count of the next larger scale."""
        above = [s for s in self.hda.scales if s.position > scale.position]
        if not above:
            return 1
        if i and dims[i - 1].scale.name == above[0].name and dims[i - 1].extents != (-1,):
            return dims[i - 1].count
        return self.hda.count(above[0].name, within=above[1].name if len(above) > 1 else None)

    def infer(self, scale: Scale, below: int, above: int) -> int:
        try:
            count = Lambda.parse(str(scale.infer_lambda), arity=2)(above, below)
        except MegatileError as problem:
            raise InstanceError(f"scale '{scale.name}': {problem.message}", advice=problem.advice) from None
        if isinstance(count, bool) or not isinstance(count, int):
            raise InstanceError(
                f"scale '{scale.name}': '{scale.infer_lambda}' gives {count!r}, not a whole number"
            )
        return count

    def whole(self, count: int, scale: Scale) -> int:
        if count < 1:
            raise InstanceError(f"scale '{scale.name}': '{scale.infer_lambda}' gives {count} instances")
        return count

    def divided(self, dim: Dim, among: int, name: str) -> Dim:
        if len(dim.extents) > 1 or dim.count % among:
            shown = "×".join(map(str, dim.extents))
            raise InstanceError(
                f"{shown} {dim.scale.name}s do not divide among {among} {name}s",
                advice=f"choose a multiple of {among}, or is_flatten=True",
            )
        return replace(dim, extents=(dim.count // among,))

    # scales that were not named

    def between(self, i: int, dims: list[Dim]) -> list[Dim]:
        """Return scales between view ``i`` and the one before it, largest first: totals inside the one
        before."""
        dim = dims[i]
        top = self.scales[i - 1].position if i else math.inf
        found: list[Dim] = []
        below = dim
        for scale in (s for s in self.hda.scales if dim.scale.position < s.position < top):
            if scale.infer_lambda:
                below = self.collapsed(scale, below, dim, self.larger(scale, i, dims))
            else:
                below = Dim(scale, (self.hardware(scale, i),))
            found.append(below)
        return found[::-1]

    def collapsed(self, scale: Scale, below: Dim, named: Dim, above: int) -> Dim:
        if below.problem:
            return Dim(scale, (0,), below.problem)
        count = self.infer(scale, below.count, above)
        problem = None
        if count < 1:
            problem = f"{below.count} {below.scale.name}s are too few for one {scale.name}"
        elif below.count % count or named.count % count:
            problem = f"{named.count} {named.scale.name}s do not divide among {count} {scale.name}s"
        return Dim(scale, (max(count, 0),), problem)

    def unflattened(self, dim: Dim, between: list[Dim]) -> list[Dim]:
        """Keep scales between two views as dimensions of their own; divide the named count among them."""
        out: list[Dim] = []
        inside = 1
        for middle in between:
            if middle.problem:
                raise InstanceError(middle.problem, advice="choose another count, or is_flatten=True")
            out.append(self.divided(middle, inside, out[-1].scale.name if out else ""))
            inside = middle.count
        # A level with a single unit is not worth a dimension: one node, seen from inside.
        out = [d for d in out if d.count > 1]
        return [*out, self.divided(dim, inside, between[-1].scale.name) if inside > 1 else dim]

    # limits

    def check_count(self, dim: Dim, dims: list[Dim]) -> None:
        scale = dim.scale
        above = [d for d in dims if d.scale.position > scale.position]
        if scale.position >= self.hda.scale("device").position:
            there = self.hda.count(scale.name, within=above[-1].scale.name if above else None)
            if dim.count > there:
                where = f"in a {above[-1].scale.name}" if above else f"in machine '{self.hda.name}'"
                raise InstanceError(
                    f"{dim.count} instances of '{scale.name}' asked for, but there are {there} {where}"
                )
        whole = any(s is scale and v.instance_num == -1 for s, v in zip(self.scales, self.views, strict=True))
        for outer, most in scale.limits.items():
            container = self.hda.scale(outer)
            if whole and container not in self.scales:
                continue  # all there are, in groups of the hardware that nobody asked for
            if not any(d.scale.position >= container.position for d in above):
                continue
            inside = [d.count for d in above if d.scale.position < container.position]
            count = dim.count * math.prod(inside)
            if above[-1].scale.position >= container.position and above[-1].scale != container:
                continue
            if count > most:
                raise InstanceError(
                    f"{count} {scale.name}s in one {container.name} are more than the {most} it can hold"
                )


def _view(view: Any) -> ScaleView:
    if isinstance(view, str):
        return ScaleView(view)
    if not isinstance(view, ScaleView) or not isinstance(view.name, str):
        raise InstanceError(
            f"{view!r} is not a scale view", advice="write ScaleView('block', instance_num=512)"
        )
    return view


def _extents(view: ScaleView) -> tuple[int, ...]:
    raw = view.instance_num
    given = tuple(raw) if isinstance(raw, (tuple, list)) else (raw,)
    extents = tuple(extent for e in given if (extent := whole(e)) is not None)
    if not extents or len(extents) < len(given) or (extents != (-1,) and any(e < 1 for e in extents)):
        raise InstanceError(
            f"{raw!r} is not a count of '{view.name}'",
            advice="use a whole number from 1, a tuple of them, or -1 to infer it",
        )
    return extents
