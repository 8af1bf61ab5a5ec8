"""Rule about blocks that wait for each other in a chain: each for what the one before it adds up to."""

from __future__ import annotations

from collections.abc import Iterator

from megatile.core.expr import Expr, linear, walk
from megatile.core.quantities import format_time
from megatile.ir import nodes as n
from megatile.ir.expr import Coord
from megatile.ir.program import Program
from megatile.verdict import changes
from megatile.verdict.few_blocks import loads_ps
from megatile.verdict.model import Finding
from megatile.verdict.study import Study, rule


@rule("chain of blocks")
def chain_of_blocks(study: Study) -> Iterator[Finding]:
    """Every block waits for a signal of the block before it."""
    found = links(study.lowered.source) if study.lowered is not None else []
    alone = study.program_ps(lambda program: changes.without(program, found)) if found else None
    if alone is None:
        return
    (wait, *_), again = found, loads_ps(study)
    yield from study.finding(
        "chain of blocks", alone + again, bound=True,
        how=f"program timed again without waiting ({format_time(alone)}), and {format_time(again)} to load "
        "all once more",
        bottleneck="blocks wait for each other in a chain: each for a signal of the one before it",
        reason="the signals go from block to block one after the other, however many blocks run at a time",
        step="three phases: a sum of each block's part, running sums of these, then each part from its own "
        "(reduce, then scan)",
        source=changes.source_line(wait),
    )  # fmt: skip


def links(program: Program) -> list[n.Node]:
    """Return the waits of blocks for another block's signal of the same flag, and these signals, where each
    waits once and then signals."""
    found: list[n.Node] = []
    for region in n.each(n.ScaleRegion, program.body):
        inside = list(n.walk(region.body)) if region.scale == program.launch.dispatch else []
        repeated = {id(m) for loop in n.each(n.Loop, region.body) for m in n.walk(loop.body)
                    if loop.kind != "persistent"}  # fmt: skip
        once = [m for m in inside if id(m) not in repeated]
        for at, wait in enumerate(once):
            if isinstance(wait, n.Wait):
                later = [m for m in once[at:] if isinstance(m, n.Signal) and m.flag == wait.flag]
                mine = [m for m in later if _of_next(m, wait)]
                found += [wait, *mine] if mine else ()
    return found


def _of_next(signal: n.Signal, wait: n.Wait) -> bool:
    """Whether what a block signals is waited for by a block at some distance."""
    if signal.dst is not None:
        return any(isinstance(p, Coord) and _distance(signal.dst, p) for p in walk(signal.dst))
    grid = any(isinstance(p, Coord) for e in signal.index for p in walk(e))
    return grid and any(_distance(a, b) for a, b in zip(signal.index, wait.index, strict=True))


def _distance(one: Expr, other: Expr) -> int:
    """How much larger one place is than the other, whatever the block; 0: that is not known."""
    terms, distance = linear(one - other)
    return 0 if any(terms.values()) else distance
