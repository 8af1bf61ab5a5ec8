"""A machine of a user's own, and the machines on which every kind of program is tried."""

from __future__ import annotations

from pathlib import Path

USER = """\
name: four-cards
description: four small accelerators in a ring, written by a user
hw_spec:
  pe:
    - {name: lane, num_units: 1}
    - {name: core, num_units: 64}
  pe_groups:
    - {name: card, num_units: 24}
    - {name: box, num_units: 4}
hw_abstr:
  - {name: thread, target: lane, max_resident: 16}
  - {name: warp, target: core, infer_lambda: 'lambda _t, _b: _b // 32'}
  - {name: warpgroup, target: core, infer_lambda: 'lambda _t, _b: _b // 4'}
  - {name: block, target: core, max_resident: 8}
  - {name: device, target: card}
  - {name: node, target: box}
clocks: {box: 1 GHz}
memory:
  - {name: registers, level: core, size: 256 KiB, bandwidth: 1024 B/cycle, latency: 1 cycle, shared: false,
     aliases: [l0]}
  - {name: scratchpad, level: core, size: 128 KiB, bandwidth: 128 B/cycle, latency: 20 cycles, aliases: [l1]}
  - {name: dram, level: card, size: 16 GB, bandwidth: 500 GB/s, latency: 200 ns, aliases: [l2]}
networks:
  - {name: ring, level: box, connects: card, topology: ring, bandwidth: 32 GB/s, latency: 1 us}
engines:
  - {name: matrix, kind: tensor, level: core, tile: [16, 16, 16], startup: 16 cycles,
     throughput: {f16: 256 MAC/cycle, bf16: 256 MAC/cycle}}
  - {name: simd, kind: vector, level: core, throughput: {any: 128 FLOP/cycle}, startup: 4 cycles}
  - {name: mover, kind: dma, level: core, bandwidth: 64 B/cycle, latency: 100 cycles}
"""


def user_machine(folder: Path) -> str:
    """The path of the machine's file in a folder."""
    path = folder / "four-cards.yaml"
    path.write_text(USER, encoding="utf-8")
    return str(path)
