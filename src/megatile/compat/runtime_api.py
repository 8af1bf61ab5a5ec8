"""KernBench's ways to run a bench from Python: a topology, an engine, a device, and ``run_bench``.

from megatile.compat.runtime_api import resolve_device, resolve_topology, run_bench

result = run_bench(topology=resolve_topology("ahbm"), bench_fn=run, device=resolve_device("all"))
for trace in result.traces:
    print(trace["phase"], trace["name"], trace["total_ns"], trace["pe_exec_ns"], trace["network_ns"])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from megatile.compat.ccl.spec import spec_of
from megatile.hda import HDA, machine as find_machine
from megatile.runtime.host.context import RuntimeContext
from megatile.runtime.host.engine import Engine
from megatile.runtime.host.state import DeviceSelector, HostError
from megatile.runtime.host.times import all_launches, launch_times
from megatile.sim import Launch

__all__ = [
    "BenchResult",
    "Completion",
    "DeviceSelector",
    "GraphEngine",
    "RuntimeContext",
    "Topology",
    "resolve_device",
    "resolve_topology",
    "run_bench",
]


@dataclass(frozen=True)
class Topology:
    """A machine, and the same as a nested dict."""

    machine: HDA
    spec: Mapping[str, Any]

    @property
    def topology_obj(self) -> Topology:
        return self


def resolve_topology(source: str | Path | HDA) -> Topology:
    """Return the machine of a ``topology.yaml``, or one by name."""
    hda = find_machine(source)
    return Topology(hda, spec_of(hda))


def resolve_device(text: str = "all") -> DeviceSelector:
    """Return the devices that ``"all"`` or ``"sip:N"`` means."""
    return DeviceSelector(text)


class KernBenchEngine(Engine):
    """An engine with the two attributes of KernBench's that its test programs read."""

    @property
    def _env(self) -> Any:
        """``now``: when all work that was submitted is done, in nanoseconds."""
        return SimpleNamespace(now=self.end_ps / 1000)

    @property
    def _results(self) -> dict[str, tuple[Launch, dict[str, Any]]]:
        return {f"{n} {w.name}": (w, launch_times(w)) for n, w in enumerate(self.launches)}


def GraphEngine(topology: Topology | HDA | str, enable_data: bool = True) -> Engine:
    """Return an engine for a `RuntimeContext`; without data it finds out times only."""
    hda = topology.machine if isinstance(topology, Topology) else find_machine(topology)
    return KernBenchEngine(hda, enable_data)


@dataclass(frozen=True)
class Completion:
    """Whether a bench found what it expected; ``failures`` counts what it did not."""

    failures: int = 0

    @property
    def ok(self) -> bool:
        return self.failures == 0


@dataclass(frozen=True)
class BenchResult:
    """What a bench did: one trace per launch and copy, in the order in which they began."""

    completion: Completion
    traces: list[dict[str, Any]] = field(default_factory=list)
    report: Mapping[str, float] = field(default_factory=dict)
    """Nanoseconds in all: total, host copies, setup, kernels (PE execution and network), bound."""


def run_bench(
    topology: Topology | HDA | str,
    bench_fn: Callable[[Any], Any],
    device: DeviceSelector | str = "all",
    engine_factory: Callable[[Any, Any], Engine] | None = None,
    **options: Any,
) -> BenchResult:
    """Run ``bench_fn(torch)`` on a machine and return the times of its launches.

    ``options`` are those of `RuntimeContext` (``ccl``, ``algorithm``, ``trust``).
    """
    if not callable(bench_fn):
        raise HostError(f"a bench is a function of torch, not {type(bench_fn).__name__}")
    made = engine_factory(topology, device) if engine_factory else GraphEngine(topology)
    with RuntimeContext(made, device, **options) as torch:
        failures = bench_fn(torch)
        times = torch.report()
    return BenchResult(Completion(int(failures or 0)), all_launches(made), times)
