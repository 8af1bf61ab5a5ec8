"""What a schedule's exchanges and kernels see of a machine: rules per command, networks, units held.

While data travel, the kernels that move them hold compute units: one for each channel of a message.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

from megatile.attention.plans import Divided, Problem
from megatile.attention.schedules.division import KernelCall
from megatile.core.dtypes import itemsize
from megatile.hda import HDA
from megatile.timing import attention_kernels
from megatile.timing.attention_kernels import (
    MERGES,
    AttentionRule,
    KernelTimes,
    attention_rules,
    kernel_model,
)
from megatile.timing.collective_choice import rule_of
from megatile.timing.collective_rule import Rule
from megatile.timing.library import exchange_figures, exchange_view, moving_kernel, networks_between
from megatile.timing.machine_timing import MachineTiming, Origin, Timing
from megatile.timing.peer_channels import p2p_channels

LOOKED_AT = 3
"""Ranks whose kernels stand for those of all: the first, the last and one between."""
PACKETS_PER_MESSAGE = 48
"""Packets into which a message is divided; switches send those of several messages in turn."""


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


class Messages(NamedTuple):
    """What a rank sends in one exchange: to how many of the others, and how many bytes to each."""

    ranks: int
    peers: int
    nbytes: int
    together: int = 1
    """Messages to the same peer."""

    @classmethod
    def of(cls, divided: Divided) -> Messages:
        """Return the exchange of KV, or that of heads where no KV travels."""
        problem, division, routes = divided.problem, divided.division, divided.division.routes
        token = 2 * problem.dim * itemsize(problem.dtype) * problem.batch
        if routes.exchanges:
            sends = routes.sends(0, 0)
            peers = len({t.peer for t in sends})
            together = len(sends) // peers
            heads, tokens = divided.head_shares(divided.kv_heads)[0], int(division.chunk_lengths.max())
        else:
            peers, together, tokens = divided.width - 1, 1, -(-problem.keys // divided.schedule.ranks)
            heads = divided.head_shares(divided.kv_heads)[0]
        return cls(divided.schedule.ranks, peers, max(1, tokens * heads * token), together)


def _library(hda: HDA, scale: str) -> Rule | None:
    """Return the rule of the library that sends between units; None where no library or no network is."""
    known = exchange_figures(hda, scale) is not None and networks_between(hda, scale)
    return rule_of(hda, "", scale) if known else None


def _units_held(hda: HDA, scale: str, sent: Messages) -> int:
    """Return the compute units that hold the channels of messages while they travel."""
    rule = _library(hda, scale)
    if rule is None:
        return 0
    return min(sent.peers * int(rule.peer_channels(sent.ranks, sent.nbytes)), p2p_channels(rule.figures))


def rule_beside(
    hda: HDA, divided: Divided, communication: float, scale: str = "device", kernel: str | None = None
) -> AttentionRule:
    """Return the rule for the kernels of a schedule beside data that travel so long (s)."""
    problem, division, routes = divided.problem, divided.division, divided.division.routes
    times = KernelTimes.of(hda, problem.dtype, scale, kernel)
    heads = divided.head_shares(problem.heads)[0]
    taken = _units_held(hda, scale, Messages.of(divided))
    longest = 0.0
    for rank in {r * (routes.ranks - 1) // (LOOKED_AT - 1) for r in range(LOOKED_AT)}:
        calls = [call for step in range(routes.exchanges + 1) for call in division.calls(step, rank)]
        longest = max(longest, seconds_of(times, calls, problem, heads, taken))
    beside = min(1.0, communication / longest) if longest else 0.0
    rows = problem.length // routes.ranks if len(problem.packed) < 2 else 0
    return AttentionRule(times, float(f"{beside:.6g}"), taken, max(1, len(problem.packed)), rows)


def _tensors(hda: HDA) -> int:
    return MERGES[attention_kernels.kernels_of(hda).merge].tensors


@dataclass(frozen=True)
class AttentionKernels(Timing):
    """Kernels take what ``rule`` says (None: no time, so that what remains is communication); others may go
    first on a link after a packet of what is ``sent``."""

    rule: AttentionRule | None
    sent: Messages
    attention: str = "no time"
    tensors: int = 1
    """Messages to the same peer that keys and values travel in."""

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
        return cls(rule, Messages.of(divided), kernel_model(hda, kernel), _tensors(hda))

    @classmethod
    def without_compute(cls, hda: HDA, divided: Divided) -> AttentionKernels:
        """Return kernels that take no time."""
        return cls(None, Messages.of(divided), tensors=_tensors(hda))

    def view(self, hda: HDA, scale: str) -> MachineTiming:
        found, paid = exchange_view(hda, scale), exchange_figures(hda, scale)
        start_ps, rate = 0, inf
        if paid is not None:
            # Every exchange is a kernel of its own, so its messages pay the start that collectives pay once,
            # together where several go to one peer.
            start_ps = paid[1].start_ps // self.sent.together
        if rule := _library(hda, scale):
            rate = float(rule.message_rate(self.sent.ranks, self.sent.nbytes / self.tensors))
        found = found.with_engine(moving_kernel(hda, scale, start_ps, rate if rate < inf else None))
        granule = max(4096, self.sent.nbytes // PACKETS_PER_MESSAGE)
        networks = {n.name: replace(found.networks.get(n.name, n), granule=granule) for n in hda.networks}
        figures = hda.kernel("attention")
        said = hda.spec.kernels[0].source if figures is not None else "no figures in the machine file"
        origins = {**found.origins, "tensor": Origin("measured" if figures else "assumed", str(said))}
        rules = attention_rules(self.rule)
        return replace(found, networks=networks, origins=origins, roofline=False, rules=rules)
