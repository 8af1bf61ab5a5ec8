"""The time of one forward pass as a closed sum over its operators, with memory, origins and rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from megatile.core.cached import cached_in_owner
from megatile.core.rows import HasRows
from megatile.core.tables import text_table
from megatile.core.times import HasTime
from megatile.hda import HDA
from megatile.models.batch import Batch
from megatile.models.deployment import Deployment
from megatile.models.forward import operators
from megatile.models.measured_trace import Beside, beside
from megatile.models.memory import Memory, memory, require_fit
from megatile.models.operators import Operator
from megatile.models.prices import Prices, prices
from megatile.models.torch_operators import COVERED, UNCOVERED_ERROR
from megatile.timing.coverage import beyond
from megatile.timing.device import NUMBERS, Device, device_of
from megatile.timing.machine_timing import Origin
from megatile.timing.resources import control_ps
from megatile.timing.schemes import scheme, scheme_name

UNKNOWN_ERROR = 0.3
"""What to expect of a time whose error nobody measured, relative to it."""


class Timed(NamedTuple):
    """An operator with the microseconds of all its executions together."""

    operator: Operator
    time_us: float


def host_us(d: Deployment, batch: Batch, kernels: int, device_us: float) -> float:
    """Return the host time of a step that its device waits for.

    A captured graph is one launch; without one the device waits wherever launches take longer than kernels.
    """
    own = d.engine.host_us + d.engine.host_request_us * batch.requests + launch_us(d.hda)
    captured = d.graph and batch.decode_only and batch.requests <= d.engine.graph_batch
    if captured:
        return own
    each = d.engine.launch_us if d.graph else d.engine.eager_us
    return own + max(0.0, kernels * each - device_us)


def covered(d: Deployment) -> bool:
    """Return whether the library's operators were compared with what it runs of such a model."""
    return d.library != "torch" or (d.config.architecture in COVERED and not d.config.window)


@cached_in_owner
def launch_us(hda: HDA) -> float:
    """Return the microseconds of one launch on the machine's control path."""
    return control_ps(hda, hda.level(hda.scale("device").level).position) / 1e6


def step_us(d: Deployment, batch: Batch, priced: Prices | None = None) -> float:
    """Return the microseconds of a step as a closed sum: no rows, no checks; for loops."""
    own = priced or prices(d.hda, d.library)
    device, kernels = 0.0, 0
    for operator in operators(d, batch):
        device += operator.repeat * own.time_us(operator)
        kernels += operator.repeat * operator.kernels
    return device + host_us(d, batch, kernels, device)


