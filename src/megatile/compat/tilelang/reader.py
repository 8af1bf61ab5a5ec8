"""Reads a kernel in TileLang's spelling: variables that are stored to, annotations that declare, macros."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from megatile.compat.tilelang import buffers as b
from megatile.core.errors import Place
from megatile.language.common.hooks import Undefined
from megatile.language.common.rewrite import bind
from megatile.language.tile.builder import ProgramBuilder, current
from megatile.language.tile.loops import ParallelRange, PersistentRange, SerialRange, serial
from megatile.language.tile.reader import Reader
from megatile.language.tile.scalars import Value
from megatile.language.tile.tiles import Ref, Tile


class Macro:
    """A function under ``@T.macro``, read into the kernels that call it."""

    def __init__(self, function: Callable[..., Any]):
        self.function = function
        self.__name__ = function.__name__

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        builder = current()
        return builder.reader.call(builder.place, self, *arguments, **keywords)


class Range(SerialRange):
    """Python's ``range``: a loop of the Program in a ``for``, Python's own in a comprehension."""

    def __iter__(self) -> Any:
        return iter(builtins.range(int(self.start), int(self.stop), int(self.step)))


class TileLangReader(Reader):
    """The hooks of the rewriter for TileLang's spelling."""

    def __init__(self, builder: ProgramBuilder):
        super().__init__(builder)
        self.variables: list[dict[str, b.Variable]] = [{}]
        self.branches = 0
        """Conditions known only at run time around what is read."""

    def follows(self, function: Any) -> bool:
        return False  # helpers are Python; only macros are read

    def call(self, place: Place, function: Any, /, *arguments: Any, **keywords: Any) -> Any:
        if function is builtins.range:
            return Range(**vars(serial(*arguments)))
        if isinstance(function, Macro):
            self.variables.append({})
            try:
                return super().call(place, bind(function.function, self), *arguments, **keywords)
            finally:
                self.variables.pop()
        return super().call(place, function, *arguments, **keywords)

    def assign(self, place: Place, name: str, value: Any) -> Any:
        scope = self.variables[-1]
        if isinstance(value, b.Variable) and value.tile.name not in {v.tile.name for v in scope.values()}:
            scope[name] = value
            nodes = self.builder.bodies[-1].nodes
            first = [nodes.pop()] if nodes and getattr(nodes[-1], "target", "") == value.tile.name else []
            self.builder.rename(value.tile, name)
            nodes += [replace(store, target=value.tile.name) for store in first]  # type: ignore[call-arg]
            return value
        if name in scope:
            if value is not scope[name]:
                self.at(place)
                scope[name].store(value)
            return scope[name]
        if isinstance(value, b.Buffer) and value.name.startswith("made"):
            self.builder.tilelang.renamed(value, self.builder.fresh(name))  # type: ignore[attr-defined]
            return value
        if isinstance(value, b.Barrier):
            self.builder.rename(value.tile, name)
        return super().assign(place, name, value)

    def stores(self, names: tuple[str | None, ...]) -> bool:
        return super().stores(names) or any(name in self.variables[-1] for name in names)

    def assign_part(self, place: Place, name: str, value: Any) -> Any:
        given = self.assign if name in self.variables[-1] else super().assign_part
        return given(place, name, value)

    def _reads(self, value: Value) -> bool:
        element = isinstance(value, Ref) and value.is_element
        return bool(self.builder.scales) if element else super()._reads(value)

    def declare(self, place: Place, name: str, value: Any, annotation: Callable[[], Any], given: bool) -> Any:
        """``A: T.Tensor(shape, dtype)`` declares an argument, ``x: T.int32 = 0`` a variable."""
        self.at(place)
        kind = annotation()
        if isinstance(kind, b.TensorProxy):
            kind = kind()
        if isinstance(kind, b.TensorType):
            return self.builder.tilelang.function.tensor(self.builder, name, kind, value)  # type: ignore[attr-defined]
        if isinstance(kind, b.Dtype) and given:
            if name in self.variables[-1]:
                return self.assign(place, name, value)
            return self.assign(place, name, b.alloc_var(kind, init=value))
        if given:
            return self.assign(place, name, value)
        return value if not isinstance(value, Undefined) else Undefined(name, place)

    def _branch(self, *arguments: Any) -> Any:
        self.branches += 1
        found = super()._branch(*arguments)
        self.branches -= 1
        return found

    def for_(
        self, place: Place, iterable: Any, body: Callable[..., Any], names: tuple[str, ...], state: Any,
        context: Any,
    ) -> Any:  # fmt: skip
        if isinstance(iterable, ParallelRange) and self.builder.parallel:
            outer, extents = body, iterable.extents  # inside elementwise code, a loop like any other
            iterable = PersistentRange(extents, 1, 0)
            one = len(extents) == 1
            tiles = iterable
            body = lambda k, *rest: outer(k if one else tiles.coordinates(k), *rest)  # noqa: E731
            iterable = tiles.flat()
        return super().for_(place, iterable, body, names, state, context)

    def _carry(self, names: tuple[str, ...], state: Any) -> list[Any]:
        carried = super()._carry(names, state)
        return [s if isinstance(s, (b.Variable, Tile)) else c for s, c in zip(state, carried, strict=True)]
