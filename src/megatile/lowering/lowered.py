"""``lower(prog, …, machine=)``: a Program on a machine as a lowered Program and as a Plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from megatile.core.dtypes import numpy_dtype
from megatile.core.errors import MegatileError, how_to_give
from megatile.core.frames import without_frames
from megatile.core.limits import enough_memory
from megatile.core.placement import cut, numpy_index
from megatile.core.times import Shown
from megatile.hda import HDA, divided, machine as find_machine
from megatile.ir import nodes as n
from megatile.ir.passes.driver import Pass, Step, inserted, steps
from megatile.ir.passes.normalise import Normalise
from megatile.ir.passes.remove_jumps import RemoveJumps
from megatile.ir.passes.resolve_views import ResolveViews
from megatile.ir.program import Program
from megatile.language.tile.program import DEFAULT_MACHINE, ProgramFunction
from megatile.lowering import gathered, phases, statements
from megatile.lowering.levels import LoweredLevel
from megatile.lowering.passes.choose_collectives import ChooseCollectives
from megatile.lowering.passes.choose_implementations import ChooseImplementations
from megatile.lowering.passes.place_tiles import PlaceTiles
from megatile.lowering.passes.synchronise import Synchronise
from megatile.lowering.residency import placed
from megatile.lowering.storage import Home
from megatile.lowering.streams import LoweringState
from megatile.lowering.waits import place_waits
from megatile.plan import model as pm
from megatile.plan.statements import regions_of, rewritten, write_of
from megatile.timing.caches import extents

assert phases.rule is statements.rule  # both add to the table of rules
assert gathered.AROUND  # as does this


def passes_for(machine: HDA) -> list[Pass]:
    """Return what is done to a Program before it becomes a Plan, in order."""
    return [
        Normalise(), ResolveViews(), RemoveJumps(), PlaceTiles(machine), ChooseImplementations(machine),
        ChooseCollectives(machine), Synchronise(machine),
    ]  # fmt: skip


class ArgumentsError(MegatileError, ValueError):
    """Arrays or shapes that do not fit a program."""


@dataclass(frozen=True, repr=False)
class Lowered(Shown):
    """A Program (``source``) on a machine. ``steps`` are the Program after each pass, ``homes`` say where the
    elements of every tensor and tile lie, ``plan`` is what the units do."""

    source: Program
    program: Program
    machine: HDA
    steps: tuple[Step, ...]
    homes: Mapping[str, Home]
    plan: pm.Plan
    state: LoweringState = field(compare=False, repr=False)
    function: ProgramFunction | None = field(default=None, compare=False, repr=False)
    """What the Program was built from, if that is known."""

    def __repr__(self) -> str:
        return (
            f"Lowered({self.program.name} for {self.machine.name}: {len(self.steps)} passes, {self.plan!r})"
        )

    def __str__(self) -> str:
        where = "\n".join(f"    # {home}" for home in self.homes.values())
        head, _, rest = str(self.program).partition("\n")
        return f"{head}\n{where}\n{rest}"

    def explain(self) -> str:
        """Residency and work, and for each statement what does it and what the others would cost."""
        from megatile.lowering.explain import explain

        return explain(self)

    @cached_property
    def shallower(self) -> str:
        """Pipelines that have fewer stages than asked for, as their tiles do not fit: ``stages 3 -> 1:
        shared``."""
        versions = {tile.name: (tile.versions, tile.memory) for tile in self.plan.tiles}
        found = []
        for loop in n.each(n.Loop, self.program.body):
            deep = [versions[name] for name in loop.fresh if name in versions]
            least = min(deep, default=(loop.stages, ""))
            if loop.kind == "pipelined" and least[0] < loop.stages:
                found.append(f"stages {loop.stages} -> {least[0]}: {least[1]}")
        return ", ".join(dict.fromkeys(found))

    @cached_property
    def written(self) -> tuple[str, ...]:
        """Tensors that the program writes."""
        every = (s for st in self.plan.streams for s in pm.statements(st.body))
        names = {write.tile for write in map(write_of, every) if write is not None}
        return tuple(p.name for p in self.program.params if p.name in names)

    def scatter(self, arrays: Sequence[Any]) -> dict[str, Any]:
        """Return the inputs of the Plan: every owner's part of every array."""
        inputs = {}
        for param, array in zip(self.program.params, arrays, strict=True):
            home, tile = self.homes[param.name], self.plan.tile(param.name)
            whole = np.asarray(array, dtype=numpy_dtype(param.dtype))
            if not home.views:
                inputs[param.name] = np.broadcast_to(whole, (self.plan.owners(tile), *whole.shape))
                continue
            parts = np.zeros((self.plan.owners(tile), *tile.shape), whole.dtype)
            for number, index in enumerate(self._indices(home)):
                held = whole[index]
                parts[number][tuple(slice(0, e) for e in held.shape)] = held
            inputs[param.name] = parts
        return inputs

    def gather(self, outputs: Mapping[str, Any], arrays: Sequence[Any]) -> dict[str, Any]:
        """Return the tensors written, put together from their parts; where units hold copies, the first
        one's."""
        results = {}
        for param, array in zip(self.program.params, arrays, strict=True):
            if param.name not in self.written:
                continue
            home, parts = self.homes[param.name], outputs[param.name]
            whole = np.array(array, dtype=numpy_dtype(param.dtype))
            indices = self._indices(home) if home.views else [tuple(slice(0, e) for e in whole.shape)]
            if param.name in self.state.scattered:
                _join(whole, parts, self.state.scattered[param.name])
                indices = []
            for number in reversed(range(len(indices))):
                index = indices[number]
                shape = whole[index].shape
                whole[index] = parts[number][tuple(slice(0, e) for e in shape)]
            results[param.name] = whole
        return results

    def _indices(self, home: Home) -> list[Any]:
        shape = tuple(int(e) for e in self.program.param(home.name).shape)
        return [numpy_index(part) for part in self.state.homes.parts(shape, home.views)]


