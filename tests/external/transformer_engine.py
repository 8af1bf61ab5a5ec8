"""The matrix of TransformerEngine's context-parallel tests, each case beside attention in one process.

    python tests/external/transformer_engine.py CHECKOUT

Model configurations, dtypes, layouts and kinds of communication are read from the checkout's
test_attention_with_cp.py (flash-attention's part); lengths and windows are divided by 32 for CPUs. Cases that
the original skips because its kernels lack them run too.
"""

from __future__ import annotations

import argparse
import ast
import os
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from megatile.attention import hamilton_attention, shard_sequence

FILE = "tests/pytorch/attention/test_attention_with_cp.py"
SHRINK = 32
SCHEDULES = {"p2p": "zigzag", "all_gather": "direct", "a2a": "ulysses", "a2a+p2p": "ulysses:2+zigzag"}
ORDERS = {"bshd": "BSND", "sbhd": "SBND", "thd": "BSND"}
DTYPES = {"bf16": (torch.bfloat16, 2.5e-2), "fp16": (torch.float16, 5e-3)}
"""With the largest difference that the original allows."""


@dataclass(frozen=True)
class Config:
    """What ``ModelConfig`` is given, as far as these tests use it."""

    batch: int
    length: int
    heads: int
    dim: int
    kv_heads: int
    value_dim: int
    causal: bool
    window: tuple[int, int]

    @classmethod
    def read(cls, call: ast.Call) -> Config:
        batch, length, heads, dim = (ast.literal_eval(x) for x in call.args)
        more = {x.arg: ast.literal_eval(x.value) for x in call.keywords}
        left, right = (w if w <= 0 else w // SHRINK for w in more.get("window_size", (-1, -1)))
        return cls(
            batch, length // SHRINK, heads, dim, more.get("num_gqa_groups", heads),
            more.get("head_dim_v", dim), more.get("attn_mask_type") == "causal", (left, right),
        )  # fmt: skip


def matrix(checkout: Path) -> list[tuple[str, Config, str, str, str]]:
    """Model, its configuration, dtype, layout and kind of communication of every case."""
    found: dict[str, ast.expr] = {}
    for statement in ast.parse((checkout / FILE).read_text()).body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            found.setdefault(statement.targets[0].id, statement.value)  # the first, for flash-attention
    models = found["model_configs_flash_attn"]
    assert isinstance(models, ast.Dict)
    configs = [
        (ast.literal_eval(key), Config.read(value))
        for key, value in zip(models.keys, models.values, strict=True)
        if key is not None and isinstance(value, ast.Call)
    ]
    axes = (ast.literal_eval(found[name]) for name in ("dtypes", "qkv_formats", "cp_comm_types"))
    return [(*model, *rest) for model, *rest in product(configs, *axes)]


def reference(q, k, v, causal, window, lengths):
    """Attention of packed sequences [tokens, heads, dim] by its definition, in f64 where ``q`` is."""
    outs, at = [], 0
    for length in lengths:
        a, b, c = (x[at : at + length] for x in (q, k, v))
        b, c = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (b, c))
        apart = torch.arange(length)[None, :] - torch.arange(length)[:, None]
        hidden = (apart > 0) if causal else torch.zeros_like(apart, dtype=torch.bool)
        left, right = window
        hidden = (
            hidden | ((apart < -left) if left >= 0 else False) | ((apart > right) if right >= 0 else False)
        )
        scores = torch.einsum("ihd,jhd->hij", a, b) * q.shape[-1] ** -0.5
        outs.append(torch.einsum("hij,jhd->ihd", scores.masked_fill(hidden, float("-inf")).softmax(-1), c))
        at += length
    return torch.cat(outs)


def check(case) -> float:
    """The largest difference of a case, of outputs and gradients, beside what is allowed."""
    name, config, dtype, form, kind = case
    (wanted, limit), generator = DTYPES[dtype], torch.Generator().manual_seed(sum(map(ord, name)))
    packed, tokens = form == "thd", config.batch * config.length
    lengths = [config.length // 2 + 3, config.length // 2 - 3] * config.batch if packed else None
    shapes = [(config.heads, config.dim), (config.kv_heads, config.dim), (config.kv_heads, config.value_dim)]
    shapes.append((config.heads, config.value_dim))
    whole = [torch.randn(tokens, *shape, generator=generator).to(wanted) for shape in shapes]
    exact = [x.double().requires_grad_() for x in whole[:3]]
    each = lengths or [config.length] * config.batch
    out = reference(*exact, config.causal, config.window, each)
    want = [out, *torch.autograd.grad(out, exact, whole[3].double())]

    def shaped(x):
        if packed:
            return x
        x = x.unflatten(0, (config.batch, config.length))
        return x if form == "bshd" else x.transpose(0, 1).contiguous()

    options = {"schedule": SCHEDULES[kind], "causal": config.causal}
    if packed:
        options["cu_seqlens"] = torch.tensor([0, *lengths]).cumsum(0)
    dim = 0 if packed or form == "sbhd" else 1
    *inputs, d_out = (shard_sequence(shaped(x), dim=dim, **options) for x in whole)
    inputs = [x.detach().requires_grad_() for x in inputs]
    layout = () if packed else (ORDERS[form],)
    got = hamilton_attention(
        *inputs, window_size=config.window, layout=(*layout, division(options)), **options
    )
    found = [got, *torch.autograd.grad(got, inputs, d_out)]
    worst = 0.0
    for a, b in zip(found, want, strict=True):
        part = shard_sequence(shaped(b.detach()), dim=dim, **options)
        worst = max(worst, ((a.double() - part).abs() / (1 + part.abs())).max().item() / limit)
    return worst


def division(options) -> str:
    from megatile.attention import make_schedule

    return make_schedule(options["schedule"], dist.get_world_size()).layout(options["causal"]).name


def work(rank: int, ranks: int, cases, port: int) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(ranks))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    right, worst = 0, 0.0
    for case in cases:
        found = torch.tensor([check(case)])
        dist.all_reduce(found, dist.ReduceOp.MAX)
        good = bool(found <= 1)
        right, worst = right + good, max(worst, found.item())
        if rank == 0 and not good:
            print("WRONG", case, found.item(), flush=True)
    if rank == 0:
        print(
            f"{ranks} ranks: {right} of {len(cases)} right, worst {worst:.2f} of what is allowed", flush=True
        )
    dist.destroy_process_group()
    if right < len(cases):
        raise SystemExit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    cases = matrix(parser.parse_args().checkout)
    for ranks in (2, 4):
        own = [case for case in cases if (case[-1] == "a2a+p2p") == (ranks == 4)]
        mp.spawn(work, (ranks, own, 29000 + os.getpid() % 900 + ranks), nprocs=ranks)


if __name__ == "__main__":
    main()
