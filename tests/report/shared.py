"""What several files of tests/report share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

from megatile.hda import HDA, machine
from megatile.trace import Trace, TraceBuilder

HERE = Path(__file__).parent
SEED = HERE.parent / "data" / "seed-h100.yaml"


MACHINES: dict[str, Callable[[], HDA]] = {
    "dgx-h100": lambda: machine("dgx-h100"),
    "hgx-a100": lambda: machine("hgx-a100"),
    "mi300x-8": lambda: machine("mi300x-8"),
    "h100-cluster": lambda: machine("h100-cluster"),
    "h100-cluster nodes=1": lambda: machine("h100-cluster", nodes=1),
    "h100-cluster nodes=12500": lambda: machine("h100-cluster", nodes=12500),
    "cerebras-wse2": lambda: machine("cerebras-wse2"),
    "ahbm": lambda: machine("ahbm"),
    "ahbm sips=1": lambda: machine("ahbm", sips=1),
    "ahbm torus": lambda: machine("ahbm", sips=4, sip_topology="torus_2d"),
    "cpu": lambda: machine("cpu"),
    "seed": lambda: HDA.from_yaml(SEED),
    "zoo": lambda: HDA.from_yaml(HERE / "zoo.yaml"),
    "least": lambda: HDA.from_dict(one_level()),
}


def one_level() -> dict[str, object]:
    return {
        "hw_spec": {"pe": [{"name": "x", "num_units": 1}]},
        "hw_abstr": [{"name": "thread", "target": "x"}],
    }


def grid_machine(**network: object) -> HDA:
    """A chip of 4 dies with 9 cores each, and one network in it."""
    spec = {
        "hw_spec": {
            "pe": [{"name": "core", "num_units": 1}],
            "pe_groups": [{"name": "die", "num_units": 9}, {"name": "chip", "num_units": 4}],
        },
        "hw_abstr": [{"name": "thread", "target": "core"}],
        "networks": [{"name": "n", "level": "chip", "bandwidth": "1 GB/s", "latency": "1 ns", **network}],
    }
    return HDA.from_dict(spec)


def texts(svg: Path) -> list[str]:
    return ["".join(e.itertext()).strip() for e in ElementTree.parse(svg).iter() if e.tag.endswith("}text")]


def two_units() -> Trace:
    """pe0 loads 0-100, adds 100-300 and sends 100-250; pe1 waits for it 0-400, then adds 400-450."""
    b = TraceBuilder("toy")
    load = b.add(
        unit="pe0", engine="dma", operation="load", start_ps=0, end_ps=100, bytes=512, source="k.py:1"
    )
    b.add(
        unit="pe0",
        engine="vector",
        operation="add",
        start_ps=100,
        end_ps=300,
        cause=load,
        source="k.py:2",
    )
    send = b.add(
        unit="pe0",
        engine="dma",
        operation="send",
        start_ps=100,
        end_ps=250,
        cause=load,
        bytes=512,
        source="k.py:3",
    )
    recv = b.add(
        unit="pe1", engine="channel", operation="recv", start_ps=0, end_ps=400, cause=send, source="k.py:4"
    )
    b.add(unit="pe1", engine="vector", operation="add", start_ps=400, end_ps=450, cause=recv, source="k.py:5")
    b.flow(send, recv)
    return b.build()
