"""What takes most of the time where no remedy was found: the line without which the program is fastest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from megatile.core.quantities import format_bytes
from megatile.plan import model as pm
from megatile.verdict import footprint
from megatile.verdict.fusion import totals
from megatile.verdict.model import MIN_GAIN, Finding
from megatile.verdict.study import OutOfBudget, Study

GOOD_SHARE = 0.7
"""The share of the roofline (or of the time that the busiest part works) from which on all is well."""
MAX_LINES = 5
"""Lines of the critical path that are left out, one after the other."""
LIMITED = 0.6
"""The share of the time that a memory works from which on its bandwidth is the limit."""
AGAIN = 1.3
"""Times its bytes that a tensor is loaded from which on that is worth saying."""


class Line(NamedTuple):
    """The commands of one source line, and the time without them."""

    source: str
    commands: list[pm.Compute]
    time_ps: int


def share_of_bound(study: Study) -> float:
    """Return how near a result is to the roofline, at clocks that last; of a Plan, how busy its busiest part
    is."""
    found = study.figures
    share = found.share_of_roofline if found is not None else None
    if found is None or share is None:
        return study.busiest[1]
    moves = found.compulsory_bytes / found.bandwidth * 1e12 if found.bandwidth else 0.0
    return share if moves >= found.least_ps else max(share / found.sustained, moves / study.base_ps)


def largest_loss(study: Study) -> Finding | None:
    """Return the line that costs most, with what to do about commands of its kind."""
    lines = list(without_lines(study))
    if not lines:
        return None
    line = min(lines, key=lambda one: one.time_ps)
    if line.time_ps > study.base_ps * (1 - MIN_GAIN):
        return None
    what, step = _advice(study, line)
    near = share_of_bound(study)
    return Finding(
        "largest loss", f"the largest cost: {what}",
        f"{1 - line.time_ps / study.base_ps:.0%} of the time depends on this line; the program is at "
        f"{near:.0%} of {'the roofline' if study.figures is not None else 'what its busiest part can do'}",
        line.source, step, study.base_ps, line.time_ps, "Plan timed again without the line", bound=True,
    )  # fmt: skip


def without_lines(study: Study, engines: tuple[str, ...] = ()) -> Iterator[Line]:
    """Yield the lines with most of the critical path (on these engines, if any are named), each with the time
    of the Plan without them."""
    by_line: dict[str, list[pm.Compute]] = {}
    for body in study.plan.bodies:
        for s in body:
            if isinstance(s, pm.Compute) and s.source is not None and (not engines or s.engine in engines):
                by_line.setdefault(str(s.source), []).append(s)
    order = [row[2] for row in study.groups if row[2] in by_line]
    for source in list(dict.fromkeys(order))[:MAX_LINES]:
        try:
            ps = study.plan_ps(footprint.without(study.plan, set(map(id, by_line[source]))))
        except OutOfBudget:
            return
        if ps is not None:
            yield Line(source, by_line[source], ps)


def _advice(study: Study, line: Line) -> tuple[str, str]:
    """Return what a line does, and what makes such a line cheaper."""
    first = line.commands[0]
    if first.engine == "tensor":
        return (
            "products on the tensor engines",
            "tiles that are multiples of what the engine takes at once, longer steps along K, or operands of "
            "a narrower type",
        )
    if first.engine != "dma":
        return (
            f"elementwise work and reductions ('{first.operation}') on the {first.engine} engines",
            "fewer operations for each element: move what does not change out of the loop, multiply by a "
            "reciprocal instead of dividing, T.exp2 with a factor instead of T.exp; or more threads",
        )
    tensors = {t.name: t for t in study.plan.tiles if t.role != "local"}
    name = next((r.tile for r in (*first.reads, first.write) if r.tile in tensors), "")
    if not name:
        return "copies between tiles", "use one tile for both, or keep it in the nearer memory"
    verb = "stores" if first.write.tile == name else "loads"
    memory = study.hda.memory(tensors[name].memory).name
    caches = [m.name for m in study.hda.memories if m.cache]
    busy = max(study.busy(m) for m in (memory, *caches))
    if busy < LIMITED:
        return (
            f"{verb} of '{name}', while '{memory}' works for {busy:.0%} of the time",
            "keep more bytes in flight: more pipeline stages, larger tiles, more resident blocks",
        )
    moved = sum(
        found.get(name, 0.0)
        for stream in study.plan.streams
        for found in (getattr(totals(study.plan, stream), "stored" if verb == "stores" else "loaded"),)
    )
    whole = footprint.tile_bytes(tensors[name])
    times = moved / max(1, whole)
    if times > AGAIN:
        return (
            f"{verb} of '{name}', {times:.3g} times its {format_bytes(whole)}",
            f"move '{name}' fewer times: larger tiles along the dimension in which blocks share it, or one "
            "block for several of them",
        )
    return (
        f"{verb} of '{name}' ({format_bytes(whole)}) at the memory's rate",
        f"fewer bytes: '{name}' in a narrower type, or do more with each load",
    )
