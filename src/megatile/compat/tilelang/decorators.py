"""``@tilelang.jit``: functions that are kernels, or that return one."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import math
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from megatile.compat.tilelang.kernel import EagerKernel, JITKernel, on_cpu
from megatile.compat.tilelang.source import PrimFunc, Source, frame_names
from megatile.compat.tilelang.time import predicted_ms
from megatile.core.errors import MegatileError
from megatile.language.tile.errors import ProgramError


def is_eager(function: Callable[..., Any]) -> bool:
    """Whether the function is itself a kernel (it launches, or its arguments are tensors, which a macro may
    launch for it), instead of returning one."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return False
    made = tree.body[0]
    if not isinstance(made, ast.FunctionDef):
        return False
    given = {one.arg for one in (*made.args.args, *made.args.kwonlyargs)}
    if any(_is_tensor(one.annotation) for one in made.args.args):
        return True
    pending: list[ast.AST] = list(made.body)
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            continue
        if isinstance(node, ast.With) and any(
            re.search(r"\b(Kernel|ClusterKernel|[Ss]cale)\(", ast.unparse(i.context_expr)) for i in node.items
        ):
            return True
        if (
            isinstance(node, ast.AnnAssign) and _is_tensor(node.annotation)
            and isinstance(node.target, ast.Name) and node.target.id in given
        ):  # fmt: skip
            return True
        pending.extend(ast.iter_child_nodes(node))
    return False


def _is_tensor(annotation: ast.expr | None) -> bool:
    return (
        annotation is not None and re.search(r"\b(Strided)?Tensor\b\W", ast.unparse(annotation)) is not None
    )


class JIT:
    """What ``@tilelang.jit`` makes of a function; calling it runs the kernel, or gives one to run."""

    def __init__(self, function: Callable[..., Any], out_idx: Any = None, **options: Any):
        functools.update_wrapper(self, function)
        vars(self).pop("__wrapped__")  # it is no function: tools that collect tests leave it alone
        self.__name__ = function.__name__
        self.function = self.func = function
        self.out_idx = out_idx
        self.options = options
        self.eager = is_eager(function)
        self.mode = "eager" if self.eager else "lazy"
        self.signature = inspect.signature(function)
        self.source = Source(function, frame_names()) if self.eager else None
        if self.source is not None:
            self.source.cpu = on_cpu(options.get("target"))
        self.kernels: dict[Any, Any] = {}

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def compile(self, *arguments: Any, **keywords: Any) -> Any:
        """A kernel for these numbers and shapes, to be called with arrays."""
        if not self.eager:
            return JITKernel(self.get_tir(*arguments, **keywords), self.out_idx, self.options.get("target"))
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
        try:
            given = self.signature.bind(*arguments, **keywords)
        except TypeError as error:
            raise ProgramError(f"'{self.__name__}': {error}", advice="give its arguments") from None
        result = self.function(*arguments, **keywords)
        if not isinstance(result, PrimFunc):
            raise ProgramError(
                f"'{self.__name__}' returns {type(result).__name__}, not a kernel",
                advice="return a function under @T.prim_func, or launch with T.Kernel in the function itself",
            )
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
        return JITKernel(function, out_idx, options.get("target"))
    return JIT(function, out_idx, **options)


def compile(function: Any, out_idx: Any = None, target: Any = None, **_: Any) -> Any:
    """A kernel from a function under ``@T.prim_func``."""
    return JITKernel(function, out_idx, target) if isinstance(function, PrimFunc) else function


def par_compile(functions: Iterable[Any], out_idx: Any = None, target: Any = None, **_: Any) -> list[Any]:
    """A kernel from each of several functions."""
    return [compile(one, out_idx, target) for one in functions]


# --- ``tilelang.autotune``: the configurations of a kernel, and the one that is taken -----------------------


