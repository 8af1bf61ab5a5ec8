"""Arguments of ``hamilton_attention`` that few calls have: checked, and written down for the other ranks."""

from __future__ import annotations

from math import isfinite
from numbers import Real
from typing import Any, NamedTuple

from torch import Tensor

from megatile.attention.arguments import boundaries_text, to_inner
from megatile.attention.errors import AttentionError
from megatile.attention.mask_functions import MaskFunction
from megatile.attention.ownership import packed_lengths, position_checksum
from megatile.runtime.agreement import Record


class Extras(NamedTuple):
    """What a call was given of softcap, sinks, mask function, positions and boundaries with padding."""

    softcap: float = 0.0
    sinks: Tensor | None = None
    mask_mod: Any = None
    position_ids: Any = None
    padded: Any = None

    def problem(self, q: Tensor, cu_seqlens: Any, order: str) -> str | None:
        """Return what is wrong with them, or None; nothing may raise here."""
        if not isinstance(self.softcap, Real) or not isfinite(self.softcap) or self.softcap < 0:
            return f"softcap is a finite number above 0, or 0 for none, got {self.softcap!r}"
        heads = to_inner(q, order, cu_seqlens is not None).shape[2]
        if self.sinks is not None and not (isinstance(self.sinks, Tensor) and self.sinks.shape == (heads,)):
            found = tuple(self.sinks.shape) if isinstance(self.sinks, Tensor) else type(self.sinks).__name__
            return f"sinks must be [heads] for {heads} heads, got {found}"
        try:
            MaskFunction.of(self.mask_mod)
            return self._problem_of_places(q, cu_seqlens, order)
        except AttentionError as error:
            return str(error)

    def _problem_of_places(self, q: Tensor, cu_seqlens: Any, order: str) -> str | None:
        if self.mask_mod is not None and cu_seqlens is not None:
            return "mask_mod takes one sequence: with cu_seqlens, use document_mask instead"
        if self.padded is not None:
            if cu_seqlens is None:
                return "cu_seqlens_padded needs cu_seqlens, the boundaries without padding"
            for real, padded in zip(packed_lengths(cu_seqlens), packed_lengths(self.padded), strict=True):
                if len(real) != len(padded) or any(a > b for a, b in zip(real, padded, strict=True)):
                    return "cu_seqlens_padded must give each sequence of cu_seqlens at least its length"
        if self.position_ids is None:
            return None
        tokens = to_inner(q, order, cu_seqlens is not None).shape[1]
        ids = self.position_ids
        known = isinstance(ids, Tensor) and not (ids.is_meta or ids.is_floating_point())
        if not known or ids.shape[-1:] != (tokens,):
            found = tuple(ids.shape) if isinstance(ids, Tensor) else type(ids).__name__
            return f"position_ids must be whole numbers for the {tokens} local tokens, got {found}"
        if ids.dim() > 1 and not bool((ids == ids.flatten(0, -2)[0]).all()):
            return "position_ids must be the same for the whole batch"
        return None

    def places(self, cu_seqlens: Any) -> Any:
        """Return the boundaries by which tokens are divided: with padding, where there is some."""
        return cu_seqlens if self.padded is None else self.padded

    def record(self) -> Record:
        """Return what ranks compare, and this rank's positions."""
        found: Record = {"positions": None}
        if self.softcap:
            found["softcap"] = float(self.softcap)
        if self.sinks is not None:
            found["sinks"] = str(self.sinks.dtype)
        if self.mask_mod is not None:
            mask = MaskFunction.of(self.mask_mod)
            found["mask_mod"] = mask.name if mask is not None else None
        if self.padded is not None:
            found["cu_seqlens_padded"] = boundaries_text(self.padded)
        if self.position_ids is not None:
            ids: Tensor = self.position_ids
            found["positions"] = position_checksum((ids.flatten(0, -2)[0] if ids.dim() > 1 else ids).cpu())
        return found
