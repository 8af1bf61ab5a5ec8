"""Kernels to call with arrays, their profiler, and comparison with a reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from megatile.compat.tilelang import buffers as b, ranks
from megatile.compat.tilelang.arrays import (
    TensorSupplyType,
    array_for,
    as_sequence,
    assert_close,
    is_packed,
    new_array,
    pack_into,
    shape_for,
)
from megatile.compat.tilelang.source import Built, PrimFunc, Source, bind_shapes, bind_strides
from megatile.compat.tilelang.time import RUNNER, measured_ms, predicted_ms, source_of
from megatile.core.errors import MegatileError
from megatile.language.tile.errors import ProgramError
from megatile.language.tile.scalars import Value


def on_cpu(target: Any) -> bool:
    """Whether a kernel is compiled for a CPU."""
    return str(target or "").split(" ")[0] in ("c", "llvm", "cpu")


class NoCounterpartError(ProgramError, AttributeError):
    """A part of TileLang's compiler that megatile does not have."""


class Kernel:
    """A kernel for known numbers. Calling it runs its Programs on real data and gives the results."""

    def __init__(self, source: Source, out_idx: Any = None):
        self.source = source
        self.out_idx = out_idx
        self.built: dict[Any, Built] = {}
        self.config: Any = None
        self.latency = self.ref_latency = math.nan  # milliseconds, predicted by the tuner

    @property
    def program(self) -> Any:
        """The Program of a kernel that has one, for ``print``."""
        return self.programs[0]

    @property
    def programs(self) -> tuple[Any, ...]:
        raise NotImplementedError

    def get_kernel_source(self, kernel_only: bool = True) -> str:
        """The C that megatile writes for the kernel; for what it cannot compile, the Program as text."""
        try:
            programs = self.programs
        except ProgramError as error:
            return f"// The kernel is built when its arrays are known: {error.message}.\n"
        try:
            return "\n".join(source_of(program) for program in programs)
        except MegatileError as error:
            head = f"// megatile writes no C for this kernel ({error.message}); this is its Program.\n"
            return head + "\n".join(str(program) for program in programs)

    def show_source(self, which: str = "kernel") -> None:
        print(self.get_kernel_source())

    def initialize(self, **_: Any) -> None:
        """TileScale gives kernels its allocator here; megatile's finds the ranks by itself."""

    def get_host_source(self) -> str:
        return "// megatile runs Programs itself; there is no host code."

    kernel_source = property(get_kernel_source)

    def __getattr__(self, word: str) -> Any:
        raise NoCounterpartError(
            f"kernel.{word} has no counterpart in megatile", advice="kernel.programs holds its Programs"
        )

    def get_profiler(self, tensor_supply_type: Any = TensorSupplyType.Auto) -> Profiler:
        return Profiler(self, tensor_supply_type)


def execute(built: Built, arrays: dict[str, Any]) -> None:
    """Run the Programs in turn; tensors the program makes are made here."""
    unwritten: dict[str, np.ndarray] = {}
    for name, kind in built.tensors.items():
        if name not in arrays:
            arrays[name] = new_array(kind, arrays.values())
            unwritten[name] = np.ones(tuple(int(e) for e in kind.shape), bool)
    if built.ranks > 1:
        if ranks.world_size() != built.ranks:
            raise ProgramError(
                f"the kernel runs on {built.ranks} ranks, and {ranks.world_size()} launch it",
                advice=f"start it with torchrun --nproc-per-node {built.ranks}",
            )
        ranks.launch(built.programs, arrays)
        return
    for program in built.programs:
        given = [array_for(arrays[p.name], p.dtype) for p in program.params]
        RUNNER.get()(program, *given, unwritten=unwritten)
        for p, array in zip(program.params, given, strict=True):
            if is_packed(arrays[p.name], p.dtype):
                pack_into(arrays[p.name], array, p.dtype)


