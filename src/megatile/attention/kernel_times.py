"""What a schedule's exchanges and kernels see of a machine: rules per command, networks, units held.

While data travel, the kernels that move them hold compute units: ``channels`` of them for each peer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from megatile.attention.plans import Divided, Problem
from megatile.attention.schedules.division import KernelCall
from megatile.core.dtypes import itemsize
from megatile.hda import HDA
from megatile.timing.attention_kernels import AttentionRule, KernelTimes, attention_rules, kernel_model
from megatile.timing.library import exchange_figures, exchange_view, links_of, moving_kernel
from megatile.timing.machine_timing import MachineTiming, Origin, Timing

LOOKED_AT = 3
"""Ranks whose kernels stand for those of all: the first, the last and one between."""
PACKETS_PER_RANK = 64
"""Packets into which the keys of a rank are divided."""


def seconds_of(
    times: KernelTimes, calls: list[KernelCall], problem: Problem, heads: int, taken: int = 0
) -> float:
    """Return how long the kernels of a rank take one after the other; all but the first are merged."""
    width, dim, size = heads * problem.batch, problem.dim, itemsize(problem.dtype)
    total = 0.0
    for number, call in enumerate(calls):
        columns = times.columns(call.rows, call.columns, call.pairs)
        total += times.attention(call.rows, columns, width, dim, taken)
        if number:
            total += times.merge(call.rows, width, dim, size, len(call.q))
    return total


def rule_beside(
    hda: HDA, divided: Divided, communication: float, scale: str = "device", kernel: str | None = None
) -> AttentionRule:
    """Return the rule for the kernels of a schedule beside data that travel so long (s)."""
    problem, division, routes = divided.problem, divided.division, divided.division.routes
    times = KernelTimes.of(hda, problem.dtype, scale, kernel)
    heads = divided.head_shares(problem.heads)[0]
    peers = {t.peer for t in routes.sends(0, 0)} if routes.exchanges else set()
    taken = min(times.kernels.channels[0] * len(peers), times.kernels.channels[1])
    longest = 0.0
    for rank in {r * (routes.ranks - 1) // (LOOKED_AT - 1) for r in range(LOOKED_AT)}:
        calls = [call for step in range(routes.exchanges + 1) for call in division.calls(step, rank)]
        longest = max(longest, seconds_of(times, calls, problem, heads, taken))
    beside = min(1.0, communication / longest) if longest else 0.0
    return AttentionRule(times, float(f"{beside:.6g}"), taken)


@dataclass(frozen=True)
class AttentionKernels(Timing):
    """Kernels take what ``rule`` says (None: no time, so that what remains is communication); others may go
    first on a link after ``granule`` bytes."""

    rule: AttentionRule | None
    granule: int
    attention: str = "no time"

    @classmethod
    def of(
        cls,
        hda: HDA,
        divided: Divided,
        communication: float = 0.0,
        scale: str = "device",
        kernel: str | None = None,
    ) -> AttentionKernels:
        """Return the kernels of a schedule beside data that travel so long (s)."""
        rule = rule_beside(hda, divided, communication, scale, kernel)
        return cls(rule, _granule(divided), kernel_model(hda, kernel))

    @classmethod
    def without_compute(cls, divided: Divided) -> AttentionKernels:
        """Return kernels that take no time."""
        return cls(None, _granule(divided))

    def view(self, hda: HDA, scale: str) -> MachineTiming:
        found, paid = exchange_view(hda, scale), exchange_figures(hda, scale)
        if paid is None:
            found = found.with_engine(moving_kernel(hda, scale))
        level = hda.level(hda.scale(scale).level)
        start_ps = paid[1].start_ps if paid is not None else 0
        networks = {}
        for network in hda.networks:
            seen = found.networks.get(network.name, network)
            # Every exchange is a kernel of its own, so its messages pay the start that collectives pay once.
            # They start together: on a port that several share, the starts must not follow one another, so
            # they are latency of the links.
            outside = hda.level(network.level).position > level.position
            more = start_ps // links_of(network) if outside else 0
            networks[network.name] = replace(seen, latency_ps=seen.latency_ps + more, granule=self.granule)
        figures = hda.kernel("attention")
        said = hda.spec.kernels[0].source if figures is not None else "no figures in the machine file"
        origins = {**found.origins, "tensor": Origin("measured" if figures else "assumed", str(said))}
        rules = attention_rules(self.rule)
        return replace(found, networks=networks, origins=origins, roofline=False, rules=rules)


def _granule(divided: Divided) -> int:
    """Switches send packets of several messages in turn; 64 of them for what a rank holds are fine enough."""
    problem, ranks = divided.problem, divided.schedule.ranks
    token = 2 * problem.groups * problem.dim * itemsize(problem.dtype) * problem.batch
    return max(4096, problem.keys * token // (PACKETS_PER_RANK * ranks))
