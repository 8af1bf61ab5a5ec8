"""``tilelang.autotune``: the configurations of a kernel, and the one that is taken."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any


class Tuned:
    """A function under ``@tilelang.autotune``; what the caller does not give comes from a configuration."""

    def __init__(self, inner: Any, configs: Any):
        functools.update_wrapper(self, getattr(inner, "function", inner))
        self.inner = inner
        self.configs = configs
        self.signature = inspect.signature(getattr(inner, "function", inner))

    def _config(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Any]:
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
            return {}
        return {name: first[name] for name in tunable}

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        config = self._config(arguments, keywords)
        result = self.inner(*arguments, **{**config, **keywords})
        if hasattr(result, "config"):
            result.config = config
        return result

    def compile(self, *arguments: Any, **keywords: Any) -> Any:
        config = self._config(arguments, keywords)
        kernel = self.inner.compile(*arguments, **{**config, **keywords})
        kernel.config = config
        return kernel

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def autotune(function: Any = None, *, configs: Any = (), **_: Any) -> Any:
    """Decorator above ``@tilelang.jit``. Until kernels are predicted, the first configuration is taken."""
    if function is None or not callable(function):
        return functools.partial(autotune, configs=configs)
    return Tuned(function, configs)


class AutoTuner:
    """``AutoTuner.from_kernel(kernel, configs)``: takes the first configuration."""

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
        from megatile.compat.tilelang.decorators import compile

        known = inspect.signature(self.function).parameters
        config = dict(next(iter(self.configs)))
        kernel = compile(self.function(**{k: v for k, v in config.items() if k in known}), self.out_idx)
        kernel.config = config
        kernel.kernel, kernel.libcode = kernel, ""
        return kernel


class set_autotune_inputs:
    """``with set_autotune_inputs(a, b):`` — the arrays a tuner would measure with."""

    def __init__(self, *arrays: Any):
        self.arrays = arrays

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: Any) -> None:
        pass
