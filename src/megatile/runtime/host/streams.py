"""``torch.cuda``'s streams and events, and ``torch.multiprocessing``'s processes, on simulated devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from megatile.runtime.host.state import HostError, Names
from megatile.runtime.host.workers import SpawnException
from megatile.sim import Launch

if TYPE_CHECKING:
    from megatile.runtime.host.context import RuntimeContext


class Event:
    """A moment of a device: when all work is done that it was given before ``record``."""

    def __init__(self, context: RuntimeContext, enable_timing: bool = False, **_: Any) -> None:
        self._context = context
        self._work: tuple[int, list[Launch]] | None = None

    def record(self, stream: Any = None) -> None:
        context = self._context
        self._work = context.clock_ps, context.engine.of_device(context.current_device())

    def synchronize(self) -> None:
        self._context.wait_for(self._time_ps())

    def query(self) -> bool:
        return self._context.are_over(self._recorded()[1])

    def wait(self, stream: Any = None) -> None:
        """Nothing to do: work of a device runs in the order in which it was submitted."""

    def elapsed_time(self, end_event: Event) -> float:
        """Return the milliseconds from this event to another."""
        return (end_event._time_ps() - self._time_ps()) / 1e9

    def _recorded(self) -> tuple[int, list[Launch]]:
        if self._work is None:
            raise HostError("the event was not recorded", advice="event.record()")
        return self._work

    def _time_ps(self) -> int:
        """Return when it came, which is known when the work before it has ended."""
        at, work = self._recorded()
        self._context.engine.settle(*work)
        return max([at, *(w.end_ps or 0 for w in work)])


class Stream:
    """A stream of a device. Work of a device runs in the order in which it was submitted, whatever its
    stream, so streams never have to wait for each other; only collectives go on beside other work."""

    def __init__(self, context: RuntimeContext, device: Any = None, priority: int = 0) -> None:
        self._context = context
        self.device_index = context.current_device() if device is None else context._device_number(device)

    def synchronize(self) -> None:
        self._context.synchronize(self.device_index)

    def query(self) -> bool:
        return self._context.are_over(self._context.engine.of_device(self.device_index))

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event(self._context)
        event.record(self)
        return event

    def wait_stream(self, stream: Stream) -> None:
        """Nothing to do: see the class."""

    def wait_event(self, event: Event) -> None:
        """Nothing to do: see the class."""


def device_names(context: RuntimeContext) -> Names:
    """Return ``torch.cuda``, which is ``torch.ahbm`` too."""
    stream = partial(Stream, context)
    return Names(
        "torch.cuda",
        set_device=context.set_device,
        current_device=context.current_device,
        device_count=lambda: context.shape.devices,
        is_available=lambda: True,
        synchronize=context.synchronize,
        Stream=stream,
        Event=partial(Event, context),
        current_stream=stream,
        default_stream=stream,
        stream=lambda stream: nullcontext(stream),
        empty_cache=lambda: None,
    )


class Process:
    """``multiprocessing.Process``: all that were started run as the ranks of one spawn when one is joined."""

    def __init__(
        self, context: RuntimeContext, group: None = None, target: Callable[..., Any] | None = None,
        name: str | None = None, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None,
        *, daemon: bool | None = None,
    ) -> None:  # fmt: skip
        if not callable(target):
            raise HostError("a process needs a function", advice="Process(target=fn, args=(rank, size))")
        self._context, self._run = context, partial(target, *args, **(kwargs or {}))
        self.name, self.exitcode = name, None

    exitcode: int | None

    def start(self) -> None:
        self._context.started.append(self)

    def join(self, timeout: Any = None) -> None:
        started, self._context.started = self._context.started, []
        if self not in started:
            self._context.started = started
            return
        try:
            self._context._spawn(lambda rank: started[rank]._run(), nprocs=len(started))
        except SpawnException as problem:
            for rank, process in enumerate(started):
                process.exitcode = 1 if rank in problem.errors else -15
            raise
        for process in started:
            process.exitcode = 0

    def is_alive(self) -> bool:
        return self in self._context.started


def process_names(context: RuntimeContext) -> Names:
    """Return ``torch.multiprocessing``."""
    names: Any = Names(
        "torch.multiprocessing",
        spawn=context._spawn,
        SpawnException=SpawnException,
        Process=partial(Process, context),
        set_start_method=lambda method, force=False: None,
        get_start_method=lambda allow_none=False: "spawn",
    )
    names.get_context = lambda method=None: names
    return names
