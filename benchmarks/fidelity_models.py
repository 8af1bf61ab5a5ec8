"""Language models beside measured deployments and training steps, as a section of the accuracy page.

    python fidelity_models.py           # scores
    python fidelity_models.py --page    # and the section

Host terms of an engine (per step, per request, before the first token) are its only constants that serving
rows choose. A step's host time adds to the time per token as it is, so a fit need not simulate again: rows
are left out by whole deployments, or by models, and predicted with the constants that the others choose.
"""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np

import megatile as mt
from harness import publish_section
from megatile.models.batch import Batch
from megatile.models.config import read_config
from megatile.models.deployment import Deployment
from megatile.models.engines import ENGINES
from megatile.models.serving import Serving, serve
from megatile.models.step import step_us
from megatile.models.training import TrainStep, train

DATA = Path(__file__).parent / "data"
MACHINES = {"h100_sxm": "dgx-h100", "h200_sxm": "h200-8"}
DATED = "dated dump"
FOLDS = 5
HOST_US = (0, 50, 100, 150, 200, 300, 400, 600, 800, 1200)
FRONTEND_MS = range(-80, 85, 5)
REQUEST_US = (0, 2, 5, 10, 15, 20, 25, 30, 40, 50)
CONSTANTS = 3
"""Constants of an engine that serving rows choose: ``host_us``, ``host_request_us``, ``frontend_ms``."""


@dataclass(frozen=True)
class Measured:
    """A measured deployment under a load."""

    number: int
    model: str
    system: str
    backend: str
    precision: str
    isl: int
    osl: int
    concurrency: int
    tp: int
    attention_dp: int
    ep: int
    harness: str
    ttft_ms: float
    tpot_ms: float

    @property
    def dense(self) -> bool:
        return not read_config(self.model).experts

    @property
    def group(self) -> tuple[object, ...]:
        """What is left out together: one deployment, whatever its load."""
        return self.model, self.system, self.backend, self.precision, self.tp, self.attention_dp, self.ep

    def deployment(self) -> Deployment:
        division = {"tp": self.tp, "ep": self.ep, "attention_dp": self.attention_dp}
        asked = mt.model(self.model)
        if not asked.config.experts:
            division["ep"] = 1
        machine = MACHINES[self.system]
        return asked.deployment(machine, **division, dtype=self.precision, library=self.backend)

    def predict(self, rounds: int = 10) -> Serving:
        """As the harness ran it: the dated dumps begin with a burst and vary lengths; the others have exact
        lengths, users of SGLang in bursts, those of other engines spread over a request, who ask again as
        soon as they are answered (without the front end's time)."""
        d = self.deployment()
        dated = self.harness == DATED
        ramp = 0.0
        if not dated and self.backend != "sglang":
            d = replace(d, engine=d.engine.with_settings(frontend_ms=0.0))
            ramp = self.osl * step_us(d, Batch.from_groups([(self.concurrency, 1, self.isl)])) / 1e6
        return serve(
            d, isl=self.isl, osl=self.osl, concurrency=self.concurrency, count=rounds * self.concurrency,
            spread=0.2 if dated else 0.0, ramp_s=ramp,
        )  # fmt: skip


def _number(text: str) -> int:
    return int(float(text)) if text else 1


@cache
def measured() -> tuple[Measured, ...]:
    """The open rows, in the order of the file."""
    with open(DATA / "serving.csv", encoding="utf-8", newline="") as file:
        return tuple(
            Measured(
                n, r["model_path"], r["system"], r["backend"], r["precision"], int(r["isl"]), int(r["osl"]),
                _number(r["concurrency"]), _number(r["tp_size"]), _number(r["attention_dp_size"]),
                _number(r["moe_ep_size"]), r["harness"], float(r["ttft_ms"]), float(r["tpot_ms"]),
            )
            for n, r in enumerate(csv.DictReader(file))
        )  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """A prediction beside its row."""

    row: Measured
    ttft_ms: float
    tpot_ms: float
    seconds: float

    @property
    def tpot_error(self) -> float:
        return self.tpot_ms / self.row.tpot_ms - 1

    @property
    def ttft_error(self) -> float:
        return self.ttft_ms / self.row.ttft_ms - 1


