"""``tilelang.autotune``: the configurations of a kernel, and the one that is taken."""

from __future__ import annotations

import functools
import inspect
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

from megatile.compat.tilelang.time import predicted_ms
from megatile.core.errors import MegatileError


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

    def _best(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[dict[str, Any], float]:
        """The configuration that is predicted to be the fastest, and its milliseconds."""
        candidates = self._candidates(arguments, keywords)
        return fastest(
            candidates, lambda config: self.inner.compile(*arguments, **{**config, **keywords}).programs
        )

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
        config, latency = self._best(arguments, keywords)
        result = self.inner(*arguments, **{**config, **keywords})
        if hasattr(result, "config"):
            result.config, result.latency = config, latency
        return result

    def compile(self, *arguments: Any, **keywords: Any) -> Any:
        config, latency = self._best(arguments, keywords)
        kernel = self.inner.compile(*arguments, **{**config, **keywords})
        kernel.config, kernel.latency = config, latency
        return kernel

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
        from megatile.compat.tilelang.decorators import compile

        known = inspect.signature(self.function).parameters

        def made(config: dict[str, Any]) -> Any:
            return compile(self.function(**{k: v for k, v in config.items() if k in known}), self.out_idx)

        config, latency = fastest([dict(c) for c in self.configs], lambda c: made(c).programs)
        kernel = made(config)
        kernel.config, kernel.latency = config, latency
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
