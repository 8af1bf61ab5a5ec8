"""Plans whose copies cross too many links to be simulated one by one: their time is a stated lower bound.

result = mt.simulate(gemm_of_8192, machine="cerebras-wse2")
result.timed_by      "its busiest link, engine and memory, a lower bound: …"
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from megatile.core.quantities import format_bytes, format_time
from megatile.cost.links import link_loads
from megatile.cost.static_bound import floor
from megatile.hda import HDA
from megatile.plan.memory import check_memory
from megatile.plan.model import Plan
from megatile.plan.structure import check_structure
from megatile.sim import Result
from megatile.sim.launches import Launch
from megatile.sim.sharing import MAX_HOPS
from megatile.timing.machine_timing import Timing, TimingError
from megatile.timing.resources import Resources
from megatile.timing.spread_hops import links_crossed
from megatile.trace import text_table


class BoundedResult(Result):
    """A time that no command was simulated for."""

    @cached_property
    def links(self) -> dict[str, float]:
        """Share of the whole time in which the busiest link is busy."""
        busy = link_loads(Resources(self.machine, self.plan)).busiest_ps
        return {"busiest link": busy / max(1, self.time_ps)}

    @cached_property
    def record(self) -> Any:
        raise TimingError(
            f"nothing was recorded of '{self.plan.name}': its time is a bound ({self.timed_by})",
            advice="simulate a smaller size",
        )

    busy: dict[str, int] = {}  # noqa: RUF012
    traffic: dict[str, Any] = {}  # noqa: RUF012
    """Nothing is known of engines and memories."""

    def verdict(self) -> Any:
        """None: remedies are found by what was recorded."""
        return None

    def why_slow(self, limit: int = 10) -> str:
        """Return what bounds it, in place of a critical path."""
        (share,) = self.links.values()
        return f"no critical path: the busiest link serves {share:.0%} of the bound"

    def summary(self) -> str:
        """Return the bound, and what the links have to carry."""
        loads = link_loads(Resources(self.machine, self.plan))
        (share,) = self.links.values()
        rows = [
            (
                "busiest link",
                format_time(loads.busiest_ps),
                f"{share:.1%}",
                format_bytes(loads.busiest_bytes),
            ),
            ("all links", "", "", format_bytes(loads.bytes)),
        ]
        head = f"{self.plan.name} on {self.machine.name}: at least {format_time(self.time_ps)}"
        shown = text_table(("what", "busy", "use", "bytes"), rows)
        return "\n".join([head, f"timed by {self.timed_by}", *self.plan.spread_lines(), shown])


def bounded(plan: Plan, hda: HDA, launch: bool) -> Result | None:
    """Return the bound of a plan that is too large to be simulated; None if it is not."""
    if not any(tile.over is not None for tile in plan.tiles):
        return None
    crossed = links_crossed(Resources(hda, plan))
    if crossed <= MAX_HOPS:
        return None
    check_structure(plan)
    check_memory(plan, hda)
    made = Launch(plan, hda, Timing(), control=launch)
    made.repeatable = False
    made.timed_by = (
        f"its busiest link, engine and memory, a lower bound: its copies cross about {crossed:.2g} links, "
        "too many to be simulated one by one"
    )
    made.end(floor(plan, hda, launch=launch))
    return BoundedResult(made)