def answers(rows: tuple[Measured, ...] | None = None) -> list[Answer]:
    """Predict rows; all of them are answered."""
    found = []
    for row in measured() if rows is None else rows:
        begin = time.perf_counter()
        serving = row.predict(10 if row.concurrency < 200 else 4)
        frontend = ENGINES[row.backend].frontend_ms - serving.deployment.engine.frontend_ms
        found.append(Answer(row, serving.ttft_ms + frontend, serving.tpot_ms, time.perf_counter() - begin))
    return found


@dataclass(frozen=True)
class Errors:
    """Absolute relative errors of some rows."""

    rows: int
    median: float
    p90: float

    @classmethod
    def of(cls, errors: list[float]) -> Errors:
        size = np.abs(errors) if errors else np.zeros(1)
        return cls(len(errors), float(np.median(size)), float(np.percentile(size, 90)))

    def __str__(self) -> str:
        return f"{self.rows} | {self.median:.1%} | {self.p90:.1%}"


def _with(answer: Answer, host_us: float, request_us: float) -> float:
    """TPOT with other host terms."""
    own = ENGINES[answer.row.backend]
    more = host_us - own.host_us + (request_us - own.host_request_us) * answer.row.concurrency
    return answer.tpot_ms + more / 1e3


def chosen(rows: list[Answer]) -> tuple[float, float]:
    """The host terms of one engine that fit rows best: a soft absolute value of ln(predicted / measured)."""

    def loss(terms: tuple[float, float]) -> float:
        ratios = np.array([max(1e-6, _with(a, *terms)) / a.row.tpot_ms for a in rows])
        return float(np.mean(np.sqrt(1 + (np.log(ratios) / 0.05) ** 2)))

    return min(product(HOST_US, REQUEST_US), key=loss)


def chosen_frontend(rows: list[Answer]) -> float:
    """The milliseconds, added to an engine's front end, that fit the TTFT of rows best."""

    def loss(more: float) -> float:
        ratios = np.array([max(1e-6, a.ttft_ms + more) / a.row.ttft_ms for a in rows])
        return float(np.mean(np.sqrt(1 + (np.log(ratios) / 0.1) ** 2)))

    return min(FRONTEND_MS, key=loss)


def ttft_left_out(found: list[Answer]) -> list[float]:
    """TTFT errors of the dated dumps by front ends that the other folds choose."""
    dated = [a for a in found if a.row.harness == DATED]
    errors = []
    for number, backend in product(range(FOLDS), sorted({a.row.backend for a in dated})):
        own = [a for a in dated if a.row.backend == backend]
        rest = [a for a in own if fold(a) != number]
        more = chosen_frontend(rest) if rest else 0.0
        errors += [(a.ttft_ms + more) / a.row.ttft_ms - 1 for a in own if fold(a) == number]
    return errors


def left_out(found: list[Answer], key: Callable[[Answer], object]) -> list[tuple[Answer, float]]:
    """TPOT errors of rows by constants that were chosen without the rows of equal ``key``."""
    errors = []
    for out in sorted({str(key(a)) for a in found}):
        rest = [a for a in found if str(key(a)) != out]
        for backend in sorted({a.row.backend for a in found if str(key(a)) == out}):
            own = [a for a in rest if a.row.backend == backend]
            engine = ENGINES[backend]
            terms = chosen(own) if own else (engine.host_us, engine.host_request_us)
            errors += [
                (a, _with(a, *terms) / a.row.tpot_ms - 1)
                for a in found
                if str(key(a)) == out and a.row.backend == backend
            ]
    return errors


def fold(answer: Answer) -> int:
    """One of five folds, whole deployments together."""
    groups = sorted({str(row.group) for row in measured()})
    return groups.index(str(answer.row.group)) % FOLDS


@dataclass(frozen=True)
class Line:
    """One line of the table."""

    name: str
    errors: Errors

    def text(self) -> str:
        return f"| {self.name} | {self.errors} |"


