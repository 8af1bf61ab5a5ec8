"""The arrays a program is called with: NumPy arrays or torch tensors, checked against its parameters."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from megatile.core.dtypes import DtypeError, dtype as dtype_name, numpy_dtype
from megatile.core.errors import did_you_mean, how_to_give
from megatile.hda import HDA
from megatile.ir.program import Program
from megatile.language.tile.errors import ProgramWarning
from megatile.language.tile.program import ProgramFunction
from megatile.language.tile.tiles import InputArray
from megatile.targets.interpret.errors import ArgumentError


def as_array(value: Any) -> np.ndarray:
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "detach"):
        return _of_torch(value.detach())
    raise ArgumentError(
        f"an argument is {type(value).__name__}, not an array",
        advice="give NumPy arrays; outputs are filled in place",
    )


def arrays_of(prog: ProgramFunction | Program, given: Sequence[Any]) -> list[np.ndarray]:
    """Return the arguments as arrays; a number becomes an array of one element."""
    tensors = prog.params if isinstance(prog, Program) else tuple(getattr(prog, "tensors", {}).values())
    dtypes = [tensor.dtype for tensor in tensors][: len(given)]
    dtypes += ["f32"] * (len(given) - len(dtypes))
    return [_array(value, dtype) for value, dtype in zip(given, dtypes, strict=True)]


def _array(value: Any, dtype: str) -> np.ndarray:
    value = value.array if isinstance(value, InputArray) else value
    if isinstance(value, (int, float, np.generic)):
        return np.array([value]).astype(numpy_dtype(dtype))
    return as_array(value)


def _of_torch(tensor: Any) -> np.ndarray:
    """Return a torch tensor on the CPU as an array that shares its memory; NumPy knows bf16 and f8 by
    ml_dtypes."""
    import torch

    if tensor.device.type != "cpu":
        raise ArgumentError(f"an argument is a torch tensor on {tensor.device}", advice="give x.cpu()")
    name = dtype_name(tensor.dtype)
    if name not in ("bf16", "f8e4m3", "f8e5m2", "e8m0"):
        return np.asarray(tensor)
    element = numpy_dtype(name)
    return np.asarray(tensor.view(torch.int16 if element.itemsize == 2 else torch.int8)).view(element)


def in_order(
    prog: ProgramFunction | Program, arrays: tuple[Any, ...], named: dict[str, Any]
) -> tuple[Any, ...]:
    """Return the arrays in the order of the program's arguments, those given by name after the others."""
    if not named or not isinstance(prog, (ProgramFunction, Program)):
        return arrays
    wanted = [p.name for p in prog.params] if isinstance(prog, Program) else list(prog.tensors)
    name = prog.name if isinstance(prog, Program) else prog.__name__
    for given in named:
        if given not in wanted:
            raise ArgumentError(f"'{name}' has no argument '{given}'", advice=did_you_mean(given, wanted))
        if given in wanted[: len(arrays)]:
            raise ArgumentError(
                f"'{given}' of '{name}' is given twice", advice="give it once, by place or name"
            )
    left = wanted[len(arrays) :]
    missing = [n for n in left if n not in named]
    if missing:
        raise ArgumentError(
            f"'{name}' is called without {', '.join(missing)}",
            advice="outputs are arguments too: give arrays to be filled",
        )
    return (*arrays, *(named[n] for n in left))


def built(prog: ProgramFunction | Program, arrays: list[np.ndarray], machine: str | HDA) -> Program:
    if isinstance(prog, Program):
        return prog
    if not isinstance(prog, ProgramFunction):
        advice = how_to_give(prog, "decorate the function with @T.program")
        raise ArgumentError(f"{prog!r} is not a tile program", advice=advice)
    _check_count(prog.__name__, list(prog.tensors), arrays)
    return prog.build(machine, **prog.bind_symbols([a.shape for a in arrays]))


def _check_count(name: str, wanted: list[str], arrays: list[np.ndarray]) -> None:
    if len(arrays) != len(wanted):
        raise ArgumentError(
            f"'{name}' takes {len(wanted)} arrays ({', '.join(wanted)}), {len(arrays)} were given",
            advice="outputs are arguments too: give arrays to be filled",
        )


def check_arguments(program: Program, arrays: list[np.ndarray]) -> None:
    _check_count(program.name, [param.name for param in program.params], arrays)
    for param, array in zip(program.params, arrays, strict=True):
        if array.shape != param.shape:
            raise ArgumentError(
                f"'{param.name}' has shape {array.shape}, the program wants {param.shape}",
                advice="build the program for this shape, or use T.dynamic extents",
            )
        if array.dtype != numpy_dtype(param.dtype):
            raise ArgumentError(
                f"'{param.name}' is {_kind(array.dtype)}, the program wants {param.dtype}",
                advice=f"convert it: x.astype({numpy_dtype(param.dtype)})",
            )


def _kind(dtype: np.dtype[Any]) -> str:
    """Return what a dtype is called here, or else by NumPy."""
    try:
        return dtype_name(dtype) if dtype.isnative else f"{dtype_name(dtype)} with its bytes swapped"
    except DtypeError:
        return str(dtype)


def check_writable(program: Program, arrays: list[np.ndarray], constant: set[str]) -> None:
    for param, array in zip(program.params, arrays, strict=True):
        if param.name not in constant and not array.flags.writeable:
            raise ArgumentError(
                f"'{param.name}' is written, and its array is read-only", advice="give a copy: x.copy()"
            )


def warn_of_aliases(program: Program, arrays: list[np.ndarray], constant: set[str]) -> None:
    """Warn of a written argument that shares memory with another: here each keeps what it had before the
    run."""
    named = [(param.name, array) for param, array in zip(program.params, arrays, strict=True)]
    shared = [
        f"'{left}' and '{right}'"
        for (left, mine), (right, other) in combinations(named, 2)
        if not {left, right} <= constant
        and np.may_share_memory(mine, other)
        and np.shares_memory(mine, other)
    ]
    if shared:
        warnings.warn(
            f"{', '.join(shared)} of '{program.name}' share memory, and one of each is written: this run "
            "reads what was there before, a device may read what was written (try: give copies: x.copy())",
            ProgramWarning,
            stacklevel=5,
        )
