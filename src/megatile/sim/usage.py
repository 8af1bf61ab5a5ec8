"""How much of a machine a run used: engines, links, memories, and what communication was exposed."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from megatile.hda.routing import Link as HardwareLink
from megatile.sim.program import CONSUME, COPY, GENERAL, LOAD, PUT, RUN, SEND, SHIP, Program, at
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


@dataclass(frozen=True)
class Loads:
    """What the operations of a run add up to, whenever they took place."""

    link_ps: dict[str, float]
    """How long each link carries data; of a wide one, its share of that."""
    work_ps: dict[str, list[int]]
    """Per engine for compute, how long it works in every unit."""


def loads(program: Program, times: Times) -> Loads | None:
    """The loads of a run that was not recorded; None where its operations do not say all of them."""
    if any(operation[0] == PUT for operations in times.operations for operation in operations):
        return None
    fabric = program.machine.fabric
    link_ps = {
        _name(program, fabric.keys[resource]): spent / fabric.widths[resource]
        for resource, spent in _resources(program, times)[0].items()
        if not _is_memory(fabric.keys[resource])
    }
    return Loads(link_ps, _work(program, times))


def _work(program: Program, times: Times) -> dict[str, list[int]]:
    names = program.engine_names
    work = {name: [0] * len(times.operations) for name in names if name in ("tensor", "vector")}
    rows = [work.get(name) for name in names]
    for unit, operations in enumerate(times.operations):
        for operation in operations:
            kind, info = operation[0], operation[1]
            if kind == RUN:
                engine, spent = info[0], info[1] + info[2]
            elif kind == CONSUME:
                engine, spent = info[1], info[2]
            elif kind == GENERAL and info.kind == "work":
                engine, spent = info.engine, info.busy_ps + info.latency_ps
            else:
                continue
            row = rows[engine]
            if row is not None:
                row[unit] += spent
    return work


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
        (memories if _is_memory(key) else links)[name] = share
        named[name] += bytes_on[resource]
    return Usage(busy_ps(trace), links, memories, dict(named), exposed_ps(trace))


def _is_memory(key: Any) -> bool:
    return isinstance(key, tuple) and key[0] == "memory"


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
            elif operation[0] in (COPY, LOAD):
                path, size = operation[1][1], operation[1][2]
            elif operation[0] == SHIP:
                path, size = operation[1][3], operation[1][6]
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