def lines(found: list[Answer]) -> Iterator[Line]:
    """The table: TPOT as fitted and left out, TTFT of the documented harness."""
    folds, models = left_out(found, fold), left_out(found, lambda a: a.row.model)
    for kind, dense in (("dense", True), ("experts", False)):
        yield Line(f"TPOT, {kind}", Errors.of([a.tpot_error for a in found if a.row.dense == dense]))
        five = [e for a, e in folds if a.row.dense == dense]
        yield Line(f"TPOT, {kind}, five folds by deployment", Errors.of(five))
        yield Line(f"TPOT, {kind}, model left out", Errors.of([e for a, e in models if a.row.dense == dense]))
    dated = [a for a in found if a.row.harness == DATED]
    few = [a.ttft_error for a in dated if a.row.concurrency <= 8]
    yield Line("TTFT, dated dumps, concurrency ≤ 8", Errors.of(few))
    yield Line("TTFT, dated dumps", Errors.of([a.ttft_error for a in dated]))
    yield Line("TTFT, dated dumps, five folds by deployment", Errors.of(ttft_left_out(found)))
    other = [a.ttft_error for a in found if a.row.harness != DATED]
    yield Line("TTFT, other harnesses (not fitted)", Errors.of(other))


@dataclass(frozen=True)
class Rival:
    """What aiconfigurator 0.12.0 answers for the same rows."""

    answered: int
    tpot: Errors
    ttft: Errors
    seconds: float


