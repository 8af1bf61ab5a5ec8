"""What tensors do: copies, operators, reductions, shapes; names as in torch.

Operations of device tensors are launches (`ops`), those of host tensors NumPy's. Where a tensor lies on one
PE, ``view``, ``reshape`` and parts of the first dimension share its memory, as in torch. All other changes of
shape and order are copies, which refuse to be written: what is written to them would not reach the tensor.
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partialmethod
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from megatile.core.dtypes import itemsize, numpy_dtype
from megatile.runtime.host import ops
from megatile.runtime.host.placement import PlacedShard, TensorHandle
from megatile.runtime.host.state import missing
from megatile.runtime.host.storage import ShapeMismatch, Stored, TensorError, pieces_of

if TYPE_CHECKING:
    from megatile.sim import Launch

_NUMPY: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "maximum": np.maximum,
    "minimum": np.minimum,
}


def _operator(name: str, in_place: bool = False) -> Callable[[Any, Any], Any]:
    return lambda self, other: self._with(name, other, self if in_place else None)


def _reduction(name: str) -> Callable[..., Any]:
    return lambda self, dim=None, keepdim=False: self._reduce(name, dim, keepdim)


class Tensor(Stored):
    """An array of the host, or a tensor of one device."""

    requires_grad = is_leaf = False

    def __getattr__(self, name: str) -> Any:
        raise missing(self, "a tensor", name)

    # contents

    def part(self, first: int, shape: tuple[int, ...]) -> Tensor:
        """Return so many elements from ``first`` on, in the same memory (of one PE), as a tensor of this
        shape."""
        if first == 0 and shape == tuple(self.shape):
            return self
        return Part(self, first, shape)

    def copy_(self, source: Any) -> Tensor:
        """Copy from a tensor (of the host or the same device) or an array; shapes must be the same."""
        origin = source if isinstance(source, Tensor) else self.context.from_numpy(np.asarray(source))
        if tuple(origin.shape) != tuple(self.shape):
            raise ShapeMismatch(f"copy_ shape mismatch: {tuple(origin.shape)} into {tuple(self.shape)}")
        self.check_writable()
        if self.handle is None:
            self._data[...] = np.asarray(origin._read()).astype(self._data.dtype)
        elif origin.handle is None:
            pieces, nbytes = pieces_of(self.shards, self.shape), sum(s.nbytes for s in self.shards)
            self.context.host_copy(f"write {self.name}", nbytes, pieces, self)
            self.given(origin._data)
        elif origin.device_index != self.device_index:
            self.context.move(origin, self)
        else:
            self.context.relayout(origin, self)
        return self

    def fill_(self, value: float) -> Tensor:
        return self.copy_(np.full(self.shape, value, dtype=numpy_dtype(self.dtype)))

    def zero_(self) -> Tensor:
        return self.fill_(0)

    def to(self, target: Any = None, *, dtype: Any = None) -> Tensor:
        """On another device (``"cpu"``, a number, ``"ahbm:1"``), or in another element type."""
        return self.context.convert(self, target, dtype)

    def cpu(self) -> Tensor:
        return self.to("cpu")

    def cuda(self, device: Any = None) -> Tensor:
        return self.to(self.context.current_device() if device is None else device)

    half = partialmethod(to, dtype="f16")
    bfloat16 = partialmethod(to, dtype="bf16")
    float = partialmethod(to, dtype="f32")

    def __float__(self) -> builtins.float:
        return builtins.float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def clone(self) -> Tensor:
        return self.context.empty_like(self).copy_(self)

    def free(self) -> None:
        """Give the memory back now; garbage collection does the same later."""
        if self.handle is None:
            return
        self.context.release(self.handle)
        self._finalizer.detach()

    # operators

    def _with(self, name: str, other: Any, out: Any = None) -> Any:
        if not isinstance(other, (Tensor, int, float, np.number)):
            return NotImplemented
        if self.handle is None:
            if isinstance(other, Tensor) and other.handle is not None:
                ops._on_device(self)
            value = other._data if isinstance(other, Tensor) else other
            found = self.context.from_numpy(
                np.asarray(_NUMPY[name](self._data, value)).astype(self._data.dtype)
            )
            return found if out is None else self.copy_(found)
        if out is not None:
            self.check_writable()
        if isinstance(other, Tensor) and other.numel() == 1 and self.numel() > 1:
            other = float(other.item())
        return ops.binary(name, self, other, out)

    __add__ = __radd__ = _operator("add")
    __sub__ = _operator("sub")
    __mul__ = __rmul__ = _operator("mul")
    __truediv__ = _operator("div")
    __iadd__ = add_ = _operator("add", in_place=True)
    __isub__ = sub_ = _operator("sub", in_place=True)
    __imul__ = mul_ = _operator("mul", in_place=True)
    __itruediv__ = div_ = _operator("div", in_place=True)

    def __rsub__(self, other: Any) -> Any:
        return (self * -1.0) + other

    def __rtruediv__(self, other: Any) -> Any:
        if self.handle is None:
            return self.context.from_numpy(other / self._data)
        return ops.unary("divide", self, other)

    def __neg__(self) -> Any:
        return self * -1.0

    def __matmul__(self, other: Any) -> Any:
        if not isinstance(other, Tensor):
            return NotImplemented
        if self.handle is None and other.handle is None:
            return self.context.from_numpy(self._data @ other._data)
        ops._on_device(self, other)
        return ops.matmul(self, other)

    def matmul(self, other: Any) -> Any:
        return self @ other

    # reductions

    def _reduce(self, name: str, dim: int | None, keepdim: bool) -> Any:
        if self.handle is None:
            found = getattr(np, name)(self._data, axis=dim, keepdims=keepdim)
            return self.context.from_numpy(np.asarray(found, self._data.dtype))
        if not self.numel():
            raise ops.OperationError(f"{name} of a tensor of {self.shape}, which has no elements")
        if dim is not None:
            axis = ops.dimension(dim, self.ndim)
            shape = ops.along(self.shape, axis, 1)
            kept = tuple(n for i, n in enumerate(self.shape) if i != axis)
            return ops.reduced(name, self, axis).reshape(shape if keepdim else kept)
        found = self
        while found.ndim > 1:
            found = ops.reduced(name, found, -1)
        return ops.reduced(name, found, 0).reshape((1,) * self.ndim if keepdim else ())

    sum, amax, amin = _reduction("sum"), _reduction("max"), _reduction("min")

    def mean(self, dim: int | None = None, keepdim: bool = False) -> Any:
        count = self.numel() if dim is None else self.shape[ops.dimension(dim, self.ndim)]
        return self.sum(dim, keepdim) * (1 / max(1, count))

    def max(self) -> Any:
        return self.amax()

    def min(self) -> Any:
        return self.amin()

    def softmax(self, dim: int = -1) -> Any:
        if ops.dimension(dim, self.ndim) != self.ndim - 1:
            raise ops.OperationError("softmax is over the last dimension here", advice="transpose it there")
        return ops.softmax(self)

    # shapes

    def reshape(self, *shape: Any) -> Any:
        extents = ops.resolved(shape, self.numel())
        if self.handle is None:
            return self.context.from_numpy(self._data.reshape(extents))
        if len(self.handle.shards) == 1:
            return self.part(0, extents)
        return self if extents == tuple(self.shape) else _copy(ops.relaid(self, shape=extents), "view")

    view = reshape

    def flatten(self) -> Any:
        return self.reshape(-1)

    def unsqueeze(self, dim: int) -> Any:
        at = ops.dimension(dim, self.ndim + 1)
        return self.reshape((*self.shape[:at], 1, *self.shape[at:]))

    def squeeze(self, dim: int | None = None) -> Any:
        drop = range(self.ndim) if dim is None else [ops.dimension(dim, self.ndim)]
        return self.reshape(tuple(n for i, n in enumerate(self.shape) if i not in drop or n != 1))

    def contiguous(self) -> Any:
        return self

    detach = contiguous

    def permute(self, *dims: Any) -> Any:
        order = dims[0] if len(dims) == 1 and not isinstance(dims[0], int) else dims
        axes = tuple(ops.dimension(d, self.ndim) for d in order)
        if sorted(axes) != list(range(self.ndim)):
            raise ops.OperationError(f"{tuple(order)} is not an order of {self.ndim} dimensions")
        if self.handle is None:
            return self.context.from_numpy(self._data.transpose(axes))
        return _copy(ops.transposed(self, axes), "permute")

    def transpose(self, dim0: int, dim1: int) -> Any:
        order = list(range(self.ndim))
        a, b = ops.dimension(dim0, self.ndim), ops.dimension(dim1, self.ndim)
        order[a], order[b] = order[b], order[a]
        return self.permute(*order)

    def t(self) -> Any:
        return self.permute(*reversed(range(self.ndim)))

    @property
    def T(self) -> Any:
        return self.t()

    def narrow(self, dim: int, start: int, length: int) -> Any:
        """Return so many elements of a dimension, from ``start`` on."""
        axis = ops.dimension(dim, self.ndim)
        if not 0 <= start <= start + length <= self.shape[axis]:
            raise ops.OperationError(
                f"dimension {axis} of {self.shape} has no elements {start}:{start + length}"
            )
        shape = ops.along(self.shape, axis, length)
        if self.handle is None:
            index = tuple(
                slice(start, start + length) if i == axis else slice(None) for i in range(self.ndim)
            )
            return self.context.from_numpy(self._data[index])
        if len(self.handle.shards) == 1 and prod(self.shape[:axis]) == 1:
            return self.part(start * prod(self.shape[axis + 1 :]), shape)
        return _copy(ops.taken(self, axis, start, start + length), "narrow")

    def split(self, split_size: int | Sequence[int], dim: int = 0) -> tuple[Any, ...]:
        """Split a dimension into parts of so many elements (the last may be smaller), or of these lengths."""
        length = self.shape[ops.dimension(dim, self.ndim)]
        sizes = split_size
        if isinstance(sizes, int):
            size = max(1, sizes)
            sizes = [min(size, length - at) for at in range(0, length, size)] or [0]
        if sum(sizes) != length:
            raise ops.OperationError(f"parts of {list(sizes)} do not make up {length} elements")
        ends = np.cumsum([0, *sizes]).tolist()
        return tuple(self.narrow(dim, at, size) for at, size in zip(ends, sizes, strict=False))

    def chunk(self, chunks: int, dim: int = 0) -> tuple[Any, ...]:
        length = self.shape[ops.dimension(dim, self.ndim)]
        return self.split(-(-length // max(1, chunks)) or 1, dim)

    def unbind(self, dim: int = 0) -> tuple[Any, ...]:
        axis = ops.dimension(dim, self.ndim)
        return tuple(self.narrow(axis, i, 1).squeeze(axis) for i in range(self.shape[axis]))

    def __iter__(self) -> Any:
        return iter(self.unbind(0))


class Part(Tensor):
    """Elements of a tensor of one PE under another shape (``view``, ``chunk`` …), in the same memory."""

    def __init__(self, whole: Tensor, first: int, shape: tuple[int, ...]) -> None:
        base, before = whole.home
        self._home = (base, before + first)
        self.context, self.shape, self.dtype = base.context, shape, base.dtype
        self.copy_made_by = base.copy_made_by

    @property
    def home(self) -> tuple[Tensor, int]:
        return self._home

    @property
    def handle(self) -> TensorHandle:  # type: ignore[override]
        base, first = self._home
        handle = base._there() if base.handle is None else base.handle
        (shard,) = handle.shards
        skipped, nbytes = first * itemsize(self.dtype), self.numel() * itemsize(self.dtype)
        spec = replace(shard.spec, nbytes=nbytes, slices=tuple(slice(0, extent) for extent in self.shape))
        address = replace(shard.address, local_offset=shard.address.local_offset + skipped)
        va = None if handle.va_base is None else handle.va_base + skipped
        return replace(handle, shape=self.shape, shards=(PlacedShard(spec, address),), va_base=va)

    @property
    def _data(self) -> Any:
        base, first = self._home
        if base._data is None:
            return None
        return base._data.reshape(-1)[first : first + self.numel()].reshape(1, *self.shape)

    @_data.setter
    def _data(self, rows: Any) -> None:
        base, first = self._home
        whole = np.array(base._data)
        whole.reshape(-1)[first : first + self.numel()] = np.asarray(rows).reshape(-1)
        base._data = whole

    @property
    def writer(self) -> Launch | None:
        return self._home[0].writer

    @writer.setter
    def writer(self, launch: Launch | None) -> None:
        self._home[0].writer = launch

    def free(self) -> None:
        raise TensorError(f"this is a part of '{self.name}', whose memory is freed as a whole")


def _function(name: str) -> Callable[[Any], Any]:
    return lambda self: ops.unary(name, self)


for _name in ("relu", "gelu", "silu", *ops.PLAIN):
    setattr(Tensor, _name, _function(_name))


def _copy(tensor: Any, how: str) -> Any:
    """Mark a tensor as a copy that torch would not make."""
    tensor.copy_made_by = how
    return tensor
