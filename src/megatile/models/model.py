"""``mt.model``: a model and what can be asked about it on a machine.

llama = mt.model("Llama-3.1-70B")
llama.memory(machine="dgx-h100", tp=8, requests=64, context=4096)
llama.step([(1, 4096)] * 64, machine="dgx-h100", tp=8)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatile.core.times import Shown
from megatile.hda import HDA
from megatile.models.config import ModelConfig, read_config
from megatile.models.deployment import Deployment, deployment
from megatile.models.memory import Memory, memory
from megatile.models.predictor import InferTimePredictor
from megatile.models.schemes import ModelError
from megatile.models.search import ModelSearch, search
from megatile.models.serving import Serving, serve
from megatile.models.step import StepTime, step_time

if TYPE_CHECKING:
    from megatile.models.training import TrainStep


class Model(Shown):
    """A model by its config; every question names a machine and how the model is divided over it."""

    def __init__(self, config: ModelConfig):
        self.config = config

    @property
    def name(self) -> str:
        return self.config.name

    def __repr__(self) -> str:
        return f"Model({self.config})"

    def deployment(self, machine: str | HDA, **division: Any) -> Deployment:
        """Return the model divided over a machine: ``tp= pp= ep= attention_dp= cp= dp= dtype= kv_dtype=
        library= graph=`` and settings of the engine."""
        return deployment(self.config, machine, **division)

    def memory(self, *, machine: str | HDA, requests: int = 1, context: int = 0, **division: Any) -> Memory:
        """Return the memory of one device with ``requests`` requests of ``context`` tokens in the cache."""
        return memory(self.deployment(machine, **division), requests=requests, context=context)

    def step(self, requests: Any, *, machine: str | HDA, **division: Any) -> StepTime:
        """Return the time of one forward pass over (new, cached) tokens of each request.

        ``[(1, 4096)] * 64`` decodes a token for each of 64 requests, ``[(2048, 0)]`` prefills a prompt.
        """
        return step_time(self.deployment(machine, **division), requests)

    def serve(
        self,
        *,
        machine: str | HDA,
        isl: int = 1024,
        osl: int = 1024,
        concurrency: int | None = None,
        rate: float | None = None,
        requests: Any = None,
        count: int | None = None,
        spread: float = 0.0,
        prefix: float = 0.0,
        ramp_s: float = 0.0,
        seed: int = 0,
        prefill: Mapping[str, Any] | None = None,
        **division: Any,
    ) -> Serving:
        """Return what users see under a load: time to first token, time per token, tokens per second.

        ``concurrency`` users, who begin evenly over ``ramp_s`` seconds, each ask again when answered;
        ``rate`` is a Poisson process of requests per second; ``requests`` is a JSONL trace or (seconds,
        prompt, output) triples. ``count`` requests are asked, whose lengths lie evenly in [1 − spread, 1]
        times ``isl`` and ``osl``; the share ``prefix`` of each prompt is in the cache already.

        ``prefill={"dp": 2, "tp": 4}`` gives prompts to engines of their own, divided so; the ``dp`` engines
        of ``division`` then only decode.
        """
        if prefill is not None and not isinstance(prefill, Mapping):
            raise ModelError(
                f"prefill must name degrees, got {prefill!r}", advice='prefill={"dp": 1, "tp": 4}'
            )
        return serve(
            self.deployment(machine, **division), isl=isl, osl=osl, concurrency=concurrency, rate=rate,
            requests=requests, count=count, spread=spread, prefix=prefix, ramp_s=ramp_s, seed=seed,
            prefill=None if prefill is None else self.deployment(machine, **{**division, **prefill}),
        )  # fmt: skip

    def predictor(
        self, *, machine: str | HDA, library: str = "sglang", **division: Any
    ) -> InferTimePredictor:
        """Return a predictor of step times for SGLang's simulator."""
        return InferTimePredictor(self.deployment(machine, library=library, **division))

    def train(
        self,
        *,
        machine: str | HDA,
        seq: int = 4096,
        micro_batch: int = 1,
        global_batch: int | None = None,
        schedule: str | None = None,
        interleave: int = 1,
        recompute: str = "selective",
        fsdp: bool = False,
        attention: str = "flash3",
        compiled: bool = True,
        async_tp: bool = False,
        **division: Any,
    ) -> TrainStep:
        """Return the time of one optimizer step over ``global_batch`` sequences of ``seq`` tokens.

        ``schedule`` is ``1f1b``, ``interleaved`` (with ``interleave`` chunks a stage) or ``zero_bubble``;
        ``recompute`` is ``none``, ``selective`` (the core of attention), ``alternate`` (every second layer)
        or ``full``; ``attention`` is ``flash3``, ``flash2`` or ``unfused``; ``fsdp`` divides weights among
        replicas; ``compiled=False`` is torch's eager mode; ``async_tp`` hides tensor-parallel collectives
        behind products.
        """
        from megatile.models.training import train

        return train(
            self.config, machine, seq=seq, micro_batch=micro_batch, global_batch=global_batch,
            schedule=schedule, interleave=interleave, recompute=recompute, fsdp=fsdp, attention=attention,
            compiled=compiled, async_tp=async_tp, **division,
        )  # fmt: skip

    def search(
        self,
        *,
        machine: str | HDA,
        isl: int = 1024,
        osl: int = 1024,
        ttft_ms: float | None = None,
        tpot_ms: float | None = None,
        concurrencies: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128, 256),
        spread: float = 0.0,
        executor: Executor | None = None,
        store: str | Path | None = None,
        **options: Any,
    ) -> ModelSearch:
        """Return which divisions over a machine, with which load, keep limits of TTFT (median) and TPOT.

        Every row is what `serve` says with this ``concurrency`` and ``spread``. ``executor`` runs the
        simulations (any of ``concurrent.futures``); ``store`` is a file that keeps results, so that a search
        that was stopped goes on where it was. ``options`` are ``dtype=``, ``kv_dtype=``, ``library=`` and
        settings of the engine.
        """
        return search(
            self.config, machine, isl=isl, osl=osl, ttft_ms=ttft_ms, tpot_ms=tpot_ms, executor=executor,
            concurrencies=concurrencies, spread=spread, store=store, **options,
        )  # fmt: skip


def model(source: Any) -> Model:
    """Return the model of a shipped name, a ``config.json`` (or its folder), or a mapping of its keys."""
    return source if isinstance(source, Model) else Model(read_config(source))
