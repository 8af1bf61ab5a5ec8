"""Words that say how a compiler should do something: kept in the Program as hints."""

from __future__ import annotations

from typing import Any

from megatile.ir import nodes as n
from megatile.language.tile.builder import current


class Layout:
    """Where elements lie in memory; data does not depend on it."""

    name = "layout"

    def __init__(self, shape: Any = (), *_: Any, **__: Any):
        self.shape = shape


LAYOUTS = {
    name: type(name, (Layout,), {"name": name})
    for name in "make_swizzled_layout make_volta_swizzled_layout make_wgmma_swizzled_layout "
    "make_linear_layout make_full_bank_swizzled_layout make_half_bank_swizzled_layout "
    "make_quarter_bank_swizzled_layout Layout Fragment make_cutlass_metadata_layout "
    "make_mma_swizzle_layout make_tcgen05mma_swizzled_layout make_gemm_fragment_8x8".split()
}
"""By TileLang's names."""


def hint(word: str) -> Any:
    """A function that keeps its word and arguments as a statement that changes no data."""

    def keep(*arguments: Any, **keywords: Any) -> None:
        texts = [_text(a) for a in arguments] + [f"{k}={_text(v)}" for k, v in keywords.items()]
        current().emit(n.Hint, word=word, text=", ".join(texts))

    keep.__name__ = word
    keep.__doc__ = f"``T.{word}``: how it is to be done, not what."
    return keep


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{_text(k)}: {_text(v)}" for k, v in value.items())
    name = getattr(value, "name", None)
    return (
        str(name)
        if isinstance(name, str)
        else str(value)
        if isinstance(value, (int, float, str, bool))
        else type(value).__name__
    )
