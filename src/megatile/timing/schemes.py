"""How weights and activations of a product are stored and multiplied: element types, quantisation by name.

scheme("fp8_block").weight        bytes of a weight with its scales
scheme("int4").compute            "bf16": 4-bit weights are widened for the tensor engine
"""

from __future__ import annotations

from typing import Any, NamedTuple

from megatile.core.cached import cached
from megatile.core.dtypes import DtypeError, dtype as dtype_name, itemsize
from megatile.core.errors import did_you_mean
from megatile.timing.machine_timing import TimingError


class Scheme(NamedTuple):
    """Bytes of a weight and of an activation as the product reads them, with scales, and what multiplies."""

    name: str
    weight: float
    activation: float
    compute: str
    suffix: str = ""
    """What the names of its kernels in machine files end with."""


SCHEMES = {
    "f8e4m3": Scheme("fp8", 1.0, 1.0, "f8e4m3", "_f8"),
    "fp8_block": Scheme("fp8_block", 1 + 4 / 128**2, 1 + 4 / 128, "f8e4m3", "_f8_block"),
    "int4": Scheme("int4", 0.5 + 2 / 128, 2.0, "bf16", "_int4"),
    "mxfp4": Scheme("mxfp4", 0.5 + 1 / 32, 2.0, "bf16", "_mxfp4"),
    "mxfp4_marlin": Scheme("mxfp4_marlin", 0.5 + 1 / 32, 2.0, "bf16", "_int4"),
    "nvfp4": Scheme("nvfp4", 0.5 + 1 / 16, 0.5 + 1 / 16, "f4e2m1", "_nvfp4"),
}
"""One scale for each tensor or channel; for blocks of 128 × 128 weights and 128 activations; 16-bit scales of
128 weights; OCP's blocks of 32, by OpenAI's kernels or by Marlin's; NVIDIA's blocks of 16."""
SPELLINGS = {
    "f8e5m2": "f8e4m3", "fp8_static": "f8e4m3", "int4_wo": "int4", "i4": "int4", "w4a16": "int4",
    "w4afp8": "int4", "int8_wo": "i8", "w4a16_mxfp4": "mxfp4", "w4a8_mxfp4_mxfp8": "mxfp4", "fp4": "nvfp4",
    "f4": "nvfp4", "f4e2m1": "nvfp4",
}  # fmt: skip
"""Other names of schemes, as frameworks and tables of measured times have them."""


@cached(1024)
def scheme_name(spelling: Any) -> str:
    """Return the canonical name of an element type or a quantisation scheme."""
    text = str(spelling)
    if text in SCHEMES:
        return text
    if text in SPELLINGS:
        return SPELLINGS[text]
    try:
        name = dtype_name(spelling)
    except DtypeError as problem:
        known = did_you_mean(text, (*SCHEMES, *SPELLINGS), what="schemes") if "_" in text else None
        raise TimingError(f"dtype {text!r} is unknown", advice=known or problem.advice) from None
    return SPELLINGS.get(name, name)


@cached()
def scheme(name: str) -> Scheme:
    """Return the scheme of a canonical name."""
    known = SCHEMES.get(name)
    return known if known is not None else Scheme(name, itemsize(name), itemsize(name), name)
