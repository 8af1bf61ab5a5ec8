"""Megatron's layers: a matrix divided by columns or by rows over the ranks of a tensor-parallel group."""

from __future__ import annotations

from typing import Any

from megatile.parallel.mappings import (
    gather_from_sequence_region,
    gather_from_tp_region,
    reduce_from_tp_region,
    reduce_scatter_to_sequence_region,
    scatter_to_tp_region,
)
from megatile.parallel.state import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
from megatile.runtime.host.ops import add, looked_up, matmul


def _divided(what: str, count: int, torch: Any, layer: str) -> int:
    if torch is None:
        raise TypeError(f"{layer} requires torch=<RuntimeContext>")
    size = get_tensor_model_parallel_world_size(torch)
    if count % size:
        raise ValueError(f"{what} ({count}) must be divisible by TP world size ({size})")
    return count // size


class ColumnParallelLinear:
    """``y = x @ W + b`` with the columns of ``W`` over the ranks: ``weight`` is (in, out / ranks).

    ``gather_output`` puts the parts of ``y`` together on every rank; ``skip_bias_add`` returns (y, bias);
    with ``sequence_parallel`` ``x`` is this rank's part of the sequence.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        dtype: str = "f16",
        torch: Any = None,
        *,
        gather_output: bool = False,
        skip_bias_add: bool = False,
        sequence_parallel: bool = False,
    ) -> None:
        local = _divided("out_features", out_features, torch, type(self).__name__)
        self.in_features, self.out_features, self.torch = in_features, out_features, torch
        self.gather_output, self.skip_bias_add = gather_output, skip_bias_add
        self.sequence_parallel = sequence_parallel
        self.weight = torch.zeros((in_features, local), dtype=dtype)
        self.bias = torch.zeros((local,), dtype=dtype) if bias else None

    def forward(self, x: Any) -> Any:
        if self.sequence_parallel:
            x = gather_from_sequence_region(x, self.torch)
        y = matmul(x, self.weight)
        if self.bias is not None and not self.skip_bias_add:
            y = add(y, self.bias)
        if self.gather_output:
            y = gather_from_tp_region(y, self.torch)
        return (y, self.bias) if self.skip_bias_add else y

    __call__ = forward


class RowParallelLinear:
    """``y = x @ W + b`` with the rows of ``W`` over the ranks: ``weight`` is (in / ranks, out); the parts of
    ``y`` are added up at the end.

    ``input_is_parallel=False`` takes the whole ``x`` and uses this rank's part; with ``sequence_parallel``
    every rank gets its part of the sequence instead of all of ``y``.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        dtype: str = "f16",
        torch: Any = None,
        *,
        input_is_parallel: bool = True,
        skip_bias_add: bool = False,
        sequence_parallel: bool = False,
    ) -> None:
        local = _divided("in_features", in_features, torch, type(self).__name__)
        if sequence_parallel and not input_is_parallel:
            raise ValueError("sequence_parallel needs input_is_parallel")
        self.in_features, self.out_features, self.torch = in_features, out_features, torch
        self.input_is_parallel, self.skip_bias_add = input_is_parallel, skip_bias_add
        self.sequence_parallel = sequence_parallel
        self.weight = torch.zeros((local, out_features), dtype=dtype)
        self.bias = torch.zeros((out_features,), dtype=dtype) if bias else None

    def forward(self, x: Any) -> Any:
        if not self.input_is_parallel:
            x = scatter_to_tp_region(x, self.torch)
        y = matmul(x, self.weight)
        if self.sequence_parallel:
            y = reduce_scatter_to_sequence_region(y, self.torch)
        else:
            y = reduce_from_tp_region(y, self.torch)
        if self.skip_bias_add:
            return y, self.bias
        return y if self.bias is None else add(y, self.bias)

    __call__ = forward


class VocabParallelEmbedding:
    """Rows of a table by number, the rows over the ranks: each looks up its own, the sum has them all."""

    def __init__(
        self, num_embeddings: int, embedding_dim: int, dtype: str = "f16", torch: Any = None
    ) -> None:
        local = _divided("num_embeddings", num_embeddings, torch, type(self).__name__)
        self.num_embeddings, self.embedding_dim, self.torch = num_embeddings, embedding_dim, torch
        self.first = get_tensor_model_parallel_rank(torch) * local
        self.weight = torch.zeros((local, embedding_dim), dtype=dtype)

    def forward(self, indices: Any) -> Any:
        return reduce_from_tp_region(looked_up(self.weight, indices, self.first), self.torch)

    __call__ = forward
