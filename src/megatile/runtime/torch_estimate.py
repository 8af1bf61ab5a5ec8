"""``mt.torch_estimate``: what a real torch program, modules and autograd included, would take on a machine.

    mt.torch_estimate(model, tokens, machine="dgx-h100", backward=True)

The program runs on meta tensors: shapes only, no data, no GPU. Every operation that torch dispatches is one
kernel, timed by `predict_kernel` (products, attention, collectives, and all others by their bytes).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from megatile.core.dtypes import DtypeError, dtype as dtype_name
from megatile.core.errors import MegatileError
from megatile.core.tables import text_table
from megatile.core.times import HasTime
from megatile.hda import HDA, machine as find_machine
from megatile.timing.database import predict_kernel

try:
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves, tree_map_only
except ImportError:
    raise MegatileError("mt.torch_estimate needs torch", advice="pip install 'megatile[torch]'") from None

BACKWARD_WORK = 2.5
"""FlashAttention 2's backward pass does five products where the forward pass does two."""
FREE = (
    "empty", "new_empty", "empty_like", "empty_strided", "_unsafe_view", "detach", "alias", "wait_tensor",
    "_wrap_tensor_autograd",
)  # fmt: skip
"""Operations that start no kernel, beside views."""
COLLECTIVES = {
    "all_reduce": "all_reduce", "all_gather_into_tensor": "all_gather", "broadcast": "broadcast",
    "reduce_scatter_tensor": "reduce_scatter", "all_to_all_single": "all_to_all",
}  # fmt: skip


class EstimateError(MegatileError):
    """A torch program that cannot run on shapes alone."""


class PricedKernel(NamedTuple):
    """One kind of kernel: what it does, on which shapes, how its time is known."""

    name: str
    shapes: str
    how: str


@dataclass(frozen=True, repr=False)
class TorchEstimate(HasTime):
    """The kernels of a torch program, each kind with its count and microseconds together, longest first."""

    machine: str
    kernels: tuple[Any, ...]

    @property
    def time_ps(self) -> int:
        return round(sum(time for _, _, time in self.kernels) * 1e6)

    def rows(self) -> list[dict[str, Any]]:
        """One row for each kind of kernel."""
        return [
            {"kernel": k.name, "shapes": k.shapes, "count": count, "time_us": time, "how": k.how}
            for k, count, time in self.kernels
        ]

    def __repr__(self) -> str:
        launches = sum(count for _, count, _ in self.kernels)
        return f"TorchEstimate({launches} kernels on {self.machine}: {self.time_us:.4g} µs)"

    def __str__(self) -> str:
        rows = [
            (k.name, k.shapes, count, f"{time:.4g}", f"{time / (self.time_us or 1):.1%}", k.how)
            for k, count, time in self.kernels[:20]
        ]
        head = ("kernel", "shapes", "count", "µs", "share", "known by")
        more = len(self.kernels) - len(rows)
        return f"{self!r}\n{text_table(head, rows)}" + (f"\n{more} more kinds" if more > 0 else "")


def torch_estimate(
    function: Callable[..., Any],
    *arguments: Any,
    machine: str | HDA = "dgx-h100",
    backward: bool = False,
    graph: bool = False,
    keywords: Mapping[str, Any] | None = None,
) -> TorchEstimate:
    """Estimate the time of ``function(*arguments, **keywords)`` on one device of a machine.

    ``function`` is an ``nn.Module`` or any function of tensors; its tensors may lie anywhere, also on the
    meta device. ``backward=True`` adds the backward pass of the sum of the result. Kernels take at least the
    machine's launch interval, unless they are captured (``graph=True``).
    """
    if not callable(function):
        raise EstimateError(
            f"{function!r} cannot be called", advice="give an nn.Module or a function of tensors"
        )
    hda = machine if isinstance(machine, HDA) else find_machine(machine)
    found: Counter[PricedKernel] = Counter()
    times: dict[PricedKernel, float] = {}
    stations = hda.control.launch[:1] if hda.control is not None and not graph else ()
    least = sum(int(station.overhead_ps) for station in stations) / 1e6

    def note(kernel: PricedKernel, time_us: float) -> None:
        found[kernel] += 1
        times[kernel] = times.get(kernel, 0.0) + max(least, time_us)

    moved, named = _on_meta(arguments), _on_meta(dict(keywords or {}))
    module = function if isinstance(function, torch.nn.Module) else None
    state = _on_meta({**dict(module.named_parameters()), **dict(module.named_buffers())} if module else {})
    prices = _Prices(hda, note)
    try:
        with _Kernels(prices), _Attention(prices), torch.set_grad_enabled(backward):
            if module is not None:
                result = torch.func.functional_call(module, state, moved, named)
            else:
                result = function(*moved, **named)
            if backward:
                _total(result).backward()
    except (RuntimeError, NotImplementedError, ValueError) as error:
        said = str(error).strip().splitlines()
        raise EstimateError(
            f"{type(error).__name__} while running on shapes alone: {said[0] if said else ''}",
            advice="give all tensors as arguments or parameters, and read no values (.item(), nonzero)",
        ) from None
    kinds = sorted(((k, found[k], times[k]) for k in found), key=lambda kind: -kind[2])
    return TorchEstimate(hda.name, tuple(kinds))


def _on_meta(values: Any) -> Any:
    def moved(tensor: Any) -> Any:
        made = tensor.detach().to("meta")
        return made.requires_grad_(tensor.requires_grad)

    return tree_map_only(torch.Tensor, moved, values)


