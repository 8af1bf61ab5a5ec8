"""Which schedule of attention suits which machine: predicted, drawn, and proved with data."""

import numpy as np

from megatile.attention.plans import Divided, Problem, attention_plan
from megatile.attention.predict import predict
from megatile.attention.schedules import make_schedule
from megatile.plan.execute import execute
from megatile.report.attention_plot import draw_prediction


def compare() -> None:
    """A full mesh wants all of its links used; a switch is filled by a ring."""
    for machine in ("mi300x-8", "dgx-h100"):
        found = predict(
            machine, Problem(length=10_000, causal=True), schedules=["zigzag", "hamilton", "ulysses"]
        )
        print(f"{found}\n")
    shown = {p.schedule: p for p in found.predictions[:2]}
    times = {name: [(p.problem.length, p.time_ps / 1e6)] for name, p in shown.items()}
    loads = {name: p.link_bytes() for name, p in shown.items()}
    picture = draw_prediction(times, loads, {name: p.bars() for name, p in shown.items()}, "attention.png")
    print(f"picture written to {picture}")


def prove() -> None:
    """The plan that was timed computes attention: five ranks, 61 tokens, fewer KV heads."""
    schedule = make_schedule("hamilton", 5)
    problem = Problem(length=61, heads=4, dim=8, kv_heads=2, causal=True, dtype="f32")
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(1, 61, heads, 8)) for heads in (4, 2, 2))
    divided = Divided(schedule, problem)
    out, _ = divided.outputs(execute(attention_plan(schedule, problem), divided.inputs(q, k, v)))

    k, v = (np.repeat(x, 2, axis=2) for x in (k, v))
    scores = np.einsum("bihd,bjhd->bhij", q, k) * problem.factor
    scores = np.where(np.tri(61, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    error = np.abs(out - np.einsum("bhij,bjhd->bihd", weights, v)).max()
    print(f"largest error of the plan on five ranks: {error:.1e}")
    assert error < 1e-5


if __name__ == "__main__":
    compare()
    prove()
