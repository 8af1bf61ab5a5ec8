"""What all parts of a host share: the machine, its memory, whose turn it is, what time it is there."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from megatile.core.errors import MegatileError, did_you_mean
from megatile.core.quantities import whole
from megatile.runtime.host.allocators import Allocators
from megatile.runtime.host.engine import Engine
from megatile.runtime.host.oplog import OpLog
from megatile.runtime.host.storage import Device
from megatile.runtime.host.workers import Stuck, Workers
from megatile.sim import Launch

DEBUG_SWITCH = "MEGATILE_DEBUG"
ELSEWHERE = (
    "parallel",
    "tensor",
    "device_mesh",
    "DTensor",
    "DeviceMesh",
    "init_device_mesh",
    "distribute_tensor",
)
"""What torch keeps in its own modules, and `megatile.parallel` has here."""


class HostError(MegatileError, RuntimeError):
    """A host that is asked for something it cannot do."""


class MissingName(MegatileError, AttributeError):
    """A name of torch that a host does not have."""


class NeedsAutograd(MissingName, HostError):
    """Something of torch that needs autograd or its modules."""


AUTOGRAD = (
    *("autograd", "backward", "fsdp", "func", "grad", "grad_fn", "nn", "optim", "parallel", "pipelining"),
    *("register_hook", "requires_grad_", "retain_grad"),
)
"""Names of torch, of torch.distributed and of tensors that need autograd or modules."""


def no_autograd(what: str) -> NeedsAutograd:
    """Return the error for what needs autograd or modules."""
    return NeedsAutograd(
        f"{what} is not available: a simulated machine has no autograd and no modules, it runs forward "
        "passes, kernels and collectives",
        advice="write the forward pass with torch.matmul, collectives and the layers of megatile.parallel; "
        "mt.torch_estimate prices real torch programs",
    )


class Names:
    """Names under a name (``torch.nn.functional``); one that is missing is said so."""

    def __init__(self, title: str, **given: Any) -> None:
        self._title = title
        self.__dict__.update(given)

    def __getattr__(self, name: str) -> Any:
        raise missing(self, self.__dict__.get("_title", "torch"), name)


def missing(where: Any, title: str, name: str) -> AttributeError:
    """Return the error for a name that is not there. Python's own names are asked for by Python itself."""
    if name.startswith("_"):
        return AttributeError(name)
    if (name in AUTOGRAD and title != "torch.distributed") or name == "fsdp" or title == "torch.nn":
        return no_autograd(f"{title}.{name}")
    if name in ELSEWHERE:
        advice = "import megatile.parallel, which has DTensor, DeviceMesh, layers and parallelize_module"
    else:
        there = sorted(n for n in dir(where) if not n.startswith("_"))
        advice = did_you_mean(name, there, what=f"names of {title}")
    return MissingName(f"{title} has no '{name}' on a simulated machine", advice=advice)


class DeviceSelector:
    """``"all"`` devices, or one: ``"sip:3"``."""

    def __init__(self, text: str = "all") -> None:
        if not isinstance(text, str):
            raise HostError(f"{text!r} selects no device", advice='use "all" or "sip:0"')
        self.text = text
        name, _, number = text.partition(":")
        self.index = None if text == "all" else int(number) if number.isdecimal() else -1
        if text != "all" and (name not in ("sip", "device") or self.index == -1):
            raise HostError(f"'{text}' selects no device", advice='use "all" or "sip:0"')

    def __repr__(self) -> str:
        return f"DeviceSelector({self.text!r})"


