"""Rings that leave a node through a different network card each, as many as a node has ranks."""

from __future__ import annotations

from megatile.collectives.algorithms.ring import slots_between, write_rings
from megatile.collectives.job import Job
from megatile.collectives.phases.ring import Ring
from megatile.collectives.rank_groups import Cycles
from megatile.collectives.registry import algorithm
from megatile.collectives.writer import Writer
from megatile.core.expr import Expr, IntLike, expr, select
from megatile.plan.build import Handle

LARGEST = 1024


def _nodes(job: Job) -> str | None:
    if len(job.nesting) != 2:
        return "needs nodes with several ranks each"
    return None if job.ranks <= LARGEST else f"is for at most {LARGEST} ranks"


# Rings on all rails at once need many channels; libraries run the small path on one or few.
@algorithm("rail_rings", "all_reduce", "reduce_scatter", "all_gather", unfit=_nodes, path="bulk")
def rail_rings(w: Writer, chunks: int = 1, lag: int = 0) -> None:
    """One ring per rank of a node; each enters and leaves nodes on its own rail.

    A message between nodes takes about as long as ``lag`` steps inside one; rings that wait for one are taken
    that much later, so that they do not hold up the others (all-reduce only).
    """
    inside, nodes = w.job.nesting
    group = Cycles.of([rail_order(inside, nodes, lane) for lane in range(inside)])
    if lag and w.job.operation == "all_reduce":
        # Messages between nodes wait for their turn: as many rounds as they are handled later.
        slots = max(slots_between(chunks), chunks * (lag + 2))
        staggered_all_reduce(Ring(w, group, w.blocks, chunks, slots), w.own, w.sums, inside, lag)
    else:
        write_rings(w, group, chunks)


def rail_order(inside: int, nodes: int, lane: int) -> list[int]:
    """Even nodes from the lane's rank on, odd nodes back to it: messages between nodes stay on one rail."""
    order = []
    for node in range(nodes):
        ranks = [(lane + i) % inside for i in range(inside)]
        order += [node * inside + r for r in (ranks if node % 2 == 0 else reversed(ranks))]
    return order


# A unit handles its lanes in a fixed order. Lanes cross between nodes at different units, so in every step a
# lane of a unit has just crossed; taking lane by lane, all units would wait for it in every step. Here a lane
# that has crossed f times is handled ``f * lag`` rounds later, the order in which its messages arrive
# if a crossing takes as long as ``lag`` steps inside a node.
def staggered_all_reduce(ring: Ring, own: Handle, sums: Handle, inside: int, lag: int) -> None:
    """Reduce-scatter and all-gather on all lanes; every ``inside`` positions a lane enters another node."""
    w, n = ring.writer, ring.group.size
    steps = 2 * (n - 1)
    ring.begin_reduction(own)
    with w.loop(0, steps + lag * -(-steps // inside), "round") as now, ring.every() as (lane, chunk):
        seat = ring.group.lane(lane).me % inside
        step, due = _step(now, seat, inside, lag)
        with w.when(due & (step < n - 1)):
            _reduce(ring, own, sums, step, lane, chunk)
        with w.when(due & (step >= n - 1) & (step < steps)):
            _gather(ring, sums, step - (n - 1), lane, chunk)


def _step(now: Expr, seat: Expr, inside: int, lag: int) -> tuple[Expr, Expr]:
    """The step that a lane does in round ``now``, and whether it does one.

    Position ``seat`` of a node gets what began in its own node for ``seat`` steps; then ``inside`` steps of
    each node before it, each after a pause of ``lag`` rounds.
    """
    since = now - seat
    crossings, within = since // (inside + lag), since % (inside + lag)
    step = select(since < 0, now, seat + crossings * inside + within - lag)
    return step, (since < 0) | (within >= lag)


def _reduce(ring: Ring, own: Handle, sums: Handle, step: IntLike, lane: Expr, chunk: Expr) -> None:
    mine, total = (ring.piece(x, expr(step) + 2, lane, chunk) for x in (own, sums))
    ring.writer.reduce(total, mine, ring.receive(mine, lane))
    ring.send(total, lane)


def _gather(ring: Ring, sums: Handle, step: Expr, lane: Expr, chunk: Expr) -> None:
    place = ring.piece(sums, step + 1, lane, chunk)
    message = ring.receive(place, lane)
    with ring.writer.when(step < ring.group.size - 2):
        ring.send(message, lane)
    ring.writer.copy(place, message)