def rival() -> Rival:
    with open(DATA / "aiconfigurator_open.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    given = [(measured()[int(r["row"])], r) for r in rows if r["tpot_ms"]]
    tpot = [float(r["tpot_ms"]) / row.tpot_ms - 1 for row, r in given]
    ttft = [float(r["ttft_ms"]) / row.ttft_ms - 1 for row, r in given if row.harness == DATED]
    return Rival(
        len(given), Errors.of(tpot), Errors.of(ttft), float(np.median([float(r["seconds"]) for r in rows]))
    )


# --- training -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trained:
    """A measured training step beside its prediction; ``error`` of the time."""

    source: str
    parameters: str
    error: float
    step: TrainStep


@cache
def trained() -> tuple[Trained, ...]:
    """Every row of ``data/training.csv``."""
    with open(DATA / "training.csv", encoding="utf-8", newline="") as file:
        return tuple(_trained(row) for row in csv.DictReader(file))


def _trained(row: dict[str, str]) -> Trained:
    given = {k.strip(): v.strip() for k, _, v in (p.partition("=") for p in row["parameters"].split(";"))}
    devices, words = int(given["GPUs"]), f"{row['workload']} {row['parameters']}"
    dtype = "fp8" if "fp8" in words or "float8" in words else "bf16"
    if "iteration" in row["workload"]:
        source, step = "Megatron-LM, A100", _megatron(given, devices)
    elif "NeMo" in words:
        source, step = "NeMo, H100", _nemo(given, devices, dtype)
    elif "MaxText" in words:
        source, step = "MaxText, H100", _maxtext(devices, dtype)
    else:
        source, step = "torchtitan, H100 at 500 W", _torchtitan(given, devices, dtype, words)
    value = float(row["value"])
    error = value / step.tokens_per_s_device - 1 if "tokens" in row["unit"] else step.time_s / value - 1
    return Trained(source, row["parameters"], error, step)


def _megatron(given: dict[str, str], devices: int) -> TrainStep:
    config = read_config({
        "architectures": ["GPT2LMHeadModel"], "n_embd": int(given["hidden"]), "n_layer": int(given["layers"]),
        "n_head": int(given["heads"]), "vocab_size": 51200, "tie_word_embeddings": True,
    })  # fmt: skip
    return train(
        config, mt.machine("a100-cluster", nodes=max(1, devices // 8)), seq=int(given["seq"]),
        micro_batch=int(given["mbs"]), global_batch=int(given["batch"]), interleave=int(given["interleave"]),
        recompute={"full": "full", "seqsel": "selective"}[given["recompute"]], attention="unfused",
        tp=int(given["TP"]), pp=int(given["PP"]), dp=int(given["DP"]),
    )  # fmt: skip


def _nemo(given: dict[str, str], devices: int, dtype: str) -> TrainStep:
    return train(
        read_config("GPT-3-175B"), mt.machine("h100-cluster", nodes=devices // 8), seq=2048,
        global_batch=int(given["GBS"]), interleave=int(given["VP"]), recompute="none", tp=int(given["TP"]),
        pp=int(given["PP"]), dp=int(given["DP"]), dtype=dtype,
    )  # fmt: skip


def _maxtext(devices: int, dtype: str) -> TrainStep:
    return train(
        read_config("Llama-3.1-70B"), mt.machine("h100-cluster", nodes=devices // 8), seq=8192, micro_batch=2,
        global_batch=2 * devices, recompute="full", fsdp=True, dp=devices, dtype=dtype,
    )  # fmt: skip


def _torchtitan(given: dict[str, str], devices: int, dtype: str, words: str) -> TrainStep:
    name = next(n for n in ("Llama-3.1-405B", "Llama-3.1-70B", "Llama-3.1-8B") if n in words)
    pp, dp, batch = int(given.get("PP", 1)), int(given.get("FSDP", devices)), int(given["local batch"])
    recompute = "full" if "full" in words else "selective" if "per-op" in words else "alternate"
    return train(
        read_config(name), mt.machine("h100-500w-cluster", nodes=devices // 8),
        seq=int(given.get("seq", 8192)), micro_batch=batch if pp == 1 else 1, global_batch=batch * dp,
        recompute=recompute, fsdp=True, attention="flash2",
        compiled="compile" in words or "TP" in words, async_tp="sync" in words,
        dp=dp, pp=pp, tp=int(given.get("TP", 1)), cp=int(given.get("CP", 1)), dtype=dtype,
    )  # fmt: skip


def training_lines() -> Iterator[Line]:
    for source in dict.fromkeys(t.source for t in trained()):
        yield Line(source, Errors.of([t.error for t in trained() if t.source == source]))
    yield Line("all training steps", Errors.of([t.error for t in trained()]))


# --- the page -----------------------------------------------------------------------------------------

TEXT = """## Language models

{rows} rows of aggregated serving on H100 and H200 (`benchmarks/data/serving.csv`: Llama-3.1-70B, Qwen3-32B,
gpt-oss-120b, DeepSeek-R1 and MiniMax-M2.5 under vLLM, TensorRT-LLM and SGLang; random samples of what the
aiconfigurator project collected). Predictions simulate the engine's scheduler. {constants} constants are
fitted to these rows, three per engine: host time per step, host time per request in it, and time before the
first token.

| Serving | rows | median error | 90 % within |
|---|---:|---:|---:|
{serving}

Only these constants are left out in turn. Kernel figures are fitted to the kernels' own rows. Which kernels
and types an engine runs was decided with these rows in view, and so was how the undocumented harness spreads
its users.

TTFT is the weak part: engine settings were not recorded, and SGLang and TensorRT-LLM add time that the
columns do not explain.

For comparison, aiconfigurator 0.12.0 answers {answered} of the {rows} rows: TPOT {rival_tpot}; TTFT (dated
dumps) {rival_ttft}; {seconds:.1f} s per answer.

Training steps (`benchmarks/data/training.csv`). The clock of torchtitan's H100 under load is fitted to its
rows.

| Training | rows | median error | 90 % within |
|---|---:|---:|---:|
{training}
"""


def section(found: list[Answer]) -> str:
    other = rival()
    return TEXT.format(
        constants=CONSTANTS * 3, rows=len(measured()), answered=other.answered,
        serving="\n".join(line.text() for line in lines(found)),
        training="\n".join(line.text() for line in training_lines()), seconds=other.seconds,
        rival_tpot=f"{other.tpot.median:.1%} median, {other.tpot.p90:.0%} for nine of ten",
        rival_ttft=f"{other.ttft.median:.1%} median",
    )  # fmt: skip


def write_page(found: list[Answer]) -> None:
    publish_section("models", section(found))


def print_fit(found: list[Answer]) -> None:
    """The constants that all rows of an engine choose."""
    for backend in sorted({a.row.backend for a in found}):
        own = [a for a in found if a.row.backend == backend]
        extra = [a.row.ttft_ms - a.ttft_ms for a in own if a.row.harness == DATED]
        middle = float(np.median(extra)) if extra else 0.0
        print(f"{backend}: host_us, host_request_us {chosen(own)}; frontend_ms {middle:+.0f} to today's")


if __name__ == "__main__":
    results = answers()
    print(*(line.text() for line in (*lines(results), *training_lines())), sep="\n")
    print_fit(results)
    if "--page" in sys.argv:
        write_page(results)
