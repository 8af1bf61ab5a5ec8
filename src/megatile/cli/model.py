"""``megatile model list|memory|predict|serve|train|search``: language models on machines."""

from __future__ import annotations

import csv
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from megatile.cli.machine import Json
from megatile.cli.model_options import DIVISION, ENGINE, LENGTHS, PRECISION, Asked, model_command
from megatile.cli.output import Commands, print_json, print_table
from megatile.core.errors import MegatileError
from megatile.core.quantities import format_bytes

if TYPE_CHECKING:
    from megatile.models.deployment import Deployment
    from megatile.models.step import StepTime

Spread = Annotated[
    float, typer.Option("--spread", help="Vary lengths in [1 - spread, 1] × isl and osl.")
]  # fmt: skip
app = Commands(help="Predict a language model: steps, memory, serving, training.", no_args_is_help=True)


@app.command("list")
def list_(json: Json = False) -> None:
    """List the shipped models."""
    from megatile.models.config import model_names, read_config

    configs = [read_config(name) for name in model_names()]
    rows: list[dict[str, Any]] = [
        {
            "model": c.name, "parameters": c.parameters(), "active": c.parameters(active=True),
            "layers": c.layers, "hidden": c.hidden, "heads": c.heads, "kv_heads": c.kv_heads,
            "experts": c.experts, "topk": c.topk, "dtype": c.scheme,
        }
        for c in configs
    ]  # fmt: skip
    if json:
        print_json("models", rows)
        return
    texts = [
        (r["model"], f"{r['parameters'] / 1e9:.4g} B", f"{r['active'] / 1e9:.3g} B", r["layers"], r["hidden"],
         f"{r['heads']}/{r['kv_heads']}", f"{r['topk']} of {r['experts']}" if r["experts"] else "",
         r["dtype"])
        for r in rows
    ]  # fmt: skip
    print_table(("model", "parameters", "active", "layers", "hidden", "heads/KV", "experts", "dtype"), texts)


@model_command(app, *DIVISION, *PRECISION, *ENGINE)
def memory(
    asked: Asked,
    requests: Annotated[int, typer.Option("--requests", help="Requests in the cache.")] = 1,
    context: Annotated[int, typer.Option("--context", help="Cached tokens per request.")] = 4096,
) -> None:
    """Say how much memory a model needs per device, and what would make it fit."""
    from megatile.models.memory import cache_bytes, memory as memory_of, smallest_change

    d = asked.deployment()
    found = memory_of(d, requests=requests, context=context)
    per_request = cache_bytes(d, context)
    most = int(found.cache_room / per_request) * d.attention_dp if per_request else None
    change = None if found.fits else smallest_change(d, requests, context)
    if asked.json:
        values = {"rows": found.rows(), "fits": found.fits, "most_requests": most, "change": change}
        print_json(
            "model_memory", {"model": d.config.name, "machine": d.hda.name, "division": d.words(), **values}
        )
        raise typer.Exit(not found.fits)
    rows = [(r["part"], format_bytes(r["bytes"]), f"{r['share']:.1%}") for r in found.rows()]
    print(f"{d.config.name} on {d.hda.name}, {d.words()}")
    print_table(("part", "size", "of a device"), rows)
    if change is not None:
        print(f"does not fit (try: {change})")
    elif most is not None:
        print(f"fits; at most {most} requests of {context} tokens")
    print(d.engine.words())
    raise typer.Exit(not found.fits)


