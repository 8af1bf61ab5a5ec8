"""Machines, routes on them, launches, addresses, descriptions with something wrong: as they were before."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.expected import chunks, digest, line, problem, tried
from tests.hda.shared import DIRECT, SWITCHED, label
from tests.hda.small import SMALL
from tests.hda.test_addresses import FACTORIES

from megatile.core.errors import MegatileError
from megatile.hda import HDA, ScaleView, machine, machine_names, problems
from megatile.hda.addresses import AddressConfig, AddressLayout, DeviceShape, PhysAddr
from megatile.hda.catalog import divided, library
from megatile.hda.inference import LaunchViews
from megatile.hda.lint import links_of_unit, lint
from megatile.hda.parameters import figures, scaled
from megatile.hda.switched import Switched

MACHINES: dict[str, dict[str, Any]] = {
    **{name: {} for name in machine_names() if name != "cpu"},  # which is this computer
    "ahbm torus_2d": {"sips": 6, "sip_topology": "torus_2d", "cube_w": 3},
    "ahbm mesh_2d_no_wrap": {"sips": 7, "sip_topology": "mesh_2d_no_wrap", "pe_per_corner": 1},
    "dgx-h100 2": {"gpus": 2},
    "h100-cluster 5": {"nodes": 5},
    "mi300x-cluster 3": {"nodes": 3},
    "h100-cluster-efa 9": {"nodes": 9},
}
NETWORKS = ("ring", "line", "mesh", "torus", "full_mesh", "switch", "tree", "fat_tree")


def made(name: str) -> HDA:
    return machine(name.split()[0], **MACHINES[name])


@pytest.mark.parametrize("name", MACHINES)
def test_a_machine(name: str, expected: Any) -> None:
    hda = made(name)
    memories = [(m, m.available, m.effective_bandwidth) for m in hda.memories]
    networks = [
        (n, n.effective_bandwidth, n.bisection, links_of_unit(n), n.topology.link_count) for n in hda.networks
    ]
    dtypes = ("f32", "f16", "f8e4m3", "i8", "any")
    engines = [(e, [e.rate(dtype) for dtype in dtypes]) for e in hda.engines]
    peaks = {s.name: [tried(lambda s=s, d=d: hda.throughput(s.name, d)) for d in dtypes] for s in hda.scales}
    halves = {s.name: tried(lambda s=s: hda.bisection(s.name)) for s in hda.scales}
    one, other = DeviceShape.of(hda), AddressLayout.of(hda)
    units = {s.name: hda.count(s.name) for s in hda.scales}
    answers = line(
        hda=hda, yaml=digest(hda.to_yaml()), units=units, memories=digest(memories), lint=lint(hda),
        networks=digest(networks), engines=digest(engines), peaks=peaks, bisection=digest(halves),
        shape=vars(one), layout=vars(other), bits=other.bits, config=digest(AddressConfig.of(hda)),
        figures=digest(figures(hda)), kernels=digest(hda.kernels, hda.kernel("low_latency")),
        queues=digest([hda.queues_of(level.name) for level in hda.levels]), html=digest(hda._repr_html_()),
    )  # fmt: skip
    expected("machines", {name: answers, f"{name} routes": digest(list(routes(hda)))})


def routes(hda: HDA) -> Iterator[Any]:
    """Routes between units of every scale, near and far, and who is near to them."""
    rng = random.Random(3)
    scales = [s.name for s in hda.scales if hda.count(s.name) > 1]
    vias = [None, *(n.name for n in hda.networks)]
    for scale, other in itertools.product(scales, scales):
        for number in range(1 + (len(scale) + len(other)) % 2):
            a = rng.randrange(hda.count(scale))
            near = rng.randrange(hda.count(other)) if number else a * hda.count(other) // hda.count(scale) + 1
            b = near % hda.count(other)
            via = vias[number % len(vias)]
            yield (
                scale,
                a,
                other,
                b,
                via,
                tried(lambda s=scale, a=a, o=other, b=b, v=via: route(hda, s, a, o, b, v)),
            )
    for scale in scales:
        unit = (scale, rng.randrange(hda.count(scale)))
        yield unit, hda.coords(unit), tried(lambda u=unit: list(hda.neighbors(u))[:20])
        for other in scales:
            up, down = (
                tried(lambda u=unit, o=other: hda.parent(u, o)),
                tried(lambda u=unit, o=other: hda.children(u, o)),
            )
            within = tried(lambda s=scale, o=other: hda.count(s, within=o))
            yield other, up, down if isinstance(down, str) else list(down)[:20], within


def route(hda: HDA, scale: str, a: int, other: str, b: int, via: str | None) -> str:
    found = hda.route((scale, a), (other, b), via)
    shared = hda.shared_memory((scale, a), (other, b))
    hops = list(itertools.islice(found.hops(), 40))
    return line(
        hops=found.hop_count, latency=found.latency_ps, rate=found.bandwidth, on=found.networks, links=hops,
        runs=found.runs, shared=shared.name if shared else "",
    )  # fmt: skip


MORE = [
    Switched(12, "fat_tree", (4, 3)), Switched(30, "fat_tree", (4, 4, 2), (2.0, 3.0)),
    Switched(24, "rails", (3,), (1.5,), 4), Switched(7, "switch"), Switched(64, "rails", (4, 4), (), 8),
]  # fmt: skip


@pytest.mark.parametrize(
    "topologies", chunks([*DIRECT, *SWITCHED, *MORE], 9), ids=lambda some: label(some[0])
)
def test_topologies(topologies: list[Any], expected: Any) -> None:
    found = {}
    for one in topologies:
        every = range(one.size)
        pairs = [(a, b) for a in every for b in every if (7 * a + b) % 3 == 0 or one.size < 9]
        ends = [(one.ends(n), one.width(n)) for n in range(one.link_count)]
        found[f"{label(one)} {one.size}"] = line(
            links=one.link_count,
            cut=one.bisection_links(),
            ends=digest(ends),
            hops=digest([one.hops(*pair) for pair in pairs]),
            count=sum(one.hop_count(*pair) for pair in pairs),
            runs=digest([one.route(*pair) for pair in pairs]),
            near=digest([list(one.neighbors(a)) for a in every]),
            coords=digest([(one.coords(a), one.index(one.coords(a))) for a in every]),
        )
    expected("topologies", found)


def views(*flat: str, **counts: Any) -> list[ScaleView]:
    return [ScaleView(name, instance_num=n, is_flatten=name in flat) for name, n in counts.items()]


VIEWS: list[list[ScaleView]] = [
    views("block", *flat, block=n, thread=t)
    for n in (-1, 1, 7, 300, (5, 3), 4096)
    for t in (-1, 32, 96, 256)
    for flat in ((), ("thread",))
]
VIEWS += [
    views(cluster=6, block=2, warp=4, thread=32),
    views(device=-1, block=200, thread=64),
    views("block", device=3, block=2, warpgroup=2),
    views(node=-1, device=-1, block=4),
    [*views("block", block=9), ScaleView("warp", infer_lambda="lambda _t, _b: _t + _b")],
    views("block", block=(4, 4, 2), warp=3),
    views(device=2, cluster=-1, block=-1),
    views(thread=100),
    views(device=1),
    views(block=5),
]


def launched(hda: HDA, views: list[ScaleView], uses: Any) -> str:
    found = hda.instantiate(views)
    LaunchViews(hda, views).check_order()
    some = {}
    for name in found.names:
        total = found.total(name)
        ranks = sorted({0, 1 % total, total // 2, total - 1})
        where = [found.coords(name, rank) for rank in ranks]
        assert [found.rank(name, at) for at in where] == ranks
        seats = [tried(lambda n=name, r=rank: found.seat(n, r, uses)) for rank in ranks]
        some[name] = (total, found.extents(name), where, seats)
    inferred = {name: tried(lambda name=name: found.count(name)) for name in found.inferred}
    return line(
        shape=dict(zip(found.names, found.shape, strict=True)), size=found.size, inferred=inferred, some=some,
        resident=tried(lambda: found.residency(uses)), waves=tried(lambda: found.waves(uses)),
    )  # fmt: skip


@pytest.mark.parametrize("name", ["dgx-h100", "mi300x-8", "cerebras-wse2", "h100-cluster"])
def test_launches(name: str, expected: Any) -> None:
    hda, found = machine(name), {}
    for number, views in enumerate(VIEWS):
        memory = ({}, {"l1": "40 KiB"}, {"l1": "3 MiB"}, {"l2": "1 GiB", "l1": 900})[number % 4]
        found[f"{name} {number}"] = tried(lambda views=views, memory=memory: launched(hda, views, memory))
    expected("launches", found)


def test_addresses(expected: Any) -> None:
    found = {}
    for kind, factory in FACTORIES.items():
        for where, pe, offset in (
            ((0, 0, 0), 0, 0),
            ((3, 5, 17), 9, 4660),
            ((15, 15, 31), 15, (1 << 37) - 1),
        ):
            one = factory(where, pe, offset)
            found[f"{kind} {where} {pe} {offset}"] = line(
                text=one, number=hex(one.encode()), kind=one.kind, unit=one.unit_type, pe=one.pe_id,
                sub=hex(one.sub_offset), of=one.component, at=hex(one.component_offset), hbm=one.is_hbm,
            )  # fmt: skip
    for name in ("ahbm", "dgx-h100", "cerebras-wse2", "h100-cluster"):
        layout, shape = AddressLayout.of(machine(name)), DeviceShape.of(machine(name))
        one = PhysAddr.pe_tcm_addr(
            0, (shape.devices - 1) % 9, shape.cubes - 1, shape.pes - 1, 77, layout=layout
        )
        two = PhysAddr.pe_hbm_addr(0, 0, shape.cubes - 1, shape.pes - 1, 5, 1 << 20, layout=layout)
        found[name] = line(
            tcm=one, hbm=two, number=hex(one.encode()), window=hex(layout.window), other=hex(two.encode())
        )
    rng = random.Random(1)
    for number in [rng.randrange(1 << rng.randrange(1, 53)) for _ in range(60)]:
        found[hex(number)] = tried(lambda number=number: PhysAddr.decode(number))
    expected("addresses", found)


OVERRIDES: list[tuple[str, dict[str, Any]]] = [
    ("dgx-h100", {"gpus": 0}),
    ("dgx-h100", {"gpus": "3"}),
    ("dgx-h100", {"gpu": 3}),
    ("dgx-h100", {"gpus": 2.5}),
    ("dgx-h100", {"memory.hbm.bandwidth": "1 TB/s"}),
    ("dgx-h100", {"memory.hbm.bandwidth": "*2"}),
    ("dgx-h100", {"memory.hbm.bandwith": "1 TB/s"}),
    ("dgx-h100", {"memory.hbn.bandwidth": "1 TB/s"}),
    ("dgx-h100", {"memory.hbm": 5}),
    ("dgx-h100", {"memory.hbm.size": "1 parsec"}),
    ("dgx-h100", {"name": "mine"}),
    ("dgx-h100", {"networks.nvlink.topology": "ring"}),
    ("dgx-h100", {"networks.nvlink.latency": "-1 ns"}),
    ("dgx-h100", {"engines.tma.bandwidth": "1 MB/s"}),
    ("dgx-h100", {"hw_spec.pe_groups.gpu.num_units": 7}),
    ("ahbm", {"sips": 4, "sip_topology": "star"}),
    ("ahbm", {"sips": 5, "sip_topology": "torus_2d"}),
    ("ahbm", {"cube_w": 0}),
    ("ahbm", {"pe_per_corner": 3}),
    ("h100-cluster", {"nodes": 1}),
    ("h100-cluster", {"nodes": "two"}),
    ("nowhere", {}),
    ("dgx-h10", {}),
    ("", {}),
    ("no.yaml", {}),
]


def test_overrides(expected: Any) -> None:
    found = {}
    for name, given in OVERRIDES:
        shown = tried(lambda name=name, given=given: machine(name, **given).to_yaml())
        found[" ".join([name, *(f"{k}={v}" for k, v in given.items())])] = (
            shown if "Error" in shown[:40] else digest(shown)
        )
    hda = machine("dgx-h100")
    for factors in (
        {"memory.hbm.bandwidth": 2.0},
        {"networks.nvlink.latency": 0.5, "engines.tensor.throughput": 3},
    ):
        found[f"scaled {list(factors.items())}"] = tried(lambda f=factors: digest(scaled(hda, f).to_yaml()))
    for wrong in ({"memory.hbm.bandwith": 2.0}, {"memory.hbm.bandwidth": 0}, {"memory.hbm.bandwidth": -1}):
        found[f"scaled {list(wrong.items())}"] = tried(
            lambda f=wrong: digest(scaled(hda, f, "other").to_yaml())
        )
    found |= {f"divided {n}": tried(lambda n=n: digest(divided(hda, n).to_yaml())) for n in (1, 2, 3, 9)}
    found |= {f"library {n}": tried(lambda n=n: digest(library(n))) for n in ("nccl", "rccl", "vllm", "ncl")}
    expected("overrides", found)


# --- descriptions with something wrong ----------------------------------------------------------------------


def documents() -> dict[str, Any]:
    found = {
        "small": SMALL,
        "seed": yaml.safe_load((Path(__file__).parents[1] / "data" / "seed-h100.yaml").read_text()),
    }
    for topology in NETWORKS:
        found[topology] = one = copy.deepcopy(SMALL)
        one["networks"][0] |= {
            "topology": topology,
            "duplex": "half",
            "granule": "64 B",
            "arity": 2,
            "dims": [3, 2],
        }
    found["edges"] = one = copy.deepcopy(SMALL)
    one["networks"][0] |= {"topology": "edges", "edges": [[0, 1], [1, 2, 3], [3, 4], [4, 5], [2, 3], [0, 5]]}
    found["more"] = one = copy.deepcopy(SMALL)
    one["memory"] += [
        {"name": "l2c", "level": "chip", "of": "ram", "cache": True, "block": "64 B", "size": "1 MiB",
         "bandwidth": "200 GB/s", "latency": "9 ns", "write": "write_back"},
        {"name": "near", "level": "core", "size": "64 KiB", "bandwidth": "64 B/cycle", "latency": "3 cycles",
         "reserved": "1 KiB", "aliases": ["l1", "l0"], "efficiency": "90 %"},
    ]  # fmt: skip
    one["engines"] += [
        {"name": "mover", "kind": "dma", "level": "core", "startup": "5 ns", "channels": 3, "copies": ["tma"]}
    ]
    one["networks"] += [{"name": "outer", "level": "board", "connects": "chip", "topology": "ring",
                         "bandwidth": "1 GB/s", "latency": "1 us", "gateway": 1}]  # fmt: skip
    found["extending"] = {
        "extends": "dgx-h100",
        "name": "mine",
        "parameters": {"gpus": 4},
        "memory": [{"name": "hbm", "size": "1 GiB"}],
        "networks": [{"name": "nvlink", "arity": 4}],
        "clocks": {"sm": "1 GHz"},
        "engines": [{"name": "tma", "remove": True}],
    }
    return found


VALUES = (
    None, 0, -1, 1, 3, 2.5, True, "", "x", "core", "chip", "ram", "1 ns", "5 GB/s", "1 MiB", "7 cycles",
    "1 parsec", "-3 B", [], [1], [0, 9], {}, {"a": 1}, "${n + 1}", "mesh", "ring", "120 %",
)  # fmt: skip


def changed(data: Any, seed: int, count: int) -> Iterator[Any]:
    """A description with a value changed, or an entry left out, renamed or twice."""
    rng = random.Random(seed)

    def places(part: Any) -> Iterator[tuple[Any, Any]]:
        for key in list(part) if isinstance(part, dict) else range(len(part)):
            yield part, key
            if isinstance(part[key], (dict, list)):
                yield from places(part[key])

    for _ in range(count):
        one = copy.deepcopy(data)
        part, key = rng.choice(list(places(one)))
        way = rng.random()
        if way < 0.15:
            del part[key]
        elif way < 0.3 and isinstance(part, dict):
            part[key + "s" if rng.random() < 0.5 else key[:-1]] = part.pop(key)
        elif way < 0.4 and isinstance(part, list):
            part.append(copy.deepcopy(part[key]))
        else:
            part[key] = rng.choice(VALUES)
        yield one


def judged(file: Path) -> str:
    try:
        hda = HDA.from_yaml(file)
        text = line(hda=hda, yaml=digest(hda.to_yaml()), lint=lint(hda))
    except MegatileError as error:
        text = f"{problem(error)} {len(problems(file))}"
    return text


@pytest.mark.parametrize("name", list(documents()))
def test_a_description_with_a_change(name: str, expected: Any, tmp_path: Path) -> None:
    found, file = {}, tmp_path / "m.yaml"
    count = 12 if name == "extending" else 40 if name in ("small", "more", "edges") else 16
    for number, data in enumerate(changed(documents()[name], len(name), count)):
        file.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
        found[f"{name} {number}"] = judged(file)
    expected("descriptions", found)
