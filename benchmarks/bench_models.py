"""Language models: accuracy on open rows beside aiconfigurator's answers, and how quickly we answer."""

import subprocess
import sys
from collections.abc import Iterator

import fidelity_models as fidelity
import megatile as mt
import torch_models
from harness import Row, at_least, at_most, bench, best_of, sized
from megatile.models.step import step_us

BARS = {
    "TPOT, dense, five folds by deployment": (5, 16), "TPOT, dense, model left out": (10, None),
    "TPOT, experts, five folds by deployment": (9, 35), "TPOT, experts, model left out": (20, None),
    "TTFT, dated dumps, concurrency ≤ 8": (20, None), "TTFT, dated dumps": (25, 50),
    "all training steps": (12, None),
}  # fmt: skip
"""Median and 90th percentile of errors, in per cent."""
LLAMA = {"machine": "dgx-h100", "tp": 8, "dtype": "fp8"}


@bench("models: accuracy")
def accuracy() -> Iterator[Row]:
    rows = fidelity.measured()
    found = fidelity.answers(
        sized(rows, tuple(r for r in rows[::40] if r.osl <= 1024 and r.concurrency <= 16))
    )
    for line in (*fidelity.lines(found), *fidelity.training_lines()):
        median, p90 = BARS.get(line.name, (None, None))
        bar = at_most(median) if median else None
        yield Row(f"{line.name}: median", 100 * line.errors.median, "%", bar=bar)
        yield Row(f"{line.name}: p90", 100 * line.errors.p90, "%", bar=at_most(p90) if p90 else None)
    other = fidelity.rival()
    tpot = fidelity.Errors.of([a.tpot_error for a in found])
    dated = fidelity.Errors.of([a.ttft_error for a in found if a.row.harness == fidelity.DATED])
    yield Row("rows answered", len(found), "rows", other.answered, "aiconfigurator", at_least(sized(269, 1)))
    yield Row("TPOT, all rows: median", 100 * tpot.median, "%", 100 * other.tpot.median, "aiconfigurator")
    yield Row("TTFT, dated dumps: median", 100 * dated.median, "%", 100 * other.ttft.median, "aiconfigurator")
    seconds = sorted(a.seconds for a in found)[len(found) // 2]
    yield Row("an answer", seconds, "s", other.seconds, "aiconfigurator")
    yield Row("constants that serving rows choose", 3 * fidelity.CONSTANTS, "constants")
    fidelity.write_page(found)


@bench("models: speed")
def speed() -> Iterator[Row]:
    llama = mt.model("Llama-3.1-70B")
    step = llama.step([(1, 4096)] * 64, **LLAMA)
    d, batch, machine = step.deployment, step.batch, mt.machine("dgx-h100")
    yield Row("closed sum, warm", 1e3 * best_of(lambda: step_us(d, batch)), "ms", bar=at_most(0.3))

    def plan() -> None:
        mt.simulate(llama.step([(1, 4096)] * 64, **LLAMA).plan, machine=machine)

    plan()
    cold = [sys.executable, "-m", "megatile", "model", "predict", "Llama-3.1-70B", "--tp", "8", "-d", "fp8"]
    seconds = best_of(lambda: subprocess.run(cold, check=True, capture_output=True))
    yield Row("both steps of a new process", seconds, "s", bar=at_most(1.0))
    yield Row("step as a Plan, simulated, warm", 1e3 * best_of(plan), "ms", bar=at_most(5.0))
    count, tokens = sized((1000, 1024), (10, 16))
    asked = {"isl": 1024, "osl": tokens, "concurrency": 64, "count": count, "spread": 0.2}
    seconds = best_of(lambda: llama.serve(**LLAMA, **asked))
    yield Row(f"serve {count} requests of {tokens} tokens", seconds, "s", bar=at_most(10.0))
    users = sized((1, 2, 4, 8, 16, 32, 64, 128, 256), (1,))
    oss = mt.model("gpt-oss-120b")
    seconds = best_of(lambda: oss.search(machine="dgx-h100", concurrencies=users, tpot_ms=30.0))
    yield Row("search over 225 candidates", seconds, "s", bar=at_most(60.0))


@bench("models: torch")
def torch() -> Iterator[Row]:
    try:
        import transformers  # noqa: F401
    except ImportError:
        yield Row("transformers is not installed: steps compared", 0, "steps")
        return
    for tp in (1, 4):
        steps = sized(torch_models.STEPS, torch_models.STEPS[:1])
        for family in torch_models.FAMILIES:
            errors = [abs(c.error) for c in torch_models.compared(tp, steps) if c.family == family]
            yield Row(f"{family}, tp {tp}: largest error", 100 * max(errors), "%", bar=at_most(5.0))
