"""Work on devices: kernels, copies from and to the host, tensors laid anew or moved to another device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from megatile.plan.model import PlanError
from megatile.runtime.host.creation import Creation
from megatile.runtime.host.distributed import Distributed
from megatile.runtime.host.groups import Call
from megatile.runtime.host.joint_launch import HeldLaunch, HeldLaunches
from megatile.runtime.host.oplog import Binding, shard_rows
from megatile.runtime.host.relayout import Move
from megatile.runtime.host.run_collective import Collectives, tell_kernel
from megatile.runtime.host.storage import Stored, TensorError
from megatile.runtime.host.tensor import Tensor
from megatile.runtime.host.tl_kernels import HostKernel, KernelCache, explained
from megatile.sim import Launch

MAX_SHARD_PAIRS = 1 << 11
"""Pairs of PEs between which copies are made; if every PE is to have everything, more go through one PE."""


class Launches(Creation):
    """The part of a `RuntimeContext` that gives devices work."""

    kernels: KernelCache
    collectives: Collectives
    distributed: Distributed
    installed: bool
    ccl: Any

    def wait(self, handle: Launch, **_: Any) -> None:
        """Wait for a launch that was started with ``_defer_wait``."""
        self.wait_on(handle)

    def host_copy(self, name: str, nbytes: int, pieces: int, tensor: Stored) -> None:
        """Copy bytes between the host and a device, after what the tensor waits for."""
        self.wait_on(
            self.engine.host_copy(name, nbytes, pieces, self.clock_ps, tensor.device_index, tensor.writers)
        )

    def relayout(
        self, source: Tensor, target: Tensor, moves: Sequence[Move] | None = None, zero: bool = False
    ) -> None:
        """Copy elements of a tensor to their places in another one of the same device, by its PEs: all of
        them, or as the ``moves`` say. ``zero``: what they do not reach becomes 0."""
        if not target.numel() or not (source.numel() or zero):
            return
        source, target = (t if t.ndim else t.part(0, (1,)) for t in (source, target))
        if not source.numel():
            moves = []
        if moves is None:
            whole = Move.reshaped(source.shape, target.shape)
            copies = len({shard.offset_bytes for shard in target.shards}) == 1
            if whole is None or (copies and len(source.shards) * len(target.shards) > MAX_SHARD_PAIRS):
                # A PE that has all elements in order has them in any shape.
                one = self.empty(source.shape, dtype=source.dtype)
                self.relayout(source, one)
                source = one.part(0, tuple(target.shape))
                whole = Move.reshaped(target.shape, target.shape)
            assert whole is not None
            moves = [whole]
        kernel = self.kernels.relayout(source, target, tuple(moves), zero)
        self.wait_on(self._start(f"copy to {target.name}", kernel, {"x": source, "y": target}))

    def product(self, x: Tensor, w: Tensor, y: Tensor) -> None:
        """``y = x @ w`` by all PEs, of matrices in one piece in a memory that they all reach."""
        kernel = self.kernels.product(x, w, y)
        self._check_scratch("matmul", kernel.scratch_bytes, y)
        self.wait_on(self._start("matmul", kernel, {"x": x, "w": w, "y": y}))

    def move(self, source: Tensor, target: Tensor) -> None:
        """Move a tensor to another device, over the network between them."""
        if source.dtype != target.dtype:
            raise TensorError(f"copy_ between devices keeps the type: {source.dtype} is not {target.dtype}")
        what = (source.numel(), source.dtype, [source], [target])
        sent, got = (
            Call("send_recv", end.device_index, *what, at_ps=self.clock_ps) for end in (source, target)
        )
        self.wait_on(self.collectives.message(sent, got))

    def launch(
        self, name: str, fn: Callable[..., Any], *args: Any, _defer_wait: bool = False, **options: Any
    ) -> Launch:
        """Run a ``tl`` kernel ``fn(*args, tl)`` on the PEs where its tensors lie, and wait for it.

        ``_defer_wait`` goes on at once; reads of its tensors wait. Such launches of one kernel on all devices
        run together where queues are installed (`joint_launch`). ``options`` are those of ``tl.read_kernel``
        (``topology``, ``n_slots`` …).
        """
        if _defer_wait and self.held.takes(args):
            held = HeldLaunch(self, name, fn, args, options, self.clock_ps)
            self.held.hold(held)
            return held  # type: ignore[return-value]
        launch = self.start_kernel(name, fn, args, options)
        if not _defer_wait:
            self.wait_on(launch)
        return launch

    def start_kernel(
        self,
        name: str,
        fn: Callable[..., Any],
        args: Sequence[Any],
        options: Mapping[str, Any],
        at_ps: int | None = None,
    ) -> Launch:
        """Submit a kernel on the PEs of one device."""
        kernel = self.kernels.checked(name, fn, args, {**self._queues(args), **options})
        tensors = {f"t{i}": a for i, a in enumerate(args) if isinstance(a, Tensor)}
        used = {n: tensors[n] for n, _ in kernel.tiles.values()}
        for tile in kernel.written & used.keys():
            used[tile].check_writable()
        self._check_scratch(name, kernel.scratch_bytes, next(iter(used.values())))
        try:
            launch = self._start(name, kernel, used, at_ps)
        except PlanError as problem:
            raise explained(problem, name, args, self.machine, self.shape) from problem
        if launch.known is not None and kernel.communicates:
            tell_kernel(name, launch.known)
        return launch

    @cached_property
    def held(self) -> HeldLaunches:
        """Launches that wait for those of other devices."""
        return HeldLaunches(self)

    def _queues(self, args: Sequence[Any]) -> dict[str, Any]:
        """Return the queues that are installed on the PEs of a launch, as options of it."""
        if not self.installed:
            return {}
        first = next((a for a in args if isinstance(a, Tensor)), None)
        if first is None or first.handle is None:
            return {}
        return self.ccl.launch_options({(s.cube, s.pe) for s in first.shards})

    def _start(
        self, name: str, kernel: HostKernel, used: Mapping[str, Tensor], at_ps: int | None = None
    ) -> Launch:
        """Submit a kernel whose tiles are shards of these tensors."""
        tiles = {tile: (used[n], numbers) for tile, (n, numbers) in kernel.tiles.items()}
        device = next(iter(used.values())).device_index
        inputs = None
        if self.engine.data:
            inputs = {
                t: tensor.rows(numbers) for t, (tensor, numbers) in tiles.items() if t not in kernel.made
            }
        launch, outputs = self.engine.submit(
            kernel.plan,
            self.clock_ps if at_ps is None else at_ps,
            (device,),
            inputs=inputs,
            binding=_binding(tiles, kernel) if self.op_log is not None else None,
            placed=kernel.on(device, self.shape) if device else None,
            installed=not kernel.plan.channels or not self.collectives.first_time(kernel.plan),
            name=name,
            after=[w for tensor in used.values() for w in tensor.writers],
            addresses=_addresses(tiles) if self.engine.caches else None,
        )
        for tile in kernel.written & tiles.keys():
            tensor, numbers = tiles[tile]
            tensor.writer = launch
            if outputs is not None:
                tensor.set_rows(numbers, outputs[tile])
        return launch

    def _check_scratch(self, name: str, needed: int, tensor: Tensor) -> None:
        """Check whether a kernel's tiles and queues fit beside what is allocated in the near memory of its
        PEs."""
        for shard in tensor.shards:
            pool = self.memory.pe(shard.sip, shard.cube, shard.pe).pools["tcm"]
            if needed > pool.free_bytes:
                pool.take(needed, f"scratch of kernel '{name}'")


def _addresses(tiles: Mapping[str, tuple[Tensor, Sequence[int] | None]]) -> dict[str, Any]:
    """Return where the tensors of tiles lie: their addresses, and which of their shards are meant."""
    return {
        tile: (tensor.device_index, tensor.va_base, () if numbers is None else tuple(numbers))
        for tile, (tensor, numbers) in tiles.items()
    }


def _binding(tiles: Mapping[str, tuple[Tensor, Sequence[int] | None]], kernel: HostKernel) -> Binding:
    rows, shards = {}, {}
    for tile, (tensor, numbers) in tiles.items():
        every, chosen = shard_rows(tensor), range(len(tensor.shards)) if numbers is None else numbers
        rows[tile] = [every[n] for n in chosen]
        shards[tile] = [tensor.shards[n] for n in chosen]
    load = {tile: r for tile, r in rows.items() if tile not in kernel.made}
    return Binding(load, {tile: r for tile, r in rows.items() if tile in kernel.written}, shards)
