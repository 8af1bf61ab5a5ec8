"""The functions of ``torch`` that work on tensors, by torch's names; what they do stands in `ops`."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from megatile.core.dtypes import dtype as dtype_name, numpy_dtype
from megatile.runtime.host import ops
from megatile.runtime.host.launches import Launches
from megatile.runtime.host.state import Names, missing
from megatile.runtime.host.storage import Device
from megatile.runtime.host.tensor import Tensor

OF_ONE = ("relu", "gelu", "silu", *ops.PLAIN)
METHODS = (
    *(
        *OF_ONE,
        "sum",
        "mean",
        "softmax",
        "amax",
        "amin",
        "max",
        "min",
        "numel",
        "clone",
        "narrow",
        "chunk",
        "split",
    ),
    *("reshape", "flatten", "squeeze", "unsqueeze", "transpose", "permute", "t", "unbind"),
)
"""Functions of a tensor that are its methods."""
OF_TWO = {
    "matmul": operator.matmul, "mm": operator.matmul, "add": operator.add, "mul": operator.mul,
    "maximum": lambda a, b: a._with("maximum", b), "minimum": lambda a, b: a._with("minimum", b),
}  # fmt: skip


class Namespace(Launches):
    """The part of a `RuntimeContext` that makes tensors of tensors, or of random numbers."""

    def _add_functions(self) -> None:
        self._generators: dict[int | None, np.random.Generator] = {}
        setattr(self, "Tensor", Tensor)  # noqa: B010  (in the class it would hide the type)
        for name, function in OF_TWO.items():
            setattr(self, name, lambda input, other, function=function: function(input, other))
        for name in METHODS:
            setattr(self, name, lambda input, *given, name=name, **how: getattr(input, name)(*given, **how))
        self.no_grad = self.inference_mode = nullcontext
        given = {name: getattr(self, name) for name in (*OF_ONE, "softmax", "embedding", "linear")}
        self.nn = Names("torch.nn", functional=Names("torch.nn.functional", **given))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise missing(self, "torch", name)

    def device(self, kind: Any, index: int | None = None) -> Device:
        """Return ``torch.device("cuda:1")``; which machine it is does not depend on the name."""
        return Device(kind if index is None else f"{kind}:{index}")

    def get_default_dtype(self) -> str:
        return self.default_dtype

    def set_default_dtype(self, dtype: Any) -> None:
        """Set the type of tensors that are made without one (f16 at first)."""
        self.default_dtype = dtype_name(dtype)

    # made of numbers

    def manual_seed(self, seed: int) -> None:
        """Choose the random numbers of this rank from here on; without it they are the same in every run."""
        self._generators[self._worker()] = np.random.default_rng(seed)

    def _worker(self) -> int | None:
        return self.workers.current.rank if self.workers.current else None

    @property
    def _random(self) -> np.random.Generator:
        """The generator of this worker, or of the host outside workers."""
        who = self._worker()
        return self._generators.setdefault(who, np.random.default_rng(0 if who is None else [1, who]))

    def _made(self, array: Any, dtype: Any, options: dict[str, Any]) -> Tensor:
        kind = dtype_name(dtype or self.default_dtype)
        return self.empty(array.shape, dtype=kind, **options).copy_(array.astype(numpy_dtype(kind)))

    def randn(self, *size: Any, dtype: Any = None, **options: Any) -> Tensor:
        return self._made(self._random.standard_normal(ops.extents(size)), dtype, options)

    def rand(self, *size: Any, dtype: Any = None, **options: Any) -> Tensor:
        return self._made(self._random.random(ops.extents(size)), dtype, options)

    def randint(self, low: int, high: int, size: Any, dtype: Any = "i64", **options: Any) -> Tensor:
        return self._made(self._random.integers(low, high, ops.extents((size,))), dtype, options)

    def arange(
        self, start: float, end: float | None = None, step: float = 1, *, dtype: Any = None, **options: Any
    ) -> Tensor:
        array = np.arange(start, step=step) if end is None else np.arange(start, end, step)
        return self._made(array, dtype or ("i64" if array.dtype.kind == "i" else None), options)

    # made of tensors

    def linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return ``input @ weight.T + bias``, as in torch; the weight is transposed first."""
        found = input @ weight.t()
        return found if bias is None else found + bias

    def embedding(self, input: Any, weight: Tensor) -> Tensor:
        numbers = input.numpy() if isinstance(input, Tensor) else np.asarray(input)
        ops.check_numbers(numbers, weight.shape[0])
        return ops.looked_up(weight, numbers, 0)

    def cat(self, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
        if not tensors:
            raise ops.OperationError("cat of no tensors")
        axis = ops.dimension(dim, tensors[0].ndim)
        others = {tuple(n for i, n in enumerate(t.shape) if i != axis) for t in tensors}
        if len(others) > 1 or len({t.dtype for t in tensors}) > 1:
            raise ops.OperationError(
                f"cat of {', '.join(f'{t.dtype}{list(t.shape)}' for t in tensors)} does not fit"
            )
        if tensors[0].handle is None:
            return self.from_numpy(np.concatenate([t.numpy() for t in tensors], axis))
        ops._on_device(*tensors)
        return ops.joined([t for t in tensors if t.numel()] or tensors[:1], axis)

    concat = cat

    def stack(self, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
        return self.cat([t.unsqueeze(dim) for t in tensors], dim)

    def split(self, tensor: Tensor, split_size_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
        return tensor.split(split_size_or_sections, dim)

    def equal(self, input: Tensor, other: Tensor) -> bool:
        return bool(input.shape == other.shape and np.array_equal(input.numpy(), other.numpy()))

    def allclose(self, input: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8) -> bool:
        a, b = (np.asarray(t.numpy(), np.float64) for t in (input, other))
        return bool(np.allclose(a, b, rtol=rtol, atol=atol))
