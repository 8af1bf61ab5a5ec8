"""A machine whose every figure is round: 1 byte per ps on links, latencies in whole nanoseconds."""

from __future__ import annotations

from typing import Any

from megatile.core.expr import unit
from megatile.hda import HDA
from megatile.plan.build import PlanBuilder
from megatile.plan.model import Plan
from megatile.sim.instructions import SEND
from megatile.sim.record import Record
from megatile.sim.state import Recorded


def toy(
    n: int = 4,
    topology: Any = "ring",
    *,
    link_latency: str = "100 ps",
    link_bandwidth: str = "1000 GB/s",
    control: bool = False,
    dma: dict[str, Any] | None = None,
    vector: dict[str, Any] | None = None,
    network: dict[str, Any] | None = None,
    memory: list[dict[str, Any]] | None = None,
    engines: list[dict[str, Any]] | None = None,
) -> HDA:
    """n cores in one box.

    Local memory: 4 B/ps, 10 ps. Shared memory: 2 B/ps, 50 ps. Vector engine: 1 FLOP/ps after 5 ps.
    """
    document: dict[str, Any] = {
        "name": "toy",
        "hw_spec": {
            "pe": [{"name": "core", "num_units": 1}],
            "pe_groups": [{"name": "box", "num_units": n}],
        },
        "hw_abstr": [{"name": "core", "target": "core"}, {"name": "device", "target": "box"}],
        "memory": memory
        or [
            {"name": "local", "level": "core", "size": "1 GiB", "bandwidth": "4000 GB/s", "latency": "10 ps"},
            {"name": "common", "level": "box", "size": "8 GiB", "bandwidth": "2000 GB/s", "latency": "50 ps"},
        ],
        "networks": [
            {
                "name": "net",
                "level": "box",
                "connects": "core",
                "topology": topology,
                "bandwidth": link_bandwidth,
                "latency": link_latency,
                **(network or {}),
            }
        ],
        "engines": [
            {
                "name": "vec",
                "kind": "vector",
                "level": "core",
                "throughput": {"any": "1 TFLOP/s"},
                "startup": "5 ps",
                **(vector or {}),
            },
            {
                "name": "mat",
                "kind": "tensor",
                "level": "core",
                "throughput": {"any": "10 TFLOP/s"},
                "startup": "7 ps",
            },
            {"name": "dma", "kind": "dma", "level": "core", "startup": "20 ps", "channels": 2, **(dma or {})},
            *(engines or []),
        ],
    }
    if control:
        document["control"] = {
            "host_link": {"bandwidth": "64 GB/s", "latency": "600 ps"},
            "launch": [
                {"name": "driver", "level": "box", "overhead": "300 ps"},
                {"name": "core_start", "level": "core", "overhead": "40 ps"},
            ],
        }
    return HDA.from_dict(document)


def ring(n: int, chunk: int, slots: int = 2, *, scale: str = "core", memory: str = "local") -> Plan:
    """The chunked ring all-reduce: reduce-scatter, then all-gather, one stream for all units."""
    b = PlanBuilder("ring", scale=scale, units=n)
    x = b.tile("x", (n, chunk), "f32", memory=memory, role="inout")
    c = b.channel("ring", source=(unit - 1) % n, slot_bytes=4 * chunk, memory=memory, slots=slots)
    with b.loop(0, n - 1) as loop:
        b.send(c, x[(unit - loop.index) % n], to=(unit + 1) % n)
        m = b.receive(c, (1, chunk), "f32")
        mine = x[(unit - loop.index - 1) % n]
        b.compute("add", mine, [mine, m])
    with b.loop(0, n - 1) as loop:
        b.send(c, x[(unit + 1 - loop.index) % n], to=(unit + 1) % n)
        b.receive(c, (1, chunk), "f32", into=x[(unit - loop.index) % n])
    return b.finish()


def first_arrivals(record: Record) -> dict[tuple[int, int, int], int]:
    """When the first message of every queue arrived, by channel, receiver and member."""
    sends = record.rows[record.rows[:, Recorded.kind] == SEND]
    found: dict[tuple[int, int, int], int] = {}
    for queue, time in sends[:, [Recorded.queue, Recorded.arrived]].tolist():
        found.setdefault(record.queue_ends[queue], time)
    return found
