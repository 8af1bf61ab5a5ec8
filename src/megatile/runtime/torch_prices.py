"""The time of each operation that torch dispatches, by the kernel rules of the library ``torch``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

from megatile.core.dtypes import DtypeError, dtype as dtype_name
from megatile.core.errors import MegatileError
from megatile.hda import HDA
from megatile.timing.database import predict_kernel

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
    "allreduce_": "all_reduce", "_allgather_base_": "all_gather", "allgather_": "all_gather",
    "broadcast_": "broadcast", "_reduce_scatter_base_": "reduce_scatter", "reduce_scatter_": "reduce_scatter",
    "alltoall_base_": "all_to_all", "alltoall_": "all_to_all",
}  # fmt: skip
"""Functional collectives, and those of ``torch.distributed``, by what they do."""
REDUCTIONS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum")
GATHERS = ("embedding", "index", "index_select", "gather", "take")
"""Operations that read as many elements of their first operand as they write."""
WRITES = ("copy_", "fill_", "zero_")
"""Operations that write their first operand without reading it."""


class EstimateError(MegatileError):
    """A torch program that cannot run on shapes alone."""


class PricedKernel(NamedTuple):
    """One kind of kernel: what it does, on which shapes, how its time is known."""

    name: str
    shapes: str
    how: str


def dtype_text(dtype: Any) -> str:
    try:
        return dtype_name(dtype)
    except DtypeError:
        return "f32"


def size_of(tensors: Iterable[Any]) -> int:
    """Return the bytes of tensors."""
    return sum(t.numel() * t.element_size() for t in tensors)


def _tensors(values: Any) -> list[Any]:
    return [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]


def _ranks(arguments: Any) -> int:
    """Return the size of the process group of a collective: functional ones name it, others hold it."""
    from torch.distributed.distributed_c10d import ProcessGroup, _resolve_process_group

    for value in reversed(arguments):
        if isinstance(value, str) and value not in REDUCTIONS:
            return int(_resolve_process_group(value).size())
    held = [value for value in arguments if isinstance(value, torch.ScriptObject)]
    return int(ProcessGroup.unbox(held[0]).size())


class TorchPrices:
    """Prices operations on a machine, and notes each kernel with its microseconds."""

    def __init__(self, hda: HDA, note: Callable[[PricedKernel, float], None]):
        self.hda, self.note = hda, note

    def operation(self, op: Any, arguments: Any, result: Any) -> None:
        """Note the kernel of one operation, if it starts one."""
        name = op.overloadpacket.__name__
        given, made = _tensors(arguments), _tensors(result)
        if op.namespace in ("_c10d_functional", "c10d"):
            if name not in FREE:
                self.collective(op, name, arguments, given, made)
        elif op.is_view or name in FREE or not made or not given:
            return
        elif name in ("mm", "addmm", "bmm", "baddbmm"):
            *_, (*batch, m, k), (*_, n) = [tuple(t.shape) for t in given]
            self.product("gemm", name, {"m": math.prod(batch) * m, "n": n, "k": k}, given[-1].dtype)
        elif name in ("_grouped_mm", "grouped_mm_fallback") and given[1].dim() == 3:
            (m, k), (groups, _, n) = given[0].shape, given[1].shape
            self.product("grouped_gemm", name, {"m": m, "n": n, "k": k, "groups": groups}, given[0].dtype)
        elif name == "convolution":
            data, weight = given[0], given[1]
            rows = made[0].numel() // made[0].shape[1]
            extents = {"m": rows, "n": weight.shape[0], "k": math.prod(weight.shape[1:])}
            self.product("gemm", name, extents, data.dtype)
        else:
            self.bytes(name, given, made)

    def product(self, kernel: str, name: str, extents: dict[str, int], dtype: Any) -> None:
        if not math.prod(extents.values()):
            return
        kind = dtype_text(dtype)
        shape = "x".join(str(extents[n]) for n in "mnk")
        if "groups" in extents:
            shape += f" in {extents['groups']} groups"
        self._priced(name, f"{shape} {kind}", kernel, kind, extents)

    def attention(self, q: Any, k: Any, causal: bool, times: float = 1.0) -> None:
        batch, (heads, queries, dim), keys = math.prod(q.shape[:-3]), q.shape[-3:], k.shape[-2]
        # Without a mask a query sees all keys: as many as causal ones see on average with this context.
        context = max(0, keys - (queries if causal else (queries + 1) // 2))
        extents = {
            "batch": batch, "queries": queries, "context": context, "heads": heads, "kv_heads": k.shape[-3],
            "head_dim": dim,
        }  # fmt: skip
        name, kind = "attention" if times == 1 else "attention backward", dtype_text(q.dtype)
        shape = f"{batch}x{heads}x{queries}x{dim} over {keys}{' causal' if causal else ''} {kind}"
        self._priced(name, shape, "attention", kind, extents, times)

    def bytes(self, name: str, given: list[Any], made: list[Any]) -> None:
        read = given[1:] if name in (*WRITES, *GATHERS) else given
        size = size_of((*read, *made)) + (size_of(made) if name in GATHERS else 0)
        kind = dtype_text(made[0].dtype)
        shape = f"{'x'.join(map(str, made[0].shape)) or 1} {kind}"
        self._priced(name, shape, "elementwise", "bf16", {"bytes": max(1, size), "kernels": 1})

    def collective(self, op: Any, name: str, arguments: Any, given: list[Any], made: list[Any]) -> None:
        operation = COLLECTIVES.get(name)
        if operation is None:
            raise EstimateError(
                f"the collective {op} has no estimate yet",
                advice=f"supported: {', '.join(sorted(set(COLLECTIVES.values())))}",
            )
        ranks = _ranks(arguments)
        size = max(size_of(_tensors(one)) for one in (*arguments, made))
        if ranks > 1 and size:
            kind = dtype_text(given[0].dtype)
            shape = f"{size} B among {ranks} {kind}"
            self._priced(operation, shape, operation, kind, {"ranks": ranks, "bytes": size})

    def _priced(
        self, name: str, shapes: str, kernel: str, dtype: str, extents: dict[str, Any], times: float = 1.0
    ) -> None:
        found = predict_kernel(
            kernel, machine=self.hda, dtype=dtype, library="torch", captured=True, **extents
        )
        self.note(PricedKernel(name, shapes, f"{kernel}, {found.origin.kind}"), times * found.time_us)
