"""Quantisation schemes: how weights are stored, and how a config file names the scheme."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from megatile.core.errors import MegatileError, did_you_mean


class ModelError(MegatileError, ValueError):
    """A model, deployment or request that cannot be predicted; says why and what to do."""


def require_whole(least: int = 1, most: int = 10**9, **given: Any) -> None:
    """Refuse arguments that are not whole numbers from ``least`` to ``most``."""
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ModelError(f"{name} must be an integer of at least {least}, got {value!r}")


def require_flags(**given: Any) -> None:
    """Refuse arguments that are neither true nor false."""
    for name, value in given.items():
        if not isinstance(value, bool):
            raise ModelError(f"{name} must be True or False, got {value!r}")


class Scheme(NamedTuple):
    """How weights are stored: bits per weight, scales included, and the family that a user asks for."""

    bits: float
    family: str


SCHEMES = {
    "bf16": Scheme(16, "bf16"),
    "f16": Scheme(16, "f16"),
    "fp8": Scheme(8, "fp8"),
    "fp8_block": Scheme(8 + 32 / (128 * 128), "fp8"),
    "int4": Scheme(4 + (16 + 4) / 128, "int4"),
    "fp4": Scheme(4 + 8 / 16, "fp4"),
    "mxfp4": Scheme(4 + 8 / 32, "fp4"),
}
"""Schemes by name; scales: one f32 per 128 × 128 block, one f16 and a zero point per 128 weights (AWQ, GPTQ),
one e4m3 per 16 (NVFP4), one e8m0 per 32 (MXFP4)."""
SPELLINGS = {
    "bfloat16": "bf16", "float16": "f16", "fp16": "f16", "half": "f16", "float32": "bf16", "f8": "fp8",
    "float8": "fp8", "fp8_e4m3": "fp8", "nvfp4": "fp4", "w4a16": "int4", "awq": "int4", "gptq": "int4",
}  # fmt: skip
KV_BYTES = {"bf16": 2.0, "f16": 2.0, "fp8": 1.0}
"""Bytes of one element of the KV cache, by type."""
_METHODS = {
    "awq": "int4", "gptq": "int4", "gptq_marlin": "int4", "awq_marlin": "int4", "mxfp4": "mxfp4",
    "fbgemm_fp8": "fp8",
}  # fmt: skip
_ALGORITHMS = {
    "FP8": "fp8", "FP8_PER_CHANNEL_PER_TOKEN": "fp8", "FP8_BLOCK_SCALES": "fp8_block",
    "FP8_PB_WO": "fp8_block", "FP8_PB_REAL": "fp8_block", "NVFP4": "fp4", "W4A16": "int4",
    "W4A16_AWQ": "int4", "MXFP4": "mxfp4", "W4A16_MXFP4": "mxfp4",
}  # fmt: skip


def scheme_name(given: str, native: str = "bf16", fp8: str = "fp8") -> str:
    """Return the scheme that a user's ``dtype`` means for a model whose own scheme is ``native``.

    ``fp8`` of a model that ships with block scales means those; ``fp4`` of one in MXFP4 means MXFP4. ``fp8``
    of a model in 16 bits means the scheme ``fp8``.
    """
    if not isinstance(given, str):
        raise ModelError(f"dtype must be a name, got {given!r}", advice=f"one of {', '.join(SCHEMES)}")
    name = SPELLINGS.get(given.lower(), given.lower())
    if name not in SCHEMES:
        raise ModelError(f"dtype '{given}' is unknown", advice=did_you_mean(name, SCHEMES, what="schemes"))
    return native if name == SCHEMES[native].family else fp8 if name == "fp8" else name


def kv_dtype_name(given: str | None) -> str:
    """Return the element type of the KV cache; ``None`` and ``auto`` are the engines' default, 16 bits."""
    if given is None or given == "auto":
        return "bf16"
    name = SPELLINGS.get(str(given).lower(), str(given).lower())
    if name not in KV_BYTES:
        raise ModelError(f"KV cache type '{given}' is unknown", advice=f"one of {', '.join(KV_BYTES)}")
    return name


def scheme_of(quantisation: Any, what: str) -> str:
    """Return the scheme that ``quantization_config`` (or ``quantization`` of hf_quant_config.json) names."""
    if not isinstance(quantisation, Mapping):
        raise ModelError(f"{what} must be an object, got {type(quantisation).__name__}")
    algorithm = quantisation.get("quant_algo")
    method = str(quantisation.get("quant_method", "modelopt" if algorithm else "")).lower()
    if algorithm is not None:
        found = _ALGORITHMS.get(str(algorithm).upper())
    elif method == "fp8":
        found = "fp8_block" if quantisation.get("weight_block_size") else "fp8"
    elif method == "compressed-tensors":
        found = _compressed(quantisation)
    else:
        found = _METHODS.get(method)
    bits = quantisation.get("bits", 4)
    if found == "int4" and bits != 4:
        raise ModelError(f"{what}: {method} with {bits!r} bits is not modelled", advice="4 bits, or fp8")
    if found is None:
        named = algorithm or method or "without quant_method"
        known = sorted({*_METHODS, *(a.lower() for a in _ALGORITHMS), "fp8", "compressed-tensors"})
        raise ModelError(f"{what}: quantisation '{named}' is unknown", advice=f"known: {', '.join(known)}")
    return found


def _compressed(quantisation: Mapping[str, Any]) -> str | None:
    """Return the scheme of compressed-tensors: from type, bits and strategy of the first group's weights."""
    groups = quantisation.get("config_groups")
    group: Any = next(iter(groups.values()), {}) if isinstance(groups, Mapping) else {}
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping):
        return None
    kind: Any
    bits: Any
    kind, bits = weights.get("type"), weights.get("num_bits")
    if (kind, bits) == ("float", 8):
        return "fp8_block" if weights.get("strategy") == "block" else "fp8"
    return {("int", 4): "int4", ("float", 4): "fp4"}.get((kind, bits))
