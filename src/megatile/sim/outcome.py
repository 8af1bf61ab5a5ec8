"""What a run-ahead evaluation comes to: the times of all that was done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from megatile.sim.pending import known
from megatile.sim.times import Times

if TYPE_CHECKING:
    from megatile.sim.runahead import RunAhead


def outcome(run: RunAhead) -> Times:
    """The times of a run that cannot go on, because all is done or because it is stuck."""
    end = max(run.last_ps, run.transfers.last_ps)
    for unit in run.units:
        end = max(end, unit.now, *(_last(_values(t)) for t in (unit.free, unit.writers, unit.readers)))
    for arrived in _values(run.arrivals):
        end = max(end, _last(arrived))
    for raised in run.flags:
        end = max(end, _last(raised))
    times = Times(end)
    times.operations = [u.operations for u in run.units]
    times.choices = run.rules.choices
    if any(not u.done for u in run.units):
        times.stuck = run.rules.wait_graph(times.end_ps)
        return times
    if run.record:
        times.start = [[known(t) or 0 for t in u.start] for u in run.units]
        times.end = [[known(t) or 0 for t in u.end] for u in run.units]
        every = run.arrivals.items() if isinstance(run.arrivals, dict) else enumerate(run.arrivals)
        times.arrival = {q: [known(t) or 0 for t in a] for q, a in every if a}
    return times


def _values(table: Any) -> Any:
    return table.values() if isinstance(table, dict) else table


def _last(times: Any) -> int:
    """The latest of some times; those that never became known do not count."""
    try:
        latest = max(times, default=0)
        return latest if type(latest) is int else known(latest) or 0
    except TypeError:
        return max((known(t) or 0 for t in times), default=0)