def _total(result: Any) -> Any:
    tensors = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
    if hasattr(result, "logits"):
        tensors = [result.logits]
    if not tensors:
        raise EstimateError(
            "nothing of the result depends on a parameter",
            advice="leave backward=True out, or require a gradient",
        )
    return sum(t.sum() for t in tensors)


class _Prices:
    """The time of each operation that torch dispatches."""

    def __init__(self, hda: HDA, note: Callable[[PricedKernel, float], None]):
        self.hda, self.note = hda, note

    def operation(self, op: Any, arguments: tuple[Any, ...], result: Any) -> None:
        name = op.overloadpacket.__name__
        given = [a for a in tree_leaves(arguments) if isinstance(a, torch.Tensor)]
        made = [a for a in tree_leaves(result) if isinstance(a, torch.Tensor)]
        if op.namespace in ("_c10d_functional", "c10d") and name not in FREE:
            self.collective(op, name, arguments, given, made)
        elif op.is_view or name in FREE or not made or not given:
            return
        elif name in ("mm", "addmm", "bmm", "baddbmm"):
            *_, (*batch, m, k), (*_, n) = [tuple(t.shape) for t in given]
            self.product(name, math.prod(batch) * m, n, k, given[-1].dtype)
        elif name == "convolution":
            data, weight = given[0], given[1]
            rows = made[0].numel() // made[0].shape[1]
            self.product(name, rows, weight.shape[0], math.prod(weight.shape[1:]), data.dtype)
        else:
            self.bytes(name, given, made)

    def product(self, name: str, m: int, n: int, k: int, dtype: Any) -> None:
        if not m * n * k:
            return
        time = predict_kernel("gemm", m=m, n=n, k=k, dtype=_dtype(dtype), machine=self.hda)
        self.note(
            PricedKernel(name, f"{m}x{n}x{k} {_dtype(dtype)}", f"gemm, {time.origin.kind}"), time.time_us
        )

    def attention(self, q: Any, k: Any, causal: bool, times: float = 1.0) -> None:
        batch, (heads, queries, dim), keys = math.prod(q.shape[:-3]), q.shape[-3:], k.shape[-2]
        # Without a mask a query sees all keys: as many as causal ones see on average with this context.
        context = max(0, keys - (queries if causal else (queries + 1) // 2))
        time = predict_kernel(
            "attention", batch=batch, queries=queries, context=context, heads=heads, kv_heads=k.shape[-3],
            head_dim=dim, dtype=_dtype(q.dtype), machine=self.hda,
        )  # fmt: skip
        name = "attention" if times == 1 else "attention backward"
        shape = f"{batch}x{heads}x{queries}x{dim} over {keys}{' causal' if causal else ''} {_dtype(q.dtype)}"
        self.note(PricedKernel(name, shape, f"attention, {time.origin.kind}"), times * time.time_us)

    def bytes(self, name: str, given: list[Any], made: list[Any]) -> None:
        read = given[1:] if name == "embedding" else given
        size = sum(t.numel() * t.element_size() for t in (*read, *made))
        shape = f"{'x'.join(map(str, made[0].shape)) or 1} {_dtype(made[0].dtype)}"
        time = predict_kernel("elementwise", bytes=max(1, size), kernels=1, machine=self.hda)
        self.note(PricedKernel(name, shape, f"bytes, {time.origin.kind}"), time.time_us)

    def collective(self, op: Any, name: str, arguments: Any, given: list[Any], made: list[Any]) -> None:
        operation = COLLECTIVES.get(name)
        if operation is None:
            raise EstimateError(
                f"the collective {op} has no estimate yet",
                advice=f"those of torch.distributed._functional_collectives have: {', '.join(COLLECTIVES)}",
            )
        from torch.distributed.distributed_c10d import _resolve_process_group

        group = next(a for a in reversed(arguments) if isinstance(a, str))
        ranks = _resolve_process_group(group).size()
        size = max(t.numel() * t.element_size() for t in (*given, *made))
        if ranks > 1 and size:
            kind = _dtype(given[0].dtype)
            time = predict_kernel(operation, ranks=ranks, bytes=size, dtype=kind, machine=self.hda)
            shape = f"{size} B among {ranks} {kind}"
            self.note(PricedKernel(operation, shape, f"collective, {time.origin.kind}"), time.time_us)


def _dtype(dtype: Any) -> str:
    try:
        return dtype_name(dtype)
    except DtypeError:
        return "f32"


class _Kernels(TorchDispatchMode):
    """Notes every operation below autograd."""

    def __init__(self, prices: _Prices):
        super().__init__()
        self.prices = prices

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.prices.operation(func, (*args, *(kwargs or {}).values()), result)
        return result


class _Attention(TorchFunctionMode):
    """Takes scaled_dot_product_attention as one kernel, as GPUs have it; other masks than the causal one save
    nothing."""

    def __init__(self, prices: _Prices):
        super().__init__()
        self.prices = prices

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.nn.functional.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        given = dict(zip(names, args, strict=False))
        given |= kwargs or {}
        query, key, value = given["query"], given["key"], given["value"]
        return _Attended.apply(query, key, value, bool(given.get("is_causal")), self.prices)


class _Attended(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any, causal: bool, prices: _Prices) -> Any:
        ctx.save_for_backward(query, key, value)
        ctx.causal, ctx.prices = causal, prices
        prices.attention(query, key, causal)
        return query.new_empty(*query.shape[:-1], value.shape[-1])

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        query, key, value = ctx.saved_tensors
        ctx.prices.attention(query, key, ctx.causal, BACKWARD_WORK)
        return (*(torch.empty_like(t) for t in (query, key, value)), None, None)


__all__ = ["EstimateError", "PricedKernel", "TorchEstimate", "torch_estimate"]
