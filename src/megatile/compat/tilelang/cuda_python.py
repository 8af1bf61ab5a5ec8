"""What programs call of the package ``cuda-python``: copies, signals and waits, done when they are called."""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import importlib.util
import sys
import time
from types import ModuleType, SimpleNamespace
from typing import Any


def install() -> None:
    """Answer ``import cuda`` where the package is not installed."""
    if importlib.util.find_spec("cuda") is not None:
        return
    flags = SimpleNamespace(
        CU_STREAM_WRITE_VALUE_DEFAULT=0, CU_STREAM_WAIT_VALUE_EQ=1, CU_STREAM_WAIT_VALUE_GEQ=0
    )
    functions: dict[str, Any] = {
        "CUstreamWriteValue_flags": flags, "CUstreamWaitValue_flags": flags,
        "cudaMemcpyKind": SimpleNamespace(cudaMemcpyDeviceToDevice=3, cudaMemcpyDefault=4),
        "cudaMemcpy": _copied, "cudaMemcpyAsync": _copied,
    }  # fmt: skip
    for bits, kind in ((32, ctypes.c_uint32), (64, ctypes.c_uint64)):
        functions[f"cuStreamWriteValue{bits}"] = functools.partial(_written, kind)
        functions[f"cuStreamWaitValue{bits}"] = functools.partial(_waited, kind)
    names = "cuda cuda.cuda cuda.cudart cuda.bindings cuda.bindings.driver cuda.bindings.runtime"
    for name in names.split():
        module = sys.modules[name] = ModuleType(name)
        module.__path__ = []
        vars(module).update(functions)
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
    version = importlib.metadata.version

    def with_cuda(distribution_name: str) -> str:
        return "12.9.0" if distribution_name == "cuda-python" else version(distribution_name)

    importlib.metadata.version = with_cuda


def _copied(to: int, source: int, count: int, *_: Any) -> tuple[int]:
    ctypes.memmove(to, source, count)
    return (0,)


def _written(kind: Any, stream: Any, address: Any, value: int, *_: Any) -> tuple[int]:
    kind.from_address(int(address)).value = value
    return (0,)


def _waited(kind: Any, stream: Any, address: Any, value: int, *_: Any) -> tuple[int]:
    while kind.from_address(int(address)).value != value:
        time.sleep(0.001)
    return (0,)
