"""What each module of TileLang holds, in megatile's terms."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import random
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np

import megatile.compat.tilelang as tilelang
from megatile.compat.tilelang import cpu_torch, language, ranks
from megatile.compat.tilelang.arrays import TensorSupplyType, assert_close, new_array, torch_if_any
from megatile.compat.tilelang.decorators import AutoTuner, autotune, set_autotune_inputs
from megatile.compat.tilelang.dtypes import NAMES, VECTORS, dtype
from megatile.compat.tilelang.kernel import JITKernel, NoCounterpartError, Profiler, do_bench
from megatile.compat.tilelang.launch import LAYOUTS
from megatile.compat.tilelang.scales import current_scale
from megatile.compat.tilelang.source import PrimFunc, current_machine
from megatile.compat.tilelang.time import least_time
from megatile.core.errors import MegatileError
from megatile.core.expr import Symbol
from megatile.language.tile.errors import ProgramError
from megatile.language.tile.operations import GemmWarpPolicy
from megatile.language.tile.scalars import Value


def _same(function: Any = None, *_: Any, **__: Any) -> Any:
    """A decorator that asks for hardware: the function itself."""
    return function if callable(function) else _same


def _first(value: Any, *_: Any, **__: Any) -> Any:
    return value


def set_random_seed(seed: int = 42) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch = torch_if_any()
    if torch is not None:
        torch.manual_seed(seed)


def run_tests() -> None:
    """``tilelang.testing.main()``: the functions ``test_*`` of the main module."""
    for name, function in list(vars(sys.modules["__main__"]).items()):
        if name.startswith("test_") and callable(function):
            function()


def get_tensor_supply(kind: Any = TensorSupplyType.Integer) -> Any:
    return functools.partial(_supplied, kind)


def _supplied(kind: Any, param: Any, *_: Any) -> Any:
    return new_array(param, (), kind)


def torch_assert_close(a: Any, b: Any, rtol: float = 1e-2, atol: float = 1e-3, **keywords: Any) -> bool:
    return assert_close(a, b, rtol=rtol, atol=atol, **keywords)


def determine_fp8_type(*_: Any) -> Any:
    return dtype("float8_e4m3fn")


def determine_torch_fp8_type(*_: Any) -> Any:
    return dtype("float8_e4m3fn").as_torch()


class Target:
    """``with Target("cuda"):``; programs are built for a machine, whatever target is named."""

    def __init__(self, text: Any = "cuda", host: Any = None):
        said = text.get("kind", "cuda") if isinstance(text, dict) else str(text)
        self.kind = SimpleNamespace(name=said.split()[0] if said else "cuda")
        self.host, self.text = host, said
        self.attrs: dict[str, Any] = dict(text) if isinstance(text, dict) else {}
        self.keys = (self.kind.name, "gpu")

    def __enter__(self) -> Target:
        return self

    def __exit__(self, *_: Any) -> None:
        """Nothing was changed."""

    def __str__(self) -> str:
        return self.text

    @staticmethod
    def current(allow_none: bool = True) -> None:
        """No target is ever set."""


class Var(Value):
    """``tir.Var``: a number known only when the program runs; no kernel knows those made outside."""

    def __init__(self, name: str = "", kind: Any = "int32", *_: Any, **__: Any):
        super().__init__(Symbol(name, dtype(kind).short))


def number(kind: Any, value: Any, *_: Any) -> Any:
    """``tir.IntImm(dtype, 1)``, ``tir.FloatImm(dtype, 0.5)``."""
    return value


class PassContext(contextlib.nullcontext):
    """``with tvm.transform.PassContext(config=…):`` configures passes that megatile does not have."""

    def __init__(self, *_: Any, **__: Any):
        super().__init__()


def helper(name: str) -> Any:
    """``tilelang.testing.requires_…``: a test that asks for hardware runs here as well."""
    if name.startswith("requires_"):
        return _same
    if name.startswith("__"):
        raise AttributeError(name)
    return Missing(f"tilelang.testing.{name}")


class Missing:
    """A name of TileLang that megatile has not; it may be imported, and complains when it is used."""

    def __init__(self, name: str):
        self.name = name

    def __getattr__(self, word: str) -> Missing:
        if word.startswith("__"):
            raise NoCounterpartError(
                f"{self.name}.{word} has no counterpart in megatile", advice="use what the page lists"
            )
        return Missing(f"{self.name}.{word}")

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise ProgramError(
            f"{self.name} has no counterpart in megatile",
            advice="docs/how-to/from-tilelang.md lists what is supported",
        )

    __iter__ = __getitem__ = __enter__ = __exit__ = __call__

    def __instancecheck__(self, _: Any) -> bool:
        return bool(self())

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return (object,)

    def __or__(self, other: Any) -> Any:
        return self

    __ror__ = __or__


class Artifact:
    """What ``tilelang.lower`` gives: the Programs and megatile's C for them; modules are refused."""

    def __init__(self, kernel: JITKernel):
        self.kernel, self.programs = kernel, kernel.programs

    @property
    def kernel_source(self) -> str:
        return self.kernel.get_kernel_source()

    def __getattr__(self, word: str) -> Any:
        if word.startswith("__"):
            raise AttributeError(word)
        return Missing(f"tilelang.lower(...).{word}")()