class EagerKernel(Kernel):
    """A kernel whose function declares its own tensors."""

    def __init__(self, source: Source, given: Mapping[str, Any], bound: Mapping[str, int]):
        super().__init__(source)
        self.given, self.bound = dict(given), dict(bound)
        self._ready: Built | None = None

    @property
    def ready(self) -> Built:
        """Built for the extents given by name."""
        if self._ready is None:
            self._ready = self.source.build(self.given, self.bound)
        return self._ready

    @property
    def programs(self) -> tuple[Any, ...]:
        return self.ready.programs

    def run(self, given: Mapping[str, Any]) -> Any:
        built = self.source.build(given, self.bound)
        self._ready = built
        arrays = {name: given[name] for name in built.arguments}
        execute(built, arrays)
        results = [arrays[name] for name in built.results]
        return None if not results else results[0] if built.single else results

    def __call__(self, *arrays: Any, **keywords: Any) -> Any:
        names = [
            n for n in self.source.signature.parameters if n not in self.given or _is_array(self.given[n])
        ]
        return self.run({**self.given, **dict(zip(names, arrays, strict=False)), **keywords})

    def inputs(self, supply: Any) -> list[Any]:
        return [
            new_array(self.ready.tensors[name], (), supply, seed)
            for seed, name in enumerate(self.ready.arguments)
        ]

    @property
    def params(self) -> list[Any]:
        return [self.ready.tensors[name] for name in (*self.ready.arguments, *self.ready.results)]


class JITKernel(Kernel):
    """A kernel from a function under ``@T.prim_func``; the arguments of ``out_idx`` are its results."""

    def __init__(self, source: PrimFunc, out_idx: Any = None, target: Any = None, **_: Any):
        super().__init__(source, out_idx)
        source.cpu = source.cpu or on_cpu(target)
        self.names = list(source.kinds)
        count = len(self.names)
        wanted = [] if out_idx is None else [out_idx] if isinstance(out_idx, int) else list(out_idx)
        self.results = [self.names[i % count] for i in wanted]
        self.prim_func = source
        if not any(isinstance(e, Value) for k in self.tensors.values() for e in k.shape) and not self.numbers:
            self.build({}, {})

    @property
    def tensors(self) -> dict[str, b.TensorType]:
        kinds: dict[str, Any] = self.source.kinds  # type: ignore[attr-defined]
        return {name: kind for name, kind in kinds.items() if isinstance(kind, b.TensorType)}

    @property
    def numbers(self) -> list[str]:
        return [name for name in self.names if name not in self.tensors]

    @property
    def params(self) -> list[b.TensorType]:
        return list(self.tensors.values())

    def build(self, given: Mapping[str, Any], bound: dict[str, int]) -> Built:
        numbers = {name: given[name] for name in self.numbers if name in given}
        key = (tuple(sorted(numbers.items())), tuple(sorted(bound.items())))
        if key not in self.built:
            self.built[key] = self.source.build(numbers, bound)
        return self.built[key]

    @property
    def programs(self) -> tuple[Any, ...]:
        return (next(reversed(self.built.values()), None) or self.build({}, {})).programs

    def __call__(self, *arrays: Any, **keywords: Any) -> Any:
        names = [name for name in self.names if name not in self.results]
        if len(arrays) == len(self.names):
            names = self.names
        given = {
            **dict(zip(names, arrays, strict=False)),
            **{k: v for k, v in keywords.items() if k in names},
        }
        missing = [name for name in names if name not in given]
        if missing or len(arrays) > len(names):
            raise ProgramError(
                f"'{self.source.__name__}' takes {len(names)} arguments ({', '.join(names)}), but "
                f"{len(arrays)} were given",
                advice="leave out the results that out_idx names",
            )
        arrays_given = {k: v for k, v in given.items() if k in self.tensors and v is not None}
        shapes = {k: shape_for(v, self.tensors[k].dtype.short) for k, v in arrays_given.items()}
        bound = bind_shapes([(k, self.tensors[k], shape) for k, shape in shapes.items()], {})
        for name, array in arrays_given.items():
            bind_strides(name, self.tensors[name], array, bound)
        built = self.build({n: _number(v) for n, v in given.items() if n not in self.tensors}, bound)
        arguments = dict(zip(self.tensors, built.arguments, strict=True))
        held = {arguments[name]: value for name, value in given.items() if name in self.tensors}
        execute(built, held)
        results = [held[arguments[name]] for name in self.results]
        return None if not results else results[0] if len(results) == 1 else results

    def inputs(self, supply: Any, bound: Mapping[str, int] | None = None) -> list[Any]:
        made = []
        for name in self.names:
            if name in self.results:
                continue
            if name not in self.tensors:
                made.append(1)
                continue
            kind = self.tensors[name]
            shape = tuple(b.resolved(e, dict(bound or {})) for e in kind.shape)
            if any(isinstance(e, Value) for e in shape):
                raise ProgramError(
                    f"'{name}' has symbolic extents, so no array can be made for it",
                    advice="give input_tensors=, or dynamic_symbolic_constraints={'m': 1024}",
                )
            made.append(new_array(b.TensorType(shape, kind.dtype), (), supply, len(made)))
        return made


