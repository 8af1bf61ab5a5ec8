"""``@T.prim_func`` and ``@tilelang.jit``: functions that become Programs when their shapes are known."""

from __future__ import annotations

import inspect
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from megatile.compat.tilelang import buffers as b
from megatile.compat.tilelang.arrays import shape_for, strides_for
from megatile.compat.tilelang.launch import Kernel
from megatile.compat.tilelang.ranks import world_size
from megatile.compat.tilelang.reader import TileLangReader
from megatile.core.errors import MegatileError, Remark
from megatile.core.expr import Expr, Symbol as Var, linear
from megatile.hda import machine as find_machine
from megatile.ir.passes.coverage import unreached
from megatile.ir.program import Program
from megatile.language.common.rewrite import bind
from megatile.language.tile.builder import NoLaunchError, ProgramBuilder, located
from megatile.language.tile.errors import PYTHON_ERRORS, ProgramError, ProgramWarning, translated
from megatile.language.tile.nest import LevelFound, Nest, ScaleLevel
from megatile.language.tile.program import DEFAULT_MACHINE, evaluated_annotations
from megatile.language.tile.scalars import Value
from megatile.language.tile.tiles import Symbol

MISSING = object()
BETWEEN_RANKS = frozenset(
    "get_rank get_num_ranks get_pe get_pe_num put_block get_block put_warp get_warp signal_op "
    "barrier_blocks sync_blocks".split()
)
"""Words by which a kernel names other ranks."""


_OF_TVM = frozenset("attrs body buffer_map params ret_type with_attr with_body".split())
RANKS: ContextVar[int] = ContextVar("megatile_tilelang_ranks", default=0)
"""Ranks of kernels that are built, not launched by processes; 0: those of the process group."""


def current_machine() -> Any:
    """The machine that kernels are built for: ``MEGATILE_MACHINE``, or the default one."""
    return find_machine(os.environ.get("MEGATILE_MACHINE", DEFAULT_MACHINE))


@dataclass(frozen=True)
class Built:
    """What a function became: Programs to run in turn, its tensors, and which of them are its results."""

    programs: tuple[Program, ...]
    tensors: dict[str, b.TensorType]
    arguments: tuple[str, ...]
    """Tensors that the caller gives, in order."""
    results: tuple[str, ...]
    single: bool = True
    ranks: int = 1
    again: Callable[[Mapping[str, int]], Built] | None = None
    """The same for other extents by name."""