def _join(whole: Any, parts: Any, dim: int) -> None:
    """Every unit's own run of a dimension."""
    for number in range(len(parts)):
        index = [slice(None)] * whole.ndim
        index[dim] = slice(*cut(whole.shape[dim], len(parts), number))
        whole[tuple(index)] = parts[number][tuple(index)]


def build(
    prog: ProgramFunction | Program, given: Sequence[Any], machine: str | HDA | None
) -> tuple[Program, HDA]:
    """Return the Program for a machine and the shapes of arrays (or shapes themselves, or nothing)."""
    hda = find_machine(machine or DEFAULT_MACHINE) if not isinstance(machine, HDA) else machine
    if isinstance(prog, Program):
        return prog, hda
    if not isinstance(prog, ProgramFunction):
        raise ArgumentsError(
            f"{prog!r} is not a tile program",
            advice=how_to_give(prog, "decorate the function with @T.program"),
        )
    if given and len(given) != len(prog.tensors):
        raise ArgumentsError(
            f"'{prog.__name__}' takes {len(prog.tensors)} arrays or shapes ({', '.join(prog.tensors)}), "
            f"{len(given)} were given",
            advice="outputs are arguments too: give arrays to be filled, or their shapes",
        )
    if not given and prog.symbols:
        raise ArgumentsError(
            f"'{prog.__name__}' has extents that its arguments decide ({', '.join(prog.symbols)})",
            advice="give arrays, or their shapes",
        )
    shapes = [tuple(getattr(a, "shape", a)) for a in given]
    return prog.build(hda, **(prog.bind_symbols(shapes) if given else {})), hda


