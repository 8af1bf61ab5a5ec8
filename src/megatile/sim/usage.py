"""How much of a machine a run used: engines, links, memories, and what communication was exposed."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from megatile.hda.routing import Link as HardwareLink
from megatile.sim.program import COPY, GENERAL, SEND, Program, at
from megatile.sim.times import Times
from megatile.trace import Trace, busy_ps, exposed_ps


@dataclass(frozen=True)
class Usage:
    """Busy ps per kind of engine, shares of the whole time, bytes by name, exposed ps per unit."""

    busy: dict[str, int]
    links: dict[str, float]
    memories: dict[str, float]
    bytes_on: dict[str, int]
    exposed: dict[str, int]


def usage(trace: Trace, program: Program, times: Times) -> Usage:
    spent_on, bytes_on = _resources(program, times)
    whole = max(1, times.end_ps)
    links: dict[str, float] = {}
    memories: dict[str, float] = {}
    named: dict[str, int] = defaultdict(int)
    for resource, spent in spent_on.items():
        key = program.machine.fabric.keys[resource]
        name = _name(program, key)
        share = spent / whole / program.machine.fabric.widths[resource]
        (memories if isinstance(key, tuple) and key[0] == "memory" else links)[name] = share
        named[name] += bytes_on[resource]
    return Usage(busy_ps(trace), links, memories, dict(named), exposed_ps(trace))


def _name(program: Program, key: Any) -> str:
    if isinstance(key, HardwareLink):
        network = program.machine.hda.network(key.network)
        start, stop = network.topology.ends(key.number)
        owner = f"[{key.owner}]" if key.owner else ""
        return f"{key.network}{owner} {start}->{stop}"
    return " ".join(str(part) for part in key[:2]) + f"[{', '.join(str(p) for p in key[2:])}]"


def _resources(program: Program, times: Times) -> tuple[dict[int, int], dict[int, int]]:
    """Busy time and bytes of every resource on a way."""
    spent: dict[int, int] = defaultdict(int)
    moved: dict[int, int] = defaultdict(int)
    for operations in times.operations:
        for operation in operations:
            if operation[0] == SEND:
                info, row = operation[1], operation[4]
                memory = program.storages.memory(at(row.accesses[0].storage, 0))
                path, size = program.send_path(info[5], memory), info[6]
            elif operation[0] == COPY:
                path, size = operation[1][1], operation[1][2]
            elif operation[0] == GENERAL and operation[1].path is not None:
                path, size = operation[1].path, operation[1].nbytes
            else:
                continue
            each = path.stage_ps(size)[1]
            for stage, busy in zip(path.stages, each, strict=True):
                if stage.resource is not None:
                    spent[stage.resource] += busy
                    moved[stage.resource] += size
    return spent, moved
