"""The pace of a library's messages: what makes a Plan take the time of the library's rule on an idle machine.

A Plan shows who sends what. Libraries cut it finer (pipelines of broadcasts and trees, rings on all rails
at once), so the messages of such a Plan take longer or shorter than the library's steps. Their transport
says by how much, so that the whole takes what the rule says; rings, pairs and switches inside a node are
the rule itself and need no pace.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from megatile.collectives.job import Job
from megatile.collectives.libraries import LIBRARIES
from megatile.core.expr import unit
from megatile.hda import HDA
from megatile.plan.model import Plan
from megatile.sim import simulate
from megatile.timing.collective_rule import CHAINS, fabric
from megatile.timing.library import networks_between
from megatile.timing.transports import head_cost, rule_for, way_of

MAX_RELATIVE_ERROR = 1e-6
"""Differences from the rule's time up to which nothing is changed."""
MAX_PACE_ROUNDS = 8
"""Simulations that scale messages to the library's time."""
MIN_PACE, MAX_PACE = 1e-3, 1e3
"""Beyond, messages have next to nothing to do with the time (they are empty): it stays as it is."""
MAX_RANKS = 256
"""Ranks up to which a plan is simulated to find its pace."""


def rule_ps(plan: Plan, job: Job, hda: HDA) -> float | None:
    """Return the time of the library's rule that a plan is made to take; None if it needs no pace."""
    transport = plan.transport(plan.kernel) if plan.kernel is not None else None
    if transport is None or transport.library not in LIBRARIES or not 2 <= job.ranks <= MAX_RANKS:
        return None
    rule, way = rule_for(hda, transport, job.scale), way_of(transport)
    nodes, alone = rule.fabric.nodes(job.ranks), job.operation == "send_recv" or job.splits
    places = np.broadcast_to(
        (unit if job.place is None else job.place).evaluate({"unit": np.arange(job.ranks)}), job.ranks
    )
    counts = np.unique(places // fabric(hda, job.scale).inside, return_counts=True)[1]
    if alone or len(counts) != nodes or (transport.per_node and len(set(counts.tolist())) > 1):
        return None  # the rule is for ranks that fill their nodes, or nodes with equally many
    plain = networks_between(hda, job.scale)[0].topology.kind in ("switch", "full_mesh")
    direct = way.algorithm not in ("hamilton", "node_tree") and job.operation not in CHAINS
    operation, nbytes = job.library_call
    # Where steps are long, the few that are saved can be more than the head: messages are shorter then.
    if nodes == 1 and plain and direct and rule.head_ps(way, operation, job.ranks, nbytes) >= 0:
        return None
    return float(rule.time_ps(way, operation, job.ranks, nbytes))


def paced(plan: Plan, job: Job, hda: HDA) -> Plan:
    """Return the plan with the pace at which it takes the time of its library's rule."""
    wanted = rule_ps(plan, job, hda)
    if wanted is None or plan.kernel is None:
        return plan
    transport, (operation, nbytes) = plan.transport(plan.kernel), job.library_call
    head = head_cost(hda, transport, operation, job.ranks, nbytes, job.scale)
    before: tuple[float, int] | None = None
    for _ in range(MAX_PACE_ROUNDS):
        found = simulate(plan, machine=hda, launch=False, record=False, capacity=False).time_ps
        if abs(found - wanted) <= MAX_RELATIVE_ERROR * wanted or found <= head or wanted <= head:
            break
        pace = transport.pace * (wanted - head) / (found - head)
        if before is not None and before[1] != found:  # part of the time is not that of messages
            pace = transport.pace + (wanted - found) * (transport.pace - before[0]) / (found - before[1])
        if pace > MAX_PACE:
            return replace(plan, transports=(replace(transport, pace=1.0),))
        before = transport.pace, found
        transport = replace(transport, pace=float(f"{max(MIN_PACE, pace):.9g}"))
        plan = replace(plan, transports=(transport,))
    return plan
