"""Device memory by address, at no simulated cost: what benches use to set inputs and look at results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from megatile.core.dtypes import dtype as dtype_name, numpy_dtype
from megatile.core.quantities import whole
from megatile.runtime.host.storage import TensorError
from megatile.runtime.host.tensor import Tensor

if TYPE_CHECKING:
    from megatile.runtime.host.placement import PlacedShard


class MemoryStore:
    """The memories of a host's devices. An address is virtual (``tensor.va_base`` …) or physical
    (``shard.pa`` …), and must lie in a tensor."""

    def __init__(self) -> None:
        self.tensors: WeakValueDictionary[int, Tensor] = WeakValueDictionary()
        """Every tensor on a device, by its number."""
        self._numbers = count()

    def add(self, tensor: Tensor) -> None:
        self.tensors[next(self._numbers)] = tensor

    def write(self, space: str, addr: int, array: Any) -> None:
        """Put an array at an address; a virtual one means all copies of the shard."""
        data = np.ascontiguousarray(array)
        for tensor, number, offset, size in self._found(space, addr, data.nbytes):
            row = np.array(tensor._data[number])
            row.reshape(-1).view(np.uint8)[offset : offset + size] = data.reshape(-1).view(np.uint8)
            tensor._data[number] = row

    def read(self, space: str, addr: int, *, shape: Sequence[int], dtype: Any = "f16") -> Any:
        """Return so many elements from an address on."""
        kind = numpy_dtype(dtype_name(dtype))
        nbytes = int(np.prod(shape)) * kind.itemsize
        tensor, number, offset, size = next(self._found(space, addr, nbytes))
        found = np.ascontiguousarray(tensor._data[number]).reshape(-1).view(np.uint8)
        return found[offset : offset + size].view(kind).reshape(shape).copy()

    def _found(self, space: str, addr: int, nbytes: int) -> Iterator[tuple[Tensor, int, int, int]]:
        """Yield tensor, number of its shard, first byte in it and size: of every copy at the address."""
        there = False
        if whole(addr) is None:
            raise TensorError(f"{addr!r} is not an address", advice="use va_base or shard.pa of a tensor")
        for tensor in list(self.tensors.values()):
            if tensor.handle is None or tensor.handle.freed or tensor.handle.mem_kind != space:
                continue
            for number, shard in enumerate(tensor.shards):
                offset = _offset(tensor, shard, addr)
                if 0 <= offset < shard.nbytes:
                    there = True
                    if offset + nbytes > shard.nbytes:
                        raise TensorError(
                            f"{nbytes} bytes at {addr:#x} leave the shard of '{tensor.name}', "
                            f"which ends after {shard.nbytes - offset}"
                        )
                    tensor.contents()  # refused where only times are found out
                    yield tensor, number, offset, nbytes
        if not there:
            raise TensorError(
                f"no tensor lies at {addr:#x} of {space}", advice="use va_base or shard.pa of a tensor"
            )


def _offset(tensor: Tensor, shard: PlacedShard, addr: int) -> int:
    """Return where an address lies in a shard, -1 if it is not in it."""
    virtual = addr - (tensor.va_base or 0) - shard.offset_bytes
    if tensor.va_base is not None and 0 <= virtual < shard.nbytes:
        return virtual
    return addr - shard.pa if 0 <= addr - shard.pa < shard.nbytes else -1