@model_command(app, *DIVISION, *LENGTHS, *PRECISION, *ENGINE, "csv_file")
def predict(
    asked: Asked,
    batch: Annotated[int, typer.Option("--batch", help="Requests per step.")] = 1,
    report: Annotated[
        Path | None, typer.Option("--report", help="Write an HTML report of both steps.")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", help="Write the trace of the decode step."),
    ] = None,
    beside: Annotated[
        Path | None,
        typer.Option("--beside", help="A Kineto trace of decode steps: kernels measured and predicted."),
    ] = None,
    steps: Annotated[int, typer.Option("--steps", help="Decode steps in the Kineto trace.")] = 1,
) -> None:
    """Predict the prefill of a batch, and a decode step halfway through its output.

    Example: megatile model predict Llama-3.1-70B -m dgx-h100 --tp 8 --batch 64 --isl 2048 --osl 512
    """
    from megatile.models.batch import Batch
    from megatile.models.step import step_time

    if batch < 1:
        raise MegatileError(f"--batch must be at least 1, got {batch}")
    d, isl, osl = asked.deployment(), asked.isl, asked.osl
    found = {
        "prefill": step_time(d, Batch.equal(batch, isl, 0)),
        "decode": step_time(d, Batch.equal(batch, 1, isl + osl // 2)),
    }
    _print_steps(d, found, asked.json, asked.csv_file)
    if report is not None:
        from megatile.models.page import write_page

        write_page(report, found)
        print(f"report written to {report}", file=sys.stderr)
    both = found["decode"].beside(beside, steps) if beside is not None else None
    if both is not None and not asked.json:
        print(both)
    if trace is not None and both is not None:
        both.write(trace)
    elif trace is not None:
        from megatile.sim import simulate

        simulate(found["decode"].plan, machine=d.hda).write_trace(trace)
    if trace is not None:
        print(f"trace written to {trace}", file=sys.stderr)


def _print_steps(d: Deployment, found: dict[str, StepTime], json: bool, csv_file: Path | None) -> None:
    rows = [{"step": name, **row} for name, step in found.items() for row in step.rows()]
    if csv_file is not None:
        _write_csv(csv_file, rows)
    if json:
        times = {f"{name}_ms": step.time_ms for name, step in found.items()}
        values = {"model": d.config.name, "machine": d.hda.name, "division": d.words(), **times, "rows": rows}
        print_json("model_predict", values)
        return
    for name, step in found.items():
        texts = [
            (r["operator"], r["shape"], r["count"], f"{r['each_us']:.4g}", f"{r['time_us']:.4g}", 
             f"{r['share']:.1%}", r["origin"])
            for r in step.rows()
        ]  # fmt: skip
        said = f"{step.time_ms:.4g} ms ± {step.error:.0%} for {step.batch}"
        title = f"{name}: {said} ({d.config.name} on {d.hda.name}, {d.words()})"
        print_table(
            ("operator", "shape", "count", "µs each", "µs", "share", "known by"), texts, title, left=2
        )
        print()
    print(f"memory of a device: {found['decode'].memory!r}")
    print(d.engine.words())
    beyond = dict.fromkeys(note for step in found.values() for note in step.notes)
    for note in (*d.config.notes, *beyond):
        print(f"note: {note}")


@model_command(app, *DIVISION, *LENGTHS, *PRECISION, *ENGINE, "csv_file")
def serve(
    asked: Asked,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", help="Concurrent users (closed loop).")
    ] = None,
    rate: Annotated[float | None, typer.Option("--rate", help="Requests per second (Poisson).")] = None,
    trace: Annotated[
        Path | None,
        typer.Option("--requests", help="A .jsonl trace: timestamp, prompt_len, output_len."),
    ] = None,
    count: Annotated[int | None, typer.Option("--count", help="Number of requests.")] = None,
    spread: Spread = 0.0,
    prefix: Annotated[
        float, typer.Option("--prefix", help="Share of each prompt that is already cached.")
    ] = 0.0,
    seed: Annotated[int, typer.Option("--seed", help="Random seed.")] = 0,
    prefill_dp: Annotated[
        int, typer.Option("--prefill-dp", help="Engines that only prefill; those of --dp then only decode.")
    ] = 0,
    prefill_tp: Annotated[
        int | None, typer.Option("--prefill-tp", help="Tensor parallel size of --prefill-dp; default: --tp.")
    ] = None,
    table: Annotated[
        Path | None, typer.Option("--aiconfigurator-csv", help="Write aiconfigurator's columns as CSV.")
    ] = None,
) -> None:
    """Predict TTFT, TPOT and tokens per second under load.

    Example: megatile model serve Llama-3.1-70B -m dgx-h100 --tp 8 -d fp8 --concurrency 64
    """
    if prefill_tp is not None and not prefill_dp:
        raise MegatileError("--prefill-tp needs --prefill-dp", advice="add --prefill-dp 1")
    apart = {"dp": prefill_dp, "tp": prefill_tp or asked.division["tp"]} if prefill_dp else None
    found = asked.model.serve(
        machine=asked.hda, isl=asked.isl, osl=asked.osl, concurrency=concurrency, rate=rate, requests=trace,
        count=count, spread=spread, prefix=prefix, seed=seed, prefill=apart, **asked.division,
    )  # fmt: skip
    if asked.csv_file is not None:
        _write_csv(asked.csv_file, found.rows())
    if table is not None:
        from megatile.models.aiconfigurator import write_csv

        write_csv(table, [found.aiconfigurator_row()])
    if asked.json:
        rates = {n: getattr(found, n) for n in ("tokens_per_s", "tokens_per_s_device", "tokens_per_s_user")}
        print_json(
            "model_serve", {"asked": found.asked, "rows": found.rows(), **rates, "verdict": found.verdict}
        )
    else:
        print(found)


@model_command(app, "tp", "pp", "ep", "cp", "dp", "dtype", machine="h100-cluster")
def train(
    asked: Asked,
    seq: Annotated[int, typer.Option("--seq", help="Sequence length.")] = 4096,
    micro_batch: Annotated[int, typer.Option("--micro-batch", help="Sequences per micro-batch.")] = 1,
    global_batch: Annotated[
        int | None, typer.Option("--global-batch", help="Sequences per step; default: micro-batch × dp.")
    ] = None,
    schedule: Annotated[
        str | None, typer.Option("--schedule", help="1f1b, interleaved or zero_bubble.")
    ] = None,
    interleave: Annotated[int, typer.Option("--interleave", help="Virtual stages per device.")] = 1,
    recompute: Annotated[
        str, typer.Option("--recompute", help="none, selective, alternate or full.")
    ] = "selective",
    fsdp: Annotated[bool, typer.Option("--fsdp", help="Shard weights over replicas.")] = False,
    attention: Annotated[str, typer.Option("--attention", help="flash3, flash2 or unfused.")] = "flash3",
    compiled: Annotated[
        bool, typer.Option("--compile/--no-compile", help="Fuse elementwise operators.")
    ] = True,
    async_tp: Annotated[
        bool, typer.Option("--async-tp", help="Overlap tensor-parallel collectives with GEMMs.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option("--report", help="Write an HTML report of the pipeline.")
    ] = None,
) -> None:
    """Predict a training step: forward, backward, bubbles, data parallelism, MFU.

    Example: megatile model train GPT-3-175B -m h100-cluster --set nodes=16 --tp 4 --pp 8 --dp 4
    --interleave 6 --global-batch 256 --seq 2048
    """
    found = asked.model.train(
        machine=asked.hda, seq=seq, micro_batch=micro_batch, global_batch=global_batch, schedule=schedule,
        interleave=interleave, recompute=recompute, fsdp=fsdp, attention=attention, compiled=compiled,
        async_tp=async_tp, **asked.division,
    )  # fmt: skip
    if report is not None:
        from megatile.sim import simulate

        simulate(found.plan, machine=found.deployment.hda).report(report)
        print(f"report written to {report}", file=sys.stderr)
    if asked.json:
        values = {n: getattr(found, n) for n in ("time_s", "tokens_per_s_device", "mfu", "bubble")}
        memory = {"memory_bytes": found.memory_bytes, "fits": found.fits}
        print_json("model_train", {**values, **memory, "rows": found.rows()})
    else:
        print(found)


@model_command(app, *LENGTHS, "dtype", "kv_dtype", "library", *ENGINE, "csv_file", name="search")
def search_(
    asked: Asked,
    ttft: Annotated[
        str | None, typer.Option("--ttft", help="Limit of the median TTFT, e.g. 500ms (or in ms).")
    ] = None,
    tpot: Annotated[
        str | None, typer.Option("--tpot", help="Limit of the mean TPOT, e.g. 20ms (or in ms).")
    ] = None,
    concurrency: Annotated[
        str, typer.Option("--concurrency", help="Numbers of users per replica to try.")
    ] = "1,2,4,8,16,32,64,128,256",
    spread: Spread = 0.0,
    store: Annotated[
        Path | None, typer.Option("--store", help="Keep results in this file, to resume later.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw the candidates and their Pareto front (.svg, .png).")
    ] = None,
    workers: Annotated[int, typer.Option("--workers", help="Number of processes.")] = 1,
    table: Annotated[
        Path | None, typer.Option("--aiconfigurator-csv", help="Write aiconfigurator's columns as CSV.")
    ] = None,
) -> None:
    """Find deployments within limits of TTFT and TPOT; print the Pareto front.

    Example: megatile model search Llama-3.1-70B -m dgx-h100 -d fp8 --ttft 500ms --tpot 20ms
    """
    from concurrent.futures import ProcessPoolExecutor
    from contextlib import nullcontext

    from megatile.tuning.executors import begin_worker

    if workers < 1:
        raise MegatileError(f"--workers must be at least 1, got {workers}")
    try:
        pool = (
            nullcontext()
            if workers == 1
            else ProcessPoolExecutor(workers, initializer=begin_worker, initargs=(os.getpid(),))
        )
    except OSError as problem:
        raise MegatileError(f"processes cannot be started: {problem}", advice="--workers 1") from None
    with pool as executor:
        found = asked.model.search(
            machine=asked.hda, isl=asked.isl, osl=asked.osl, ttft_ms=_milliseconds("--ttft", ttft),
            tpot_ms=_milliseconds("--tpot", tpot), concurrencies=_numbers(concurrency), executor=executor,
            spread=spread, store=store, **asked.division,
        )  # fmt: skip
    if asked.csv_file is not None:
        found.to_csv(asked.csv_file)
    if table is not None:
        found.to_aiconfigurator(table)
    if plot is not None:
        found.plot(plot)
        print(f"plot written to {plot}", file=sys.stderr)
    if asked.json:
        print_json("model_search", {"asked": found.asked, "rows": found.rows(), "pareto": found.pareto()})
    else:
        print(found)


@model_command(app, *DIVISION, *PRECISION)
def replay(
    asked: Asked,
    batches: Annotated[
        Path, typer.Option("--batches", help="JSONL of steps, such as SGLang's schedule_batch.jsonl.")
    ],
    table: Annotated[
        Path | None, typer.Option("--table", help="Write a table for SGLang's replay predictor.")
    ] = None,
) -> None:
    """Predict recorded steps of an engine, beside their measured times or as a table for SGLang's simulator.

    Example: megatile model replay Llama-3.1-8B --library sglang --batches TP0.schedule_batch.jsonl
    """
    from megatile.models.predictor import InferTimePredictor, read_batches

    predictor, found = InferTimePredictor(asked.deployment()), read_batches(batches)
    if table is not None:
        predictor.write_replay_table(table, found)
        print(f"table written to {table}", file=sys.stderr)
    if any(one.seconds is not None for one in found):
        compared = predictor.compare(found)
        if asked.json:
            print_json("model_replay", compared.rows())
        else:
            print(compared)
    elif table is None:
        raise MegatileError("no batch has a measured time", advice="add --table FILE")


def _milliseconds(option: str, text: str | None) -> float | None:
    """``500ms`` → 500."""
    from megatile.core.quantities import quantity

    if text is None:
        return None
    try:
        found = quantity(text if not text.replace(".", "").isdigit() else f"{text} ms", "time").value / 1e9
    except MegatileError:
        found = 0.0
    if found <= 0:
        raise MegatileError(f"{option} must be a time above 0, got '{text}'", advice=f"{option} 20ms")
    return found


def _numbers(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and 0 < int(part) < 10**6 for part in parts):
        raise MegatileError(f"'{text}' is not a list of numbers", advice="write --concurrency 8,16,32")
    return [int(part) for part in parts]


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    from io import StringIO

    from megatile.core.files import write_text

    text = StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())