class HostState:
    """The part of a `RuntimeContext` that the others build on."""

    default_dtype = "f16"

    def __init__(self, engine: Engine, target_device: DeviceSelector | str) -> None:
        self.engine, self.shape, self.workers = engine, engine.shape, Workers(engine.pass_time)
        self.machine = engine.machine
        self.memory = Allocators(self.machine)
        self.target_device = (
            DeviceSelector(target_device) if isinstance(target_device, str) else target_device
        )
        if (self.target_device.index or 0) >= self.shape.devices:
            raise HostError(
                f"there is no device {self.target_device.index}",
                advice=f"there are {self.shape.devices}, from 0",
            )
        engine.wait = self._block
        self._clock_ps = 0
        self._device: int | None = self.target_device.index

    @property
    def has_data(self) -> bool:
        """Whether tensors have contents, or times alone are found out."""
        return self.engine.data

    @property
    def op_log(self) -> OpLog | None:
        """Every operation on data, if the host was made with ``log=True``."""
        return self.engine.log

    @property
    def backend(self) -> str:
        return "ahbm" if self.machine.name == "ahbm" or self.shape.pe_scale == "pe" else "device"

    @property
    def rank(self) -> int:
        return self.workers.current.rank if self.workers.current else 0

    @property
    def clock_ps(self) -> int:
        """The time of the worker whose turn it is, or of the host outside workers."""
        return self.workers.current.clock_ps if self.workers.current else self._clock_ps

    def wait_for(self, time_ps: int) -> None:
        """Let the worker's time go on to some moment."""
        if self.workers.current is not None:
            self.workers.current.clock_ps = max(self.workers.current.clock_ps, time_ps)
        else:
            self._clock_ps = max(self._clock_ps, time_ps)

    def _block(self, settled: Callable[[], bool], until_ps: int | None) -> None:
        """Let other workers go on until something has ended in simulated time."""
        if self.workers.current is not None:
            said = f"rank {self.rank} waits for work of its device"
            self.workers.wait_until(settled, lambda: Stuck(self.rank, said, ()), until_ps)

    def wait_on(self, *launches: Launch) -> None:
        """Let the worker's time go on to the end of some work."""
        self.engine.settle(*launches)
        for launch in launches:
            self.wait_for(launch.end_ps or 0)

    def are_over(self, launches: Sequence[Launch]) -> bool:
        """Return whether some work has ended at the worker's time."""
        if not all(w.over for w in launches):
            self.engine.settle(until_ps=self.clock_ps)
        return all(w.end_ps is not None and w.end_ps <= self.clock_ps for w in launches)

    @property
    def time_ns(self) -> float:
        """When the last work ends, since the beginning."""
        return max(self._clock_ps, self.engine.end_ps) / 1000

    def synchronize(self, device: Any = None) -> None:
        """Wait for all work of the current device."""
        where = self.current_device() if device is None else self._device_number(device)
        self.wait_on(*self.engine.of_device(where))

    def set_device(self, device: Any) -> None:
        """Choose the device for new tensors of this worker: a number, or ``torch.device("cuda:1")``."""
        device = getattr(device, "index", device) if isinstance(device, Device) else device
        if whole(device) is None or not 0 <= device < self.shape.devices:
            raise HostError(
                f"there is no device {device!r}", advice=f"there are {self.shape.devices}, from 0"
            )
        if self.workers.current is not None:
            self.workers.current.device = int(device)
        else:
            self._device = int(device)

    def current_device(self) -> int:
        worker = self.workers.current
        chosen = worker.device if worker is not None else self._device
        if chosen is None:
            self.warn("no device was chosen (set_device), so it is 0")
        return chosen or 0

    def _device_number(self, device: Any) -> int:
        if str(device) in ("cuda", "ahbm", "device"):
            return self.current_device()
        text = str(device).rpartition(":")[2]
        if not text.isdecimal() or int(text) >= self.shape.devices:
            raise HostError(
                f"there is no device {device!r}", advice=f"use 0 to {self.shape.devices - 1}, or 'cpu'"
            )
        return int(text)

    @property
    def debug(self) -> bool:
        return os.environ.get(DEBUG_SWITCH, "0") not in ("", "0")

    def warn(self, text: str) -> None:
        """Print a warning for those who set ``MEGATILE_DEBUG=1``."""
        if self.debug:
            warnings.warn(f"megatile: {text}", stacklevel=3)