class Source:
    """A Python function in TileLang's spelling, and what it becomes for given shapes and numbers."""

    def __init__(self, function: Callable[..., Any], names: Mapping[str, Any] | None = None):
        self.function = function
        self.__name__ = function.__name__
        self.signature = inspect.signature(function)
        self.annotations = evaluated_annotations(function, names or {})
        self.arguments: dict[str, Any] = {}
        self.cpu = False

    def builder(self, bound: Mapping[str, int]) -> ProgramBuilder:
        builder = ProgramBuilder(current_machine(), self.__name__)
        builder.reader = TileLangReader(builder)
        builder.bound = dict(bound)
        builder.padded = builder.spills = True
        builder.tilelang = b.KernelState(  # type: ignore[attr-defined]
            function=self, ranks=self.ranks(), cpu=self.cpu
        )
        self.declared: dict[str, b.Buffer] = {}
        return builder

    def ranks(self) -> int:
        """Devices that run the kernel together: all of the process group if it names others."""
        if RANKS.get():
            return RANKS.get()
        return world_size() if self.names_ranks else 1

    @property
    def names_ranks(self) -> bool:
        return not BETWEEN_RANKS.isdisjoint(self.function.__code__.co_names)

    def extents(self, given: Mapping[str, Any], bound: Mapping[str, int]) -> dict[str, int]:
        """Symbolic extents that the shapes of all arrays show: the function is read up to its launch."""
        builder = self.builder(bound)
        shapes: list[Any] = []
        builder.tilelang.shapes = shapes  # type: ignore[attr-defined]
        with builder.active(), suppress(MegatileError, *PYTHON_ERRORS):  # reported when it is built
            bind(self.function, builder.reader)(**self._values(builder, given))
        return bind_shapes(shapes, builder.bound)

    def build(self, given: Mapping[str, Any], bound: Mapping[str, int]) -> Built:
        """Programs for arguments (arrays, numbers) and symbolic extents by name."""
        if any(getattr(value, "shape", None) is not None for value in given.values()):
            bound = self.extents(given, bound)
        levels: tuple[ScaleLevel, ...] = ()
        launch: Any = nullcontext()
        while True:
            try:
                return self._build(given, bound, levels, launch)
            except LevelFound as found:
                levels = found.levels
            except NoLaunchError:
                if isinstance(launch, Kernel):
                    raise
                launch = Kernel(1, threads=1)  # a function without T.Kernel: one thread runs it

    def _build(
        self, given: Mapping[str, Any], bound: Mapping[str, int], levels: tuple[ScaleLevel, ...], launch: Any
    ) -> Built:
        builder = self.builder(bound)
        builder.nest = Nest(builder.machine, levels)
        state: b.KernelState = builder.tilelang  # type: ignore[attr-defined]
        try:
            with builder.active():
                values = self._values(builder, given)
                with launch:
                    result = bind(self.function, builder.reader)(**values)
        except NoLaunchError as error:
            if state.programs:
                raise located(error, builder.place).with_traceback(None) from None
            raise
        except MegatileError as error:
            raise located(error, builder.place).with_traceback(None) from None
        except PYTHON_ERRORS as error:
            if os.environ.get("MEGATILE_DEBUG"):
                raise
            raise translated(error, builder.place, builder.tiles).with_traceback(None) from None
        if not state.programs:
            raise NoLaunchError(
                f"'{self.__name__}' has no launch", advice="put its statements under 'with T.Kernel(...):'"
            )
        state.programs = together(state.programs)
        if state.ranks > 1 or not self.names_ranks:
            for text in dict.fromkeys(w for p in state.programs for w in p.warnings):
                warnings.warn(text, ProgramWarning, stacklevel=4)
        numbers = {name: value for name, value in given.items() if getattr(value, "shape", None) is None}
        return replace(self._built(state, result), again=partial(self.again, numbers))

    def again(self, numbers: Mapping[str, Any], at: Mapping[str, int]) -> Built:
        """The same for other extents, or other arguments of the function that made the kernel."""
        return self.made(at).build(numbers, {k: v for k, v in at.items() if k not in self.made_of})

    made_of: tuple[str, ...] = ()
    """Arguments of the function that made the kernel."""

    def made(self, at: Mapping[str, int]) -> Source:
        return self

    def _values(self, builder: ProgramBuilder, given: Mapping[str, Any]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, parameter in self.signature.parameters.items():
            kind = self.annotations.get(name)
            kind = kind() if isinstance(kind, b.TensorProxy) else kind
            value = given.get(name, MISSING)
            if isinstance(kind, b.TensorType):
                value = self.tensor(builder, name, kind, value)
            elif value is MISSING:
                value = MISSING if parameter.default is inspect.Parameter.empty else parameter.default
            elif isinstance(kind, b.Dtype) and isinstance(value, (int, float)) and "float" in kind:
                value = float(value)
            values[name] = value
        return values

    def tensor(self, builder: ProgramBuilder, name: str, kind: b.TensorType, value: Any) -> b.Buffer:
        """Declare an argument; the shape of its array binds the symbolic extents of its type."""
        if isinstance(value, b.Buffer):
            return value
        if getattr(value, "shape", None) is not None:
            shape = shape_for(value, kind.dtype.short)
            bind_strides(name, kind, value, builder.bound)
            shapes = builder.tilelang.shapes  # type: ignore[attr-defined]
            if shapes is not None:
                shapes.append((name, kind, shape))
            else:
                bind_shape(name, kind, shape, builder.bound)
        buffer = b.declare(builder, name, kind.shape, kind.dtype)
        self.declared[name] = buffer
        return buffer

    def _built(self, state: b.KernelState, result: Any) -> Built:
        returned = result if isinstance(result, (tuple, list)) else () if result is None else (result,)
        tensors = {name: b.TensorType(t.shape, b.Dtype(t.dtype)) for name, t in state.tensors.items()}
        arguments = tuple(
            self.declared[name].name for name in self.signature.parameters if name in self.declared
        )
        results = tuple(t.name for t in returned if isinstance(t, b.Buffer))
        return Built(
            tuple(state.programs),
            tensors,
            arguments,
            results,
            not isinstance(result, (tuple, list)),
            state.ranks,
        )


def together(programs: list[Program]) -> list[Program]:
    """Drop warnings of parts that one kernel leaves to another: each is looked at alone."""
    names = Counter(p.name for program in programs for p in program.params)
    shared = {name for name, count in names.items() if count > 1}
    if not shared:
        return programs
    left = [{Remark(text, span.place() if span else None, advice)
             for text, span, advice in unreached(program, shared)} for program in programs]  # fmt: skip
    return [
        replace(program, warnings=tuple(w for w in program.warnings if w not in dropped))
        for program, dropped in zip(programs, left, strict=True)
    ]


def bind_shapes(
    shapes: Iterable[tuple[str, b.TensorType, tuple[int, ...]]], bound: Mapping[str, int]
) -> dict[str, int]:
    """Symbolic extents that arrays show together: ``rows`` of one may be known from another."""
    shapes, found = list(shapes), dict(bound)
    while True:
        before = len(found)
        for name, kind, shape in shapes:
            bind_shape(name, kind, shape, found)
        if len(found) == before:
            return found


def bind_shape(name: str, kind: b.TensorType, shape: tuple[int, ...], bound: dict[str, int]) -> None:
    """Symbolic extents that an array's shape shows; what is known must agree."""
    if len(kind.shape) != len(shape):
        raise ProgramError(
            f"'{name}' has {len(shape)} dimensions, but {len(kind.shape)} are declared",
            advice=f"its shape is {shape}, the declared one {kind.shape}",
        )
    for d, (wanted, extent) in enumerate(zip(kind.shape, shape, strict=True)):
        if isinstance(wanted, Symbol) and wanted.name not in bound:
            bound[wanted.name] = int(extent)
        elif isinstance(wanted, Value):
            solve(b.substituted(wanted.expr, bound), int(extent), bound)
        number = b.resolved(wanted, bound)
        if not isinstance(number, Value) and int(number) != int(extent):
            raise ProgramError(
                f"dimension {d} of '{name}' is {extent}, but {number} is declared",
                advice="give an array of the declared shape",
            )


def bind_strides(name: str, kind: b.TensorType, array: Any, bound: dict[str, int]) -> None:
    """Symbolic strides that an array shows, in elements; those that are declared must be the array's."""
    if kind.strides is None or any(stride is None for stride in kind.strides):
        return
    found = strides_for(array, kind.dtype.short)
    if len(found) != len(kind.strides):
        raise ProgramError(
            f"'{name}' has {len(found)} strides, but {len(kind.strides)} are declared",
            advice=f"its strides are {found}",
        )
    extents = shape_for(array, kind.dtype.short)
    for d, (wanted, stride) in enumerate(zip(kind.strides, found, strict=True)):
        if isinstance(wanted, Symbol) and wanted.name not in bound:
            bound[wanted.name] = int(stride)
        number = b.resolved(wanted, bound)
        if extents[d] > 1 and not isinstance(number, Value) and int(number) != int(stride):
            raise ProgramError(
                f"stride {d} of '{name}' is {stride}, but {number} is declared",
                advice="give an array of the declared strides",
            )


def solve(extent: Expr, number: int, bound: dict[str, int]) -> None:
    """Bind the one symbolic extent in ``M * 64`` or ``M + 1``, where it is one and the number allows it."""
    terms, offset = linear(extent)
    if len(terms) == 1:
        [(term, factor)] = terms.items()
        if isinstance(term, Var) and (number - offset) % factor == 0:
            bound[term.name] = (number - offset) // factor


class PrimFunc(Source):
    """A function under ``@T.prim_func``: all its arguments have types."""

    def __init__(self, function: Callable[..., Any], names: Mapping[str, Any] | None = None):
        super().__init__(function, names)
        self.kinds = {
            name: kind() if isinstance(kind, b.TensorProxy) else kind
            for name, kind in ((name, self.annotations.get(name)) for name in self.signature.parameters)
        }
        for name, kind in self.kinds.items():
            if kind is None:
                raise ProgramError(
                    f"argument '{name}' of '{self.__name__}' has no type",
                    advice=f"write {name}: T.Tensor((M, N), T.float32), or {name}: T.int32 for a number",
                )

    @property
    def is_known(self) -> bool:
        """Whether the kernel can be built without arguments."""
        extents = [e for kind in self.kinds.values() for e in getattr(kind, "shape", (None,))]
        return not any(e is None or isinstance(e, Value) for e in extents)

    def build(self, given: Mapping[str, Any], bound: Mapping[str, int]) -> Built:
        if given or bound or not self.is_known:
            return super().build(given, bound)
        key = (current_machine().name, self.ranks(), self.cpu)
        if self.first is None or self.first[0] != key:
            self.first = (key, super().build({}, {}))
        return self.first[1]

    first: tuple[Any, Built] | None = None
    """What the kernel became without arguments, and for which machine, ranks and target."""

    def __getattr__(self, word: str) -> Any:
        if word in _OF_TVM:
            raise ProgramError(
                f"PrimFunc.{word} belongs to TVM's IR, which megatile does not have",
                advice="kernel.programs holds the Programs of a kernel",
            )
        raise AttributeError(word)

    @property
    def script(self) -> Callable[[], str]:
        return lambda: str(self)

    def __str__(self) -> str:
        kinds = [kind for kind in self.kinds.values() if isinstance(kind, b.TensorType)]
        if any(isinstance(extent, Value) for kind in kinds for extent in kind.shape):
            return f"{self.__name__}: a kernel that is built when its arrays are known"
        return "\n".join(str(p) for p in self.build({}, {}).programs)


def prim_func(function: Any = None, **_: Any) -> Any:
    """Decorator of kernels whose arguments have types."""
    if function is None:
        return prim_func
    source = PrimFunc(function, frame_names())
    if source.is_known:
        source.build({}, {})
    return source


def frame_names() -> dict[str, Any]:
    """The names around the decorated function, the nearest first, for annotations kept as text."""
    found: dict[str, Any] = {}
    here = inspect.currentframe()
    frame = here.f_back if here is not None else None  # this frame holds ``found``: a cycle would outlive it
    del here
    while frame is not None:
        for name, value in frame.f_locals.items():
            found.setdefault(name, value)
        frame = frame.f_back
    return found
