"""Rings over several nodes whose lanes do not hold one another up.

A unit handles its lanes in a fixed order. Lanes cross between nodes at different units, so in every step some
lane of a unit has just crossed; taking lane by lane, step by step, all units would wait for it in every step.
Here a lane that has crossed f times is handled ``f * lag`` rounds later, which is the order in which its
messages arrive if a crossing takes as long as ``lag`` steps inside a node.
"""

from __future__ import annotations

from megatile.collectives.phases.ring import Ring
from megatile.core.expr import Expr, IntLike, expr, select
from megatile.plan.build import Handle


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
