"""Launches of one kernel on every device, whose PEs send each other messages: they run as one.

A launch with ``_defer_wait`` on the PEs whose queues are installed is *held* until the other devices have
theirs, or until somebody needs its results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from megatile.runtime.host.oplog import Binding, shard_rows

if TYPE_CHECKING:
    from megatile.runtime.host.launches import Launches
    from megatile.runtime.host.tensor import Tensor
    from megatile.runtime.host.tl_kernels import HostKernel
    from megatile.sim import Launch


@dataclass(eq=False)
class HeldLaunch:
    """A launch on one device; what else a `Launch` has, it has once it runs."""

    context: Launches
    name: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    options: dict[str, Any]
    at_ps: int
    launch: Launch | None = None
    before: list[Launch | None] = field(default_factory=list)
    """What wrote its tensors before."""

    @property
    def tensors(self) -> list[Tensor]:
        return tensors_of(self.args)

    @property
    def device(self) -> int:
        return self.tensors[0].device_index

    def settle(self) -> Launch:
        """Run it, with those of the other devices if they are there; first let other ranks launch theirs."""
        while self.launch is None and self._others_go_on():
            self.context.workers.give_way()
        if self.launch is None:
            self.context.held.settle(self)
        assert self.launch is not None
        return self.launch

    def _others_go_on(self) -> bool:
        """Return whether other ranks may still come to a launch of the kernel."""
        workers = self.context.workers
        if workers.current is None:
            return False
        others = [w for w in workers.all if w is not workers.current and w.alive]
        ready = any(not w.gave_way if w.wait is None else w.wait[0]() for w in others)
        return bool(others) and (ready or self.context.engine.run.busy)

    def __iter__(self) -> Any:
        """One (handle, device, attributes), as KernBench's ``launch(_defer_wait=True)`` returns a list of."""
        return iter([(self, self.device, {})])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.settle(), name)


@dataclass
class HeldLaunches:
    """Those that wait, by kernel."""

    context: Launches
    waiting: dict[tuple[str, Any], list[HeldLaunch]] = field(default_factory=dict)

    def takes(self, args: Sequence[Any]) -> bool:
        """Return whether a launch is on the PEs of a device that have queues to other devices."""
        context, tensors = self.context, tensors_of(args)
        if not context.installed or not tensors:
            return False
        return {(s.cube, s.pe) for s in tensors[0].shards} == set(context.ccl.participants)

    def hold(self, held: HeldLaunch) -> None:
        """Keep a launch until every device has one of the kernel; a second one of a device runs the first."""
        key = held.name, held.fn
        for before in list(self.waiting.get(key, ())):
            if before.device == held.device:
                self.settle(before)
        for tensor in held.tensors:
            tensor.settle()
        held.before = [tensor.writer for tensor in held.tensors]
        group = self.waiting.setdefault(key, [])
        group.append(held)
        for tensor in held.tensors:
            tensor.writer = held  # type: ignore[assignment]
        if len(group) == self.context.ccl.sips:
            self.settle(held)

    def settle_all(self) -> None:
        for held in [held for group in self.waiting.values() for held in group]:
            held.settle()

    def settle(self, held: HeldLaunch) -> None:
        """Run this launch and those that wait with it: as one if every device has one, else one by one."""
        group = self.waiting.pop((held.name, held.fn), [held])
        context = self.context
        for one in group:
            for tensor, writer in zip(one.tensors, one.before, strict=True):
                tensor.writer = writer
        group.sort(key=lambda h: h.device)
        kernel = self._kernel(group) if len(group) == context.ccl.sips else None
        if kernel is not None:
            together = self._start(group, kernel)
            for one in group:
                one.launch = together
            return
        for one in group:
            one.launch = context.start_kernel(one.name, one.fn, one.args, one.options, one.at_ps)

    def _kernel(self, group: Sequence[HeldLaunch]) -> HostKernel | None:
        context, first, given = self.context, group[0], [h.args for h in group]
        return context.kernels.joint(first.name, first.fn, given, context.ccl.joint_options | first.options)

    def _start(self, group: Sequence[HeldLaunch], kernel: HostKernel) -> Launch:
        context, first = self.context, group[0]
        tiles = {tile: [h.args[int(name[1:])] for h in group] for tile, (name, _) in kernel.tiles.items()}
        inputs, binding = None, None
        if context.engine.data:
            inputs = {tile: np.concatenate([t.rows() for t in each]) for tile, each in tiles.items()}
        if context.op_log is not None:
            rows = {tile: [row for t in each for row in shard_rows(t)] for tile, each in tiles.items()}
            shards = {tile: [s for t in each for s in t.shards] for tile, each in tiles.items()}
            binding = Binding(rows, {t: r for t, r in rows.items() if t in kernel.written}, shards)
        at = max(h.at_ps for h in group)
        launch, outputs = context.engine.submit(
            kernel.plan,
            at,
            [h.device for h in group],
            inputs=inputs,
            binding=binding,
            name=first.name,
            after=[w for h in group for tensor in h.tensors for w in tensor.writers],
        )
        for tile in kernel.written & tiles.keys():
            count = len(tiles[tile][0].shards)
            for number, tensor in enumerate(tiles[tile]):
                tensor.writer = launch
                if outputs is not None:
                    tensor.set_rows(None, outputs[tile][number * count : (number + 1) * count])
        return launch


def tensors_of(args: Sequence[Any]) -> list[Tensor]:
    """Return the tensors of devices among the arguments of a launch."""
    return [a for a in args if getattr(a, "handle", None) is not None]
