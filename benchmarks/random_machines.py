"""Random machines as YAML text: other levels, memories, caches, networks and engines for every seed.

print(machine_text(7))            # a device like a GPU, a node of them or several nodes
random_machine(7, prefix="b_")    # the same machine with other names
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from megatile.hda import HDA
from megatile.hda.document import parse_document

INSIDE = ("switch", "ring", "full_mesh")
TOPOLOGIES = (*INSIDE, "line")


def random_machine(seed: int, prefix: str = "") -> HDA:
    return HDA.from_document(parse_document(machine_text(seed, prefix), f"random{seed}.yaml"), {})


def machine_text(seed: int, prefix: str = "") -> str:
    """A valid machine file; ``prefix`` comes before every name that the machine chooses itself."""
    draw = random.Random(f"machine {seed}")
    dies = draw.choice((1, 1, 2))
    nodes = draw.choice((1, 1, 1, 2, 3))
    sections = {
        "memory": _memories(draw, prefix),
        "networks": _networks(draw, prefix, dies > 1, nodes > 1),
        "engines": _engines(draw, prefix),
    }
    lines = [f"name: {prefix}random{seed}", *_levels(draw, prefix, dies, nodes)]
    lines.append(f"clocks: {{{prefix}chip: {draw.uniform(0.5, 3):.3f} GHz}}")
    for name, rows in sections.items():
        lines += [f"{name}:", *rows]
    lines += ["control:", f"  signal: {draw.choice((4, 8))} B", f"  message: {draw.choice((32, 64))} B"]
    if draw.random() < 0.5:
        overhead = f"{draw.randint(0, 6000)} ns"
        lines += ["  launch:", "  " + _row(name=f"{prefix}front", level=f"{prefix}chip", overhead=overhead)]
    return "\n".join(lines) + "\n"


def _row(**fields: object) -> str:
    return "  - {" + ", ".join(f"{key}: {value}" for key, value in fields.items()) + "}"


def _levels(draw: random.Random, p: str, dies: int, nodes: int) -> Iterator[str]:
    cores = draw.choice((2, 6, 16, 64))
    yield from ("hw_spec:", "  pe:", _row(name=f"{p}lane", num_units=1))
    yield _row(name=f"{p}wave", num_units=draw.choice((16, 32, 64)))
    yield _row(name=f"{p}core", num_units=4)
    yield "  pe_groups:"
    if dies > 1:
        yield _row(name=f"{p}die", num_units=cores // dies)
    yield _row(name=f"{p}chip", num_units=dies if dies > 1 else cores)
    yield _row(name=f"{p}board", num_units=draw.choice((1, 2, 3, 4, 8)))
    if nodes > 1:
        yield _row(name=f"{p}rack", num_units=nodes)
    yield "hw_abstr:"
    yield _row(name="thread", target=f"{p}lane", max_resident=16)
    yield _row(name="warp", target=f"{p}wave", max_resident=16, infer_lambda="'lambda _t, _b: _b // 32'")
    yield _row(name="block", target=f"{p}core", max_resident=draw.choice((1, 2, 8)), aliases="[core]")
    if dies > 1:
        yield _row(name="cluster", target=f"{p}die")
    yield _row(name="device", target=f"{p}chip")
    yield _row(name="node", target=f"{p}board")


def _memories(draw: random.Random, p: str) -> Iterator[str]:
    yield _row(
        name=f"{p}regs",
        level=f"{p}core",
        size="256 KiB",
        shared="false",
        aliases="[l0]",
        bandwidth=f"{draw.choice((1024, 3072))} B/cycle",
        latency="1 cycle",
    )
    yield _row(
        name=f"{p}sram",
        level=f"{p}core",
        size=f"{draw.choice((128, 228, 1024))} KiB",
        aliases="[l1, local]",
        bandwidth=f"{draw.choice((64, 128, 512))} B/cycle",
        latency=f"{draw.randint(5, 80)} cycles",
    )
    rate = draw.uniform(0.1, 8)
    if draw.random() < 0.5:
        yield _row(
            name=f"{p}cache",
            level=f"{p}chip",
            size=f"{draw.choice((4, 48))} MiB",
            cache="true",
            of=f"{p}dram",
            bandwidth=f"{rate * draw.uniform(1, 5):.4f} TB/s",
            latency=f"{draw.randint(50, 300)} ns",
            block="4 KiB",
            write=draw.choice(("write_back", "write_through")),
        )
    yield _row(
        name=f"{p}dram",
        level=f"{p}chip",
        size="96 GB",
        aliases="[l2, common]",
        bandwidth=f"{rate:.4f} TB/s",
        efficiency=f"{draw.randint(60, 100)} %",
        latency=f"{draw.randint(100, 900)} ns",
    )


def _networks(draw: random.Random, p: str, dies: bool, nodes: bool) -> Iterator[str]:
    near = [("noc", "chip", "die"), ("fabric", "die", "core")] if dies else [("noc", "chip", "core")]
    for name, level, connects in near:
        yield _row(
            name=f"{p}{name}",
            level=f"{p}{level}",
            connects=f"{p}{connects}",
            topology=draw.choice(INSIDE),
            bandwidth=f"{draw.choice((64, 256, 1024))} B/cycle",
            latency=f"{draw.randint(2, 60)} ns",
        )
    for name, level, connects in [("links", "board", "chip"), ("wire", "rack", "board")][: 1 + nodes]:
        yield _row(
            name=f"{p}{name}",
            level=f"{p}{level}",
            connects=f"{p}{connects}",
            topology=draw.choice(TOPOLOGIES),
            bandwidth=f"{draw.uniform(5, 400):.3f} GB/s",
            latency=f"{draw.randint(50, 3000)} ns",
        )


def _engines(draw: random.Random, p: str) -> Iterator[str]:
    rate, count = draw.choice((256, 1024, 4096)), draw.choice((1, 4))
    products = f"{{f16: {rate} MAC/cycle, bf16: {rate} MAC/cycle, f32: {rate // 8} MAC/cycle}}"
    cycles = lambda most: f"{draw.randint(1, most)} cycles"  # noqa: E731
    yield _row(
        name=f"{p}mma",
        kind="tensor",
        level=f"{p}core",
        count=count,
        tile="[16, 16, 16]",
        throughput=products,
        startup=cycles(40),
    )
    flops = f"{{any: {draw.choice((64, 128, 256))} FLOP/cycle}}"
    yield _row(name=f"{p}alu", kind="vector", level=f"{p}core", throughput=flops, startup=cycles(9))
    rate = draw.choice((64, 128))
    yield _row(name=f"{p}lsu", kind="dma", level=f"{p}core", bandwidth=f"{rate} B/cycle", startup=cycles(40))
    yield _row(
        name=f"{p}port",
        kind="dma",
        level=f"{p}chip",
        count=draw.choice((2, 8)),
        bandwidth=f"{draw.uniform(20, 400):.3f} GB/s",
        startup=f"{draw.randint(0, 4000)} ns",
    )
