"""The time of a node of Inductor's scheduler, for its ``estimate_op_runtime``."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from megatile.hda import HDA
from megatile.runtime.torch_prices import PricedKernel, TorchPrices
from megatile.timing.database import predict_kernel


def node_us(hda: HDA, node: Any) -> float:
    """Return the microseconds of a scheduler node: a product or a collective by its operands, fused
    element-wise operations by the bytes that they read and write."""
    times: list[float] = []

    def note(_: PricedKernel, time_us: float) -> None:
        times.append(time_us)

    own = getattr(node, "node", None)
    origin = own.get_origin_node() if own is not None else None
    if _calls_a_library(node) and origin is not None and isinstance(origin.target, torch._ops.OpOverload):
        values = tree_map_only(torch.fx.Node, lambda n: n.meta.get("val"), (origin.args, origin.kwargs))
        TorchPrices(hda, note).operation(
            origin.target, (*values[0], *values[1].values()), origin.meta.get("val")
        )
        return sum(times)
    size = int(node.get_read_write_buffers_sizes())
    if not size:
        return 0.0
    return predict_kernel(
        "elementwise", machine=hda, library="torch", captured=True, bytes=size, kernels=1
    ).time_us


def _calls_a_library(node: Any) -> bool:
    """Tell whether a node is a template or a call of a kernel outside Inductor."""
    return bool(node.is_extern() or node.is_template())
