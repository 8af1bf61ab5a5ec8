"""``mt.torch_estimate``: what a real torch program, modules and autograd included, would take on a machine.

    mt.torch_estimate(model, tokens, machine="dgx-h100", backward=True)

    with mt.torch_estimate("dgx-h100") as e:      # tensors on the meta device, or fake ones
        model(tokens)
    print(e.table(depth=2))

The program runs on meta tensors: shapes only, no data, no GPU. Every operation that torch dispatches is one
kernel, timed by `predict_kernel` (products, attention, collectives, and all others by their bytes). Tensors
that are divided over a device mesh, and groups of the ``fake`` backend, count what one rank does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from megatile.core.errors import MegatileError
from megatile.core.rows import HasRows
from megatile.core.tables import text_table
from megatile.core.times import HasTime
from megatile.hda import HDA, machine as find_machine
from megatile.hda.catalog import library

try:
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves, tree_map_only
    from torch.utils.module_tracker import ModuleTracker

    from megatile.runtime.torch_prices import BACKWARD_WORK, EstimateError, PricedKernel, TorchPrices
except ImportError:
    raise MegatileError("mt.torch_estimate needs torch", advice="pip install 'megatile[torch]'") from None

MAX_ROWS = 20
"""Operations that a summary lists, the longest first."""


class TorchEstimate(HasRows, HasTime):
    """The kernels of a torch program: kinds with their count and microseconds together, and their modules.

    As a context manager it prices what torch dispatches inside; kernels of several runs add up.
    """

    def __init__(self, hda: HDA, graph: bool = False):
        self.hda, self.graph = hda, graph
        self._noted: dict[tuple[str, PricedKernel], tuple[int, float]] = {}
        self._modes: ExitStack | None = None
        self._modules: ModuleTracker | None = None

    @property
    def machine(self) -> str:
        return self.hda.name

    def __enter__(self) -> TorchEstimate:
        if self._modes is not None:
            raise EstimateError("this estimate is already running", advice="create another one")
        prices = TorchPrices(self.hda, self._note)
        with ExitStack() as modes:
            self._modules = modes.enter_context(ModuleTracker())
            modes.enter_context(_Kernels(prices))
            modes.enter_context(_Attention(prices))
            self._modes = modes.pop_all()
        return self

    def __exit__(self, *problem: Any) -> None:
        modes, self._modes = self._modes, None
        if modes is not None:
            modes.__exit__(*problem)

    def _note(self, kernel: PricedKernel, time_us: float) -> None:
        names = self._modules.parents - {"Global"} if self._modules is not None else ()
        key = max(names, key=lambda name: name.count("."), default=""), kernel
        count, time = self._noted.get(key, (0, 0.0))
        self._noted[key] = count + 1, time + time_us

    @property
    def kernels(self) -> tuple[tuple[PricedKernel, int, float], ...]:
        """Kinds of kernels with count and microseconds, longest first."""
        found: dict[PricedKernel, tuple[int, float]] = {}
        for (_, kernel), (more, added) in self._noted.items():
            count, time = found.get(kernel, (0, 0.0))
            found[kernel] = count + more, time + added
        return tuple(sorted(((k, n, us) for k, (n, us) in found.items()), key=lambda kind: -kind[2]))

    @property
    def launches(self) -> int:
        return sum(count for count, _ in self._noted.values())

    @property
    def device_us(self) -> float:
        """Microseconds of all kernels."""
        return sum(time for _, time in self._noted.values())

    @property
    def host_us(self) -> float:
        """Microseconds that the device waits for torch's dispatch; none if a graph replays the kernels."""
        eager_us = library("torch")["serving"]["eager_us"]
        return 0.0 if self.graph else max(0.0, self.launches * eager_us - self.device_us)

    @property
    def time_ps(self) -> int:
        return round((self.device_us + self.host_us) * 1e6)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each kind of kernel, and one for the host where the device waits for it."""
        found = [
            {"kernel": k.name, "shapes": k.shapes, "count": count, "time_us": time, "how": k.how}
            for k, count, time in self.kernels
        ]
        host = {"kernel": "host", "shapes": "", "count": 1, "time_us": self.host_us, "how": "host, measured"}
        return [*found, host] if self.host_us else found

    def modules(self, depth: int = 2) -> dict[str, tuple[int, float]]:
        """Return kernels and microseconds of each module down to a depth, a module's parts within it."""
        if isinstance(depth, bool) or not isinstance(depth, int) or depth < 0:
            raise EstimateError(f"depth must be a non-negative integer, got {depth!r}")
        found: dict[str, tuple[int, float]] = {}
        for (name, _), (more, added) in self._noted.items():
            parts = name.split(".") if name else ["(no module)"]
            for level in range(1, min(depth + 1, len(parts)) + 1):
                key = ".".join(parts[:level])
                count, time = found.get(key, (0, 0.0))
                found[key] = count + more, time + added
        return found

    def table(self, depth: int = 2) -> str:
        """Return a table of modules: kernels, microseconds and share of each, parts indented."""
        total = self.device_us or 1.0
        rows = [
            ("  " * name.count(".") + name.rpartition(".")[2], count, f"{time:.4g}", f"{time / total:.1%}")
            for name, (count, time) in self.modules(depth).items()
        ]
        return f"{self!r}\n{text_table(('module', 'kernels', 'µs', 'share'), rows)}"

    def estimate_op_runtime(self, node: Any) -> float:
        """Return the milliseconds of a node of Inductor's scheduler.

        ``torch._inductor.config.estimate_op_runtime = mt.torch_estimate("dgx-h100").estimate_op_runtime``
        """
        from megatile.runtime.torch_inductor import node_us

        return node_us(self.hda, node) / 1e3

    def __repr__(self) -> str:
        return f"TorchEstimate({self.launches} kernels on {self.machine}: {self.time_us:.4g} µs)"

    def __str__(self) -> str:
        found = self.rows()
        rows = [
            (r["kernel"], r["shapes"], r["count"], f"{r['time_us']:.4g}",
             f"{r['time_us'] / (self.time_us or 1):.1%}", r["how"])
            for r in found[:MAX_ROWS]
        ]  # fmt: skip
        head, more = ("kernel", "shapes", "count", "µs", "share", "known by"), len(found) - len(rows)
        return f"{self!r}\n{text_table(head, rows)}" + (f"\n{more} more kinds" if more > 0 else "")


