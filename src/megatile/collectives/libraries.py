"""What communication libraries offer: ``algorithm="nccl"`` or ``"rccl"`` is what these libraries do.

NCCL (``src/graph/tuning.cc``, ``src/device``): rings, one per channel and on all rails between nodes; trees
that are chains inside nodes and binary between them; in-switch reduction (NVLS) inside a node and as NVLSTree
across nodes; point-to-point operations are sent directly. RCCL on a full mesh (``tools/msccl-algorithms``,
``src/graph/rome_models.cc``): all-pairs exchange, rings that use every link of the mesh, and hierarchically
over nodes. What they take for a size is in ``timing/collective_choice.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from megatile.collectives.candidates import Candidate
from megatile.collectives.job import Job
from megatile.collectives.registry import ALGORITHMS, Algorithm
from megatile.core.dtypes import itemsize
from megatile.hda import HDA
from megatile.plan.model import Transport
from megatile.timing.collective_choice import channels_of, choose, library_of, rule_of
from megatile.timing.collective_rule import PEERS, PREFIX, Way, fabric
from megatile.timing.machine_timing import TimingError
from megatile.timing.transports import has_library

LIBRARIES = {
    "nccl": ("ring", "node_tree", "rail_rings", "in_network", "in_network_tree"),
    "rccl": ("direct", "ring", "hamilton", "node_tree", "hierarchical"),
}
NCCL_NAMES = {
    "ring": "Ring",
    "rail_rings": "Ring",
    "node_tree": "Tree",
    "in_network": "NVLS",
    "in_network_tree": "NVLSTree",
}
"""How NCCL_ALGO calls them."""


def offered(library: str, operation: str) -> tuple[str, ...]:
    """Return the algorithms with which a library does an operation."""
    return ("direct",) if operation in PEERS else LIBRARIES.get(library, ())


def library_way(
    hda: HDA,
    job: Job,
    library: str,
    *,
    launch: bool = True,
    env: Mapping[str, Any] | None = None,
    algorithm: str | None = None,
) -> Way | None:
    """Return how a library does a job; None where it has no way that a Plan can take. ``algorithm``: if
    only that one is allowed, as NCCL_ALGO says it."""
    if job.ranks < 2:
        return None
    if algorithm is not None and (algorithm not in offered(library, job.operation) or library == "rccl"):
        return None
    env = dict(env or {})
    if algorithm is not None and job.operation not in PEERS:
        env["NCCL_ALGO"] = NCCL_NAMES[algorithm]
    try:
        rule = rule_of(hda, library, job.scale, False, *group_of(hda, job))
        size = itemsize(job.dtype)
        operation, nbytes = job.library_call
        way = choose(rule, operation, job.ranks, nbytes, graph=not launch, env=env, itemsize=size)
    except TimingError:
        if algorithm is None:
            raise
        return None
    if way.algorithm == "hamilton" and job.ranks == 2:
        way = way._replace(algorithm="ring")  # two ranks have one link
    return way if algorithm in (None, way.algorithm) and stand_in(way, job) is not None else None


class Group(NamedTuple):
    """Where the ranks of a job lie, as `Transport` says it."""

    per_node: int
    links: int


def group_of(hda: HDA, job: Job) -> Group:
    """Return how many ranks a job has in a node and links it has between them, where these are not usual."""
    around = fabric(hda, job.scale)
    places = np.broadcast_to(job.place.evaluate({"unit": np.arange(job.ranks)}), job.ranks)
    nodes = len(np.unique(places // around.inside))
    usual = around.lanes[min(job.ranks, around.inside)] if around.lanes and nodes == 1 else 0
    degrees = np.zeros(job.ranks, dtype=int)
    for a, b, cables in job.cables:
        degrees[[a, b]] += cables
    links = int(degrees.min()) if usual else 0
    per_node = 0 if nodes == around.nodes(job.ranks) else -(-job.ranks // nodes)
    return Group(per_node, 0 if links == usual else links)


def stand_in(way: Way, job: Job) -> str | None:
    """Return the algorithm whose Plan shows a library's way: the same, or a ring where ours cannot do the
    job."""
    return next((n for n in (way.algorithm, "ring") if ALGORITHMS[n].reason_against(job) is None), None)


def library_options(hda: HDA, job: Job, library: str, way: Way, shape: str) -> tuple[tuple[str, int], ...]:
    """Return the options with which the algorithm ``shape`` shows a library's way: channels of a library do
    not wait for each other, so lanes of rings that have crossed between nodes are taken later."""
    if shape != "rail_rings":
        return ()
    rule = rule_of(hda, library, job.scale, False, *group_of(hda, job))
    figures = rule.protocol(way)
    step = figures.step_ps + float(rule.slot_ps(way, job.ranks, job.nbytes / job.ranks))
    lag = min(job.ranks, int(figures.far_step_ps / step)) if step else 0
    return (("lag", lag),) if lag else ()


def protocols(hda: HDA, known: Algorithm, job: Job) -> tuple[str, ...]:
    """Return the protocols on which an algorithm may send in a job."""
    if known.protocol or not has_library(hda, job.scale):
        return (known.protocol or "Simple",)
    figures, prefix = rule_of(hda, "", job.scale).figures, PREFIX.get(known.name, "")
    if known.name == "direct" and job.operation in PEERS:
        block = job.nbytes if job.operation == "send_recv" else job.nbytes / job.ranks
        small = "peer_LL" in figures.protocols and block <= figures.peer_bytes
        return ("LL",) if small else ("Simple",)
    if known.name == "hamilton":
        return ("Simple",)
    line = known.name in NCCL_NAMES and not {f"{prefix}LL128", "LL128"}.isdisjoint(figures.protocols)
    return ("Simple", "LL128", "LL") if line else ("Simple", "LL")


def transport_of(
    candidate: Candidate, job: Job, hda: HDA, library: str | None, way: Way | None = None
) -> Transport | None:
    """Return how the messages of a candidate travel: on a library's kernel between devices (that of
    ``library``, or of the machine where it offers the algorithm, else a custom one), by stores inside a
    device, by network cards between nodes. None on machines that describe no library: their own engines do
    the work."""
    if not hda.transports:
        return None
    if not has_library(hda, job.scale):
        inside = (
            hda.level(hda.scale(job.scale).level).position < hda.level(hda.scale("device").level).position
        )
        return Transport("lsu", name="lsu") if inside else Transport("nic", name="nic")
    if way is not None and library is not None:
        kind = "switch" if way.protocol == "NVLS" else "kernel"
        return Transport(kind, library, *way, **group_of(hda, job)._asdict(), name=library)
    name, own = candidate.algorithm, library or library_of(hda, job.scale) or ""
    if name not in offered(own, job.operation) or (name == "ring" and len(job.nesting) > 1):
        own = "custom"  # the rings of libraries take all rails between nodes
    channels = None
    if own == "nccl" and name in NCCL_NAMES:
        rule = rule_of(hda, own, job.scale, False, *group_of(hda, job))
        channels = channels_of(rule, name, candidate.protocol, job.ranks, job.nbytes)
    kind = "switch" if candidate.protocol == "NVLS" else "kernel"
    group = group_of(hda, job)._asdict()
    return Transport(kind, own, name, candidate.protocol, channels, **group, name=own)
