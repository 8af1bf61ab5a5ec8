"""``megatile model list|memory|predict|serve|train|search``: language models on machines."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from megatile.cli.machine import Json, Machine, Set, Trust, load
from megatile.cli.output import Commands, print_json, print_table
from megatile.core.errors import MegatileError
from megatile.core.quantities import format_bytes

if TYPE_CHECKING:
    from megatile.models.deployment import Deployment
    from megatile.models.step import StepTime

app = Commands(help="Predict a language model on a machine: a step, memory, serving.", no_args_is_help=True)


def complete_model(incomplete: str) -> list[str]:
    from megatile.models.config import model_names

    return [name for name in model_names() if name.lower().startswith(incomplete.lower())]


Config = Annotated[
    str,
    typer.Argument(
        help="A shipped model ('megatile model list') or a config.json.", autocompletion=complete_model
    ),
]
Tp = Annotated[int, typer.Option("--tp", help="Tensor parallel: devices that divide every layer.")]
Pp = Annotated[int, typer.Option("--pp", help="Pipeline stages.")]
Ep = Annotated[int, typer.Option("--ep", help="Expert parallel: groups of devices with different experts.")]
AttentionDp = Annotated[
    int,
    typer.Option("--attention-dp", help="Groups of TP devices with different requests and common experts."),
]
Cp = Annotated[int, typer.Option("--cp", help="Context parallel: devices that divide every sequence.")]
Dp = Annotated[int, typer.Option("--dp", help="Replicas of the model.")]
Dtype = Annotated[
    str | None,
    typer.Option("-d", "--dtype", help="bf16, fp8, fp8_block, int4, fp4; the config's own by default."),
]
KvDtype = Annotated[str | None, typer.Option("--kv-dtype", help="Type of the KV cache: bf16 or fp8.")]
Library = Annotated[
    str, typer.Option("--library", help="Whose kernels and scheduler: vllm, trtllm, sglang, torch.")
]
Graph = Annotated[
    bool | None,
    typer.Option("--graph/--eager", help="Whether decode steps replay a captured graph; torch: eager."),
]
Batch = Annotated[int, typer.Option("--batch", help="Requests of a step.")]
Isl = Annotated[int, typer.Option("--isl", help="Tokens of a prompt.")]
Osl = Annotated[int, typer.Option("--osl", help="Tokens of an answer.")]
MemoryShare = Annotated[
    float | None, typer.Option("--memory-share", help="Share of a device's memory that the engine uses.")
]
MaxSeqs = Annotated[int | None, typer.Option("--max-num-seqs", help="Requests that run at a time, at most.")]
TokenBudget = Annotated[int | None, typer.Option("--token-budget", help="New tokens of a step, at most.")]
Csv = Annotated[Path | None, typer.Option("--csv", help="Write the rows as CSV.")]


@app.command("list")
def list_(json: Json = False) -> None:
    """List the models that come with megatile."""
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


@app.command()
def memory(
    config: Config,
    machine: Machine = "dgx-h100",
    tp: Tp = 1,
    pp: Pp = 1,
    ep: Ep = 1,
    attention_dp: AttentionDp = 1,
    cp: Cp = 1,
    dtype: Dtype = None,
    kv_dtype: KvDtype = None,
    library: Library = "vllm",
    requests: Annotated[int, typer.Option("--requests", help="Requests in the cache.")] = 1,
    context: Annotated[int, typer.Option("--context", help="Tokens of each request in the cache.")] = 4096,
    memory_share: MemoryShare = None,
    settings: Set = None,
    trust: Trust = False,
    json: Json = False,
) -> None:
    """Say what a model takes of a device's memory, whether it fits, and what would make it fit."""
    from megatile.models.memory import cache_bytes, memory as memory_of, smallest_change
    from megatile.models.model import model

    d = model(config).deployment(
        load(machine, settings, trust), tp=tp, pp=pp, ep=ep, attention_dp=attention_dp, cp=cp, dtype=dtype,
        kv_dtype=kv_dtype, library=library, memory_share=memory_share,
    )  # fmt: skip
    found = memory_of(d, requests=requests, context=context)
    per_request = cache_bytes(d, context)
    most = int(found.cache_room / per_request) * d.attention_dp if per_request else None
    change = None if found.fits else smallest_change(d, requests, context)
    if json:
        values = {"rows": found.rows(), "fits": found.fits, "most_requests": most, "change": change}
        print_json(
            "model_memory", {"model": d.config.name, "machine": d.hda.name, "division": d.words(), **values}
        )
        return
    rows = [(r["part"], format_bytes(r["bytes"]), f"{r['share']:.1%}") for r in found.rows()]
    print(f"{d.config.name} on {d.hda.name}, {d.words()}")
    print_table(("part", "size", "of a device"), rows)
    if change is not None:
        print(f"does not fit (try: {change})")
    elif most is not None:
        print(f"fits; at most {most} requests of {context} tokens")


