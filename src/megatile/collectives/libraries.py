"""What communication libraries offer: ``algorithm="nccl"`` or ``"rccl"`` is what these libraries do.

NCCL (``src/graph/tuning.cc``, ``src/device``): rings, one per channel and on all rails between nodes; trees
that are chains inside nodes and binary between them; in-switch reduction (NVLS) inside a node and as NVLSTree
across nodes; point-to-point operations are sent directly. RCCL on a full mesh (``tools/msccl-algorithms``,
``src/graph/rome_models.cc``): all-pairs exchange, rings that use every link of the mesh, and hierarchically
over nodes. What they take for a size is in ``timing/collective_choice.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from megatile.collectives.candidates import ESTIMATED, Candidate
from megatile.collectives.job import CollectiveError, Job
from megatile.collectives.registry import ALGORITHMS, Algorithm
from megatile.core.dtypes import itemsize
from megatile.core.errors import did_you_mean
from megatile.core.quantities import format_time, whole
from megatile.hda import HDA
from megatile.plan.model import Transport
from megatile.timing.collective_choice import channels_of, choose, library_of, nccl_ways, rule_of
from megatile.timing.collective_rule import PEERS, PREFIX, Way, fabric
from megatile.timing.engine_rules import LOW_LATENCY, OFFERED, engine_way
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
KERNELS_OF = {"custom": "vllm", "trtllm": "trtllm"}
"""Engines whose own all-reduce kernels machine files describe."""
NAMED = (*LIBRARIES, *OFFERED)
"""What ``algorithm`` may name beside algorithms: whose own choice is asked for."""
SHAPES = dict.fromkeys(("two_shot", *OFFERED["deepep"]), "direct")
"""Algorithms whose Plans are those of others."""


def offered(library: str, operation: str) -> tuple[str, ...]:
    """Return the algorithms with which a library does an operation."""
    if library in OFFERED:
        return OFFERED[library] if operation == ENGINE_OPERATIONS[library] else ()
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
    if library in KERNELS_OF:
        return _engine_way(hda, job, library)
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


def library_alternatives(
    hda: HDA, job: Job, taken: Candidate, env: Mapping[str, Any] | None
) -> tuple[Candidate, ...]:
    """Return what NCCL chose and its alternatives, with its own estimates: it chooses the lowest."""
    rule = rule_of(hda, "nccl", job.scale, False, *group_of(hda, job))
    operation, nbytes = job.library_call
    found: list[Candidate] = []
    for number, (way, estimate) in enumerate(nccl_ways(rule, operation, job.ranks, nbytes, env)):
        note = f"{ESTIMATED}{format_time(estimate * 1e6)}"
        if number == 0:
            found.append(replace(taken, note=note))
        else:
            time = round(float(rule.time_ps(way, operation, job.ranks, np.array([nbytes], float))[0]))
            found.append(Candidate(way.algorithm, (), way.protocol, time_ps=time, note=note))
    return tuple(found)


ENGINE_OPERATIONS = {"custom": "all_reduce", "trtllm": "all_reduce", "deepep": "all_to_all"}


def _engine_way(hda: HDA, job: Job, library: str) -> Way:
    """Return what an engine's own all-reduce takes for a job; where the engine calls NCCL, say so."""
    engine = KERNELS_OF[library]
    rule_of(hda, library, job.scale)  # says if the machine file has no such kernels
    way = engine_way(hda, engine, job.ranks, job.nbytes) if job.reduction == "sum" else None
    if way is None or stand_in(way, job) is None:
        raise CollectiveError(
            f"'{engine}' has no all-reduce of its own for {job.nbytes} bytes among {job.ranks} ranks "
            f"('{job.reduction}'): it calls NCCL there",
            advice='algorithm="nccl"',
        )
    return way


TOKENS = {"sms": 0, "token": None, "experts": 0, "phase": "dispatch", "low_latency": False}
"""Settings of DeepEP: compute units (0: as the machine file says), bytes of a token, experts, which of the
two exchanges and which mode."""


def deepep_transport(hda: HDA, job: Job, settings: Mapping[str, Any]) -> Transport:
    """Return how DeepEP sends tokens to their experts, or their results back."""
    unknown = next((name for name in settings if name not in TOKENS), None)
    if unknown is not None:
        raise CollectiveError(
            f"DeepEP has no setting '{unknown}'", advice=did_you_mean(unknown, TOKENS, what="settings")
        )
    sms, token, experts, phase, low = ({**TOKENS, **settings}[name] for name in TOKENS)
    needed = {"token": token, "experts": experts} if low else {"token": token}
    for name, value in needed.items():
        if whole(value) is None or value < 1:
            advice = 'settings={"token": 14336}, or {"token": 7392, "low_latency": True, "experts": 256}'
            raise CollectiveError(f"DeepEP needs {name}, a positive integer", advice=advice)
    if phase not in ("dispatch", "combine") or not isinstance(low, bool) or whole(sms) is None or sms < 0:
        raise CollectiveError(f"DeepEP cannot do phase={phase!r}, low_latency={low!r}, sms={sms!r}")
    if job.splits or fabric(hda, job.scale).nodes(job.ranks) > 1 or job.ranks < 2:
        raise CollectiveError(
            "DeepEP's Plans are equal exchanges among devices of one node",
            advice='mt.predict_kernel("moe_dispatch", nodes=…) knows several nodes',
        )
    name = f"{phase}{LOW_LATENCY}" if low else phase
    channels = float(sms or rule_of(hda, "deepep", job.scale).figures.channels)
    return Transport(
        "kernel", "deepep", name, channels=channels, token=token, experts=experts if low else 0, name="deepep"
    )


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
    own = SHAPES.get(way.algorithm, way.algorithm)
    return next((n for n in (own, "ring") if ALGORITHMS[n].reason_against(job) is None), None)


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
        kind = "switch" if way.algorithm.startswith("in_network") else "kernel"
        return Transport(kind, library, *way, **group_of(hda, job)._asdict(), name=library)
    name, own = candidate.algorithm, library or library_of(hda, job.scale) or ""
    if name not in offered(own, job.operation) or (name == "ring" and len(job.nesting) > 1):
        own = "own"  # the rings of libraries take all rails between nodes
    channels = None
    if own == "nccl" and name in NCCL_NAMES:
        rule = rule_of(hda, own, job.scale, False, *group_of(hda, job))
        channels = channels_of(rule, name, candidate.protocol, job.ranks, job.nbytes)
    kind = "switch" if candidate.protocol == "NVLS" else "kernel"
    group = group_of(hda, job)._asdict()
    return Transport(kind, own, name, candidate.protocol, channels, **group, name=own)
