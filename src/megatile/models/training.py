"""Training: one optimizer step of a model divided over a machine.

A micro-batch passes forward and backward through pipeline stages in the order of a schedule; gradients are
reduced and weights gathered among data-parallel replicas, hidden behind compute where it is long enough; then
the optimizer updates the weights that a device holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from megatile.attention.kernel_times import KernelTimes
from megatile.core.quantities import format_bytes
from megatile.core.rows import HasRows
from megatile.core.tables import text_table
from megatile.core.times import HasTime
from megatile.hda import HDA
from megatile.hda.catalog import library
from megatile.models.batch import Batch
from megatile.models.config import Layer, ModelConfig
from megatile.models.deployment import Deployment, deployment, stage_range
from megatile.models.memory import weights_of
from megatile.models.operators import WORD, Operator, layer_operators, step_of
from megatile.models.plans import pipeline_plan
from megatile.models.prices import Prices, prices
from megatile.models.schedules import SCHEDULES, StageTimes, finish_us
from megatile.models.schemes import ModelError, require_flags, require_whole
from megatile.timing.formulas import Device, tensor_engine
from megatile.timing.library import networks_between

RECOMPUTE = ("none", "selective", "alternate", "full")
"""What is computed again in the backward pass: nothing, the core of attention, every second layer, all."""
ATTENTION = ("flash3", "flash2", "unfused")
EAGER_PASSES = 3
"""Element-wise traffic of torch's eager operators over that of fused kernels: norms, rotary embedding and
activation write every intermediate, partly in f32."""
ATTENTION_BACKWARD = 2.5
"""FlashAttention 2's backward pass does five products where the forward pass does two."""
GRADIENT_BYTES = 4
"""Bytes of one gradient: they accumulate in f32."""
OPTIMIZER_BYTES = 28
"""Adam reads weight, gradient and two moments in f32 and writes three of them; per parameter."""
STATE_BYTES = 12
"""Master weight and two moments in f32, per parameter."""
SCORE_PASSES = 5
"""Reads and writes of the score matrix of unfused attention: a fused scale, mask and softmax (two),
dropout (two and its mask)."""


class Recipe(NamedTuple):
    """How a step is trained."""

    seq: int
    micro_batch: int
    global_batch: int
    schedule: str
    interleave: int
    recompute: str
    fsdp: bool
    attention: str
    compiled: bool
    async_tp: bool


@dataclass(frozen=True, repr=False)
class TrainStep(HasRows, HasTime):
    """The time of one optimizer step and what it is made of."""

    deployment: Deployment
    recipe: Recipe
    stages: tuple[StageTimes, ...]
    micro_batches: int
    pipeline_us: float
    exposed_us: float
    """Communication of data parallelism that nothing hides."""
    optimizer_us: float
    memory_bytes: int

    @property
    def stage(self) -> StageTimes:
        """The times of the slowest stage."""
        return max(self.stages, key=sum)

    @cached_property
    def plan(self) -> Any:
        """The pipeline as a Plan: ``mt.simulate(step.plan, machine=…)`` shows its bubbles."""
        r, d = self.recipe, self.deployment
        orders = SCHEDULES.find(r.schedule)(d.pp, self.micro_batches, r.interleave)
        send = _send_us(d, r, prices(d.hda, d.library))
        return pipeline_plan(d, orders, self.stages, send, r.interleave)

    @property
    def fits(self) -> bool:
        """Whether weights, gradients, optimizer and activations fit a device."""
        return self.memory_bytes <= self.deployment.memory_bytes

    @property
    def memory_words(self) -> str:
        """The memory of a device in one line, with what to try where it does not fit."""
        held, there = format_bytes(self.memory_bytes), format_bytes(self.deployment.memory_bytes)
        advice = "fits" if self.fits else "may not fit (try: more tp or pp, fsdp, recompute full)"
        return f"estimated memory of a device: {held} of {there}: {advice}"

    @property
    def time_ps(self) -> int:
        return round((self.pipeline_us + self.exposed_us + self.optimizer_us) * 1e6)

    @property
    def time_s(self) -> float:
        return self.time_ps / 1e12

    @property
    def tokens(self) -> int:
        return self.recipe.global_batch * self.recipe.seq

    @property
    def tokens_per_s_device(self) -> float:
        return self.tokens / self.time_s / self.deployment.devices

    @property
    def bubble(self) -> float:
        """The share of the pipeline's time in which a stage has nothing to do."""
        busy = self.micro_batches * self.recipe.interleave * sum(self.stage)
        return max(0.0, 1 - busy / self.pipeline_us)

    @property
    def mfu(self) -> float:
        """Operations that the model needs (6 per weight and token, attention) over what devices could do."""
        c, device = self.deployment.config, Device.of(self.deployment.hda)
        pairs = c.layers * c.heads * c.head_dim * self.recipe.seq / 2
        needed = 6 * (c.parameters(active=True) + 2 * pairs) * self.tokens
        peak = device.rate("bf16") * device.units * self.deployment.devices
        return needed / self.time_s / peak

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each part; their times add up to the step's."""
        busy = self.micro_batches * self.recipe.interleave
        bubble = self.pipeline_us - busy * sum(self.stage)
        parts = {
            "forward": busy * self.stage.forward,
            "backward": busy * (self.stage.backward + self.stage.weights),
            "bubble": bubble, "exposed data parallel": self.exposed_us, "optimizer": self.optimizer_us,
        }  # fmt: skip
        return [{"part": n, "time_us": us, "share": us / (self.time_us or 1)} for n, us in parts.items()]

    def __repr__(self) -> str:
        d = self.deployment
        said = f"{self.time_s:.4g} s, {self.tokens_per_s_device:.4g} tokens/s a device, MFU {self.mfu:.1%}"
        return f"TrainStep({d.config.name} on {d.hda.name}, {d.words()}: {said})"

    def __str__(self) -> str:
        rows = [(r["part"], f"{r['time_us'] / 1e3:.4g}", f"{r['share']:.1%}") for r in self.rows()]
        return f"{self!r}\n{text_table(('part', 'ms', 'share'), rows)}\n{self.memory_words}"


