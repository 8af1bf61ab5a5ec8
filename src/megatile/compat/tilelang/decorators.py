"""``@tilelang.jit``: functions that are kernels, or that return one."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from megatile.compat.tilelang.kernel import EagerKernel, JITKernel
from megatile.compat.tilelang.source import PrimFunc, Source, frame_names
from megatile.language.tile.errors import ProgramError


def is_eager(function: Callable[..., Any]) -> bool:
    """Whether the function is itself a kernel, instead of returning one."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return False
    pending: list[ast.AST] = list(tree.body[0].body)  # type: ignore[attr-defined]
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            continue
        if isinstance(node, ast.With):
            for item in node.items:
                text = ast.unparse(item.context_expr)
                if "Kernel(" in text:
                    return True
        pending.extend(ast.iter_child_nodes(node))
    return False


class JIT:
    """What ``@tilelang.jit`` makes of a function; calling it runs the kernel, or gives one to run."""

    def __init__(self, function: Callable[..., Any], out_idx: Any = None, **options: Any):
        functools.update_wrapper(self, function)
        self.__name__ = function.__name__
        self.function = self.func = function
        self.out_idx = out_idx
        self.options = options
        self.eager = is_eager(function)
        self.mode = "eager" if self.eager else "lazy"
        self.signature = inspect.signature(function)
        self.source = Source(function, frame_names()) if self.eager else None
        self.kernels: dict[Any, Any] = {}

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def compile(self, *arguments: Any, **keywords: Any) -> Any:
        """A kernel for these numbers and shapes, to be called with arrays."""
        if not self.eager:
            return JITKernel(self.get_tir(*arguments, **keywords), self.out_idx)
        assert self.source is not None
        given, bound = self._split(arguments, keywords)
        return EagerKernel(self.source, given, bound)

    def _split(
        self, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, int]]:
        """Arguments by name, and symbolic extents among the keywords."""
        known = {k: v for k, v in keywords.items() if k in self.signature.parameters}
        bound = {k: int(v) for k, v in keywords.items() if k not in self.signature.parameters}
        return dict(self.signature.bind_partial(*arguments, **known).arguments), bound

    def get_tir(self, *arguments: Any, **keywords: Any) -> Any:
        """The kernel as a function of its arrays."""
        if self.eager:
            return self.compile(*arguments, **keywords)
        result = self.function(*arguments, **keywords)
        if not isinstance(result, PrimFunc):
            raise ProgramError(
                f"'{self.__name__}' returns {type(result).__name__}, not a kernel",
                advice="return a function under @T.prim_func, or launch with T.Kernel in the function itself",
            )
        given = self.signature.bind(*arguments, **keywords)
        result.made_of = tuple(self.signature.parameters)
        result.made = lambda at: self.function(  # type: ignore[method-assign]
            **{**given.arguments, **{k: v for k, v in at.items() if k in result.made_of}}
        )
        return result

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        keywords.update(keywords.pop("__tune_params", {}))
        if not self.eager:
            key = _key(arguments, keywords)
            if key is None or key not in self.kernels:
                kernel = self.compile(*arguments, **keywords)
                if key is None:
                    return kernel
                self.kernels[key] = kernel
            return self.kernels[key]
        given, bound = self._split(arguments, keywords)
        assert self.source is not None
        return EagerKernel(self.source, given, bound).run(given)

    def get_kernel_source(self, *arguments: Any, **keywords: Any) -> str:
        return str(self.compile(*arguments, **keywords).get_kernel_source())

    def par_compile(self, configs: Any, **_: Any) -> list[Any]:
        return [self.compile(**c) if isinstance(c, Mapping) else self.compile(*c) for c in configs]


def _key(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    key = (arguments, tuple(sorted(keywords.items())))
    try:
        hash(key)
    except TypeError:
        return None
    return key


def jit(function: Any = None, *, out_idx: Any = None, **options: Any) -> Any:
    """Decorator: a function that is a kernel, or that returns one."""
    if function is None:
        return functools.partial(jit, out_idx=out_idx, **options)
    if isinstance(function, PrimFunc):
        return JITKernel(function, out_idx)
    return JIT(function, out_idx, **options)


def compile(function: Any, out_idx: Any = None, **_: Any) -> Any:
    """A kernel from a function under ``@T.prim_func``."""
    return JITKernel(function, out_idx) if isinstance(function, PrimFunc) else function
