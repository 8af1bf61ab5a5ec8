"""The same program made again: the function around it is called with other integers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from math import prod
from typing import Any, NamedTuple

from megatile.core.cached import cached_in_owner
from megatile.core.dtypes import itemsize
from megatile.core.limits import TimeBudgetExceeded
from megatile.cost.cheapest import Search
from megatile.cost.static_bound import floor
from megatile.cost.wave_bound import wave_bound
from megatile.ir import nodes as n
from megatile.ir.passes.coverage import unreached
from megatile.ir.passes.unit import Unit
from megatile.ir.program import Program, bindings
from megatile.language.tile.capacity import crowded_threads
from megatile.language.tile.program import ProgramFunction
from megatile.lowering.explain import figures
from megatile.lowering.lowered import Lowered, lower
from megatile.plan import model as pm
from megatile.verdict.same_work import leaves_out, useful_share
from megatile.verdict.study import OutOfBudget, Study

FACTORS = (2, 8, 1 / 2, 1 / 8)
STEP_OF_EXTENT = 16
"""What extents are multiples of that are neither doubled nor halved."""
MAX_ROUNDS = 4
"""Rounds of the search over arguments; each keeps the fastest neighbour."""
MAX_TRIALS = 6
"""Programs that a round of the search times."""
MIN_COMMANDS = 200_000
"""Plans with fewer commands are always timed; others only up to twice as many as the Plan in question."""
SAME_WORK = 0.2
"""How far the operations of two programs may be apart that compute the same (tiles beyond an edge count)."""
PADDING = 0.6
"""How much less another program may have to do, where tiles of this one reach over the edges of tensors."""
SAME_TENSORS = 0.05
"""Relative difference of sizes below which two calls work on the same tensors."""
ALMOST = 0.85
"""The share of what several changes save from which on a few of them are as good."""
STEP = 0.02
"""The share of the time that a round of the search must save to go on."""


def _in_order(changes: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(changes.items()))


class Trial(NamedTuple):
    """Arguments with other values (or other tiles, as text), and the time of the program that they make."""

    changes: dict[str, int]
    time_ps: int
    lowered: Lowered
    tiles: str = ""


class Arguments:
    """The integers that a program's factory was called with, by what they change."""

    def __init__(self, study: Study) -> None:
        self.study = study
        function = study.lowered.function if study.lowered is not None else None
        made_by = function.made_by if function is not None else None
        self.factory: Callable[..., Any] | None = made_by[0] if made_by else None
        self.given: dict[str, Any] = made_by[1] if made_by else {}

    @cached_property
    def kinds(self) -> dict[str, str]:
        """By name, what an integer decides: ``tile``, ``grid`` (blocks for the same tiles), ``stages`` (or
        buffers of another kind), ``threads`` or ``other``; those that change the work are left out."""
        found: dict[str, str] = {}
        for name, value in self.given.items():
            if type(value) is not int or value < 1:
                continue
            for other in (value * 2, value // 2, 1):
                low = self.make({name: other}) if 0 < other != value else None
                if low is not None and low.plan != self.study.plan:
                    found[name] = self._kind(low)
                    break
        return found

    def named(self, *kinds: str) -> list[str]:
        return [name for name, kind in self.kinds.items() if kind in kinds]

    def _kind(self, low: Lowered) -> str:
        mine = self.study.lowered
        assert mine is not None
        (tiles, blocks, threads), (more, other_blocks, other_threads) = _shape(mine), _shape(low)
        if tiles != more:
            return "stages" if blocks == other_blocks and _steps(mine) == _steps(low) else "tile"
        if blocks != other_blocks:
            return "grid"
        return (
            "threads" if threads != other_threads else "stages" if _stages(mine) != _stages(low) else "other"
        )

    @partial(cached_in_owner, key=_in_order)
    def make(self, changes: Mapping[str, int]) -> Lowered | None:
        """Return the program with these arguments, lowered; None where it does not exist, or does not do the
        same work."""
        return self._lowered(changes) if self.factory is not None else None

    def _lowered(self, changes: Mapping[str, int]) -> Lowered | None:
        mine = self.study.lowered
        assert mine is not None
        self.study.check_time()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made = self.factory(**{**self.given, **changes})  # type: ignore[misc]
                if not isinstance(made, ProgramFunction):
                    return None
                shapes = [p.shape for p in mine.source.params] if made.symbols else []
                low = lower(made, *shapes, machine=self.study.hda)
        except TimeBudgetExceeded:
            raise
        except Exception:  # whatever a user's function raises: these arguments do not go together
            return None
        return low if same_work(mine, low) else None

    @partial(cached_in_owner, key=_in_order)
    def _took(self, changes: Mapping[str, int]) -> int | None:
        low = self.make(changes)
        return None if low is None else self.study.plan_ps(low.plan)

    def time(self, changes: Mapping[str, int]) -> Trial | None:
        took, low = self._took(changes), self.make(changes)
        return None if took is None or low is None else Trial(dict(changes), took, low)

    @partial(cached_in_owner, key=tuple)
    def best(self, names: Sequence[str]) -> Trial | None:
        """Return the fastest program that a climb over these arguments finds, if it is faster than this."""
        best = None
        try:
            for best in self._climb(tuple(names)):  # noqa: B007
                pass
        except OutOfBudget:
            pass
        return None if best is None else self._simplest(best)

    def _simplest(self, best: Trial) -> Trial:
        """Return the program with fewer changes that saves almost as much."""
        most = self.study.base_ps - ALMOST * (self.study.base_ps - best.time_ps)
        for name in list(best.changes) if len(best.changes) > 1 else ():
            rest = {other: value for other, value in best.changes.items() if other != name}
            try:
                trial = self.time(rest) if rest else None
            except OutOfBudget:
                trial = None
            if trial is not None and trial.time_ps <= most:
                best = trial
        return best

    def _climb(self, chosen: tuple[str, ...]) -> Iterator[Trial]:
        """Yield programs, each faster than all before; a round begins at the fastest of the last."""
        best: Trial | None = None
        for _ in range(MAX_ROUNDS):
            values = {name: self.given[name] for name in chosen} | (best.changes if best else {})
            goal = (best.time_ps if best else self.study.base_ps) * (1 - STEP)
            found = None
            for found in self._faster(values, goal):
                yield found
            if found is None:
                return
            best = found

    def _faster(self, values: dict[str, int], goal: float) -> Iterator[Trial]:
        """Yield neighbours of these values, each faster than the goal and those before it: first those with
        one other value, then those with several."""
        moves = list(_moves(values, self.given))
        single = [sum(m.get(name, self.given[name]) != values[name] for name in values) == 1 for m in moves]
        for few in (True, False):
            search = Search[dict[str, int]]()
            for number, changes in enumerate(moves):
                low = self.make(changes) if single[number] == few else None
                if low is not None and self.study.cost(low.plan) <= self.most_commands:
                    bound = max(floor(low.plan, self.study.hda), wave_bound(low.plan, self.study.hda))
                    search.add(changes, bound, number)
            search.timed(-1, goal)
            for trials, (_, changes) in enumerate(search):
                if not few and trials >= MAX_TRIALS:
                    break
                trial = self.time(changes)
                if trial is not None and trial.time_ps < goal:
                    goal = trial.time_ps
                    search.timed(-1, goal)
                    yield trial

    @cached_property
    def most_commands(self) -> int:
        return max(MIN_COMMANDS, 2 * self.study.cost(self.study.plan))

    def text(self, trial: Trial) -> str:
        """``bM 16 -> 128, bN 16 -> 128``."""
        if trial.tiles:
            return trial.tiles
        return ", ".join(f"{name} {self.given[name]} -> {value}" for name, value in trial.changes.items())

    def step(self, trial: Trial) -> str:
        """Return the changes as text, and what to add where an output gets parts."""
        assert self.study.lowered is not None
        parts = other_outputs(self.study.lowered, trial.lowered)
        if not parts:
            return self.text(trial)
        shape = next(p.shape for p in trial.lowered.source.params if p.name == parts[0])
        return (
            f"{self.text(trial)}; '{parts[0]}' then has shape {tuple(map(int, shape))}: combine its parts "
            "in a second pass, or let every block T.atomic_add its part to one"
        )


@cached_in_owner
def arguments_of(study: Study) -> Arguments:
    """Return the arguments of a study's program."""
    return Arguments(study)


def _moves(values: dict[str, int], given: Mapping[str, Any]) -> Iterator[dict[str, int]]:
    """Yield arguments changed one by one, those of equal value together, and pairs in opposite directions."""
    pairs = [(a, b) for a in values for b in values if a < b]
    changes = [{name: factor} for name in values for factor in FACTORS]
    changes += [
        dict.fromkeys(pair, f) for pair in pairs if values[pair[0]] == values[pair[1]] for f in FACTORS
    ]
    for up, down in ((2, 1 / 2), (3 / 2, 3 / 4)):
        changes += [{a: up, b: down} for pair in pairs for a, b in (pair, pair[::-1])]
    yield from _fitting(values, given)
    for change in changes:
        after = dict(values)
        for name, factor in change.items():
            exact = values[name] * factor
            after[name] = (
                max(1, int(exact)) if factor in FACTORS or exact % STEP_OF_EXTENT == 0 else values[name]
            )
        if all(after[name] != values[name] for name in change):
            yield {name: value for name, value in after.items() if value != given[name]}


def _fitting(values: dict[str, int], given: Mapping[str, Any]) -> Iterator[dict[str, int]]:
    """Arguments of one value as the multiple of 16 that pads an extent least, where theirs does not divide
    it."""
    for value in sorted(set(values.values())):
        names = [name for name in values if values[name] == value]
        for extent in sorted({e for e in given.values() if type(e) is int and e > value and e % value}):
            sizes = range(STEP_OF_EXTENT, 2 * value + 1, STEP_OF_EXTENT)
            least = min((-(-extent // c) * c for c in sizes if c >= value // 4), default=0)
            fits = [c for c in sizes if c >= value // 4 and -(-extent // c) * c == least and c != value]
            for chosen in [*([name] for name in names), *([names] if len(names) > 1 else [])]:
                for size in fits[-2:]:
                    yield _changed(values | dict.fromkeys(chosen, size), given)


def _changed(values: dict[str, int], given: Mapping[str, Any]) -> dict[str, int]:
    return {name: value for name, value in values.items() if value != given[name]}


def _shape(low: Lowered) -> tuple[Any, int, int]:
    launch = low.source.launch
    tiles = {a.shape for a in n.each(n.Alloc, low.source.body)}
    return tiles, launch.count(launch.dispatch), launch.count(launch.scales[-1].name, launch.dispatch)


def _stages(low: Lowered) -> list[int]:
    return [loop.stages for loop in n.each(n.Loop, low.source.body)]


def _steps(low: Lowered) -> list[tuple[str, str, str]]:
    """Return operation, FLOPs and bytes of every command, regardless of buffers."""
    commands = (s for body in low.plan.bodies for s in body if isinstance(s, pm.Compute))
    return sorted((s.operation, s.work.flops.text(), s.work.bytes.text()) for s in commands)


def other_outputs(one: Lowered, other: Lowered) -> list[str] | None:
    """The tensors of another shape in the other program, which it writes and never reads; None: it takes
    other arguments, so that it does not do the same."""
    mine, theirs = one.source.params, other.source.params
    if [(p.name, p.dtype) for p in mine] != [(p.name, p.dtype) for p in theirs]:
        return None
    table, body = bindings(one.source), one.source.body
    read = {table[r.source].base for m in n.walk(body) for access, r in n.regions(m) if access != "write"}
    changed = [p.name for p, q in zip(mine, theirs, strict=True) if p.shape != q.shape]
    return None if set(changed) & read else changed


def overhangs(program: Program) -> bool:
    """Whether tiles reach over the edges of tensors."""
    table, tensors = bindings(program), {p.name for p in program.params}
    unit = Unit(program.launch)

    def visit(body: tuple[n.Node, ...], unit: Unit) -> bool:
        for node in body:
            for _, region in n.regions(node):
                shape = table[region.source].shape if table[region.source].base in tensors else ()
                for dim, length in zip(region.dims, shape, strict=False):
                    reach = (
                        unit.interval(dim.start + dim.extent)
                        if dim.anchored and dim.extent is not None
                        else None
                    )
                    if reach is not None and reach[1] > length:
                        return True
            if any(visit(inner, unit.within(node)) for _, inner in n.bodies(node)):
                return True
            unit = unit.after(node)
        return False

    return visit(program.body, unit)


def _doubts(low: Lowered) -> set[str]:
    """Return what is wrong with a program that runs: parts of tensors left out, tiles that would spill,
    stages for which there is no room."""
    doubts = {text for text, *_ in (*unreached(low.source), *crowded_threads(low.machine, low.source))}
    return doubts | ({"stages"} if low.shallower else set())


def same_work(one: Lowered, other: Lowered) -> bool:
    if other_outputs(one, other) is None or one.plan.units != other.plan.units:
        return False
    if _doubts(other) - _doubts(one):
        return False
    sizes = [
        sum(prod(int(e) for e in p.shape) * itemsize(p.dtype) for p in x.source.params) for x in (one, other)
    ]
    if abs(sizes[0] - sizes[1]) > SAME_TENSORS * max(sizes):
        return False
    counted = [figures(x) for x in (one, other)]
    for kind in ("tensor", "vector"):
        work = [f.flops.get(kind, 0) for f in counted]
        if max(work):
            fits = work[1] < work[0] and _shape(one)[0] != _shape(other)[0]
            padding = 1 - useful_share(one.plan) if fits and work[1] < (1 - SAME_WORK) * work[0] else 0.0
            less = max(SAME_WORK, min(PADDING, padding))
            return abs(work[0] - work[1]) <= less * max(work) and not leaves_out(one.plan, other.plan)
    moved = [f.moved for f in counted]
    return abs(moved[0] - moved[1]) <= SAME_WORK * max(moved) and not leaves_out(one.plan, other.plan)


__all__ = ["Arguments", "Trial", "arguments_of", "same_work"]
