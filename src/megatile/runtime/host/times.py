"""Where the time of a host script went: copies from and to the host, kernels, the network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from megatile.core.cached import cached_in_owner
from megatile.cost.price import lower_bound
from megatile.runtime.host.engine import Engine, overlap
from megatile.sim import Launch, Result

HOST_COPIES = {"write": "memory_write", "read": "memory_read"}
"""Phases of copies between the host and a device, by the first word of their name."""


def launch_times(launch: Launch) -> dict[str, Any]:
    """Return one launch as KernBench's trace: phase, name, SIPs, start, total, PE execution and network.

    Phase ``kernel`` stands for kernels and collectives; ``memory_write`` and ``memory_read`` are copies from
    and to the host, which have no network time; ``install`` and ``map`` set up queues and page tables.
    """
    total = launch.took_ps / 1000
    computed = min(total, compute_ps(launch.known) / 1000) if launch.plan else 0.0
    word = launch.name.partition(" ")[0]
    phase = "kernel" if launch.plan else HOST_COPIES.get(word, word)
    return {
        "phase": phase,
        "name": launch.name,
        "sip": launch.devices[0] if launch.devices else None,
        "sips": launch.devices,
        "start_ns": launch.submit_ps / 1000,
        "total_ns": total,
        "pe_exec_ns": computed,
        "network_ns": total - computed if phase == "kernel" else 0.0,
    }


def all_launches(engine: Engine) -> list[dict[str, Any]]:
    """Return the times of every launch, in the order in which they began."""
    engine.settle(*engine.launches)
    return [launch_times(w) for w in sorted(engine.launches, key=lambda w: w.submit_ps)]


def summary(engine: Engine, total_ns: float) -> dict[str, float]:
    """Return the times of a whole script in nanoseconds.

    ``host_copies_ns``, ``setup_ns`` and ``kernels_ns`` say how long such work was under way on some device.
    Of the last, ``pe_exec_ns`` is how long engines worked in the PEs of the busiest device, ``network_ns``
    the rest. ``bound_ns`` is the bound by the roofline: what the work takes if nothing is shared.
    """
    compute, bound = Counter[int](), Counter[int]()
    spans: dict[str, list[tuple[int, int]]] = {"host_copies": [], "setup": [], "kernels": []}
    engine.settle(*engine.launches)
    for launch in engine.launches:
        if launch.plan is None:
            kind = "host_copies" if launch.name.partition(" ")[0] in HOST_COPIES else "setup"
            spans[kind].append((launch.submit_ps, launch.end_ps or 0))
            continue
        spans["kernels"].append((launch.submit_ps, launch.end_ps or 0))
        for device in launch.devices:
            compute[device] += compute_ps(launch.known)
    for group in engine.groups():
        for launch in group:
            # Of what overlaps, the longest bounds the time.
            longest = max((w for w in group if overlap(w, launch)), key=lambda w: bound_ps(w.known))
            for device in launch.devices if launch is longest else ():
                bound[device] += bound_ps(launch.known)
    found = {kind: covered_ps(each) / 1000 for kind, each in spans.items()}
    busy = min(found["kernels"], max(compute.values(), default=0) / 1000)
    least = min(total_ns, max(bound.values(), default=0) / 1000)
    return {
        "total_ns": total_ns,
        **{f"{kind}_ns": ns for kind, ns in found.items()},
        "pe_exec_ns": busy,
        "network_ns": found["kernels"] - busy,
        "bound_ns": least,
    }


@cached_in_owner
def compute_ps(launch: Any) -> int:
    """Return how long the tensor and vector engines of the busiest unit work."""
    result = Result(launch)
    units = zip(result.work_ps("tensor"), result.work_ps("vector"), strict=True)
    return min(result.time_ps, max((a + b for a, b in units), default=0))


@cached_in_owner
def bound_ps(launch: Any) -> int:
    """Return what a launch would take if nothing were shared."""
    bound = lower_bound(launch.plan, launch.hda)
    return bound - launch.resources.control_ps() * (launch.installed and bool(launch.plan.channels))


def covered_ps(spans: Iterable[tuple[int, int]]) -> int:
    """Return how long at least one of some spans of time lasts."""
    covered, until = 0, 0
    for start, end in sorted(spans):
        covered += max(0, end - max(start, until))
        until = max(until, end)
    return covered
