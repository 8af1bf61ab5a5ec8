"""The ring, zig-zag and striped functions: their signatures, and what they mean here."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from inspect import Parameter, Signature
from itertools import product
from numbers import Real
from typing import Any

from torch import Tensor

from megatile.attention.errors import AttentionError
from megatile.attention.functional import hamilton_attention
from megatile.attention.schedules import make_schedule
from megatile.core.cached import cached
from megatile.runtime.agreement import Members

Function = Callable[..., Any]
_PARTS = {"qkv": ("q", "k", "v"), "kv": ("k", "v")}


def options(
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    group: Any = None,
) -> None:
    """What all functions have after their tensors; only its signature is used."""


def make_function(
    name: str, what: str, tensors: tuple[str, ...], attend: Callable[[dict[str, Any]], Any]
) -> Function:
    """A function of ``tensors`` (and boundaries, where sequences are packed) and the options."""
    leading = [Parameter(tensor, Parameter.POSITIONAL_OR_KEYWORD) for tensor in tensors]
    signature = Signature([*leading, *inspect.signature(options).parameters.values()])

    names, defaults = list(signature.parameters), _defaults(signature)
    required = len(names) - len(defaults)

    def function(*args: Any, **kwargs: Any) -> Any:
        given = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
        if (
            len(args) < required
            or len(given) != len(names)
            or not kwargs.keys().isdisjoint(names[: len(args)])
        ):
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{name}() {error}") from None
            bound.apply_defaults()
            given = bound.arguments
        return attend(given)

    function.__signature__ = signature  # type: ignore[attr-defined]
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{what} See the module's text for the layout of tokens."
    return function


def _defaults(signature: Signature) -> dict[str, Any]:
    found = signature.parameters.values()
    return {x.name: x.default for x in found if x.default is not Parameter.empty}


def _attend(schedule: str, given: dict[str, Any]) -> Any:
    boundaries = given.pop("cu_seqlens", None)
    given.pop("max_seqlen", None)
    if boundaries is not None:
        given["cu_seqlens"] = _of_all_ranks(boundaries, Members(given["group"], AttentionError).size)
    return attend_unpacked(
        given, schedule=schedule, layout=("BSND", layout_of(schedule, given["causal"] is True)), _gather=True
    )


def attend_unpacked(given: dict[str, Any], **more: Any) -> Any:
    """Attention of what a function was given, with q, k and v taken out of qkv or kv."""
    probabilities = given.pop("return_attn_probs")
    for packed in given.keys() & _PARTS:
        x, names = given.pop(packed), _PARTS[packed]
        given["_problem"] = _problem(x, len(names))
        given.update(zip(names, [x] * len(names) if given["_problem"] else x.unbind(-3), strict=True))
    out, lse = hamilton_attention(**given, **more, return_lse=True)
    return (out, lse, None) if probabilities else out


@cached()
def layout_of(schedule: str, causal: bool) -> str:
    """How the tokens are divided: the name of such a function says it."""
    return make_schedule(schedule, 1).layout(causal).name


def _of_all_ranks(boundaries: Any, ranks: int) -> Any:
    """Local boundaries as those of the whole sequence; what is none is refused by ``hamilton_attention``."""
    listed = boundaries.tolist() if hasattr(boundaries, "tolist") else boundaries
    numbers = isinstance(listed, (list, tuple)) and all(isinstance(x, Real) for x in listed)
    return [x * ranks for x in listed] if numbers else boundaries


def _problem(x: Any, parts: int) -> str | None:
    """Why a tensor is not [..., parts, heads, dim]; reported to all ranks."""
    shape = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
    if isinstance(x, Tensor) and x.dim() >= 4 and x.shape[-3] == parts:
        return None
    return f"packed tensors have {parts} parts before heads and dim, got {shape}"


TENSORS = {
    "": (("q", "k", "v"), "q, k and v"),
    "_kvpacked": (("q", "kv"), "q, and kv with 2 before the heads"),
    "_qkvpacked": (("qkv",), "qkv with 3 before the heads"),
}


def _family(prefix: str, schedule: str, varlen: bool = True) -> dict[str, Function]:
    kinds: dict[str, tuple[tuple[str, ...], str]] = {"": ((), "[batch, tokens, heads, dim]")}
    if varlen:
        kinds["_varlen"] = (("cu_seqlens", "max_seqlen"), "[tokens, heads, dim] of packed sequences")
    found = {}
    for (kind, (boundaries, shape)), (packing, (tensors, names)) in product(kinds.items(), TENSORS.items()):
        name = f"{prefix}{kind}{packing}_func"
        what = f"Attention with {names}, {shape}."
        found[name] = make_function(name, what, (*tensors, *boundaries), partial(_attend, schedule))
    return found


FUNCTIONS: dict[str, Function] = {
    **_family("ring_flash_attn", "ring"),
    **_family("zigzag_ring_flash_attn", "zigzag"),
    **_family("stripe_flash_attn", "striped", varlen=False),
}
