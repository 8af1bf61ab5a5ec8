"""``@T.autotune(choices, machine=…)``: a factory that finds its own best choice when it is called."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from megatile.core.arguments import no_none
from megatile.tuning.search import Tuned, tune
from megatile.tuning.work import Choice, TuneError


class Autotuned:
    """A factory under ``@T.autotune``: a call that does not name the tuned parameters tunes them, once for
    the same arguments, and gives what the factory makes of the best choice."""

    def __init__(self, factory: Callable[..., Any], choices: Any, options: Mapping[str, Any]) -> None:
        functools.update_wrapper(self, factory)
        self.factory, self.choices, self.options = factory, choices, dict(options)
        self.tuned: dict[Any, Tuned] = {}
        """What was found, by the arguments of the call."""

    def tune(self, *arguments: Any, **keywords: Any) -> Tuned:
        """Tune for these arguments of the factory; the keywords of ``tune`` may be changed too."""
        known = inspect.signature(tune).parameters
        own = inspect.signature(self.factory).parameters
        changed = {k: v for k, v in keywords.items() if k in known and k not in own}
        given = {k: v for k, v in keywords.items() if k not in changed}
        options = {**self.options, **changed}
        if "machine" not in options:
            raise TuneError(
                "no machine is given", advice='@T.autotune({…}, machine="dgx-h100"), or machine= here'
            )
        return tune(functools.partial(self.factory, *arguments, **given), self.choices, **options)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        names = (
            set(self.choices) if isinstance(self.choices, Mapping) else {n for c in self.choices for n in c}
        )
        bound = inspect.signature(self.factory).bind_partial(*arguments, **keywords)
        if names & set(bound.arguments):
            return self.factory(*arguments, **keywords)
        key = repr((arguments, sorted(keywords.items())))
        if key not in self.tuned:
            self.tuned[key] = self.tune(*arguments, **keywords)
        return self.tuned[key].made


@no_none
def autotune(
    choices: Mapping[str, Sequence[Any]] | Sequence[Choice], **options: Any
) -> Callable[[Callable[..., Any]], Autotuned]:
    """Decorate a factory of ``T`` programs or Plans with the choices for its parameters.

        @T.autotune({"block_M": [64, 128], "block_N": [64, 128]}, machine="dgx-h100")
        def gemm(M, N, K, block_M=64, block_N=64): ...

        program = gemm(4096, 4096, 4096)         # the fastest; gemm(…, block_M=64) is made as said
        gemm.tune(4096, 4096, 4096)              # what was tried

    ``options`` are those of `tune`.
    """
    wrong = [name for name in options if name not in inspect.signature(tune).parameters]
    if callable(choices) or wrong:
        problem = f"there is no option '{wrong[0]}'" if wrong else "the choices are missing"
        raise TuneError(problem, advice='@T.autotune({"block_M": [64, 128]}, machine="dgx-h100")')
    return lambda factory: Autotuned(factory, choices, options)