def lower(function: Any, *_: Any, **__: Any) -> Artifact:
    """Read a kernel; what TileLang or TileScale refuses is refused here, with its line."""
    if not isinstance(function, PrimFunc):
        return Missing(f"tilelang.lower of {type(function).__name__}")()
    return Artifact(JITKernel(function))


class Analyzer:
    """``Analyzer.analysis(kernel, device)``: what a kernel calculates and moves, and its least time."""

    @staticmethod
    def analysis(kernel: Any, device: Any = None) -> Any:
        built = kernel.build({}, {}).programs if isinstance(kernel, PrimFunc) else kernel.programs
        found = [least_time(program, current_machine()) for program in built]
        flops, moved, seconds = (sum(getattr(f, k) for f in found) for k in ("flops", "nbytes", "seconds"))
        return SimpleNamespace(
            total_flops=flops, total_global_bytes=moved, estimated_time=seconds,
            expected_tflops=flops / seconds / 1e12, expected_bandwidth_GBps=moved / seconds / 1e9,
        )  # fmt: skip


def cuda_architecture(*_: Any) -> Any:
    """What TileLang's cost tools ask of a GPU."""
    found = cpu_torch.properties()
    return SimpleNamespace(
        name=found.name, compute_max_core=found.multi_processor_count, sm_version=90, warp_size=32,
        smem_cap=228 << 10, reg_cap=65536, platform="CUDA",
        target=SimpleNamespace(kind=SimpleNamespace(name="cuda")),
    )  # fmt: skip


_DRIVER = SimpleNamespace(
    get_num_sms=lambda *_: cpu_torch.properties().multi_processor_count,
    get_cuda_device_properties=cpu_torch.properties,
)
_TESTING = {"__getattr__": helper}
_ASSERT = {"torch_assert_close": torch_assert_close}
_WORDS = language.WORDS
_TIRX = {
    "PrimFunc": PrimFunc, "const": _WORDS["const_value"], "PrimExpr": Value, "Var": Var,
    "Min": _WORDS["min"], "Max": _WORDS["max"], "IntImm": number, "FloatImm": number,
} | {name: _WORDS[name] for name in "reinterpret Select Cast if_then_else".split()}  # fmt: skip
_TVM = {
    "DataType": dtype,
    "register_func": lambda *_, **__: _first,
    "TVMError": MegatileError,
    "error": SimpleNamespace(
        InternalError=MegatileError, TVMError=MegatileError, DiagnosticError=MegatileError
    ),
}
_TARGETS = {"Target": Target}
_FP8 = {"determine_fp8_type": determine_fp8_type, "determine_torch_fp8_type": determine_torch_fp8_type}
_TUNER = {"autotune": autotune, "AutoTuner": AutoTuner, "set_autotune_inputs": set_autotune_inputs}
_POSTPROCESS = {"register_cuda_postproc_callback": _same, "register_hip_postproc_callback": _same}
_BENCH = {"do_bench": do_bench, "Profiler": Profiler, "TensorSupplyType": TensorSupplyType}
_SUPPLY = {"get_tensor_supply": get_tensor_supply, "TensorSupplyType": TensorSupplyType}
_ARCH = {"CUDA": cuda_architecture, "CDNA": cuda_architecture, "driver": _DRIVER}
_TARGET = {
    "check_cuda_availability": lambda: True,
    "check_hip_availability": lambda: False,
    "target_is_hopper": lambda *_: True,
    "determine_target": lambda *_, **__: "cuda",
}
_RUN = {
    "main": run_tests,
    "set_random_seed": set_random_seed,
    "process_func": _first,
    "regression": _first,
}

