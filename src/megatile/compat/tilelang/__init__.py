"""TileLang's spelling: ``import megatile.tilelang as tilelang``."""

from __future__ import annotations

from typing import Any

from megatile.compat.tilelang import language
from megatile.compat.tilelang.arrays import TensorSupplyType
from megatile.compat.tilelang.decorators import JIT as JITImpl, AutoTuner, autotune, compile, jit, par_compile
from megatile.compat.tilelang.dtypes import dtype as DataType
from megatile.compat.tilelang.kernel import JITKernel, Profiler, do_bench
from megatile.compat.tilelang.simt import register_extern


class _Keys:
    """Every name is a key of TileLang's compiler, and means nothing here."""

    def __getattr__(self, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name.lower()


PassConfigKey = _Keys()


def cdiv(a: int, b: int) -> int:
    """``a / b``, rounded up."""
    return -(-a // b)


def next_power_of_2(x: int) -> int:
    return 1 << (int(x) - 1).bit_length()


def _nothing(*_: Any, **__: Any) -> None:
    """TileLang's cache and log have no counterpart."""


disable_cache = enable_cache = set_log_level = _nothing
__all__ = [
    "AutoTuner",
    "DataType",
    "JITImpl",
    "JITKernel",
    "PassConfigKey",
    "Profiler",
    "TensorSupplyType",
    "autotune",
    "cdiv",
    "compile",
    "disable_cache",
    "do_bench",
    "enable_cache",
    "jit",
    "language",
    "next_power_of_2",
    "par_compile",
    "register_extern",
    "set_log_level",
]
