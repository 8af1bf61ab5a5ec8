"""What a communication library takes for a collective: the algorithm, the protocol, the channels.

NCCL chooses by its own tables (``nccl_tuning.py``), RCCL on a full mesh by the sizes for which it has an
all-pairs algorithm (``hda/libraries/rccl.yaml``), rings that use every link above, and hierarchically over
nodes. Point-to-point operations are sent directly. Nothing here is fitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from megatile.core.cached import cached_in_owner
from megatile.core.errors import did_you_mean
from megatile.core.quantities import size as bytes_of
from megatile.hda import HDA
from megatile.hda.catalog import library as tables_of
from megatile.timing import nccl_tuning
from megatile.timing.collective_rule import PEERS, WIRES, Rule, Way, fabric
from megatile.timing.engine_rules import RULES, TokenRule
from megatile.timing.machine_timing import TimingError
from megatile.timing.nccl_tuning import Settings, settings

OURS = {
    ("Ring", False): "ring",
    ("Ring", True): "rail_rings",
    ("Tree", False): "node_tree",
    ("Tree", True): "node_tree",
    ("NVLS", False): "in_network",
    ("NVLSTree", True): "in_network_tree",
}
"""Our names of NCCL's algorithms, inside a node and over nodes."""


MEASURED = {
    "nccl": ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"),
    "rccl": ("all_reduce",),
}
"""Operations with measured rows that constants were fitted to."""
MEASURED_TYPES = ("f16", "f32")


def reservation(rule: Rule, operation: str, dtype: str) -> str | None:
    """Return what to know of a time that no measured row stands behind; None where some do."""
    if not rule.figures.protocols:
        return None
    if operation not in MEASURED.get(rule.library, ()):
        return f"no measured rows of {operation} by {rule.library.upper()}: the rule of its other operations"
    if dtype not in MEASURED_TYPES:
        return f"no measured rows in {dtype}: as many bytes of {' or '.join(MEASURED_TYPES)}"
    return None


def library_of(hda: HDA, scale: str = "device") -> str | None:
    """Return the library that a machine's collectives use unless another is named: the first of its
    transports."""
    return next(iter(hda.transports.get(hda.scale(scale).name, ())), None)


