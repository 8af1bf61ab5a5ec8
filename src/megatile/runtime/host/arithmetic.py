"""What tensors do besides being copied: operators, reductions, shapes; names as in torch.

Operations of device tensors are launches (`ops`), those of host tensors NumPy's. Where a tensor lies on one
PE, ``view``, ``reshape`` and parts of the first dimension share its memory, as in torch. All other changes of
shape and order are copies, which refuse to be written: what is written to them would not reach the tensor.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from megatile.runtime.host import ops

_NUMPY: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "maximum": np.maximum,
    "minimum": np.minimum,
}


class Arithmetic:
    """The part of a `Tensor` that computes."""

    if TYPE_CHECKING:
        context: Any
        shape: tuple[int, ...]
        dtype: str
        handle: Any
        _data: Any

        @property
        def ndim(self) -> int: ...

        def numel(self) -> int: ...

        def copy_(self, source: Any) -> Any: ...

        def check_writable(self) -> None: ...

        def part(self, first: int, shape: tuple[int, ...]) -> Any: ...

    # operators

    def _with(self, name: str, other: Any, out: Any = None) -> Any:
        if not isinstance(other, (Arithmetic, int, float, np.number)):
            return NotImplemented
        if self.handle is None:
            if isinstance(other, Arithmetic) and other.handle is not None:
                ops._on_device(self)
            value = other._data if isinstance(other, Arithmetic) else other
            found = self.context.from_numpy(
                np.asarray(_NUMPY[name](self._data, value)).astype(self._data.dtype)
            )
            return found if out is None else self.copy_(found)
        if out is not None:
            self.check_writable()
        if isinstance(other, Arithmetic) and other.numel() == 1 and self.numel() > 1:
            other = float(other.item())  # type: ignore[attr-defined]
        return ops.binary(name, self, other, out)

    def __add__(self, other: Any) -> Any:
        return self._with("add", other)

    def __sub__(self, other: Any) -> Any:
        return self._with("sub", other)

    def __mul__(self, other: Any) -> Any:
        return self._with("mul", other)

    def __truediv__(self, other: Any) -> Any:
        return self._with("div", other)

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: Any) -> Any:
        return (self * -1.0) + other

    def __rtruediv__(self, other: Any) -> Any:
        if self.handle is None:
            return self.context.from_numpy(other / self._data)
        return ops.unary("divide", self, other)

    def __neg__(self) -> Any:
        return self * -1.0

    def __iadd__(self, other: Any) -> Any:
        return self._with("add", other, self)

    def __isub__(self, other: Any) -> Any:
        return self._with("sub", other, self)

    def __imul__(self, other: Any) -> Any:
        return self._with("mul", other, self)

    def __itruediv__(self, other: Any) -> Any:
        return self._with("div", other, self)

    add_, sub_, mul_, div_ = __iadd__, __isub__, __imul__, __itruediv__

    def __matmul__(self, other: Any) -> Any:
        if not isinstance(other, Arithmetic):
            return NotImplemented
        if self.handle is None and other.handle is None:
            return self.context.from_numpy(self._data @ other._data)
        ops._on_device(self, other)
        return ops.matmul(self, other)

    def matmul(self, other: Any) -> Any:
        return self @ other

    def _function(self, name: str) -> Any:
        return ops.unary(name, self)

    # reductions

    def _reduce(self, name: str, dim: int | None, keepdim: bool) -> Any:
        if self.handle is None:
            found = getattr(np, name)(self._data, axis=dim, keepdims=keepdim)
            return self.context.from_numpy(np.asarray(found, self._data.dtype))
        if not self.numel():
            raise ops.OperationError(f"{name} of a tensor of {self.shape}, which has no elements")
        if dim is not None:
            axis = ops.dimension(dim, self.ndim)
            shape = tuple(1 if i == axis else n for i, n in enumerate(self.shape))
            kept = tuple(n for i, n in enumerate(self.shape) if i != axis)
            return ops.reduced(name, self, axis).reshape(shape if keepdim else kept)
        found = self
        while found.ndim > 1:
            found = ops.reduced(name, found, -1)
        return ops.reduced(name, found, 0).reshape((1,) * self.ndim if keepdim else ())

    def sum(self, dim: int | None = None, keepdim: bool = False) -> Any:
        return self._reduce("sum", dim, keepdim)

    def mean(self, dim: int | None = None, keepdim: bool = False) -> Any:
        count = self.numel() if dim is None else self.shape[ops.dimension(dim, self.ndim)]
        return self._reduce("sum", dim, keepdim) * (1 / max(1, count))

    def amax(self, dim: int | None = None, keepdim: bool = False) -> Any:
        return self._reduce("max", dim, keepdim)

    def amin(self, dim: int | None = None, keepdim: bool = False) -> Any:
        return self._reduce("min", dim, keepdim)

    def max(self) -> Any:
        return self._reduce("max", None, False)

    def min(self) -> Any:
        return self._reduce("min", None, False)

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

    def detach(self) -> Any:
        return self

    def permute(self, *dims: Any) -> Any:
        order = dims[0] if len(dims) == 1 and not isinstance(dims[0], int) else dims
        axes = tuple(ops.dimension(d, self.ndim) for d in order)
        if sorted(axes) != list(range(self.ndim)):
            raise ops.OperationError(f"{tuple(order)} is no order of {self.ndim} dimensions")
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
        """So many elements of a dimension, from ``start`` on."""
        axis = ops.dimension(dim, self.ndim)
        if not 0 <= start <= start + length <= self.shape[axis]:
            raise ops.OperationError(
                f"dimension {axis} of {self.shape} has no elements {start}:{start + length}"
            )
        shape = tuple(length if i == axis else n for i, n in enumerate(self.shape))
        if self.handle is None:
            index = tuple(
                slice(start, start + length) if i == axis else slice(None) for i in range(self.ndim)
            )
            return self.context.from_numpy(self._data[index])
        if len(self.handle.shards) == 1 and prod(self.shape[:axis]) == 1:
            return self.part(start * prod(self.shape[axis + 1 :]), shape)
        return _copy(ops.taken(self, axis, start, start + length), "narrow")

    def split(self, split_size: int | Sequence[int], dim: int = 0) -> tuple[Any, ...]:
        """Parts of so many elements of a dimension, the last of which may be smaller; or of these lengths."""
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


def _function(name: str) -> Callable[[Any], Any]:
    return lambda self: self._function(name)


for _name in ("relu", "gelu", "silu", *ops.PLAIN):
    setattr(Arithmetic, _name, _function(_name))


def _copy(tensor: Any, how: str) -> Any:
    """Mark a tensor as a copy that torch would not make."""
    tensor.copy_made_by = how
    return tensor