@app.command()
def predict(
    config: Config,
    machine: Machine = "dgx-h100",
    tp: Tp = 1,
    pp: Pp = 1,
    ep: Ep = 1,
    attention_dp: AttentionDp = 1,
    cp: Cp = 1,
    dp: Dp = 1,
    batch: Batch = 1,
    isl: Isl = 1024,
    osl: Osl = 1024,
    dtype: Dtype = None,
    kv_dtype: KvDtype = None,
    library: Library = "vllm",
    graph: Graph = None,
    report: Annotated[
        Path | None, typer.Option("--report", help="Write an HTML report of the decode step.")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", help="Write the decode step's trace (.json.gz opens in ui.perfetto.dev)."),
    ] = None,
    csv_file: Csv = None,
    settings: Set = None,
    trust: Trust = False,
    json: Json = False,
) -> None:
    """Predict the prefill of a batch and the decode step in the middle of its answers.

    Example: megatile model predict Llama-3.1-70B -m dgx-h100 --tp 8 --batch 64 --isl 2048 --osl 512
    """
    from megatile.models.model import model
    from megatile.models.step import step_time

    for name, value, least in (("batch", batch, 1), ("isl", isl, 1), ("osl", osl, 0)):
        if value < least:
            raise MegatileError(f"--{name} must be at least {least}, got {value}")
    asked = model(config)
    d = asked.deployment(
        load(machine, settings, trust), tp=tp, pp=pp, ep=ep, attention_dp=attention_dp, cp=cp, dp=dp,
        dtype=dtype, kv_dtype=kv_dtype, library=library, graph=graph,
    )  # fmt: skip
    found = {
        "prefill": step_time(d, [(isl, 0)] * batch),
        "decode": step_time(d, [(1, isl + osl // 2)] * batch),
    }
    _print_steps(d, found, json, csv_file)
    if report is not None or trace is not None:
        _write_simulated(found, report, trace)


def _write_simulated(found: dict[str, StepTime], report: Path | None, trace: Path | None) -> None:
    """Simulate the Plan of the decode step, and write its trace and its page."""
    from megatile.sim import simulate

    step = found["decode"]
    result = simulate(step.plan, machine=step.deployment.hda)
    if trace is not None:
        result.write_trace(trace)
        print(f"trace written to {trace}", file=sys.stderr)
    if report is not None:
        texts = [(name.capitalize(), str(one)) for name, one in found.items()]
        result.report(report, texts=(*texts, ("Memory", str(step.memory))))
        print(f"report written to {report}", file=sys.stderr)


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
    for note in d.config.notes:
        print(f"note: {note}")


@app.command()
def serve(
    config: Config,
    machine: Machine = "dgx-h100",
    tp: Tp = 1,
    pp: Pp = 1,
    ep: Ep = 1,
    attention_dp: AttentionDp = 1,
    cp: Cp = 1,
    dp: Dp = 1,
    isl: Isl = 1024,
    osl: Osl = 1024,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", help="Users that each ask again when answered.")
    ] = None,
    rate: Annotated[float | None, typer.Option("--rate", help="Requests per second (Poisson).")] = None,
    trace: Annotated[
        Path | None,
        typer.Option("--requests", help="JSONL with timestamp, prompt_len and output_len on each line."),
    ] = None,
    count: Annotated[int | None, typer.Option("--count", help="Requests in all.")] = None,
    spread: Annotated[
        float, typer.Option("--spread", help="Lengths lie in [1 - spread, 1] times isl and osl.")
    ] = 0.0,
    seed: Annotated[int, typer.Option("--seed", help="Of random lengths and arrivals.")] = 0,
    dtype: Dtype = None,
    kv_dtype: KvDtype = None,
    library: Library = "vllm",
    graph: Graph = None,
    memory_share: MemoryShare = None,
    max_num_seqs: MaxSeqs = None,
    token_budget: TokenBudget = None,
    csv_file: Csv = None,
    settings: Set = None,
    trust: Trust = False,
    json: Json = False,
) -> None:
    """Predict what users see under a load: time to first token, time per token, tokens per second.

    Example: megatile model serve Llama-3.1-70B -m dgx-h100 --tp 8 -d fp8 --concurrency 64
    """
    from megatile.models.model import model

    found = model(config).serve(
        machine=load(machine, settings, trust), isl=isl, osl=osl, concurrency=concurrency, rate=rate,
        requests=trace, count=count, spread=spread, seed=seed, tp=tp, pp=pp, ep=ep,
        attention_dp=attention_dp, cp=cp, dp=dp, dtype=dtype, kv_dtype=kv_dtype, library=library,
        graph=graph, memory_share=memory_share, max_num_seqs=max_num_seqs, token_budget=token_budget,
    )  # fmt: skip
    if csv_file is not None:
        _write_csv(csv_file, found.rows())
    if json:
        rates = {n: getattr(found, n) for n in ("tokens_per_s", "tokens_per_s_device", "tokens_per_s_user")}
        print_json(
            "model_serve", {"asked": found.asked, "rows": found.rows(), **rates, "verdict": found.verdict}
        )
    else:
        print(found)


@app.command()
def train(
    config: Config,
    machine: Machine = "h100-cluster",
    tp: Tp = 1,
    pp: Pp = 1,
    ep: Ep = 1,
    cp: Cp = 1,
    dp: Dp = 1,
    seq: Annotated[int, typer.Option("--seq", help="Tokens of a sequence.")] = 4096,
    micro_batch: Annotated[int, typer.Option("--micro-batch", help="Sequences of a micro-batch.")] = 1,
    global_batch: Annotated[
        int | None, typer.Option("--global-batch", help="Sequences of a step; micro-batch × dp by default.")
    ] = None,
    schedule: Annotated[
        str | None, typer.Option("--schedule", help="1f1b, interleaved or zero_bubble.")
    ] = None,
    interleave: Annotated[int, typer.Option("--interleave", help="Chunks of layers on a stage.")] = 1,
    recompute: Annotated[
        str, typer.Option("--recompute", help="none, selective, alternate or full.")
    ] = "selective",
    fsdp: Annotated[bool, typer.Option("--fsdp", help="Divide weights among replicas.")] = False,
    attention: Annotated[str, typer.Option("--attention", help="flash3, flash2 or unfused.")] = "flash3",
    compiled: Annotated[
        bool, typer.Option("--compile/--no-compile", help="Whether element-wise operators are fused.")
    ] = True,
    async_tp: Annotated[
        bool, typer.Option("--async-tp", help="Hide tensor-parallel collectives behind products.")
    ] = False,
    dtype: Dtype = None,
    report: Annotated[
        Path | None, typer.Option("--report", help="Write an HTML report of the pipeline.")
    ] = None,
    settings: Set = None,
    trust: Trust = False,
    json: Json = False,
) -> None:
    """Predict one optimizer step: forward, backward, pipeline bubbles, data parallelism, MFU.

    Example: megatile model train GPT-3-175B -m h100-cluster --set nodes=16 --tp 4 --pp 8 --dp 4
    --interleave 6 --global-batch 256 --seq 2048
    """
    from megatile.models.model import model

    found = model(config).train(
        machine=load(machine, settings, trust), tp=tp, pp=pp, ep=ep, cp=cp, dp=dp, seq=seq,
        micro_batch=micro_batch, global_batch=global_batch, schedule=schedule, interleave=interleave,
        recompute=recompute, fsdp=fsdp, attention=attention, compiled=compiled, async_tp=async_tp,
        dtype=dtype,
    )  # fmt: skip
    if report is not None:
        from megatile.sim import simulate

        simulate(found.plan, machine=found.deployment.hda).report(report)
        print(f"report written to {report}", file=sys.stderr)
    if json:
        values = {n: getattr(found, n) for n in ("time_s", "tokens_per_s_device", "mfu", "bubble")}
        memory = {"memory_bytes": found.memory_bytes, "fits": found.fits}
        print_json("model_train", {**values, **memory, "rows": found.rows()})
    else:
        print(found)


@app.command("search")
def search_(
    config: Config,
    machine: Machine = "dgx-h100",
    isl: Isl = 1024,
    osl: Osl = 1024,
    ttft: Annotated[str | None, typer.Option("--ttft", help="The longest median TTFT, e.g. 500ms.")] = None,
    tpot: Annotated[str | None, typer.Option("--tpot", help="The longest mean TPOT, e.g. 20ms.")] = None,
    concurrency: Annotated[
        str, typer.Option("--concurrency", help="Numbers of users of a replica to try.")
    ] = "1,2,4,8,16,32,64,128,256",
    dtype: Dtype = None,
    kv_dtype: KvDtype = None,
    library: Library = "vllm",
    memory_share: MemoryShare = None,
    max_num_seqs: MaxSeqs = None,
    token_budget: TokenBudget = None,
    store: Annotated[
        Path | None, typer.Option("--store", help="A file that keeps results: a stopped search goes on.")
    ] = None,
    workers: Annotated[int, typer.Option("--workers", help="Processes.")] = 1,
    csv_file: Csv = None,
    settings: Set = None,
    trust: Trust = False,
    json: Json = False,
) -> None:
    """Find divisions of a model over a machine that keep limits of TTFT and TPOT, and print the Pareto front.

    Example: megatile model search Llama-3.1-70B -m dgx-h100 -d fp8 --ttft 500ms --tpot 20ms
    """
    from concurrent.futures import ProcessPoolExecutor
    from contextlib import nullcontext

    from megatile.models.model import model

    hda, asked = load(machine, settings, trust), model(config)
    if workers < 1:
        raise MegatileError(f"--workers must be at least 1, got {workers}")
    with nullcontext() if workers == 1 else ProcessPoolExecutor(workers) as executor:
        found = asked.search(
            machine=hda, isl=isl, osl=osl, ttft_ms=_milliseconds("--ttft", ttft),
            tpot_ms=_milliseconds("--tpot", tpot), concurrencies=_numbers(concurrency), executor=executor,
            store=store, dtype=dtype, kv_dtype=kv_dtype, library=library, memory_share=memory_share,
            max_num_seqs=max_num_seqs, token_budget=token_budget,
        )  # fmt: skip
    if csv_file is not None:
        found.to_csv(csv_file)
    if json:
        print_json("model_search", {"asked": found.asked, "rows": found.rows(), "pareto": found.pareto()})
    else:
        print(found)


def _milliseconds(option: str, text: str | None) -> float | None:
    """``500ms`` → 500."""
    from megatile.core.quantities import quantity

    if text is None:
        return None
    found = quantity(text if not text.replace(".", "").isdigit() else f"{text} ms", "time").value / 1e9
    if found <= 0:
        raise MegatileError(f"{option} must be positive, got {text}")
    return found


def _numbers(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and 0 < int(part) < 10**6 for part in parts):
        raise MegatileError(f"'{text}' is no list of numbers", advice="write --concurrency 8,16,32")
    return [int(part) for part in parts]


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    from io import StringIO

    from megatile.core.files import write_text

    text = StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())
