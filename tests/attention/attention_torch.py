"""What ranks do in the tests of torch's own machinery around attention: autocast, compile, torch.func."""

from __future__ import annotations

import torch
import torch.distributed as dist
from tests.attention.attention_cases import Cases, shards, single_device, tensors

from megatile.attention import AttentionError, hamilton_attention, shard_sequence

# One takes torch's own attention on one rank, the others our engine and its plain kernel.
OPTIONS = (
    {},
    {"causal": True},
    {"window_size": (3, 1)},
    {"alibi_slopes": torch.tensor([0.5, 0.25])},
    {"schedule": "ulysses"},
)


def check_torch(rank):
    cases, ranks = Cases(), dist.get_world_size() if dist.is_initialized() else 1
    whole = tensors(4, *[(1, 5 * ranks + 2, 2, 8)] * 4)
    for options in OPTIONS:
        causal = options.get("causal", False)
        place = {"causal": causal, "schedule": options.get("schedule", "auto")}
        parts = [shard_sequence(x, **place) for x in whole]
        for check in (_check_autocast, _check_second_derivatives, _check_functions, _check_compile):
            check(cases, parts, options)
        exact = single_device(
            *(x.double() for x in whole[:3]), causal, options.get("window_size", (-1, -1)),
            slopes=options.get("alibi_slopes"),
        )  # fmt: skip
        out = hamilton_attention(*(x.bfloat16().float() for x in parts[:3]), **options)
        cases.compare(f"exact {options}", [out], shards([exact], place), limit=2e-2)
    return cases.failures, cases.count, cases.worst


def _gradients(function, inputs, d_out):
    inputs = [x.detach().requires_grad_() for x in inputs]
    return torch.autograd.grad(function(*inputs), inputs, d_out)


def _check_autocast(cases, parts, options):
    """As torch's own attention: results in the dtype of autocast, from tensors of any; sums stay in f32."""
    q, k, v, d_out = parts
    narrow = [x.bfloat16() for x in (q, k, v)]
    want = hamilton_attention(*narrow, **options)
    want_grads = _gradients(lambda *x: hamilton_attention(*x, **options), narrow, d_out.bfloat16())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = hamilton_attention(narrow[0], k, v, **options)
        grads = _gradients(lambda *x: hamilton_attention(*x, **options), (q, k, v), d_out.bfloat16())
    if got.dtype != torch.bfloat16:
        cases.failures.append(f"autocast {options} gave {got.dtype}")
    cases.compare(f"autocast {options}", [got], [want.double()], limit=1e-6)
    cases.compare(f"autocast, gradients {options}", grads, [x.double() for x in want_grads], limit=1e-6)


def _check_second_derivatives(cases, parts, options):
    """They are refused, also where only a later step would need them."""
    q, k, v, _ = parts

    def twice():
        x = q.clone().requires_grad_()
        (grad,) = torch.autograd.grad(hamilton_attention(x, k, v, **options).sum(), x, create_graph=True)
        (x.sum() + grad.pow(2).sum()).backward()

    alone = not dist.is_initialized() and options in (*OPTIONS[:2], OPTIONS[-1])
    error, message = (RuntimeError, "derivative") if alone else (AttentionError, "differentiated once")
    cases.refuses(f"second derivatives {options}", error, message, twice)


def _check_functions(cases, parts, options):
    q, k, v, d_out = parts

    def attend(*x):
        return hamilton_attention(*x, **options)

    got = torch.func.vjp(attend, q, k, v)[1](d_out)
    want = [x.double() for x in _gradients(attend, (q, k, v), d_out)]
    cases.compare(f"torch.func.vjp {options}", got, want)
    got = torch.func.grad(lambda x: (attend(x, k, v) * d_out).sum())(q)
    cases.compare(f"torch.func.grad {options}", [got], want[:1])


def _check_compile(cases, parts, options):
    q, k, v, d_out = parts

    def model(q, k, v):
        return hamilton_attention(q.sin(), k, v, **options).cos()

    compiled = torch.compile(model, backend="aot_eager")
    got = [compiled(q, k, v), *_gradients(compiled, (q, k, v), d_out)]
    want = [model(q, k, v), *_gradients(model, (q, k, v), d_out)]
    cases.compare(f"compiled {options}", got, [x.double() for x in want])