@cached_in_owner
def rule_of(
    hda: HDA,
    library: str = "",
    scale: str = "device",
    registered: bool = False,
    per_node: int = 0,
    links: int = 0,
    token: int = 0,
    experts: int = 0,
) -> Rule:
    """Return the rule for a library's collectives on a machine; for machines without figures the wires alone.
    ``per_node``: of groups with so many ranks in each of their nodes (0: as many as there are); ``links``: of
    groups whose ranks have so many links to each other (0: as many as the first ranks have); ``token`` and
    ``experts``: what DeepEP sends."""
    known = hda.transports.get(hda.scale(scale).name, {})
    if library not in known and (library in RULES or (library and known)):
        advice = did_you_mean(library, known, what="libraries")
        raise TimingError(f"machine '{hda.name}' has no transport '{library}'", advice=advice)
    name = library or library_of(hda, scale) or ""
    figures, around = known.get(name, WIRES), fabric(hda, scale)
    if per_node:
        cards = -(-figures.cards * per_node // around.inside)  # the cards near those ranks
        figures, around = replace(figures, cards=cards), replace(around, inside=per_node)
    if links:
        around = replace(around, lanes=(links,) * len(around.lanes))
    if name in RULES:
        sent = {"token": token, "experts": experts} if RULES[name] is TokenRule else {}
        return RULES[name](figures, around, name, registered, **sent)
    return Rule(figures, around, name, registered)


def choose(
    rule: Rule,
    operation: str,
    ranks: int,
    nbytes: int,
    *,
    graph: bool = False,
    env: Mapping[str, Any] | None = None,
    itemsize: int = 4,
) -> Way:
    """Return what the library takes for a size; ``graph``: in a captured graph; ``env``: NCCL's variables."""
    ways = choices(
        rule, operation, ranks, np.array([nbytes]), graph=graph, chosen=settings(env), itemsize=itemsize
    )
    return next(way for way, where in ways if where[0])


def choices(
    rule: Rule,
    operation: str,
    ranks: int,
    nbytes: Any,
    *,
    graph: bool = False,
    chosen: Settings | None = None,
    itemsize: int = 4,
) -> list[tuple[Way, Any]]:
    """Return what the library takes for sizes: each way with a mask of the sizes that go it."""
    size, chosen = np.asarray(nbytes, float), chosen or Settings()
    if operation in PEERS:
        block = size if operation == "send_recv" else size / max(1, ranks)
        small = (block <= rule.figures.peer_bytes) & ("peer_LL" in rule.figures.protocols)
        return [(Way("direct", "LL"), small), (Way("direct", "Simple"), ~small)]
    if rule.library == "rccl" and rule.fabric.mesh:
        return _rccl(rule, operation, ranks, size, graph, itemsize, chosen)
    if not rule.figures.protocols:
        everything = np.full(size.shape, True)
        return [(Way("rail_rings" if rule.fabric.nodes(ranks) > 1 else "ring", "Simple"), everything)]
    return _nccl(rule, operation, ranks, size, chosen)


def nccl_estimates(
    rule: Rule, operation: str, ranks: int, nbytes: Any, chosen: Settings
) -> list[tuple[str, str, Any]]:
    """Return NCCL's own estimates, by which it chooses: (algorithm, protocol, µs)."""
    priced = list(
        nccl_tuning.prices(
            *(rule.figures, operation, ranks, rule.fabric.nodes(ranks), np.asarray(nbytes, float)),
            *(rule.fabric.near / 1e9, rule.fabric.far / 1e9, rule.fabric.switched, chosen),
        )
    )
    if not priced:
        raise TimingError(
            f"NCCL has no algorithm and protocol for {operation} with these variables",
            advice="allow more in NCCL_ALGO and NCCL_PROTO",
        )
    return priced


def _nccl(rule: Rule, operation: str, ranks: int, size: Any, chosen: Settings) -> list[tuple[Way, Any]]:
    nodes = rule.fabric.nodes(ranks)
    if ranks < 2:
        return [(Way("ring", "LL", 1.0), np.full(size.shape, True))]
    priced = nccl_estimates(rule, operation, ranks, size, chosen)
    best = np.argmin([price + 0 * size for _, _, price in priced], axis=0)
    found = []
    for i, (algorithm, protocol, _) in enumerate(priced):
        where = best == i
        if not where.any():
            continue
        name, shown = _our_names(algorithm, protocol, nodes)
        for count in np.unique(_channels(rule, name, protocol, ranks, size, chosen)[where]):
            those = where & (_channels(rule, name, protocol, ranks, size, chosen) == count)
            found.append((Way(name, shown, float(count)), those))
    return found


def _our_names(algorithm: str, protocol: str, nodes: int) -> tuple[str, str]:
    return OURS[algorithm, nodes > 1], "NVLS" if algorithm.startswith("NVLS") else protocol


def nccl_ways(
    rule: Rule, operation: str, ranks: int, nbytes: int, env: Mapping[str, Any] | None = None
) -> list[tuple[Way, float]]:
    """Return every way that NCCL may take for a size with NCCL's own estimate (µs), the lowest first."""
    chosen, size, found = settings(env), np.array([nbytes], float), []
    for algorithm, protocol, price in nccl_estimates(rule, operation, ranks, size, chosen):
        name, shown = _our_names(algorithm, protocol, rule.fabric.nodes(ranks))
        count = float(_channels(rule, name, protocol, ranks, size, chosen)[0])
        found.append((Way(name, shown, count), float(np.broadcast_to(price, 1)[0])))
    return sorted(found, key=lambda one: one[1])


def _channels(rule: Rule, algorithm: str, protocol: str, ranks: int, size: Any, chosen: Settings) -> Any:
    """Return the channels that NCCL takes for a size: one more for every so many bytes (``enqueue.cc``:
    counted down while the size is below channels × threads × ``threadThresholds``)."""
    figures = rule.figures
    each = {"LL": figures.small_channel, "LL128": figures.line_channel}.get(protocol, figures.bulk_channel)
    most = min(max(figures.channels, chosen.min_channels), chosen.max_channels)
    if each is None or algorithm.startswith("in_network"):
        return np.full(size.shape, float(most))
    if protocol == "LL" and algorithm != "node_tree":
        each *= ranks
    return np.clip(np.floor(size / each), min(chosen.min_channels, most), most)


def channels_of(rule: Rule, algorithm: str, protocol: str, ranks: int, nbytes: int) -> float:
    """Return the channels that NCCL takes for a size of an algorithm and protocol."""
    return float(_channels(rule, algorithm, protocol, ranks, np.asarray([nbytes], float), Settings())[0])


def _rccl(
    rule: Rule, operation: str, ranks: int, size: Any, graph: bool, itemsize: int, chosen: Settings
) -> list[tuple[Way, Any]]:
    allowed, protocols = _allowed(operation, chosen)
    tables = tables_of("rccl")
    nowhere = np.full(size.shape, False)
    if rule.fabric.nodes(ranks) > 1:
        few = _few_over_nodes(rule, operation, ranks, size) & ("Tree" in allowed and "LL" in protocols)
        return [(Way("node_tree", "LL"), few), (Way("hierarchical", "Simple"), ~few)]
    if "Ring" not in allowed or not protocols & set(tables["rings"]):
        raise TimingError(
            f"RCCL has no algorithm and protocol for {operation} in a node with these variables",
            advice="allow Ring, and LL or Simple, in NCCL_ALGO and NCCL_PROTO",
        )
    steps = (2 if operation == "all_reduce" else 1) * (ranks - 1)
    rate = rule.fabric.near * max(1, ranks - 1) / 1e9
    few, many = (
        np.where(p in protocols, 1.0, np.inf)
        * (own["base"] + steps * own["step"] + size / (1e3 * rate * own["share"]) * steps / ranks)
        for p, own in tables["rings"].items()
    )
    captured = pairs = nowhere
    if operation == "all_reduce" and not chosen.algorithms and not chosen.protocols:
        least, most = (bytes_of(tables["captured"][key]) for key in ("unit", "bytes"))
        captured = (size <= most) & (size % least == 0) & graph
        whole = size % (tables["pairs"]["elements"] * itemsize) == 0
        few_bytes = (size <= bytes_of(tables["pairs"]["bytes"])) & (ranks == tables["pairs"]["ranks"])
        pairs = few_bytes & whole & ~captured
    rings, simple = ~pairs & ~captured, size >= bytes_of(tables["pairs"]["simple"])
    return [
        (Way("direct", "MSCCL++"), captured),
        (Way("direct", "LL"), pairs & ~simple),
        (Way("direct", "Simple"), pairs & simple),
        (Way("ring", "LL"), rings & (few <= many)),
        (Way("hamilton", "Simple"), rings & (few > many)),
    ]


def _allowed(operation: str, chosen: Settings) -> tuple[frozenset[str], frozenset[str]]:
    """Return the algorithms and protocols that NCCL_ALGO and NCCL_PROTO leave for an operation."""
    function = nccl_tuning.OPERATIONS.get(operation, "")
    return (
        chosen.algorithms.get(function, frozenset(nccl_tuning.ALGORITHMS)),
        chosen.protocols.get(function, frozenset(nccl_tuning.PROTOCOLS)),
    )


def _few_over_nodes(rule: Rule, operation: str, ranks: int, size: Any) -> Any:
    """Return whether RCCL prefers LL trees over nodes to what it does with many bytes, by its own prices."""
    nodes, card = rule.fabric.nodes(ranks), rule.card(Way("hierarchical", "Simple")) / 1e9
    if operation != "all_reduce" or "tree_LL" not in rule.figures.protocols:
        return np.full(size.shape, False)
    tree, ring = (tables_of("rccl")[key] for key in ("far_trees", "far_rings"))
    path = (ranks // nodes - 1) * tree["step"] + int(np.log2(nodes)) * tree["far"]
    trees = tree["base"] + 2 * path + size / (500 * card * tree["share"])
    steps, crossings = 2 * (ranks - 1), 2 * (nodes - 1)
    latency = ring["base"] + (steps - crossings) * ring["step"] + crossings * ring["far"]
    return (trees <= latency + size / (1e3 * card * ranks / steps)) & (size < bytes_of(tree["bytes"]))


def times_ps(
    rule: Rule,
    operation: str,
    ranks: Any,
    nbytes: Any,
    *,
    graph: bool = False,
    env: Mapping[str, Any] | None = None,
    itemsize: int = 4,
) -> Any:
    """Return picoseconds of collectives with the library's own choice, over arrays of ranks and sizes."""
    every, sizes = np.broadcast_arrays(np.asarray(ranks, int), np.asarray(nbytes, float))
    flat, chosen = np.zeros(sizes.size), settings(env)
    counts, size = every.ravel(), sizes.ravel()
    for n in np.unique(counts):
        here = counts == n
        if n < 2:
            continue
        asked = {"graph": graph, "chosen": chosen, "itemsize": itemsize}
        for way, where in choices(rule, operation, int(n), size[here], **asked):  # type: ignore[arg-type]
            if where.any():
                places = np.flatnonzero(here)[where]
                flat[places] = rule.time_ps(way, operation, int(n), size[places])
    floor = 0 if graph else rule.figures.launch_ps
    return np.maximum(flat, floor).reshape(sizes.shape)
