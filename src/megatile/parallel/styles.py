"""``parallelize_module``: the layers of a model divided as a plan says, by torch's names.

class MLP:
    def __init__(self, torch):
        self.up, self.down = Linear(64, 256, torch=torch), Linear(256, 64, torch=torch)

    def __call__(self, x):
        return self.down(self.up(x).relu())

mesh = init_device_mesh("ahbm", (4,))
model = parallelize_module(MLP(torch), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from megatile.core.arguments import no_none
from megatile.core.errors import did_you_mean
from megatile.parallel.dtensor import DTensor, distribute_tensor
from megatile.parallel.mesh import DeviceMesh, Placement, Replicate, Shard
from megatile.parallel.state import ParallelError, active


class Linear:
    """``x @ weight + bias``; the weight is (in, out)."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = False, dtype: Any = None, torch: Any = None
    ) -> None:
        host = active(torch)
        self.in_features, self.out_features = in_features, out_features
        self.weight = host.zeros((in_features, out_features), dtype=dtype)
        self.bias = host.zeros((out_features,), dtype=dtype) if bias else None

    def forward(self, x: Any) -> Any:
        y = x @ self.weight
        return y if self.bias is None else y + self.bias

    def __call__(self, x: Any) -> Any:
        return self.forward(x)


@dataclass(frozen=True)
class Style:
    """How a layer's weight and bias are divided, how its input comes, and how its output is left."""

    weight: Placement
    bias: Placement
    input_layouts: Placement
    output_layouts: Placement
    use_local_output: bool = True

    def apply(self, layer: Linear, mesh: DeviceMesh) -> None:
        """Divide a layer over a mesh of one dimension."""
        if mesh.ndim != 1:
            raise ParallelError(f"a layer is divided over one dimension, not {mesh}", advice='mesh["tp"]')
        whole, bias = layer.weight, layer.bias
        layer.weight = distribute_tensor(whole, mesh, [self.weight])
        if bias is not None:
            layer.bias = distribute_tensor(bias, mesh, [self.bias])
        before = layer.forward

        def forward(x: Any) -> Any:
            given = x if isinstance(x, DTensor) else DTensor.from_local(x, mesh, [self.input_layouts])
            y = before(given).redistribute(placements=[self.output_layouts])
            return y.to_local() if self.use_local_output else y

        layer.forward = forward  # type: ignore[method-assign]


def ColwiseParallel(
    *,
    input_layouts: Placement | None = None,
    output_layouts: Placement | None = None,
    use_local_output: bool = True,
) -> Style:
    """Divide the columns of the weight over the ranks; every rank has the input, and its part of the
    output."""
    given, left = input_layouts or Replicate(), output_layouts or Shard(-1)
    return Style(Shard(1), Shard(0), given, left, use_local_output)


def RowwiseParallel(
    *,
    input_layouts: Placement | None = None,
    output_layouts: Placement | None = None,
    use_local_output: bool = True,
) -> Style:
    """Divide the rows of the weight over the ranks; each has its part of the input, and in the end the whole
    sum."""
    given, left = input_layouts or Shard(-1), output_layouts or Replicate()
    return Style(Shard(0), Replicate(), given, left, use_local_output)


@no_none
def parallelize_module(
    module: Any, device_mesh: DeviceMesh, parallelize_plan: Style | Mapping[str, Style]
) -> Any:
    """Divide the layers that a plan names (``"up"``, ``"block.down"``), or the module itself; the module."""
    plan = {"": parallelize_plan} if isinstance(parallelize_plan, Style) else parallelize_plan
    for path, style in plan.items():
        layer = module
        for name in path.split(".") if path else []:
            if not hasattr(layer, name):
                advice = did_you_mean(name, list(vars(layer)), what="parts")
                raise ParallelError(f"{type(layer).__name__} has no part '{name}'", advice=advice)
            layer = getattr(layer, name)
        if not isinstance(layer, Linear) or not isinstance(style, Style):
            raise ParallelError(
                f"'{path}' is {type(layer).__name__} and {style!r}",
                advice="divide Linear by ColwiseParallel() or RowwiseParallel()",
            )
        style.apply(layer, device_mesh)
    return module