def torch_estimate(
    function: Callable[..., Any] | str | HDA,
    *arguments: Any,
    machine: str | HDA = "dgx-h100",
    backward: bool = False,
    graph: bool = False,
    keywords: Mapping[str, Any] | None = None,
) -> TorchEstimate:
    """Estimate the time of ``function(*arguments, **keywords)`` on one device of a machine.

    ``function`` is an ``nn.Module`` or any function of tensors; its tensors may lie anywhere, also on the
    meta device. ``backward=True`` adds the backward pass of the sum of the result. Torch dispatches an
    operation every 12.5 µs, and the device waits where its kernels are shorter, unless they are captured
    (``graph=True``). With a machine in place of a function: a context manager that prices what runs inside.
    """
    if isinstance(function, (str, HDA)):
        if arguments or keywords or backward:
            raise EstimateError("a machine takes no arguments", advice='with mt.torch_estimate("dgx-h100"):')
        return TorchEstimate(function if isinstance(function, HDA) else find_machine(function), graph)
    if not callable(function):
        raise EstimateError(
            f"{function!r} cannot be called", advice="give an nn.Module or a function of tensors"
        )
    found = TorchEstimate(machine if isinstance(machine, HDA) else find_machine(machine), graph)
    moved, named = _on_meta(arguments), _on_meta(dict(keywords or {}))
    module = function if isinstance(function, torch.nn.Module) else None
    state = _on_meta({**dict(module.named_parameters()), **dict(module.named_buffers())} if module else {})
    try:
        with found, torch.set_grad_enabled(backward):
            if module is not None:
                result = torch.func.functional_call(module, state, moved, named)
            else:
                result = function(*moved, **named)
            if backward:
                _total(result).backward()
    except (RuntimeError, NotImplementedError, ValueError) as error:
        if isinstance(error, MegatileError):
            raise
        said = str(error).strip().splitlines()
        raise EstimateError(
            f"{type(error).__name__} while running on shapes alone: {said[0] if said else ''}",
            advice="give all tensors as arguments or parameters, and read no values (.item(), nonzero)",
        ) from None
    return found


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


class _Kernels(TorchDispatchMode):
    """Notes every operation below autograd; of divided tensors those on the parts of this rank."""

    def __init__(self, prices: TorchPrices):
        super().__init__()
        self.prices = prices

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(getattr(kind, "__name__", "") in ("DTensor", "AsyncCollectiveTensor") for kind in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        self.prices.operation(func, (*args, *(kwargs or {}).values()), result)
        return result


class _Attention(TorchFunctionMode):
    """Takes scaled_dot_product_attention as one kernel, as GPUs have it; other masks than the causal one save
    nothing."""

    def __init__(self, prices: TorchPrices):
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
    def forward(ctx: Any, query: Any, key: Any, value: Any, causal: bool, prices: TorchPrices) -> Any:
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
