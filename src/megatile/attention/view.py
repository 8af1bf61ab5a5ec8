"""The machine as attention sees it.

Kernels take the times of ``kernel_times``, which become the efficiency of the tensor engines. Exchanges are
kernels too, as those of collectives: they feed all links at once, with the start-up and the loss of the
``protocol`` section.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from megatile.attention.kernel_times import efficiency
from megatile.attention.plans import Divided
from megatile.core.dtypes import itemsize
from megatile.core.quantities import quantity
from megatile.hda import HDA
from megatile.hda.protocol import CHANNELS, on_path

PACKETS = 64


def view(hda: HDA, divided: Divided, communication: float = 0.0, scale: str = "device") -> HDA:
    """The machine with these effects applied; ``communication`` is the time (s) that data travel."""
    share = float(f"{efficiency(hda, divided, communication, scale):.6g}")
    return _derived(hda, share, scale, _granule(divided))


def without_compute(hda: HDA, divided: Divided, scale: str = "device") -> HDA:
    """The same machine with kernels that take no time: what remains is communication."""
    return _derived(hda, None, scale, _granule(divided))


def _granule(divided: Divided) -> int:
    """Switches send packets of several messages in turn; 64 of them for what a rank holds are fine enough."""
    problem, ranks = divided.problem, divided.schedule.ranks
    token = 2 * problem.groups * problem.dim * itemsize(problem.dtype) * problem.batch
    return max(4096, problem.keys * token // (PACKETS * ranks))


@lru_cache(maxsize=64)
def _derived(hda: HDA, share: float | None, scale: str, granule: int) -> HDA:
    level = hda.level(hda.scale(scale).level).name
    data = on_path(hda, "bulk", scale).to_dict()
    if hda.protocol is not None:
        _starts_on_links(data, hda, level, hda.protocol.start_ps)
    else:
        engine = {"name": "communication_kernel", "kind": "dma", "level": level, "channels": CHANNELS}
        data["engines"] = [engine, *data.get("engines", ())]
        data.pop("control", None)
    for spec in data["engines"]:
        if spec["kind"] == "tensor":
            spec["efficiency"] = share if share is not None else 1.0
            if share is None:
                spec["throughput"] = dict.fromkeys(spec["throughput"], "1e30 FLOP/s")
                spec["startup"] = "0 ps"
    for spec in data.get("networks", ()):
        spec["granule"] = f"{granule} B"
    return HDA.from_dict(data)


def _starts_on_links(data: dict[str, Any], hda: HDA, level: str, start_ps: int) -> None:
    """Every exchange is a kernel of its own, so its messages pay the start that collectives pay once.

    All messages of an exchange start together: on a port that several of them share, the starts must not
    follow one another, so they are latency of the links.
    """
    position = hda.level(level).position
    for spec, network in zip(data.get("networks", ()), hda.networks, strict=True):
        if hda.level(network.level).position > position:
            links = 1 if network.topology.kind == "full_mesh" else 2
            latency = quantity(spec["latency"], "time").value + start_ps // links
            spec["latency"] = f"{latency:.0f} ps"
