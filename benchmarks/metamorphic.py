"""Relations that times of collectives keep on random machines: ``python benchmarks/metamorphic.py [N]``.

At a fixed algorithm and protocol: twice the bandwidth is never slower and at most twice as fast; without
latencies only bytes count, and they count linearly; names and the order of protocols mean nothing; more bytes
and more ranks are never faster (LL to peers aside, which have a channel each); no time is below what its
bytes need at the full rate of the links.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from megatile.core.frozen import Frozen
from megatile.hda.model import ProtocolFigures, TransportFigures
from megatile.timing.collective_rule import WIRE, Fabric, Rule, Way

CASES = 500
TOLERANCE = 1e-9
WAYS = (
    Way("ring", "LL"),
    Way("ring", "LL128"),
    Way("ring", "Simple"),
    Way("rail_rings", "Simple"),
    Way("node_tree", "LL"),
    Way("node_tree", "Simple"),
    Way("in_network", "NVLS"),
    Way("in_network_tree", "NVLS"),
    Way("hamilton", "Simple"),
    Way("hierarchical", "Simple"),
    Way("direct", "LL"),
    Way("direct", "Simple"),
)
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")


class Case(NamedTuple):
    """A collective on a random machine."""

    rule: Rule
    way: Way
    operation: str
    ranks: int
    nbytes: int

    def us(self, **changes: object) -> float:
        case = self._replace(**changes)
        return float(case.rule.time_ps(case.way, case.operation, case.ranks, case.nbytes)) / 1e6


def cases(count: int, seed: int = 0) -> Iterator[Case]:
    """Random machines × operations × ways; ranks are whole nodes where there are several."""
    draw = random.Random(seed)
    while count:
        inside, mesh = draw.choice((2, 4, 8, 16)), draw.random() < 0.3
        near = draw.uniform(20e9, 900e9)
        fabric = Fabric(near, draw.uniform(5e9, 50e9), inside, mesh, True, draw.randint(1, 10**6), 10**6)
        way, operation = draw.choice(WAYS), draw.choice(OPERATIONS)
        nodes = draw.choice((1, 1, 2, 3, 4, 8))
        ranks = draw.randint(2, inside) if nodes == 1 else nodes * inside
        if not _possible(way, operation, nodes, mesh):
            continue
        rule = Rule(_figures(draw, near), fabric, "random")
        yield Case(rule, way, operation, ranks, draw.randint(1, 2 ** draw.randint(3, 33)))
        count -= 1


def _possible(way: Way, operation: str, nodes: int, mesh: bool) -> bool:
    if operation in ("all_to_all", "send_recv"):
        return way.algorithm == "direct"
    if operation == "broadcast":
        return way.algorithm == "ring"
    if way.algorithm in ("node_tree", "in_network_tree"):
        return operation == "all_reduce" and nodes > 1
    if way.algorithm in ("rail_rings", "hierarchical"):
        return nodes > 1
    return nodes == 1 and (mesh or way.algorithm != "hamilton")


def _figures(draw: random.Random, near: float) -> TransportFigures:
    def protocol() -> ProtocolFigures:
        times = {f"{key}_ps": draw.randint(0, 30 * 10**6) for key in ("start", "step", "far_step", "first")}
        return ProtocolFigures(
            **times,
            next_ps=draw.randint(0, 10**6),
            share=draw.uniform(0.3, 1),
            far_share=draw.uniform(0.5, 1),
            pass_bytes=draw.choice((1 << 10, 4 << 10)),
            copy_rate=near * draw.uniform(1, 5),
            fill=draw.uniform(0, 0.9),
            fill_bytes=draw.choice((1 << 20, 48 << 20)),
            far_fill=draw.uniform(0, 0.9),
            far_fill_bytes=draw.choice((1 << 20, 128 << 20)),
        )

    names = (
        "LL",
        "LL128",
        "Simple",
        "tree_LL",
        "tree_Simple",
        "NVLS",
        "NVLSTree",
        "pairs_LL",
        "pairs_Simple",
    )
    protocols = {name: protocol() for name in (*names, "peer_LL", "peer_Simple")}
    return TransportFigures(Frozen(protocols), channels=draw.randint(1, 32))


def changed(rule: Rule, rates: float = 1.0, times: float = 1.0) -> Rule:
    """The rule with other rates and latencies (0: no fill either); a pass of LL is work on bytes."""
    protocols = {}
    for name, p in rule.figures.protocols.items():
        late = {f"{key}_ps": round(getattr(p, f"{key}_ps") * times) for key in ("start", "step", "far_step")}
        work = {f"{key}_ps": round(getattr(p, f"{key}_ps") / rates) for key in ("first", "next")}
        fills = {"fill": p.fill, "far_fill": p.far_fill} if times else {"fill": 0.0, "far_fill": 0.0}
        protocols[name] = replace(p, **late, **work, **fills, copy_rate=(p.copy_rate or 1.0) * rates)
    wires = {"near": rule.fabric.near * rates, "far": rule.fabric.far * rates}
    fabric = replace(rule.fabric, **wires, latency_ps=round(rule.fabric.latency_ps * times))
    return replace(rule, fabric=fabric, figures=replace(rule.figures, protocols=Frozen(protocols)))


def bound_us(case: Case) -> float:
    """What a rank has to send, at the full rate of its links (or the node's, at that of its cards)."""
    rule, n = case.rule, case.ranks
    rounds = 2 if case.operation == "all_reduce" else 1
    part = 1.0 if case.operation in ("broadcast", "send_recv") else rounds * (n - 1) / n
    if case.way.algorithm.startswith("in_network"):
        part = part / 2 if rounds == 2 else part
    links = max(1, min(n, rule.fabric.inside) - 1) if rule.fabric.mesh else 1
    if rule.fabric.nodes(n) > 1:
        return 0.0
    return case.nbytes * part / (rule.fabric.near * links * WIRE.get(case.way.protocol, 1.0)) * 1e6


def violations(case: Case) -> Iterator[str]:
    """What a case breaks."""
    time = case.us()
    fast = case.us(rule=changed(case.rule, rates=2))
    if not time / 2 * (1 - 1e-5) <= fast <= time * (1 + 1e-5):
        yield f"twice the bandwidth: {time:.3f} us becomes {fast:.3f}"
    bare = changed(case.rule, times=0)
    bytes_alone = case.us(rule=bare)
    if bytes_alone > time * (1 + TOLERANCE):
        yield f"no latency: {time:.3f} us becomes {bytes_alone:.3f}"
    large = 1 << 34
    if case.way.protocol != "LL":
        one, two = (case.us(rule=bare, nbytes=s) for s in (large, 2 * large))
        if abs(two - 2 * one) > 1e-6 * two:
            yield f"linearity: {one:.1f} us for {large} B, {two:.1f} for twice as many"
    order = Frozen(dict(reversed([*case.rule.figures.protocols.items()])))
    named = replace(case.rule, library="other", figures=replace(case.rule.figures, protocols=order))
    if case.us(rule=named) != time:
        yield "relabelling changes the time"
    if case.us(nbytes=2 * case.nbytes) < time * (1 - TOLERANCE):
        yield f"twice the bytes are faster: {time:.3f} us, {case.us(nbytes=2 * case.nbytes):.3f}"
    more = case.ranks + (case.rule.fabric.inside if case.rule.fabric.nodes(case.ranks) > 1 else 1)
    grows = (
        case.rule.fabric.nodes(more) == case.rule.fabric.nodes(case.ranks)
        or more % case.rule.fabric.inside == 0
    )
    shrinks = case.way == Way("direct", "LL")  # a channel for each peer: more peers have less each
    if grows and case.operation != "send_recv" and not case.rule.fabric.mesh and not shrinks:
        later = case.us(ranks=more)
        if later < time * (1 - 0.05):
            yield f"more ranks are faster: {time:.3f} us with {case.ranks}, {later:.3f} with {more}"
    if time < bound_us(case) * (1 - 1e-6):
        yield f"{time:.3f} us is below {bound_us(case):.3f}, which the bytes need"


def report(count: int = CASES, seed: int = 0) -> list[str]:
    """One line for every violation among so many cases."""
    return [
        f"{c.way.algorithm} {c.way.protocol} {c.operation}, {c.ranks} ranks, {c.nbytes} B: {text}"
        for c in cases(count, seed)
        for text in violations(c)
    ]


if __name__ == "__main__":
    number = int(sys.argv[1]) if len(sys.argv) > 1 else CASES
    found = report(number)
    print("\n".join([*found, f"{number} cases, {len(found)} violations"]))
    sys.exit(bool(found))
