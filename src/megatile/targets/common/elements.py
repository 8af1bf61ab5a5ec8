"""How elements of each dtype are held, read and written in C."""

from __future__ import annotations

from dataclasses import dataclass

from megatile.core.dtypes import is_float
from megatile.targets.common.errors import CompileError

C_TYPES = {
    "f64": "double",
    "f32": "float",
    "tf32": "float",
    "f16": "u16",
    "bf16": "u16",
    "f8e4m3": "u8",
    "f8e5m2": "u8",
    "i64": "long",
    "u64": "u64",
    "i32": "int",
    "u32": "u32",
    "i16": "short",
    "u16": "u16",
    "i8": "signed char",
    "u8": "u8",
    "bool": "u8",
}
NARROW = ("f16", "bf16", "f8e4m3", "f8e5m2")
"""Floats that are computed with as f32, and rounded."""
ROUNDED = (*NARROW, "tf32")
LANES = ("f32", "tf32", *NARROW, "i32", "i8", "u8", "bool")
"""What vectors can be loaded from."""
_LIMITS = {"i64": 63, "u64": 64, "i32": 31, "u32": 32, "i16": 15, "u16": 16, "i8": 7, "u8": 8}


@dataclass(frozen=True)
class Value:
    """C text of a value: of a scalar, or of one per lane (``vector``)."""

    text: str
    dtype: str
    vector: bool = False

    @property
    def kind(self) -> str:
        """The type it is computed with: f (float), d (double), l (whole), b (truth)."""
        return kind(self.dtype)


def kind(dtype: str) -> str:
    if dtype == "bool":
        return "b"
    if dtype in ("f64", "float"):
        return "d"
    return "f" if is_float(dtype) and dtype != "float" else "l"


def c_type(dtype: str) -> str:
    if dtype not in C_TYPES:
        raise CompileError(f"'{dtype}' cannot be compiled yet", advice="mt.run takes every dtype")
    return C_TYPES[dtype]


def held(dtype: str, wide: bool) -> str:
    """Return the dtype in which elements lie in memory: ``wide`` tiles hold narrow floats as f32."""
    return "f32" if wide and dtype in NARROW else dtype


def loaded(dtype: str, wide: bool, pointer: str, vector: bool, count: str | None = None) -> Value:
    """Return the element at a pointer, or a vector of them (the first ``count`` of it)."""
    lies = held(dtype, wide)
    name = {"tf32": "f32", "bool": "u8"}.get(lies, lies)
    if vector:
        text = f"ld_{name}({pointer})" if count is None else f"ldn_{name}({pointer}, {count})"
        return Value(f"({text} != 0)" if lies == "bool" else text, dtype, True)
    if lies in NARROW:
        return Value(f"ld1_{lies}({pointer})", dtype)
    return Value(f"(*({pointer}))" + (" != 0" if lies == "bool" else ""), dtype)


def stored(dtype: str, wide: bool, pointer: str, value: Value, count: str | None = None) -> str:
    """Return the statement that writes a value, which has the dtype already."""
    lies = held(dtype, wide)
    name = {"tf32": "f32", "bool": "u8"}.get(lies, lies)
    if value.vector:
        text = f"({value.text} & 1)" if lies == "bool" else value.text
        return (
            f"st_{name}({pointer}, {text});" if count is None else f"stn_{name}({pointer}, {text}, {count});"
        )
    if lies in NARROW:
        return f"st1_{lies}({pointer}, {value.text});"
    return f"*({pointer}) = {value.text};"


def literal(number: float | int | bool, kind: str) -> str:
    if kind in ("l", "b"):
        return f"{int(number)}L" if abs(int(number)) >= 2**31 else str(int(number))
    tail = "f" if kind == "f" else ""
    number = float(number)
    if number != number:
        return f'__builtin_nan{tail}("")'
    if number in (float("inf"), float("-inf")):
        return f"{'-' if number < 0 else ''}__builtin_inf{tail}()"
    if kind == "f":
        import numpy as np

        with np.errstate(over="ignore"):
            number = float(np.float32(number))
        if number in (float("inf"), float("-inf")):
            return f"{'-' if number < 0 else ''}__builtin_inff()"
        text = f"{number:.9g}"
    else:
        text = repr(number)
    return (text if any(c in text for c in ".en") else f"{text}.0") + tail


def converted(value: Value, to: str) -> Value:
    """Return the value as another dtype, rounded and wrapped as that does."""
    if value.dtype == to:
        return value
    source, target, text = value.kind, kind(to), value.text
    if target == "f":
        text = _as_float(value)
        exact = (value.dtype in NARROW and to in ("f32", "tf32")) or (value.dtype, to) == ("f8e5m2", "f16")
        if to in ROUNDED and not exact:
            text = f"round{'' if value.vector else '1'}_{to}({text})"
    elif target == "d":
        text = f"(double){text}"
    elif target == "b":
        text = text if source == "b" else f"({text} != 0)"
    elif source in "fd":
        text = _as_whole(value, to)
    elif value.vector:
        text = f"(-{text})" if source == "b" else text
    elif to not in ("int", "i64"):
        text = f"(long)({c_type(to)}){text}"
    elif source == "b":
        text = f"(long){text}"
    return Value(text, to, value.vector)


def _as_float(value: Value) -> str:
    if value.kind == "f":
        return value.text
    if not value.vector:
        return f"(float){value.text}"
    return f"vfloat(-{value.text})" if value.kind == "b" else f"vfloat({value.text})"


def _as_whole(value: Value, to: str) -> str:
    if value.vector:
        return f"vtrunc({value.text})"
    bits = _LIMITS.get(to, 63)
    low = 0.0 if to[0] == "u" else -(2.0**bits)
    top = 2**bits - 1
    shown = f"{top}UL" if to == "u64" else f"{top}L"
    return f"whole({value.text}, {low!r}, {2.0**bits!r}, {shown})"


def broadcast(value: Value) -> str:
    """Return the text of a vector that has the value in every lane."""
    if value.vector:
        return value.text
    if value.kind == "f":
        return f"vset({value.text})"
    return f"viset(-({value.text}))" if value.kind == "b" else f"viset((int)({value.text}))"


# --- two elements put into one: by atomics, reductions and collectives ----------------------------

NOTHING = {
    "sum": "0", "abssum": "0", "max": "-__builtin_inff()", "absmax": "0", "min": "__builtin_inff()",
    "prod": "1",
}  # fmt: skip
_INFIX = {"sum": "+", "add": "+", "prod": "*", "and": "&", "or": "|", "xor": "^"}
_CHOSEN = {
    "f": {"max": "fmax_", "min": "fmin_"},
    "d": {"max": "dmax_", "min": "dmin_"},
    "l": {"max": "lmax", "min": "lmin"},
}
_RAW = {"f": "f32", "d": "f64", "l": "int"}


def combined(op: str, of: str, a: str, b: str) -> str:
    """Return what an operation makes of two numbers of one kind."""
    name = op.removeprefix("abs")
    return f"{a} {_INFIX[name]} {b}" if name in _INFIX else f"{_CHOSEN[of][name]}({a}, {b})"


def changed(op: str, dtype: str, old: str, new: str) -> Value:
    """Return the element that an atomic makes of two."""
    of = kind(dtype)
    return converted(Value(f"({combined(op, of, old, new)})", _RAW[of]), dtype)


def nothing(op: str, of: str) -> str:
    """Return the number that a reduction of a kind begins with."""
    if of in "fd":
        return NOTHING[op]
    return {"min": f"{2**63 - 1:#x}", "max": f"-{2**63 - 1:#x}", "prod": "1"}.get(op, "0")
