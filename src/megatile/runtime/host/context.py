"""``with mt.host(machine="ahbm") as torch:``: a namespace that looks like PyTorch, on a simulated machine.

    import megatile as mt

    def worker(rank, torch):
        torch.accelerator.set_device_index(rank)
        torch.distributed.init_process_group()
        x = torch.zeros((4, 256), dtype=torch.float16).fill_(rank + 1)
        torch.distributed.all_reduce(x)
        print(x.numpy()[0, 0])

    with mt.host(machine="dgx-h100") as torch:
        torch.multiprocessing.spawn(worker, args=(torch,), nprocs=torch.distributed.get_world_size())
        print(torch.time_ns)

What the namespace has:

* tensors: ``zeros``, ``empty``, ``ones``, ``full``, ``from_numpy``, ``empty_like`` (shape, dtype, dp, name);
  ``torch.float16`` … are names of element types. A tensor is `Tensor`: ``copy_``, ``numpy``, indexing,
  ``to``, ``free``. Device tensors lie on the current device, as their `DPPolicy` says (without one: PE 0 of
  cube 0).
* functions of tensors: ``+ - * / @``, ``matmul``, ``relu`` …, ``cat``, ``randn`` (`Namespace`).
* ``launch(name, kernel, *args)``: a ``tl`` kernel on the PEs where its tensors lie.
* ``distributed``: groups, collectives, messages (`Distributed`); ``multiprocessing.spawn``: one worker per
rank.
* ``accelerator.set_device_index / current_device_index / device_count``, ``ahbm.set_device /
current_device``.
* ``machine``: the `HDA`; ``spec``: the same as KernBench's nested dict (``spec["system"]["sips"]["count"]``);
  ``shape``: devices, cubes, PEs and memories as the host sees them.
* ``time_ns``, ``report()``, ``trace``: what it took; ``communications``: every collective, with its bytes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from megatile.collectives.algorithms import algorithms
from megatile.core.public import extension
from megatile.core.quantities import format_time, whole
from megatile.hda import HDA, machine as find_machine
from megatile.runtime.host.distributed import Distributed
from megatile.runtime.host.engine import Engine
from megatile.runtime.host.memory_store import MemoryStore
from megatile.runtime.host.namespace import Namespace
from megatile.runtime.host.oplog import OpLog
from megatile.runtime.host.run_collective import Collectives, Communicated
from megatile.runtime.host.state import DeviceSelector, HostError, Names
from megatile.runtime.host.streams import Process, device_names, process_names
from megatile.runtime.host.times import summary
from megatile.runtime.host.tl_kernels import KernelCache
from megatile.runtime.host.workers import DistributedError
from megatile.trace import Trace

DTYPES = {
    "float64": "f64", "float32": "f32", "float": "f32", "float16": "f16", "half": "f16", "bfloat16": "bf16",
    "float8_e4m3fn": "f8e4m3", "int64": "i64", "long": "i64", "int32": "i32", "int8": "i8", "uint8": "u8",
}  # fmt: skip


class RuntimeContext(Namespace):
    """A machine as a PyTorch-like namespace; see the module's text. ``engine`` does the work."""

    _active: weakref.ref[RuntimeContext] | None = None

    def __init__(
        self,
        engine: Engine,
        target_device: DeviceSelector | str = "all",
        correlation_id: str = "",
        spec: HDA | Mapping[str, Any] | None = None,
        *,
        ccl: Mapping[str, Any] | None = None,
        algorithm: str | None = None,
        trust: bool = False,
    ) -> None:
        super().__init__(engine, target_device)
        self.correlation_id = correlation_id
        self.spec = spec if isinstance(spec, Mapping) else extension(__name__).spec_of(self.machine)
        """The machine as a nested dict: ``spec["system"]["sips"]["count"]`` …"""
        self._chosen, self._named, self._trust = ccl, algorithm is not None, trust
        self.memory_store = engine.memory_store = MemoryStore()
        engine.host, engine.submit_held = self, self.held.settle_all
        self.communications: list[Communicated] = []
        """Every collective and message so far, in the order in which they began."""
        self.collectives = Collectives(self, algorithm or "auto")
        self.distributed = Distributed(self)
        self.kernels = KernelCache(self.machine, self.shape)
        self.installed = False
        self.started: list[Process] = []
        self.multiprocessing = process_names(self)
        self.ahbm = self.cuda = device_names(self)
        self.accelerator = Names(
            "torch.accelerator",
            set_device_index=self.set_device,
            current_device_index=self.current_device,
            device_count=lambda: self.shape.devices,
            is_available=lambda: True,
            synchronize=self.synchronize,
        )
        for name, short in DTYPES.items():
            setattr(self, name, short)
        self._add_functions()

    def __enter__(self) -> RuntimeContext:
        RuntimeContext._active = weakref.ref(self)
        return self

    def __exit__(self, *_: Any) -> None:
        if RuntimeContext.active() is self:
            RuntimeContext._active = None

    @staticmethod
    def active() -> RuntimeContext | None:
        """Return the context whose ``with`` block was entered last, if it is still there."""
        return RuntimeContext._active() if RuntimeContext._active is not None else None

    def __repr__(self) -> str:
        return (
            f"<host of {self.machine.name}: {self.shape.devices} devices, {format_time(self.time_ns * 1000)}>"
        )

    @cached_property
    def ccl(self) -> Any:
        """The kernel that does ``all_reduce`` over all ranks, or None for the library's algorithms: what the
        host was made with, else what ``./ccl.yaml`` chooses."""
        compat = extension(__name__)
        chosen = self._chosen if self._chosen or self._named else compat.local_choice(self.machine)
        return compat.CclAlgorithm(chosen, self.machine, self.memory, self._trust) if chosen else None

    @property
    def world_size(self) -> int:
        """Ranks: devices, or PEs where the kernel of ccl.yaml counts those."""
        return self.ccl.world_size if self.ccl else self.shape.devices

    @property
    def rank_count(self) -> int:
        """Devices that take part in collectives; each has one worker."""
        return self.ccl.sips if self.ccl else self.shape.devices

    # work

    def install(self) -> None:
        """Install the queues of the collective kernel, once: one message to every PE that takes part."""
        if self.installed or self.ccl is None:
            return
        self.ccl.install()
        self.installed = True
        took = self.engine.control_ps()
        for device in range(self.ccl.sips):
            self.engine.occupy("install", self.clock_ps, took, (device,))
        self.wait_for(self.clock_ps + took)

    def install_ipcq(
        self, algorithm: str | None = None, world_size_override: int | None = None, ccl: Any = None
    ) -> Any:
        """Install the queues of a kernel of ccl.yaml, for ``all_reduce`` and for kernels that are launched on
        the same PEs; what was installed (`InstalledQueues`). ``init_process_group`` does it by itself."""
        compat = extension(__name__)
        if self.installed:
            raise DistributedError(
                f"the queues of '{self.ccl.name}' are already installed", advice="create another host"
            )
        if algorithm is not None or world_size_override is not None or ccl is not None:
            chosen = compat.choose(self.machine, ccl or "ccl.yaml", algorithm)
            if chosen is not None and world_size_override is not None:
                chosen["world_size"] = world_size_override
            made = chosen and compat.CclAlgorithm(chosen, self.machine, self.memory, self._trust)
            if made is not None:
                made.participants  # noqa: B018  (refuses what cannot be installed)
            self.ccl = made
        if self.ccl is None:
            raise DistributedError(
                f"no kernel of ccl.yaml is chosen that '{self.machine.name}' can install",
                advice='mt.host("ahbm").install_ipcq(algorithm="ring_allreduce_tcm")',
            )
        self.install()
        return compat.InstalledQueues(self.ccl.installs)

    def _spawn(
        self, fn: Callable[..., Any], args: Any = (), nprocs: int = 1, join: bool = True, daemon: bool =
        False, start_method: str = "spawn",
    ) -> Any:  # fmt: skip
        """Run ``fn(rank, *args)`` in ``nprocs`` workers that take turns; without ``join`` when it is
        joined."""
        if not callable(fn) or not isinstance(args, (tuple, list)):
            raise HostError(
                "spawn takes a function and a tuple of its arguments", advice="spawn(fn, args=(x,), nprocs=2)"
            )
        if whole(nprocs) is None or not 1 <= nprocs <= self.shape.devices:
            raise DistributedError(f"{nprocs!r} workers do not fit {self.shape.devices} devices")
        if not join:
            return SimpleNamespace(join=partial(self._run_workers, fn, args, nprocs))
        self._run_workers(fn, args, nprocs)
        return None

    def _run_workers(self, fn: Callable[..., Any], args: Any, nprocs: int, timeout: Any = None) -> bool:
        nested = self.workers.running
        before = self.distributed.is_initialized()
        try:
            workers = self.workers.run(fn, tuple(args), nprocs, self._clock_ps, self.distributed.unfinished)
            self._clock_ps = max([self._clock_ps, *(w.clock_ps for w in workers)])
            return True
        finally:
            if not nested:
                self.distributed.reset()
                if before:
                    self.distributed.init_process_group()

    # what happened

    @property
    def trace(self) -> Trace:
        """All work on one clock."""
        return self.engine.trace

    def report(self) -> dict[str, float]:
        """Return nanoseconds in all, of host copies, of kernels, of the PEs' engines and the network
        (`summary`)."""
        return summary(self.engine, self.time_ns)


