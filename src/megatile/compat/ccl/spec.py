"""A machine as KernBench's nested dict: ``spec["system"]["sips"]["count"]``, whatever form its file has."""

from __future__ import annotations

from typing import Any

from megatile.hda import HDA
from megatile.hda.addresses import DeviceShape
from megatile.hda.model import MemoryLayer, Network

TOPOLOGY_NAMES = {"ring": "ring_1d", "torus": "torus_2d", "mesh": "mesh_2d_no_wrap"}
CORNERS = ("NW", "NE", "SW", "SE")


def spec_of(hda: HDA) -> dict[str, Any]:
    """Return the sections ``system``, ``sip``, ``cube`` and ``pe`` of a machine.

    A device stands for a SIP, and a machine without cubes has one per SIP. Figures are text with units, as in
    ``topology.yaml``; a network of another kind keeps its own name (``switch``).
    """
    shape = DeviceShape.of(hda)
    corners = CORNERS if shape.pes % len(CORNERS) == 0 else CORNERS[:1]
    width, height = _grid(_network(hda, shape.cubes, shape.devices), shape.cubes)
    memories = {name: hda.memory(name) for name in (shape.hbm, shape.l1, shape.sram) if name}
    return {
        "name": hda.name,
        "system": {
            "sips": {"count": shape.devices, **_network_spec(_network(hda, shape.devices, 1))},
            **_host(hda),
        },
        "sip": {
            "cube_mesh": {
                "w": width,
                "h": height,
                **_link(_network(hda, shape.cubes, shape.devices)),
            }
        },
        "cube": {
            "pe_layout": {"corners": list(corners), "pe_per_corner": shape.pes // len(corners)},
            "noc": _network_spec(_network(hda, shape.pes, shape.devices * shape.cubes)),
            "hbm": _memory(memories[shape.hbm]),
            **({"sram": _memory(memories[shape.sram])} if shape.sram else {}),
        },
        "pe": {"tcm": _memory(memories[shape.l1]), **_clock(hda)},
    }


def _network(hda: HDA, members: int, copies: int) -> Network | None:
    """Return a network with ``copies`` instances of so many members each."""
    for network in hda.networks:
        inner = hda.level(network.connects).total
        if inner == members * copies and hda.level(network.level).total == copies:
            return network
    return None


def _grid(network: Network | None, count: int) -> tuple[int, int]:
    dims = network.topology.dims if network else ()
    return (dims[0], dims[1]) if len(dims) == 2 else (count, 1)


def _network_spec(network: Network | None) -> dict[str, Any]:
    if network is None:
        return {"topology": "none"}
    return {"topology": TOPOLOGY_NAMES.get(network.topology.kind, network.topology.kind), **_link(network)}


def _link(network: Network | None) -> dict[str, Any]:
    if network is None:
        return {}
    gateway = {} if network.gateway is None else {"gateway": network.gateway}
    return {"link": _figures(network.bandwidth, network.latency_ps), **gateway}


def _figures(bandwidth: float, latency_ps: int) -> dict[str, str]:
    return {"bandwidth": f"{bandwidth / 1e9:.12g} GB/s", "latency": f"{latency_ps / 1000:.12g} ns"}


def _memory(memory: MemoryLayer) -> dict[str, Any]:
    reserved = {"reserved": f"{memory.reserved} B"} if memory.reserved else {}
    figures = _figures(memory.bandwidth, memory.latency_ps)
    return {"size": f"{memory.size} B", "slices": memory.slices, **figures, **reserved}


def _clock(hda: HDA) -> dict[str, Any]:
    clocks = list(hda.spec.clocks.values())
    return {"clock": str(clocks[0])} if clocks else {}


def _host(hda: HDA) -> dict[str, Any]:
    link = hda.control.host_link if hda.control else None
    return {"host": {"link": _figures(link.bandwidth, link.latency_ps)}} if link else {}
