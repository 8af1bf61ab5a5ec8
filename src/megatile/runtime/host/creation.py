"""Making tensors: the functions of the namespace that give one, and the memory behind it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from megatile.core.dtypes import dtype as dtype_name, itemsize, numpy_dtype
from megatile.core.errors import MegatileError
from megatile.runtime.host import ops
from megatile.runtime.host.allocators import AllocationError
from megatile.runtime.host.placement import (
    DPPolicy,
    TensorHandle,
    alike,
    deploy_tensor,
    release,
    resolve_dp_policy,
)
from megatile.runtime.host.state import HostState, no_autograd
from megatile.runtime.host.storage import empty_rows
from megatile.runtime.host.tensor import Tensor

ONE_PE = DPPolicy(num_cubes=1, num_pes=1)


class Creation(HostState):
    """The part of a `RuntimeContext` that makes tensors."""

    _names = 0
    """Tensors without a name so far."""

    def empty(
        self,
        *shape: Any,
        dtype: Any = None,
        dp: DPPolicy | None = None,
        name: str | None = None,
        device: Any = None,
        requires_grad: bool = False,
    ) -> Tensor:
        """Return a tensor of the current device, whose contents are left as they are."""
        if requires_grad:
            raise no_autograd("requires_grad=True")
        return self._make(shape, dtype, dp, name, device, None)

    def zeros(
        self,
        *shape: Any,
        dtype: Any = None,
        dp: DPPolicy | None = None,
        name: str | None = None,
        device: Any = None,
        requires_grad: bool = False,
    ) -> Tensor:
        if requires_grad:
            raise no_autograd("requires_grad=True")
        return self._make(shape, dtype, dp, name, device, 0.0)

    def ones(self, *shape: Any, **options: Any) -> Tensor:
        return self.full(shape[0] if len(shape) == 1 else shape, 1, **options)

    def full(self, shape: Any, fill_value: float, **options: Any) -> Tensor:
        return self.empty(shape, **options).fill_(fill_value)

    def empty_like(self, tensor: Tensor, dtype: Any = None, device: Any = None) -> Tensor:
        element = dtype_name(dtype or tensor.dtype)
        if str(device) == "cpu" or (device is None and tensor.handle is None):
            return self.from_numpy(np.empty(tensor.shape, numpy_dtype(element)))
        if tensor.handle is None:
            return self.empty(tensor.shape, dtype=element, device=device)
        sip = None if device is None else self._device_number(device)
        specs = alike(tensor.shards, itemsize(tensor.dtype), itemsize(element), sip)
        return self._deploy(tensor.shape, element, specs, None, tensor.handle.mem_kind, None)

    def zeros_like(self, tensor: Tensor, **options: Any) -> Tensor:
        return self.full_like(tensor, 0, **options)

    def ones_like(self, tensor: Tensor, **options: Any) -> Tensor:
        return self.full_like(tensor, 1, **options)

    def full_like(self, tensor: Tensor, fill_value: float, **options: Any) -> Tensor:
        return self.empty_like(tensor, **options).fill_(fill_value)

    def from_numpy(self, array: Any) -> Tensor:
        """Return a tensor of the host that shares the array's memory; ``copy_`` brings it to a device."""
        data = np.asarray(array)
        context: Any = self
        return Tensor(context, data.shape, dtype_name(data.dtype), data)

    def tensor(self, data: Any, dtype: Any = None, **options: Any) -> Tensor:
        """Return a tensor of the current device with these contents."""
        array = np.asarray(data)
        if dtype is not None:
            array = array.astype(numpy_dtype(dtype_name(dtype)))
        elif array.dtype == np.float64:
            array = array.astype(np.float32)
        return self.empty(array.shape, dtype=array.dtype, **options).copy_(array)

    def _make(
        self, shape: Any, dtype: Any, dp: DPPolicy | None, name: str | None, device: Any, fill: float | None
    ) -> Tensor:
        extents = ops.extents(shape)
        element = dtype_name(dtype or self.default_dtype)
        if str(device) == "cpu":
            return self.from_numpy(np.zeros(extents, numpy_dtype(element)))
        specs = resolve_dp_policy(
            dp or ONE_PE,
            shape=extents,
            itemsize=numpy_dtype(element).itemsize,
            num_pe=self.shape.pes,
            num_cubes=self.shape.cubes,
            target_sip=self.current_device() if device is None else self._device_number(device),
        )
        return self._deploy(tuple(int(e) for e in extents), element, specs, name, "hbm", fill)

    def _deploy(
        self, shape: Any, dtype: str, specs: Any, name: str | None, kind: str, fill: float | None
    ) -> Tensor:
        self._names += 1
        title = str(name or f"tensor{self._names}")
        handle = deploy_tensor(title, shape, dtype, specs, self.memory, kind, self.memory.virtual)
        if handle.va_base is not None:
            self._map_messages(title, handle)
            for s in handle.shards:
                if s.nbytes:
                    self.memory.mmu(s.sip, s.cube, s.pe).map(
                        handle.va_base + s.offset_bytes, s.nbytes, s.address, f"tensor '{title}'"
                    )
        rows = empty_rows(handle, fill) if self.engine.data else None
        context: Any = self
        made = Tensor(context, handle.shape, handle.dtype, rows, handle)
        context.memory_store.add(made)
        if self.op_log is not None:
            self.op_log.tensor(made, zero=fill is not None)
        return made

    def _map_messages(self, title: str, handle: TensorHandle) -> None:
        """Where PEs have page tables, a message over the control path says what they map."""
        if handle.shards and self.engine.machine.memory(self.shape.hbm).page is not None:
            took = self.engine.control_ps()
            device = handle.shards[0].sip
            self.wait_on(self.engine.occupy(f"map {title}", self.clock_ps, took, (device,)))

    def release(self, handle: TensorHandle) -> None:
        """Give the memory of a tensor back."""
        if handle.freed:
            raise AllocationError(f"tensor '{handle.name}' was already freed")
        handle.freed = True
        release(handle.shards, self.memory)
        if handle.va_base is not None:
            for s in handle.shards:
                if s.nbytes:
                    self.memory.mmu(s.sip, s.cube, s.pe).unmap(handle.va_base + s.offset_bytes)
            self.memory.virtual.free(handle.va_base, handle.nbytes)

    def convert(self, tensor: Tensor, target: Any, dtype: Any) -> Tensor:
        """``tensor.to``: another device, another type, or both."""
        if dtype is None and target is not None and str(target) != "cpu":
            with suppress(MegatileError):
                dtype, target = dtype_name(target), None
        element = dtype_name(dtype or tensor.dtype)
        if target is None and element == tensor.dtype:
            return tensor
        if target is None and tensor.handle is not None:
            target = tensor.device_index
        if target is None or str(target) == "cpu":
            return self.from_numpy(tensor.numpy().astype(numpy_dtype(element)))
        device = self._device_number(target)
        if tensor.handle is not None and (device, element) == (tensor.device_index, tensor.dtype):
            return tensor
        same = tensor.handle is not None and tensor.dtype == element
        source = tensor if same else self.from_numpy(tensor.numpy().astype(numpy_dtype(element)))
        if tensor.handle is None:
            return self.empty(tensor.shape, dtype=element, device=device).copy_(source)
        specs = alike(tensor.shards, itemsize(tensor.dtype), itemsize(element), device)
        return self._deploy(tensor.shape, element, specs, None, "hbm", None).copy_(source)