def fastest(
    configs: list[dict[str, Any]], programs: Callable[[dict[str, Any]], Any]
) -> tuple[dict[str, Any], float]:
    """The configuration whose Programs are predicted to be the fastest, and its milliseconds.

    At most ``MEGATILE_TUNE`` configurations (8 if it is not set) are predicted, spread evenly over the list;
    those that do not fit the machine, or cannot be predicted, are passed over.
    """
    most = max(int(os.environ.get("MEGATILE_TUNE", "8")), 1)
    if len(configs) == 1 or most == 1:
        return configs[0], math.nan
    tried = [configs[i * len(configs) // most] for i in range(most)] if len(configs) > most else configs
    best: tuple[dict[str, Any], float] | None = None
    for config in tried:
        try:
            took = predicted_ms(programs(config))
        except MegatileError:
            continue
        if best is None or took < best[1]:
            best = config, took
    return best or (configs[0], math.nan)


class Tuned:
    """A function under ``@tilelang.autotune``; what the caller does not give comes from a configuration."""

    def __init__(self, inner: Any, configs: Any):
        functools.update_wrapper(self, getattr(inner, "function", inner))
        self.inner = inner
        self.configs = configs
        self.signature = inspect.signature(getattr(inner, "function", inner))

    def _tuned(self, make: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """The result of the configuration that is predicted to be the fastest; a kernel keeps it."""
        config, latency = fastest(
            self._candidates(arguments, keywords),
            lambda config: self.inner.compile(*arguments, **{**config, **keywords}).programs,
        )
        result = make(*arguments, **{**config, **keywords})
        if hasattr(result, "config"):
            result.config, result.latency = config, latency
        return result

    def _candidates(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> list[dict[str, Any]]:
        configs = self.configs
        if callable(configs):
            count = len(inspect.signature(configs).parameters)
            configs = configs(*arguments[:count]) if count <= len(arguments) else configs()
        names = set(self.signature.bind_partial(*arguments).arguments) | set(keywords)
        missing = [
            name for name, p in self.signature.parameters.items()
            if name not in names and p.default is inspect.Parameter.empty
        ]  # fmt: skip
        first: Mapping[str, Any] = next(iter(configs), {})
        tunable = [name for name in first if name in self.signature.parameters and name not in names]
        if any(name in names for name in first) and not missing:
            return [{}]
        found = [{name: config[name] for name in tunable} for config in configs]
        return list({str(config): config for config in found}.values()) or [{}]

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._tuned(self.inner, arguments, keywords)

    def compile(self, *arguments: Any, **keywords: Any) -> Any:
        return self._tuned(self.inner.compile, arguments, keywords)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def autotune(function: Any = None, *, configs: Any = (), **_: Any) -> Any:
    """Decorator above ``@tilelang.jit``: of the configurations, the one predicted to be fastest."""
    if function is None or not callable(function):
        return functools.partial(autotune, configs=configs)
    return Tuned(function, configs)


class AutoTuner:
    """``AutoTuner.from_kernel(kernel, configs)``: takes the configuration predicted to be the fastest."""

    def __init__(self, function: Callable[..., Any], configs: Any):
        self.function, self.configs = function, configs
        self.out_idx: Any = None

    @classmethod
    def from_kernel(cls, kernel: Callable[..., Any], configs: Any) -> AutoTuner:
        return cls(kernel, configs)

    def set_compile_args(self, out_idx: Any = None, **_: Any) -> AutoTuner:
        self.out_idx = out_idx
        return self

    def set_profile_args(self, **_: Any) -> AutoTuner:
        return self

    def run(self, *_: Any, **__: Any) -> Any:
        known = inspect.signature(self.function).parameters

        def made(config: dict[str, Any]) -> Any:
            return compile(self.function(**{k: v for k, v in config.items() if k in known}), self.out_idx)

        config, latency = fastest([dict(c) for c in self.configs], lambda c: made(c).programs)
        kernel = made(config)
        kernel.config, kernel.latency = config, latency
        kernel.kernel, kernel.libcode = kernel, ""
        return kernel


def set_autotune_inputs(*arrays: Any) -> Any:
    """``with set_autotune_inputs(a, b):`` — the arrays a tuner would measure with."""
    return contextlib.nullcontext()