_RANKS = {
    "init_dist": ranks.init_dist, "init_distributed": ranks.init_distributed, "perf_fn": ranks.perf_fn,
    "CUDA_CHECK": _first, "has_fullmesh_nvlink": lambda: True, "supports_p2p_native_atomic": lambda: True,
    "dtype_map": {name: dtype(name).as_torch() for name in ("float16", "bfloat16", "float32", "float64")}
    if importlib.util.find_spec("torch") else {},
}  # fmt: skip
_NVSHMEM = {
    "nvshmem_create_tensor": ranks.tensor, "nvshmem_create_tensor_list_intra_node": ranks.tensors,
    "nvshmem_barrier_all": ranks.barrier_all, "init_nvshmem_by_uniqueid": _same,
}  # fmt: skip

_CONTEXT = ("name", "workgroup", "parent", "path")
CONTENTS: dict[str, Any] = {
    "tilelang": {n: getattr(tilelang, n) for n in tilelang.__all__ if n != "language"}
    | LAYOUTS
    | {"tensor": ranks.tensor, "get_allocator": ranks.get_allocator, "lower": lower},
    "tilelang.language": language,
    "tilelang.language.fp8": _FP8,
    "tilelang.language.dtypes": {"dtype": dtype, "_all_dtypes": [*NAMES, *VECTORS]}
    | {n: dtype(n) for n in (*NAMES, *VECTORS)},
    "tilelang.language.scale": {"current_scale": current_scale}
    | {f"SCALE_CTX_{word.upper()}_KEY": f"tl.scale_ctx.{word}" for word in _CONTEXT},
    "tilelang.profiler": _BENCH,
    "tilelang.autotuner": _TUNER | {"__all__": list(_TUNER)},
    "tilelang.testing": _TESTING | _ASSERT | _RUN,
    "tilelang.math": {"next_power_of_2": tilelang.next_power_of_2, "cdiv": tilelang.cdiv},
    "tilelang.layout": LAYOUTS,
    "tilelang.utils": {},
    "tilelang.utils.tensor": _ASSERT | _SUPPLY,
    "tilelang.utils.target": _TARGET,
    "tilelang.tools": {"Analyzer": Analyzer},
    "tilelang.transform": {"PassConfigKey": tilelang.PassConfigKey, "simplify_prim_func": _same},
    "tilelang.tileop": {},
    "tilelang.tileop.base": {"GemmWarpPolicy": GemmWarpPolicy},
    "tilelang.carver": {},
    "tilelang.carver.arch": _ARCH,
    "tilelang.engine": {},
    "tilelang.engine.callback": _POSTPROCESS,
    "tilelang.engine.lower": {"lower": lower},
    "tilelang.rocm": {},
    "tilelang.rocm.target": {"check_hip_availability": lambda: False},
    "tilelang.contrib": {
        "nvcc": SimpleNamespace(
            get_target_compute_version=lambda *_: "9.0", get_cuda_version=lambda *_: (12, 9)
        )
    },
    "tilelang.cuda": {},
    "tilelang.cuda.intrinsics": LAYOUTS,
    "tilelang.distributed": _RANKS,
    "tilelang.distributed.utils": _RANKS,
    "pynvshmem": _NVSHMEM,
    "tilelang.tvm": _TVM,
    "tilelang.tvm.target": _TARGETS,
    "tilelang.tvm.testing": {"__getattr__": helper},
    "tilelang.tvm.transform": {"PassContext": PassContext},
    "tvm.transform": {"PassContext": PassContext},
    "tilelang.tvm.tir": _TIRX,
    "tilelang.tvm.tirx": _TIRX,
    "tvm": _TVM,
    "tvm.target": _TARGETS,
    "tvm.tirx": _TIRX,
    "tvm.tir": _TIRX,
}