def _number(value: Any) -> Any:
    return value.item() if hasattr(value, "item") and not isinstance(value, (int, float)) else value


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


class Profiler:
    """``kernel.get_profiler()``: inputs made to order, comparison with a reference, time."""

    def __init__(self, kernel: Any, supply: Any = TensorSupplyType.Auto):
        self.kernel, self.supply = kernel, supply

    def _get_inputs(self, with_output: bool = False, **_: Any) -> list[Any]:
        return self.kernel.inputs(self.supply)

    def __call__(self, *arrays: Any, **keywords: Any) -> Any:
        return self.kernel(*arrays, **keywords)

    func = property(lambda self: self.kernel)
    adapter = func

    def run_once(self, func: Callable[..., Any] | None = None) -> Any:
        return (func or self.kernel)(*self._get_inputs())

    def _results(self, reference: Callable[..., Any], given: Sequence[Any] | None) -> list[list[Any]]:
        """Those of the kernel, and those of the reference, which may not see what the kernel writes."""
        inputs = list(self._get_inputs() if given is None else given)
        wanted = as_sequence(reference(*inputs))
        return [as_sequence(self.kernel(*inputs)), wanted]

    def assert_allclose(
        self, reference_program: Callable[..., Any], input_tensors: Sequence[Any] | None = None,
        atol: float = 1e-2, rtol: float = 1e-2, max_mismatched_ratio: float = 0.01,
    ) -> None:  # fmt: skip
        """The kernel's results agree with those of a torch or NumPy function."""
        found, wanted = self._results(reference_program, input_tensors)
        if len(found) != len(wanted):
            raise MegatileError(
                f"the kernel gives {len(found)} results, the reference {len(wanted)}",
                advice="name the results with out_idx=",
            )
        for one, other in zip(found, wanted, strict=True):
            if one is not None and other is not None:
                assert_close(one, other, rtol=rtol, atol=atol, max_mismatched_ratio=max_mismatched_ratio)

    def manual_assert_close(
        self, reference_program: Callable[..., Any], input_tensors: Any = None, manual_check_prog: Any = None
    ) -> None:
        manual_check_prog(*self._results(reference_program, input_tensors))

    def assert_consistent(self, repeat: int = 10) -> None:
        inputs = self._get_inputs()
        first = as_sequence(self.kernel(*inputs))
        for _ in range(min(repeat, 2)):
            for one, other in zip(as_sequence(self.kernel(*inputs)), first, strict=True):
                assert_close(one, other, rtol=0, atol=0, max_mismatched_ratio=0)

    def do_bench(
        self, func: Callable[..., Any] | None = None, *_: Any, input_tensors: Any = None, machine: Any = None,
        **__: Any,
    ) -> float:  # fmt: skip
        """Milliseconds of one call: predicted on ``machine``, otherwise measured on this computer's CPU."""
        if machine is not None:
            if func is not None:
                raise ProgramError("only kernels are predicted", advice="do_bench(machine=...) without func")
            return predicted_ms(self.kernel.programs, machine)
        inputs = list(self._get_inputs() if input_tensors is None else input_tensors)
        return do_bench(lambda: (func or self.kernel)(*inputs))


def do_bench(func: Callable[[], Any], *_: Any, **__: Any) -> float:
    """Milliseconds of one call, measured on this computer's CPU (not a prediction of a GPU)."""
    return measured_ms(func)
