"""Machines: loading, routes, instances, memory; figures that must not grow with the size of the machine."""

from __future__ import annotations

import random
from collections.abc import Iterator

import megatile as mt
from harness import Row, at_most, bench, best_of, growth, peak_memory, ratio_at_most, seconds, sized
from megatile.hda import Unit

LAUNCH = [
    mt.ScaleView("block", instance_num=4096, is_flatten=True),
    mt.ScaleView("thread", instance_num=256, is_flatten=True),
]


@bench("machines")
def loading() -> Iterator[Row]:
    for name in ("dgx-h100", "h100-cluster", "ahbm"):
        yield Row(
            f"load and validate {name}", best_of(lambda name=name: mt.machine(name)), "s", bar=at_most(0.050)
        )
    hda = mt.machine("dgx-h100")
    yield Row("instantiate 4096 × 256", best_of(lambda: hda.instantiate(LAUNCH)), "s", bar=at_most(0.010))


@bench("routes")
def routes() -> Iterator[Row]:
    wafer = mt.machine("cerebras-wse2")
    cores = wafer.count("core")
    pick = random.Random(0)
    pairs = [
        (Unit("core", pick.randrange(cores)), Unit("core", pick.randrange(cores)))
        for _ in range(sized(1_000_000, 1000))
    ]

    def ask() -> None:
        for a, b in pairs:
            wafer.route(a, b)

    yield Row(f"{len(pairs):_} random routes on the wafer", seconds(ask), "s", bar=at_most(10.0))
    some = pairs[:1000]
    ours = best_of(lambda: [wafer.route(a, b) for a, b in some]) / len(some)
    expanded = best_of(lambda: [list(wafer.route(a, b).hops()) for a, b in some[:100]]) / 100
    yield Row("one route as runs", ours, "s", expanded, "all its hops", ratio_at_most(0.2))


@bench("size")
def size() -> Iterator[Row]:
    def million() -> None:
        hda = mt.machine("cerebras-wse2", width=1000, height=1000)
        assert hda.count("core") == 1_000_000
        hda.instantiate([mt.ScaleView("core")]).seat("core", 999_999)
        hda.neighbors("core:500500")

    mt.machine("cerebras-wse2")
    yield Row("memory of a 10⁶-unit machine", peak_memory(million), "B", bar=at_most(50 * 2**20))

    def cluster(nodes: int) -> float:
        def use() -> None:
            hda = mt.machine("h100-cluster", nodes=nodes)
            hda.route(("gpu", 0), ("gpu", hda.count("gpu") - 1))
            len(hda.neighbors("gpu:0"))

        return best_of(use)

    yield from growth("load a cluster and ask, nodes", cluster, 100, "s", bar=ratio_at_most(1.5))
