"""``@T.program``: a function becomes a Program, once for every machine and every binding of symbolic
extents."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import FrameType
from typing import Any

from megatile.core.arguments import no_none
from megatile.core.errors import MegatileError, Place, Remark, did_you_mean
from megatile.hda import HDA, machine as find_machine
from megatile.ir import nodes as n
from megatile.ir.launch import ROOT, Param
from megatile.ir.passes.driver import rewrite_nodes
from megatile.ir.passes.lint import find_mistakes, find_warnings
from megatile.ir.program import Program
from megatile.ir.verify import verify
from megatile.language.common.rewrite import bind
from megatile.language.tile.builder import ProgramBuilder, located
from megatile.language.tile.capacity import checked_memory, crowded_threads, shallow_pipelines
from megatile.language.tile.errors import PYTHON_ERRORS, ProgramError, ProgramWarning, translated
from megatile.language.tile.functions import DType
from megatile.language.tile.inference import ADVICE, LayoutFound
from megatile.language.tile.launch import UNKNOWN_EXTENTS, with_slots
from megatile.language.tile.memory import UNKNOWN
from megatile.language.tile.nest import LevelFound, Nest, ScaleLevel
from megatile.language.tile.reader import Reader
from megatile.language.tile.scalars import Value
from megatile.language.tile.scales import RANKS, share_out, shared_out
from megatile.language.tile.tiles import OwnCopy, Symbol, Tensor, Tile

DEFAULT_MACHINE = "dgx-h100"


class ProgramFunction:
    """A kernel. ``print`` shows its Program for the default machine; ``mt.run`` runs it."""

    def __init__(self, function: Callable[..., Any], names: Mapping[str, Any] | None = None):
        self.function = function
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__
        annotations = _annotations(function, names or {})
        self.tensors = {k: Tensor((1,), a, True) if isinstance(a, str) else a for k, a in annotations.items()}
        self.scalars = {name for name, annotation in annotations.items() if isinstance(annotation, str)}
        self._built: dict[Any, Program] = {}
        self.made_by: tuple[Callable[..., Any], dict[str, Any]] | None = None
        """The function around it that made it, and the arguments of that call, where these are known."""

    def __repr__(self) -> str:
        return f"<tile program '{self.__name__}' of {', '.join(self.tensors)}>"

    @property
    def symbols(self) -> tuple[str, ...]:
        """Names of the symbolic extents, in order of appearance."""
        found = [e.name for t in self.tensors.values() for e in t.shape if isinstance(e, Symbol)]
        return tuple(name for name in dict.fromkeys(found) if name != RANKS)

    def bind_symbols(self, shapes: list[tuple[int, ...]]) -> dict[str, int]:
        """Return values of the symbolic extents that shapes of arguments give."""
        bound: dict[str, int] = {}
        for (name, tensor), shape in zip(self.tensors.items(), shapes, strict=False):
            for wanted, given in zip(tensor.shape, shape, strict=False):
                if isinstance(wanted, Symbol) and bound.setdefault(wanted.name, given) != given:
                    raise ProgramError(
                        f"'{wanted.name}' is {bound[wanted.name]} in an earlier argument and {given} in "
                        f"'{name}'",
                        advice="extents of one name are equal in all arrays",
                    )
        return bound

    def build(self, machine: str | HDA = DEFAULT_MACHINE, **symbols: int) -> Program:
        """Return the Program for a machine, with symbolic extents given by name (all of them, or none)."""
        hda = find_machine(machine) if isinstance(machine, str) else machine
        key = (hda, tuple(sorted(symbols.items())))
        if key not in self._built:
            try:
                self._built[key] = self._build(hda, symbols)
            except MegatileError as error:
                raise error.with_traceback(None) from None
        return self._built[key]

    def build_open(self, machine: str | HDA = DEFAULT_MACHINE) -> tuple[Program, dict[str, tuple[Any, ...]]]:
        """Return the Program with its symbolic extents left open, and the launch's extents that depend on
        them."""
        hda = find_machine(machine) if isinstance(machine, str) else machine
        unknown: dict[str, tuple[Any, ...]] = {}
        token = UNKNOWN_EXTENTS.set(unknown)
        try:
            return self._build(hda, {}), unknown
        finally:
            UNKNOWN_EXTENTS.reset(token)

    def _build(self, hda: HDA, symbols: Mapping[str, int]) -> Program:
        inferred: dict[tuple[str, str], Any] = {}
        levels: tuple[ScaleLevel, ...] = ()
        while True:
            try:
                return self._read(hda, symbols, inferred, levels)
            except LayoutFound as found:
                inferred[found.key] = found.layout
            except LevelFound as found:
                levels = found.levels

    def _read(
        self,
        hda: HDA,
        symbols: Mapping[str, int],
        inferred: dict[tuple[str, str], Any],
        levels: tuple[ScaleLevel, ...],
    ) -> Program:
        builder = ProgramBuilder(hda, self.__name__)
        builder.inferred, builder.nest = inferred, Nest(hda, levels)
        builder.reader = Reader(builder)
        builder.bound = dict(symbols)
        unknown = set(symbols) - {*self.symbols, RANKS}
        if unknown:
            raise ProgramError(
                f"'{sorted(unknown)[0]}' is not a symbolic extent of '{self.__name__}'",
                advice=did_you_mean(sorted(unknown)[0], self.symbols, what="symbolic extents"),
            )
        params, arguments = self._parameters(builder, symbols)
        builder.begun = share_out
        try:
            with builder.active():
                bind(self.function, builder.reader)(*arguments)
                builder.close_implied()
                check_views(builder)
                program = finished(builder, shared_out(builder, params))
        except MegatileError as error:
            check_views(builder)
            raise located(error, builder.place).with_traceback(None) from None
        except PYTHON_ERRORS as error:
            raise translated(error, builder.place, builder.tiles).with_traceback(None) from None
        for text in program.warnings:
            warnings.warn(text, ProgramWarning, stacklevel=4)
        return program

    def _parameters(
        self, builder: ProgramBuilder, symbols: Mapping[str, int]
    ) -> tuple[tuple[Param, ...], list[Any]]:
        params: list[Param] = []
        tiles: list[Any] = []
        for name, tensor in self.tensors.items():
            shape = tuple(symbols.get(e.name, e) if isinstance(e, Symbol) else e for e in tensor.shape)
            for extent in shape:
                if isinstance(extent, Symbol) and extent.name not in builder.symbols:
                    builder.symbols.append(extent.name)
            bound = tuple(UNKNOWN if isinstance(e, Value) else int(e) for e in shape)
            builder.names.add(name)
            tiles.append(Tile(builder, name, shape, bound, tensor.dtype, ROOT, "tensor"))
            if name in self.scalars:
                tiles[-1] = tiles[-1][0]
            if tensor.symmetric:
                tiles[-1] = OwnCopy(builder, tiles[-1])
                builder.symmetric.append(tiles[-1])
            params.append(
                Param(
                    name,
                    tuple(e.name if isinstance(e, Symbol) else e for e in shape),
                    tensor.dtype,
                    tensor.is_input,
                )
            )
        return tuple(params), tiles

    def __str__(self) -> str:
        try:
            return str(self.build())
        except ProgramError:
            if not self.symbols:
                raise
            given = ", ".join(f"{name}=..." for name in self.symbols)
            return (
                f"{self.__name__}: a program whose launch depends on symbolic extents; "
                f"show it with print({self.__name__}.build({given}))"
            )

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise ProgramError(
            f"'{self.__name__}' is a tile program, not a Python function",
            advice=f"run it: mt.run({self.__name__}, *arrays)",
        )


def check_views(builder: ProgramBuilder) -> None:
    """Check that every view has a layout by now."""
    for (name, scale), place in builder.open.items():
        what = (
            f"T.view of '{name}' at scale '{scale}' has no layout, and no earlier view or use of it gives one"
        )
        raise ProgramError(what, place=place, advice=ADVICE)


def finished(builder: ProgramBuilder, params: tuple[Param, ...]) -> Program:
    """Return the Program: flags marked, memory counted, structure and known mistakes checked."""
    if builder.launch is None:
        raise ProgramError(
            f"'{builder.name}' has no launch",
            advice="put its statements under 'with T.Kernel(...):' or an instance",
        )
    flags = {t.storage.name for t in builder.tiles.values() if t.storage.flag}

    def marked(node: n.Node) -> n.Node:
        return replace(node, flag=True) if isinstance(node, n.Alloc) and node.name in flags else node

    program = Program(
        builder.name,
        params,
        builder.launch,
        rewrite_nodes(tuple(builder.bodies[0].nodes), marked),
        builder.machine.name,
        tuple(builder.symbols),
        builder.padded,
    )
    verify(program)
    for message, span, advice in find_mistakes(program):
        raise ProgramError(message, place=span.place() if span else None, advice=advice)
    launch = with_slots(
        builder.launch, builder.instance, checked_memory(builder.machine, program, builder.spills)
    )
    findings = [*find_warnings(program), *shallow_pipelines(builder.machine, program)]
    findings += () if builder.spills else crowded_threads(builder.machine, program)
    warnings = tuple(Remark(text, span.place() if span else None, advice) for text, span, advice in findings)
    return replace(program, launch=launch, warnings=warnings)


def _annotations(function: Callable[..., Any], names: Mapping[str, Any]) -> dict[str, Tensor | DType]:
    """Return the tensors of a kernel's arguments, and dtypes of numbers; ``names`` are those around it, for
    annotations kept as text."""
    tensors: dict[str, Tensor | DType] = {}
    annotations = evaluated_annotations(function, names)
    for name in inspect.signature(function).parameters:
        annotation = annotations.get(name)
        for part in getattr(annotation, "__metadata__", ()):  # of Annotated[Any, T.Tensor(…)]
            annotation = part if isinstance(part, (Tensor, DType)) else annotation
        if not isinstance(annotation, (Tensor, DType)):
            raise ProgramError(
                f"argument '{name}' of '{function.__name__}' has no T.Tensor annotation",
                place=_argument_place(function, name),
                advice=f'write {name}: T.Tensor((M, N), "f32"), or {name}: T.float32 for a number; '
                "other parameters come from a function around it",
            )
        tensors[name] = annotation
    return tensors


def evaluated_annotations(function: Callable[..., Any], names: Mapping[str, Any]) -> dict[str, Any]:
    """Return annotations; under ``from __future__ import annotations`` they are texts."""
    try:
        found = inspect.get_annotations(function)
        if any(type(annotation) is str for annotation in found.values()):
            found = inspect.get_annotations(function, locals=dict(names), eval_str=True)
        return found
    except MegatileError:
        raise
    except Exception as error:
        raise ProgramError(
            f"the annotations of '{function.__name__}' cannot be read: {error}",
            place=_argument_place(function, next(iter(inspect.signature(function).parameters))),
            advice="use names that are known where the kernel is defined",
        ) from None


def _argument_place(function: Callable[..., Any], name: str) -> Place:
    """Return where an argument stands in the kernel's head."""
    code = function.__code__
    try:
        lines, first = inspect.getsourcelines(function)
    except OSError:
        return Place(code.co_filename, code.co_firstlineno)
    word = re.compile(rf"[(,\s]({re.escape(name)})\s*[:,)=]")
    for number, line in enumerate(lines):
        found = word.search(line)
        if found and not line.lstrip().startswith("@"):
            return Place(code.co_filename, first + number, found.start(1) + 1, snippet=line)
    return Place(code.co_filename, first)


def program(function: Callable[..., Any]) -> ProgramFunction:
    """Decorator of kernels; alias ``T.prim_func``."""
    if not inspect.isfunction(function):
        raise ProgramError(
            f"a program is made of a function, not of {type(function).__name__}",
            advice="write @T.program above a def",
        )
    frame = inspect.currentframe()
    around = frame.f_back if frame is not None else None
    names = dict(around.f_locals) if around is not None else {}
    try:
        made = ProgramFunction(function, names)
        made.made_by = _factory(around, names) if around is not None else None
        return made
    except MegatileError as error:
        raise error.with_traceback(None) from None


def _factory(frame: FrameType, names: Mapping[str, Any]) -> tuple[Callable[..., Any], dict[str, Any]] | None:
    """Return the function of a frame and its arguments, if it is one of its module with a fixed number of
    them."""
    code = frame.f_code
    found = frame.f_globals.get(code.co_name)
    found = getattr(found, "__wrapped__", found)
    open_ended = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    if not callable(found) or getattr(found, "__code__", None) is not code or open_ended:
        return None
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return (found, {name: names[name] for name in arguments}) if set(arguments) <= set(names) else None


@no_none
def macro(function: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a function to be read into the kernels that call it (any helper may contain control flow)."""
    return function
