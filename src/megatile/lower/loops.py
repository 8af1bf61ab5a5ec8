"""Loops of a stream: their variables, the numbers they carry, and the tiles they fill anew each time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from megatile.core.expr import ZERO, Symbol, bounds, known, simplify
from megatile.ir import nodes as n
from megatile.lower.errors import cannot
from megatile.lower.streams import Frame, Turn
from megatile.plan import model as pm


@contextmanager
def loop_frame(frame: Frame, node: n.Loop) -> Iterator[Frame]:
    """A loop of the stream; what is lowered in the frame given becomes its body."""
    start, stop, step = (frame.whole(e) for e in (node.start, node.stop, node.step))
    number = known(step)
    if number is None:
        raise cannot("a loop whose step is not a number", node)
    carried = [v for v in assigned(node.body) if v in frame.names and v != node.var]
    inner = frame.inside(frame.place, frame.group)
    inner.names |= {node.var: Symbol(node.var)} | {v: Symbol(v) for v in carried}
    inner.ranges = dict(frame.ranges)
    inner.ranges.pop(node.var, None)
    for name in carried:
        inner.ranges.pop(name, None)
    low, high = (bounds(simplify(e), frame.ranges) for e in (start, stop - 1))
    if low is not None and high is not None and number > 0:
        inner.ranges[node.var] = (low[0], max(low[0], high[1]))
    trips = [known(e) for e in (start, stop)]
    if None not in trips:
        turn = Turn(node.var, start, number, len(range(trips[0], trips[1], number)))  # type: ignore[arg-type]
        inner.turns = (*frame.turns, turn)
    if node.kind == "pipelined" and node.stages > 1:
        inner.fresh = set(streamed(frame, node))
    with frame.stream.inner() as body:
        yield inner
    carries = tuple(pm.CarryInt(v, frame.names[v], inner.names[v]) for v in carried)
    statement = pm.Loop(node.var, start, stop, tuple(body), step, carries)
    frame.node = node
    if body or carries:
        frame.emit(statement)
    frame.names |= {v: Symbol(v) for v in carried}


def assigned(body: tuple[n.Node, ...]) -> list[str]:
    """Variables that a body gives values to, in order."""
    names = [getattr(m, "name", None) for m in _same_unit(body) if isinstance(m, (n.Let, n.ReadScalar))]
    return list(dict.fromkeys(v for v in names if v is not None))


def _same_unit(body: tuple[n.Node, ...]) -> Iterator[n.Node]:
    for node in body:
        yield node
        if not isinstance(node, (n.Scale, n.Parallel)):
            for _, inner in n.bodies(node):
                yield from _same_unit(inner)


def streamed(frame: Frame, loop: n.Loop) -> Iterator[str]:
    """Tiles of the stream's own that a pipelined loop fills with one copy (of each of their parts) per
    iteration: each iteration begins a new version."""
    homes, table = frame.lowering.homes, frame.lowering.homes.table
    writers: dict[str, list[n.Node]] = {}
    for node in n.walk(loop.body):
        for kind, region in n.regions(node):
            if kind != "read":
                writers.setdefault(table[region.source].base, []).append(node)
    for name, nodes in writers.items():
        home = homes.found.get(name)
        if home is None or home.tensor or home.depth != frame.level.depth or home.lead > 1:
            continue
        if all(isinstance(m, n.Copy) and _covers(m, table) for m in nodes):
            frame.lowering.versions[name] = max(frame.lowering.versions.get(name, 1), loop.stages)
            yield name


def _covers(copy: n.Copy, table: Any) -> bool:
    """Whether a copy from elsewhere fills all that its name stands for."""
    if copy.dst is not None or copy.src is not None:
        return False
    to, source = table[copy.to.source], table[copy.source.source]
    whole = all(d.start == ZERO and not d.anchored and d.extent is not None for d in copy.to.dims)
    if to.base == source.base or not whole:
        return False
    extents = [known(d.extent) for d in copy.to.dims if d.extent is not None]
    return to.is_view or extents == list(to.shape)