@dataclass(frozen=True, repr=False)
class StepTime(HasRows, HasTime):
    """The time of one forward pass and what it is made of."""

    deployment: Deployment
    batch: Batch
    timed: tuple[Timed, ...]
    host_us: float
    memory: Memory

    @property
    def time_ps(self) -> int:
        return round((self.host_us + sum(t.time_us for t in self.timed)) * 1e6)

    @property
    def time_ms(self) -> float:
        return self.time_ps / 1e9

    @cached_property
    def origins(self) -> dict[str, Origin]:
        """Where the time of each operator comes from."""
        priced = prices(self.deployment.hda, self.deployment.library)
        known = {t.operator.name: priced.explain(t.operator).origin for t in self.timed}
        kind, where = "measured", f"host_us of '{self.deployment.library}', fitted to serving rows"
        if Device.of(self.deployment.hda).origin(("gemm",))[0].kind == "assumed":
            kind, where = "assumed", f"estimate: {where} of other machines"
        return {**known, "host": Origin(kind, where)}

    @cached_property
    def errors(self) -> dict[str, float]:
        """What to expect of each operator's time, relative to it."""
        priced = prices(self.deployment.hda, self.deployment.library)
        known = {t.operator.name: priced.explain(t.operator).error for t in self.timed}
        return {"host": UNKNOWN_ERROR, **{n: UNKNOWN_ERROR if e is None else e for n, e in known.items()}}

    @property
    def notes(self) -> list[str]:
        """What lies beyond what was measured, the engine's budget or the machine's types: a sentence each."""
        d, tokens = self.deployment, self.batch.tokens
        far = ((t.operator.name, beyond(t.operator.kernel, dict(t.operator.extents))) for t in self.timed)
        said = [f"{name}: beyond what was measured: {what}" for name, what in dict(far).items() if what]
        if tokens > d.engine.token_budget:
            steps = -(-tokens // d.engine.token_budget)
            said.append(
                f"{tokens} new tokens in one step; token_budget {d.engine.token_budget} makes {steps}"
            )
        kind = scheme(scheme_name(d.dtype)).compute
        if not device_of(d.hda, d.library, True, NUMBERS).multiplies(kind):
            said.append(f"'{d.hda.name}' multiplies no {kind}: weights in {d.dtype} are widened to 16 bits")
        if not covered(d):
            said.append(
                f"library 'torch' does not cover {d.config.architecture or 'this model'}: more kernels run"
            )
        return said

    @property
    def error(self) -> float:
        """What to expect of the step's time: errors of its operators as if all had the same sign."""
        total = sum(t.time_us * self.errors[t.operator.name] for t in self.timed)
        found = (total + self.host_us * self.errors["host"]) / (self.time_us or 1.0)
        return found if covered(self.deployment) else max(found, UNCOVERED_ERROR)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each operator, and one for the host; their times add up to the step's."""
        total = self.time_us or 1.0
        found = [
            {
                "operator": o.name, "part": o.part, "kernel": o.kernel, "dtype": o.dtype, "shape": _shape(o),
                "count": o.repeat, "each_us": time / o.repeat, "time_us": time, "share": time / total,
                "origin": self.origins[o.name].kind, "error": self.errors[o.name],
            }
            for o, time in self.timed
        ]  # fmt: skip
        host = {"operator": "host", "part": "host", "kernel": "", "dtype": "", "shape": "", "count": 1}
        times = {"each_us": self.host_us, "time_us": self.host_us, "share": self.host_us / total}
        known = {"origin": self.origins["host"].kind, "error": self.errors["host"]}
        return [*found, {**host, **times, **known}]

    def parts(self) -> dict[str, float]:
        """Return microseconds by part of the model, communication apart, longest first."""
        found: dict[str, float] = {"host": self.host_us}
        for operator, time in self.timed:
            name = "communication" if operator.communicates else operator.part
            found[name] = found.get(name, 0.0) + time
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    @cached_property
    def plan(self) -> Any:
        """The step as a Plan: ``mt.simulate(step.plan, machine=…)`` times and explains it."""
        from megatile.models.plans import step_plan

        return step_plan(self.deployment, self.batch, self.host_us)

    def beside(self, path: str | Path, steps: int = 1) -> Beside:
        """Return the step beside the kernels of a measured Kineto trace that holds so many steps."""
        return beside(self.timed, self.host_us, path, steps)

    def __repr__(self) -> str:
        d, time = self.deployment, f"{self.time_ms:.4g} ms ± {self.error:.0%}"
        return f"StepTime({d.config.name} on {d.hda.name}, {d.words()}: {time} for {self.batch})"

    def __str__(self) -> str:
        head = ("operator", "kernel", "shape", "count", "µs each", "µs", "share", "known by")
        rows = [
            (r["operator"], r["kernel"], r["shape"], r["count"], f"{r['each_us']:.4g}", f"{r['time_us']:.4g}",
             f"{r['share']:.1%}", r["origin"])
            for r in self.rows()
        ]  # fmt: skip
        return f"{self!r}\n{text_table(head, rows)}"


def _shape(operator: Operator) -> str:
    extents: Mapping[str, int] = dict(operator.extents)
    if operator.kernel == "gemm":
        return f"{extents['m']}x{extents['n']}x{extents['k']} {operator.dtype}"
    if operator.communicates:
        return f"{extents['bytes']} B among {extents['ranks']}"
    if operator.kernel == "elementwise":
        return f"{extents['bytes']} B"
    if operator.kernel == "grouped_gemm":
        return f"{extents['m']}x{extents['n']}x{extents['k']} in {extents['groups']} {operator.dtype}"
    kept = (
        "batch",
        "queries",
        "context",
        "heads",
        "kv_heads",
        "head_dim",
        "window",
        "tokens",
        "experts",
        "topk",
    )
    return " ".join(f"{name} {extents[name]}" for name in kept if extents.get(name))


def step_time(d: Deployment, requests: Any, *, check_memory: bool = True) -> StepTime:
    """Return the time of one forward pass over (new, cached) tokens of each request."""
    batch = Batch.of(requests)
    longest = max(g.new + g.cached for g in batch.groups)
    # An engine divides what exceeds its token budget over steps; a prompt that it may not divide runs whole.
    whole = 0 if d.engine.chunked else max(g.new for g in batch.groups)
    tokens = min(batch.tokens, max(d.engine.token_budget, whole))
    held = memory(d, requests=batch.requests, context=-(-batch.context // batch.requests), step_tokens=tokens)
    if check_memory:
        require_fit(d, held, batch.requests, longest, tokens)
    priced = prices(d.hda, d.library)
    timed = tuple(Timed(o, o.repeat * priced.time_us(o)) for o in operators(d, batch))
    kernels, device = (
        sum(t.operator.repeat * t.operator.kernels for t in timed),
        sum(t.time_us for t in timed),
    )
    return StepTime(d, batch, timed, host_us(d, batch, kernels, device), held)
