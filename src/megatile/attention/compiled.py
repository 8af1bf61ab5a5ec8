"""Attention as a registered operator, so that ``torch.compile(fullgraph=True)`` keeps it in one graph.

The operator takes the tensors and the number of a call; everything else (group, schedule, mask, …) is a
constant of the graph and stays in a table. Its backward pass computes the forward pass once more: the chunks
of KV held last are no tensors of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import wraps
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from megatile.attention.arguments import as_autocast, read_layout
from megatile.attention.block_kernels import accumulation_dtype

Attention = Callable[..., Any]
_TENSORS = ("alibi_slopes", "position_ids")
_BOUNDARIES = ("cu_seqlens", "cu_seqlens_padded")


class CompiledCall(NamedTuple):
    """The constants of a call, and the names of those arguments that are tensors (a pair has two)."""

    names: tuple[str, ...]
    options: dict[str, Any]

    def arguments(self, tensors: Sequence[Tensor]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, tensor in zip(self.names, tensors, strict=True):
            found[name] = (found[name], tensor) if name in found else tensor
        return {**self.options, **found}

    @property
    def packed(self) -> bool:
        return "cu_seqlens" in self.names or self.options.get("cu_seqlens") is not None


_CALLS: list[CompiledCall] = []


def _number_of(names: tuple[str, ...], options: dict[str, Any]) -> int:
    """Keep the constants of a call, while a graph is made of it."""
    group: Any = options.get("group")
    # While tracing, groups are wrapped.
    real = group.real_obj if type(group).__name__ == "FakeScriptObject" else group
    _CALLS.append(CompiledCall(names, {**options, "group": real}))
    return len(_CALLS) - 1


# What torch.compiler.assume_constant_result does, without loading the compiler (seconds).
_number_of._dynamo_marked_constant = True  # type: ignore[attr-defined]


def compilable(function: Attention) -> Attention:
    """Return the function of ``q``, ``k``, ``v`` and options; in a graph of torch.compile it is one operator.

    Plain attention of a process without a group needs none: it is torch's own.
    """
    operator = _operator(function)

    @wraps(function)
    def attend(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
        if not torch.compiler.is_compiling() or not (dist.is_initialized() or _unusual(options)):
            return function(q, k, v, **options)
        q, k, v = as_autocast(q, k, v)
        sinks, return_lse = options.pop("sinks", None), options.pop("return_lse", False)
        names, tensors = [], []
        for name in (*_TENSORS, *_BOUNDARIES):
            given = options.get(name)
            pair = isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], Tensor)
            if isinstance(given, Tensor) or pair:
                found = list(options.pop(name)) if pair else [options.pop(name)]
                names += [name] * len(found)
                tensors += found
        number = _number_of(tuple(names), {**options, "return_lse": return_lse})
        out, lse = operator(q, k, v, sinks, tensors, number)
        return (out, lse) if return_lse else out

    return attend


def _unusual(options: dict[str, Any]) -> bool:
    """Return whether one process alone needs more than torch's own attention."""
    plain = ("causal", "layout", "softmax_scale", "deterministic", "schedule", "max_seqlen")
    usual = {"window_size": (-1, -1), "dropout_p": 0.0, "softcap": 0.0, "return_lse": False}
    return any(
        value is not None and value != usual.get(name, value is None)
        for name, value in options.items()
        if name not in plain and not isinstance(value, Tensor)
    ) or any(isinstance(value, Tensor) for value in options.values())


def _operator(function: Attention) -> Callable[..., tuple[Tensor, Tensor]]:
    @torch.library.custom_op("megatile::attention", mutates_args=())
    def attention(
        q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, tensors: Sequence[Tensor], call: int
    ) -> tuple[Tensor, Tensor]:
        options = {**_CALLS[call].arguments(tensors), "sinks": sinks, "return_lse": True}
        out, lse = function(q, k, v, **options)
        return out.contiguous(), lse.contiguous()

    @attention.register_fake
    def _(
        q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, tensors: Sequence[Tensor], call: int
    ) -> tuple[Tensor, Tensor]:
        found = _CALLS[call]
        order = "SND" if found.packed else read_layout(found.options.get("layout", "BSND"))[0]
        sizes = dict(zip(order, q.shape, strict=True))
        shape = [sizes[name] for name in ("NS" if found.packed else "BNS")]
        return q.new_empty(*q.shape[:-1], v.shape[-1]), q.new_empty(shape, dtype=accumulation_dtype(q.dtype))

    @torch.library.custom_op("megatile::attention_backward", mutates_args=())
    def gradients(
        d_out: Tensor,
        d_lse: Tensor | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Tensor | None,
        tensors: Sequence[Tensor],
        call: int,
    ) -> list[Tensor]:
        options = {**_CALLS[call].arguments(tensors), "return_lse": True}
        inputs = [x.detach().requires_grad_() for x in (q, k, v, sinks) if x is not None]
        with torch.enable_grad(), ExitStack() as recorded:
            for key in ("AutogradFunctionality", "ADInplaceOrView"):  # operators run below autograd
                guard = torch._C._SetExcludeDispatchKeyGuard(getattr(torch._C.DispatchKey, key), False)
                recorded.enter_context(guard)
            out, lse = function(*inputs[:3], sinks=inputs[3] if len(inputs) > 3 else None, **options)
            outputs, grads = ([out], [d_out]) if d_lse is None else ([out, lse], [d_out, d_lse])
            found = torch.autograd.grad(outputs, inputs, grads)
            # An operator's results share no memory; those of k and v may have come in one message.
            return [x.clone(memory_format=torch.contiguous_format) for x in found]

    @gradients.register_fake
    def _(
        d_out: Tensor,
        d_lse: Tensor | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Tensor | None,
        tensors: Sequence[Tensor],
        call: int,
    ) -> list[Tensor]:
        return [x.new_empty(x.shape) for x in (q, k, v, sinks) if x is not None]

    def setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        q, k, v, sinks, tensors, ctx.call = inputs
        ctx.save_for_backward(q, k, v, sinks, *tensors)

    def backward(ctx: Any, d_out: Tensor, d_lse: Tensor) -> tuple[Any, ...]:
        q, k, v, sinks, *tensors = ctx.saved_tensors
        used = d_lse if _CALLS[ctx.call].options["return_lse"] else None
        d_q, d_k, d_v, *d_sinks = gradients(d_out, used, q, k, v, sinks, tensors, ctx.call)
        return d_q, d_k, d_v, d_sinks[0] if d_sinks else None, [None] * len(tensors), None

    attention.register_autograd(backward, setup_context=setup)
    return attention