@without_frames
def lower(
    prog: ProgramFunction | Program,
    *given: Any,
    machine: str | HDA | None = None,
    passes: Iterable[Pass] = (),
) -> Lowered:
    """Lower a program with arrays or shapes to a Plan for a machine.

    ``lower(p).steps`` are the Program after each pass, ``lower(p).plan`` is the Plan. ``passes`` are passes
    of your own: frozen dataclasses with a ``name``, ``apply(program)`` and, if they are not to follow
    ``resolve_views``, ``after``, the name of the pass that they follow.
    """
    program, hda = build(prog, given, machine)
    hda = divided(hda, program.launch.devices)
    with enough_memory(
        f"lowering program '{program.name}'", "launch fewer blocks, or raise the memory limit"
    ):
        own = passes_for(hda)
        every = inserted(own, passes)
        done = tuple(steps(program, every))
        last = done[-1].program
        if len(every) > len(own):  # which may have left an algorithm open
            last = ChooseCollectives(hda).apply(last)
        state = LoweringState(last, hda)
        state.run()
        place_waits(state)
        function = prog if isinstance(prog, ProgramFunction) else None
        plan = assemble(state)
        return Lowered(program, done[-1].program, hda, done, state.homes.found, plan, state, function)


def _without_region(level: LoweredLevel) -> tuple[tuple[int, int, int], ...]:
    """The instances of a level whose parents have another region, one without such units."""
    busy = sorted(run for stream in level.streams for run in stream.runs)
    ends = [(0, 0), *((first, last) for first, last, _ in busy), (level.instances, level.instances)]
    return tuple((last, first, 1) for (_, last), (first, _) in pairwise(ends) if last < first)


def assemble(state: LoweringState) -> pm.Plan:
    """Return the Plan of all streams, with slots, places and versions."""
    levels, place = placed(state)
    streams = []
    for level in (state.first, *state.levels.values()):
        for stream in level.streams:
            if not stream.out and level is state.first and state.levels:
                continue
            streams.append(pm.Stream(stream.runs, tuple(stream.out), level.name))
        without = _without_region(level)
        streams += [pm.Stream(without, (), level.name)] if without else []
    used = {region.tile for s in streams for st in pm.statements(s.body) for region in regions_of(st)}
    tiles = [
        replace(t, versions=state.declared.versions.get(t.name, 1)) for t in state.declared.tiles.values()
        if t.role != "local" or t.name in used
    ]  # fmt: skip
    waited = {s.flag for st in streams for s in pm.statements(st.body) if isinstance(s, pm.Wait)}
    own = {f for f in state.declared.flags if f.startswith(("go_", "done_"))}
    idle = own - waited  # nobody waits for these phases

    def heard(s: pm.Statement) -> pm.Statement | None:
        return None if isinstance(s, pm.Signal) and s.flag in idle else s

    streams = [replace(s, body=rewritten(s.body, heard)) for s in streams] if idle else streams
    flags = [f for f in state.declared.flags.values() if f.name not in idle]
    channels = tuple(replace(channel, name=name) for channel, name in state.declared.channels.items())
    plan = pm.Plan(
        state.program.name, state.first.scale, (state.first.total,), tuple(tiles),
        channels, tuple(flags), tuple(state.declared.groups.values()), tuple(streams), place, tuple(levels),
        transports=tuple(state.declared.transports.values()),
    )  # fmt: skip
    spread = {home.name for home in state.homes.found.values() if home.spread}
    return replace(plan, tiles=tuple(_spread(plan, t) if t.name in spread else t for t in tiles))


def _spread(plan: pm.Plan, tile: pm.Tile) -> pm.Tile:
    """Return a tensor in the memories of the units of the launch, cut as copies take it; one that is only
    taken as a whole, so that every unit has a part."""
    level = next(level for level in plan.levels if level.parent == plan.first.name)
    block, axis = [max(1, extent) for extent in extents(plan)[tile.name]], 0
    while block == list(tile.shape) and axis < len(block):
        block[axis], axis = max(1, -(-block[axis] // level.count)), axis + 1
    return replace(tile, over=level.name, block=tuple(block))