def host(
    machine: HDA | str | Path,
    ccl: str | Path | Mapping[str, Any] | None = None,
    *,
    algorithm: str | None = None,
    data: bool = True,
    log: bool = False,
    trust: bool = False,
    target_device: str = "all",
    **overrides: Any,
) -> RuntimeContext:
    """Return a PyTorch-like namespace on a machine (a name, a file, or an `HDA`); ``overrides`` set its
    parameters.

    ``ccl`` (a file, or a configuration; ``"ccl.yaml"`` is the one that comes with megatile if there is no
    such file here) makes ``all_reduce`` over all ranks the kernel that it names, as ``./ccl.yaml`` does where
    neither ``ccl`` nor ``algorithm`` is given;
    ``algorithm`` names another of its entries, or without ``ccl`` an entry of the file that comes with
    megatile or an algorithm of the library, which then does what it can. ``data=False`` finds out times
    only, ``log`` keeps an op log (`mt.replay`). ``trust`` allows import paths in ``ccl``, and a machine file
    that extends files outside its folder.
    """
    hda = find_machine(machine, trust=trust, **overrides)
    chosen, library = None, algorithm
    if ccl is not None or library not in (None, "auto", *algorithms()):
        chosen, library = extension(__name__).choose(hda, ccl, algorithm), "auto"
    return RuntimeContext(
        Engine(hda, data, log=OpLog(hda.name) if log else None),
        target_device,
        ccl=chosen,
        algorithm=library,
        trust=trust,
    )