def train(
    config: ModelConfig,
    machine: str | HDA,
    *,
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
    """Return the time of one optimizer step; see `Model.train`."""
    d = deployment(config, machine, **{"library": "torch", **division})
    require_whole(most=10**8, seq=seq, micro_batch=micro_batch, interleave=interleave)
    require_flags(fsdp=fsdp, compiled=compiled, async_tp=async_tp)
    chosen = schedule or ("interleaved" if interleave > 1 else "1f1b")
    total = global_batch if global_batch is not None else micro_batch * d.dp
    recipe = Recipe(
        seq, micro_batch, total, chosen, interleave, recompute, fsdp, attention, compiled, async_tp
    )
    _check(d, recipe)
    micro = total // (micro_batch * d.dp)
    priced = prices(d.hda, d.library)
    stages = [_stage(d, recipe, priced, stage) for stage in range(d.pp)]
    orders = SCHEDULES.find(chosen)(d.pp, micro, interleave)
    pipeline = finish_us(orders, stages, _send_us(d, recipe, priced), interleave)
    held = parameters_held(d)
    exposed = _data_parallel_us(d, recipe, priced, stages[-1], micro, held)
    bandwidth = priced.memory_bandwidth
    optimizer = held * OPTIMIZER_BYTES / d.dp / bandwidth * 1e6
    return TrainStep(d, recipe, tuple(stages), micro, pipeline, exposed, optimizer, _memory(d, recipe, held))


def _check(d: Deployment, r: Recipe) -> None:
    _ = d.memory_bytes  # refuses machines that describe none
    require_whole(most=10**8, global_batch=r.global_batch)
    if r.recompute not in RECOMPUTE:
        raise ModelError(f"recompute '{r.recompute}' is unknown", advice=f"one of {', '.join(RECOMPUTE)}")
    if r.attention not in ATTENTION:
        raise ModelError(f"attention '{r.attention}' is unknown", advice=f"one of {', '.join(ATTENTION)}")
    if r.global_batch % (r.micro_batch * d.dp):
        raise ModelError(
            f"micro_batch {r.micro_batch} × dp {d.dp} does not divide global_batch {r.global_batch}",
            advice=f"global_batch {-(-r.global_batch // (r.micro_batch * d.dp)) * r.micro_batch * d.dp}",
        )
    if d.config.layers < d.pp * r.interleave:
        raise ModelError(f"{d.config.layers} layers are fewer than pp {d.pp} × interleave {r.interleave}")


def parameters_held(d: Deployment) -> float:
    """Return the weights of one device, before data parallelism divides them."""
    return weights_of(replace(d, dtype="bf16")) / 2


def _stage(d: Deployment, r: Recipe, priced: Prices, stage: int) -> StageTimes:
    """Return forward and backward times of one chunk of a stage for one micro-batch."""
    step = step_of(d, Batch.from_groups([(r.micro_batch * d.dp * d.attention_dp, r.seq, 0)]))
    forward = backward = weights = 0.0
    layers = stage_range(d, stage)
    for layer in {d.config.layer(n) for n in layers}:
        count = sum(d.config.layer(n) == layer for n in layers)
        one = _layer_times(d, r, priced, list(layer_operators(step, layer, 1)), layer)
        forward, backward, weights = (
            a + count * b for a, b in zip((forward, backward, weights), one, strict=True)
        )
    if stage == d.pp - 1:
        head = _logits(d, r, step.tokens)
        once = sum(o.repeat * priced.time_us(o) for o in head)
        forward, backward = forward + once, backward + 2 * once
    return StageTimes(forward / r.interleave, backward / r.interleave, weights / r.interleave)


def _layer_times(
    d: Deployment, r: Recipe, priced: Prices, operators: list[Operator], layer: Layer
) -> tuple[float, float, float]:
    """Return forward, backward and weight-gradient times of one layer."""
    forward = backward = weights = core = products = communication = 0.0
    for o in operators:
        taken = _forward_us(d, r, priced, o)
        back = 2 * taken
        if o.kernel in ("attention", "mla"):
            core += taken
            back = taken * (2.0 if r.attention == "unfused" else ATTENTION_BACKWARD)
        elif o.communicates:
            communication += taken
            back = taken
        elif o.kernel == "gemm":
            products += taken
            if r.schedule == "zero_bubble":
                back, weights = taken, weights + taken
        forward, backward = forward + taken, backward + back
    if r.async_tp:  # pieces of a collective travel while a product works on others
        hidden = communication - max(communication / d.tp, communication - products)
        forward, backward = forward - hidden, backward - hidden
    unfused = core if r.attention == "unfused" else 0.0
    again = {"none": 0.0, "selective": unfused, "alternate": forward / 2, "full": forward}[r.recompute]
    backward += again
    if r.fsdp and d.dp > 1:
        gather, scatter = _layer_exchange(d, priced, layer)
        forward, backward = max(forward, gather), max(backward, gather + scatter)
    return forward, backward, weights


def _forward_us(d: Deployment, r: Recipe, priced: Prices, o: Operator) -> float:
    """Return the forward time of an operator: products at the rate that lasts under load, attention by the
    kernel that the recipe names, element-wise passes fused or not."""
    if o.kernel == "attention" and r.attention == "unfused":
        return sum(_forward_us(d, r, priced, part) for part in _scores(d, r))
    if o.kernel == "attention" and r.attention == "flash2":
        return _flash2_us(d, o)
    taken = priced.time_us(o)
    if o.kernel == "gemm":
        return taken * _throttled(d, o.dtype)
    return taken * (EAGER_PASSES if o.kernel == "elementwise" and not r.compiled else 1)


def _throttled(d: Deployment, scheme: str) -> float:
    """Return how much longer a product takes under lasting load than the library's kernel measured alone."""
    figures = Device.of(d.hda).kernel("gemm_f8" if scheme.startswith("fp8") else "gemm")
    return max(1.0, figures.share / tensor_engine(d.hda).sustained)


def _flash2_us(d: Deployment, o: Operator) -> float:
    """Return the time of FlashAttention 2 by the machine's figures for the kernels of attention schedules."""
    shape, times = dict(o.extents), KernelTimes.of(d.hda, "bf16")
    columns = shape["context"] + (shape["queries"] + times.kernels.rows) / 2
    heads = shape["heads"] * shape["batch"]
    return times.attention(shape["queries"], columns, heads, shape["head_dim"]) * 1e6


def _layer_exchange(d: Deployment, priced: Prices, layer: Layer) -> tuple[float, float]:
    """Return the times to gather one layer's weights and to scatter its gradients among replicas."""
    c = d.config
    held = (c.attention_parameters + c.feed_forward_parameters(layer)) / d.tp
    ranks = d.dp * d.cp
    return tuple(  # type: ignore[return-value]
        priced.time_us(_collective(d, name, ranks, held * size))
        for name, size in (("all_gather", WORD), ("reduce_scatter", WORD))
    )


def _collective(d: Deployment, kernel: str, ranks: int, moved: float) -> Operator:
    """Return a collective of replicas: the groups of all tensor-parallel ranks move their bytes at the same
    time, as one collective over all of them does."""
    together = min(ranks * d.tp, d.hda.count("device"))
    return Operator(
        kernel,
        "data parallel",
        1,
        kernel,
        "bf16",
        (("ranks", together), ("bytes", max(1, int(moved * together / ranks)))),
    )


def _scores(d: Deployment, r: Recipe) -> Iterator[Operator]:
    """Attention as two batched products and passes over the score matrix."""
    c, heads = d.config, d.config.heads // d.tp * r.micro_batch
    for name, n, k in (("scores", r.seq, c.head_dim), ("values", c.head_dim, r.seq)):
        yield Operator(name, "attention", 1, "gemm", "bf16", (("m", heads * r.seq), ("n", n), ("k", k)))
    passes = heads * r.seq * r.seq * WORD * SCORE_PASSES
    yield Operator("softmax", "attention", 1, "elementwise", "bf16", (("bytes", passes), ("kernels", 4)))


def _logits(d: Deployment, r: Recipe, tokens: int) -> list[Operator]:
    c, width = d.config, -(-d.config.vocab // d.tp)
    gemm = (("m", tokens), ("n", width), ("k", c.hidden))
    loss = (("bytes", tokens * width * 4 * 3), ("kernels", 4))
    return [
        Operator("logits", "head", 1, "gemm", "bf16", gemm),
        Operator("loss", "head", 1, "elementwise", "bf16", loss),
    ]


def _send_us(d: Deployment, r: Recipe, priced: Prices) -> float:
    """Return the time of a micro-batch's activations between stages: each rank sends its part."""
    if d.pp == 1:
        return 0.0
    moved = r.micro_batch * r.seq * d.config.hidden * WORD // (d.tp * d.cp)
    outside = networks_between(d.hda, "device")
    inside = d.hda.count("device") // d.hda.level(outside[0].level).total
    if len(outside) > 1 and d.group * 2 > inside:
        far = outside[1]
        sent_us: float = library("nccl")["far_send_us"] + moved / (far.bandwidth * far.efficiency) * 1e6
        return sent_us
    return priced.time_us(
        Operator("send", "pipeline", 1, "send_recv", "bf16", (("ranks", 2), ("bytes", max(1, moved))))
    )


def _data_parallel_us(
    d: Deployment, r: Recipe, priced: Prices, stage: StageTimes, micro: int, held: float
) -> float:
    """Return what nothing hides of reducing gradients and gathering weights among replicas."""
    if d.dp == 1:
        return 0.0
    layers = d.stage_layers
    if r.fsdp:  # the first layer's weights and the last layer's gradients
        return sum(_layer_exchange(d, priced, d.config.layer(0)))
    reduce = priced.time_us(_collective(d, "reduce_scatter", d.dp, held * GRADIENT_BYTES))
    gather = priced.time_us(_collective(d, "all_gather", d.dp, held * WORD))
    chunks = r.interleave
    hidden_back, hidden_forward = chunks * stage.backward, chunks * stage.forward
    return max(reduce - hidden_back, reduce / layers) + max(gather - hidden_forward, gather / layers)


def _memory(d: Deployment, r: Recipe, held: float) -> int:
    """Return weights, gradients, optimizer state and activations of one device, in bytes."""
    c, shards = d.config, d.dp * d.cp
    state = held * (WORD + GRADIENT_BYTES) / (shards if r.fsdp else 1) + held * STATE_BYTES / shards
    tokens = r.micro_batch * r.seq / d.cp
    kept = {
        "full": 2 * c.hidden,
        "selective": 34 * c.hidden,
        "alternate": 18 * c.hidden,
        "none": 34 * c.hidden + 5 * c.heads * r.seq,
    }[r.recompute]
    in_flight = min(d.pp, r.global_batch // (r.micro_batch * d.dp))
    return round(state + tokens * kept / d.tp * d.stage_layers * in_flight)
