"""``k.compare(*arrays, machine=)``: what a compiled program was predicted to take, beside what it takes."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from megatile.core.cached import read_cached
from megatile.core.dtypes import itemsize
from megatile.core.quantities import format_time
from megatile.hda import HDA, divided, machine as find_machine
from megatile.hda.document import parse_document
from megatile.hda.model import MemoryLayer
from megatile.hda.probe import measured_file
from megatile.ir import nodes as n
from megatile.lowering.calls import simulate
from megatile.sim import Result
from megatile.timing.origins import origin_lines
from megatile.trace import Trace, TraceBuilder, join_traces, text_table, write_perfetto
from megatile.trace.exposure import covered_ps

if TYPE_CHECKING:
    from megatile.targets.common.kernel import MachineCode, Profile

CACHES = ("scratch", "l3_cache")
"""Of the machine of a CPU, where arrays stay between calls, the nearest first; behind them is ``ram``."""


COPIED = 3
"""Times its bytes that a copy through a tile brings into the first cache: source, tile and target."""
Rates = tuple[float, ...]
"""Bytes per second."""


@dataclass(frozen=True)
class Phase:
    """A phase of a program, in seconds; the whole program is one too."""

    name: str
    predicted: float
    measured: float | None
    """None where phases were not measured."""

    @property
    def ratio(self) -> float | None:
        """Predicted / measured."""
        return self.predicted / self.measured if self.measured else None

    def json(self) -> dict[str, Any]:
        return {
            "name": self.name, "predicted_s": self.predicted, "measured_s": self.measured,
            "ratio": self.ratio,
        }  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """Predicted beside measured: ``total``, ``phases``, and the machine of the prediction."""

    machine: HDA
    predicted: Result
    total: Phase
    phases: tuple[Phase, ...]
    elsewhere: bool = False
    """Whether the measured time was passed in, not measured in this process."""

    @property
    def ratio(self) -> float:
        """Predicted / measured, of the whole."""
        return self.total.ratio or float("inf")

    def json(self) -> dict[str, Any]:
        return {
            "machine": self.machine.name, **self.total.json(), "phases": [p.json() for p in self.phases],
            "origins": {what: origin._asdict() for what, origin in self.predicted.origins.items()},
        }  # fmt: skip

    def __str__(self) -> str:
        rows = [
            (p.name, *("" if s is None else format_time(s * 1e12) for s in (p.predicted, p.measured)),
             "" if p.ratio is None else f"{p.ratio:.2f}")
            for p in (*self.phases, self.total)
        ]  # fmt: skip
        table = text_table(("", "predicted", "measured", "predicted / measured"), rows)
        name, here = self.machine.name, "elsewhere" if self.elsewhere else "on this computer"
        head = [f"predicted on {name}, measured {here}"]
        if not self.elsewhere and not _is_cpu(self.machine):
            head.append(
                f"'{name}' is not this computer, so the ratio is no error; compare with machine 'cpu'"
            )
        return "\n".join([*head, table, *origin_lines(self.predicted.origins)])

    @property
    def trace(self) -> Trace:
        """Both timelines, those of the prediction under units ``predicted/…``."""
        predicted = self.predicted.trace
        units = tuple(f"predicted/{name}" for name in predicted.units)
        built, at = TraceBuilder(self.machine.name), 0
        whole = round((self.total.measured or 0) * 1e12)
        built.add(unit="measured", engine="call", operation=self.total.name, start_ps=0, end_ps=whole)
        for phase in self.phases:
            end = at + round((phase.measured or 0) * 1e12)
            built.add(unit="measured", engine="phases", operation=phase.name, start_ps=at, end_ps=end)
            at = end
        return join_traces([(0, replace(predicted, units=units)), (0, built.build())], self.machine.name)


def compared(
    prog: Any, name: str, arrays: tuple[Any, ...], code: MachineCode, machine: str | HDA, threads: int,
    profile: Profile, elsewhere: bool, trace: str | Path | None,
) -> Comparison:  # fmt: skip
    """Predict what was measured."""
    sizes = zip(arrays, code.copies, strict=True)
    size = sum(int(np.prod(a.shape)) * a.dtype.itemsize * copies for a, copies in sizes)
    devices = code.program.launch.devices
    hda = _measured(find_machine(machine), devices)
    if elsewhere:  # a process for each device, as far as there are cores
        threads = max(threads, min(devices, hda.count("block", within="device")))
    hda = as_called(hda, size, threads, devices, _tile(code), len(arrays))
    result = simulate(prog, *arrays, machine=hda, data=False)
    lines, measured = _phases(profile.phases)
    phases = tuple(
        Phase(phase, _spent(result.trace, line, sorted(lines.values())), measured[phase])
        for phase, line in lines.items()
    )
    total = Phase(name, result.time_ps / 1e12, profile.seconds)
    found = Comparison(hda, result, total, phases, elsewhere)
    if trace is not None:
        write_perfetto(found.trace, trace)
    return found


def _measured(hda: HDA, devices: int) -> HDA:
    """Return the machine, or what ``megatile measure`` has kept where it is this computer as it ships."""
    shipped = find_machine("cpu")
    text = read_cached(measured_file()) if hda in (shipped, divided(shipped, devices)) else None
    return hda if text is None else HDA.from_document(parse_document(text.decode()), {})


def _tile(code: MachineCode) -> int:
    """Return bytes of the largest tile of a program."""
    found = (x for x in n.walk(code.program.body) if isinstance(x, n.Alloc))
    return max((math.prod(map(int, x.shape)) * itemsize(x.dtype) for x in found), default=0)


def as_called(hda: HDA, nbytes: int, threads: int, devices: int = 1, tile: int = 0, arrays: int = 1) -> HDA:
    """Return the machine of a CPU as repeated calls see it: with the cores of its threads divided among the
    devices of the program, and with arrays that fit a cache in that cache; the last one keeps a part of
    larger ones. Tiles stay in the first cache where copies to and from them leave room for them; else they
    come into it once more. Devices that share a core have a part of its time each. Other machines stay as
    they are."""
    if not _is_cpu(hda):
        return hda
    own, shared, ram = (hda.memory(m) for m in (*CACHES, "ram"))
    more = (threads - 1) / max(1, hda.count("block", within="device") - 1)
    alone = shared.unit_size or shared.size
    room = alone + min(1.0, more) * (shared.size - alone)
    behind = _partly(min(1.0, room / max(nbytes, 1)), _rates(shared, 1), _rates(ram, 1))
    rates = _partly(held(nbytes, own), _rates(own, threads), behind)
    first = hda.memory("l1_cache")
    if first.fill is not None:
        again = 1 / first.fill * (1 - held(COPIED * tile, first))
        rates = 1 / (1 / rates[0] + again / threads), 1 / (1 / rates[1] + again)
    time, busy = min(1.0, threads / devices), min(threads, devices)
    rates = rates[0] / devices, min(rates[1], rates[0] / busy) * time
    changed: dict[str, Any] = {
        f"memory.{m}.{key}": f"{rate:.6g} B/s"
        for m in ("l3_cache", "ram")
        for key, rate in zip(("bandwidth", "unit_bandwidth"), rates, strict=True)
    }
    for station in hda.control.launch if hda.control else ():
        times = {"thread_wakeup": threads > 1, "argument": arrays}.get(station.name, 1)
        changed[f"control.launch.{station.name}.overhead"] = f"{station.overhead_ps * times} ps"
    slower = min(1.0, rates[1] / _rates(own, 1)[1])
    for engine in hda.engines:
        if engine.level == "socket" and engine.bandwidth:
            changed[f"engines.{engine.name}.bandwidth"] = f"{engine.bandwidth * slower:.6g} B/s"
    changed["hw_spec.pe_groups.socket.num_units"] = max(1, threads // devices)
    if devices > 1:
        (link,) = (network for network in hda.networks if network.connects == "socket")
        far = min(behind[1], behind[0] / busy) / 2  # what is sent is read and written
        changed |= {
            "hw_spec.pe_groups.host.num_units": devices,
            f"networks.{link.name}.bandwidth": f"{min(link.bandwidth, far) * time:.6g} B/s",
            f"networks.{link.name}.latency": f"{link.latency_ps / time * (threads > 1):.6g} ps",
            **_slower(hda, time),
        }
    return find_machine(hda, **changed)


def _is_cpu(hda: HDA) -> bool:
    """Return whether a machine has the levels and memories of ``cpu``."""
    levels, memories = {level.name for level in hda.levels}, {m.name for m in hda.memories}
    return {"socket", "core"} <= levels and {*CACHES, "ram"} <= memories


def _partly(part: float, here: Rates, behind: Rates) -> Rates:
    """Return rates of arrays that partly lie in this memory."""
    return tuple(1 / (part / a + (1 - part) / b) for a, b in zip(here, behind, strict=True))


def held(nbytes: float, cache: MemoryLayer) -> float:
    """Return the part that a core's own cache holds of data that are used again and again: all up to its
    size, and less and less up to twice that, for it gives up first what was not used for longest."""
    return min(1.0, max(0.0, 2 - nbytes / cache.size))


def _slower(hda: HDA, time: float) -> dict[str, str]:
    """Return the rates of a core that a device has for a part of the time."""
    if time == 1:
        return {}
    changed = {
        f"memory.{m.name}.bandwidth": f"{m.bandwidth * time:.6g} B/s"
        for m in hda.memories
        if m.level == "core"
    }
    for engine in hda.engines:
        unit = "OP/s" if engine.kind == "scalar" else "FLOP/s"
        for dtype, done in engine.throughput.items():
            changed[f"engines.{engine.name}.throughput.{dtype}"] = f"{done * time:.6g} {unit}"
        if engine.bandwidth and engine.level == "core":
            changed[f"engines.{engine.name}.bandwidth"] = f"{engine.bandwidth * time:.6g} B/s"
    return changed


def _rates(memory: MemoryLayer, units: int) -> Rates:
    """Return bytes per second that all cores and that one core gets."""
    whole = memory.effective_bandwidth
    return whole * units, memory.unit_bandwidth or whole


def _phases(seconds: dict[str, float]) -> tuple[dict[str, int], dict[str, float]]:
    """Return the first line and the seconds of every phase that has a line; what only prepares a phase
    (``pack B for block_1``) is part of it."""
    found = {name: re.fullmatch(r"(?:(.*) )?line (\d+)", name) for name in seconds}
    lines = {name: int(match[2]) for name, match in found.items() if match}
    total = {name: seconds[name] for name in lines}
    for name in seconds.keys() - lines.keys():
        whose = [other for other in lines if (found[other] or "")[1] == name.rpartition(" ")[2]]
        for other in whose[:1]:
            total[other] += seconds[name]
    return lines, total


def _spent(trace: Trace, line: int, lines: list[int]) -> float:
    """Return seconds in which something of the phase that begins at a line was going on."""
    after = next((other for other in lines if other > line), 1 << 60)
    places = [source.rpartition(":")[2] for source in trace.sources]
    mine = [line <= int(place) < after if place.isdigit() else False for place in places]
    chosen = np.array(mine, bool)[trace.columns["source"]] if mine else np.zeros(0, bool)
    starts, ends = (trace.columns[key][chosen] for key in ("start_ps", "end_ps"))
    return float(covered_ps(np.zeros_like(starts), starts, ends, 1)[0]) / 1e12
