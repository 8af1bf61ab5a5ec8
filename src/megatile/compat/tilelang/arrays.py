"""Arrays of kernels: torch where it is installed, otherwise NumPy; made to order, compared."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any

import numpy as np

from megatile.compat.tilelang.buffers import TensorType
from megatile.core.dtypes import dtype as short_name, is_float, numpy_dtype
from megatile.core.errors import MegatileError


class MismatchError(MegatileError, AssertionError):
    """Results that are not those of the reference."""


class TensorSupplyType(Enum):
    """What arrays are filled with."""

    Integer = 1
    Uniform = 2
    Normal = 3
    Randn = 4
    Zero = 5
    One = 6
    Auto = 7


def torch_if_any() -> Any:
    try:
        import torch
    except ImportError:
        return None
    return torch


def new_array(kind: TensorType, beside: Iterable[Any] = (), supply: Any = TensorSupplyType.Zero,
              seed: int = 0) -> Any:  # fmt: skip
    """An array of a type: NumPy if those beside it are, otherwise torch where it is installed."""
    shape = tuple(int(e) for e in kind.shape)
    torch = None if any(isinstance(a, np.ndarray) for a in beside) else torch_if_any()
    values = _values(shape, kind.dtype.short, supply, seed)
    if torch is None:
        return values.astype(numpy_dtype(kind.dtype.short))
    if kind.dtype.short in _HALF_BYTES:
        made = torch.empty((*shape[:-1], shape[-1] // 2), dtype=torch.uint8).view(kind.dtype.as_torch())
        pack_into(made, values.astype(numpy_dtype(kind.dtype.short)), kind.dtype.short)
        return made
    return torch.from_numpy(values).to(kind.dtype.as_torch())


def _values(shape: tuple[int, ...], element: str, supply: Any, seed: int) -> np.ndarray:
    """Numbers as TileLang supplies them."""
    random = np.random.default_rng(seed)
    kind = getattr(supply, "name", str(supply))
    if kind in ("Zero", "One"):
        return np.full(shape, float(kind == "One"), np.float32)
    if not is_float(element):
        low, high = (0, 2) if element == "bool" else (0, 3) if element[0] == "u" else (-2, 3)
        return random.integers(low, high, shape).astype(np.float32)
    if kind in ("Integer", "Auto") and element.startswith("f8"):
        return random.integers(-128, 128, shape).astype(np.float32)
    if kind == "Integer":
        return random.integers(-2, 3, shape).astype(np.float32)
    if kind in ("Uniform", "Auto"):
        return random.uniform(-1, 1, shape).astype(np.float32)
    return random.standard_normal(shape, np.float32) - (1 if kind == "Normal" else 0)


_HALF_BYTES = ("i4", "u4", "f4e2m1")


def is_packed(array: Any, element: str) -> bool:
    """Whether an array holds two elements of four bits in each byte, the first in the low bits."""
    if element not in _HALF_BYTES:
        return False
    return not isinstance(array, np.ndarray) or array.dtype in (np.dtype(np.int8), np.dtype(np.uint8))


def shape_for(array: Any, element: str) -> tuple[int, ...]:
    """The shape of an array in elements."""
    shape = tuple(array.shape)
    return (*shape[:-1], 2 * shape[-1]) if shape and is_packed(array, element) else shape


def strides_for(array: Any, element: str) -> tuple[int, ...]:
    """The strides of an array in elements."""
    if isinstance(array, np.ndarray):
        found = tuple(stride // array.itemsize for stride in array.strides)
    else:
        found = tuple(array.stride())
    return (*(2 * stride for stride in found[:-1]), *found[-1:]) if is_packed(array, element) else found


def _bytes(array: Any) -> np.ndarray:
    """The bytes of a packed array, in place."""
    return array.view(np.uint8) if isinstance(array, np.ndarray) else array.view(torch_if_any().uint8).numpy()


def _unpacked(array: Any, element: str) -> np.ndarray:
    halves = _bytes(array)[..., None] >> np.array([0, 4], np.uint8) & 15
    halves = np.ascontiguousarray(halves.reshape(shape_for(array, element)))
    if element == "f4e2m1":
        return halves.view(numpy_dtype(element))
    signed = (halves.astype(np.int8) ^ 8) - 8 if element == "i4" else halves
    return signed.astype(numpy_dtype(element))


def pack_into(array: Any, values: np.ndarray, element: str) -> None:
    """Put elements of four bits back into the bytes they came from."""
    halves = values.view(np.uint8) if element == "f4e2m1" else values.astype(np.int8).view(np.uint8)
    _bytes(array)[...] = halves[..., ::2] & 15 | halves[..., 1::2] << 4


def array_for(array: Any, element: str) -> Any:
    """An array as a parameter of dtype ``element`` takes it: packed elements are read by their bytes."""
    if array is None:
        raise MegatileError("an argument is None, and the kernel uses it", advice="give an array")
    if is_packed(array, element):
        return _unpacked(array, element)
    given = short_name(array.dtype)
    if given == element or isinstance(array, np.ndarray):
        return array
    pair = {given, element}
    if pair in ({"i8", "u8"}, {"i8", "bool"}, {"u8", "bool"}, {"i32", "u32"}, {"i64", "u64"}):
        return array.view(getattr(torch_if_any(), numpy_dtype(element).name))
    return array


def as_sequence(results: Any) -> list[Any]:
    if results is None:
        return []
    return list(results) if isinstance(results, (tuple, list)) else [results]


def _plain(array: Any) -> np.ndarray:
    if hasattr(array, "detach"):
        array = array.detach().float() if array.dtype.is_floating_point else array.detach()
        return np.asarray(array)
    return np.asarray(array, dtype=np.float64)


def assert_close(
    one: Any, other: Any, rtol: float = 1e-2, atol: float = 1e-3, max_mismatched_ratio: float = 0.001,
    verbose: bool = False, equal_nan: bool = True, **_: Any,
) -> bool:  # fmt: skip
    """Two arrays agree, but for a share of the elements."""
    left, right = _plain(one), _plain(other)
    if left.shape != right.shape:
        raise MismatchError(f"shapes {left.shape} and {right.shape} differ", advice="compare equal shapes")
    wrong = ~np.isclose(left, right, rtol=rtol, atol=atol, equal_nan=equal_nan)
    share = wrong.mean() if wrong.size else 0.0
    if share > max_mismatched_ratio:
        where = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise MismatchError(
            f"{share:.2%} of the elements differ, first at {where}: {left[where]} and {right[where]}",
            advice=f"at most {max_mismatched_ratio:.2%} may differ by more than {atol} + {rtol} of the value",
        )
    return True
