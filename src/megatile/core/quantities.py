"""Numbers with units, as machine files and command lines write them.

    >>> quantity("450 GB/s").value
    450000000000.0
    >>> quantity("228 KiB").value
    233472.0
    >>> str(quantity("34 cycles"))
    '34 cycles'

Decimal (``kB MB GB``) and binary (``KiB MiB GiB``) prefixes are distinct; ``b`` is a bit, ``B`` a byte.
A quantity keeps the text it was written with, so that a description can be written back unchanged.
"""

from __future__ import annotations

import math
import operator
import re
from dataclasses import dataclass, field
from typing import Any

from megatile.core.errors import QuantityError, did_you_mean

DECIMAL = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}


def _units() -> dict[str, tuple[str, float]]:
    """Return every spelling → (dimension, factor to the dimension's base unit)."""
    table: dict[str, tuple[str, float]] = {}
    for prefix, factor in {**DECIMAL, **BINARY}.items():
        table[f"{prefix}B"] = ("bytes", factor)
        table[f"{prefix}b"] = ("bytes", factor / 8)
        for per in ("/s", "/sec", "ps"):
            table[f"{prefix}B{per}"] = ("bytes/s", factor)
            table[f"{prefix}b{per}"] = ("bytes/s", factor / 8)
    for prefix, factor in DECIMAL.items():
        table[f"{prefix}Hz"] = ("Hz", factor)
        for operation in ("FLOP", "OP", "MAC"):
            amount = factor * (2 if operation == "MAC" else 1)
            table[f"{prefix}{operation}/s"] = ("ops/s", amount)
            table[f"{prefix}{operation}S"] = ("ops/s", amount)
            table[f"{prefix}{operation}/cycle"] = ("ops/cycle", amount)
    for cycle in ("cycle", "clk"):
        table[f"B/{cycle}"] = ("bytes/cycle", 1)
        table[f"b/{cycle}"] = ("bytes/cycle", 1 / 8)
        table[f"KiB/{cycle}"] = ("bytes/cycle", 1024)
        table[cycle] = table[cycle + "s"] = ("cycles", 1)
    for name, factor in {"ps": 1, "ns": 10**3, "us": 10**6, "µs": 10**6, "ms": 10**9, "s": 10**12}.items():
        table[name] = ("time", factor)
    table["%"] = ("share", 0.01)
    return table


UNITS = _units()
EXAMPLES = {
    "bytes": "228 KiB or 80 GB",
    "bytes/s": "450 GB/s, 400 Gb/s or 128 B/cycle",
    "time": "12 ns or 34 cycles",
    "Hz": "1.83 GHz",
    "ops/s": "989 TFLOP/s or 1024 FLOP/cycle",
    "share": "85 % or 0.85",
}
LIMITS: dict[str, tuple[float, float, str, str]] = {
    "bytes": (0, 8e18, "0 B", "8 EB"),
    "bytes/s": (1, 1e21, "1 B/s", "1000 EB/s"),
    "bytes/cycle": (1e-6, 1e15, "1e-6 B/cycle", "1e15 B/cycle"),
    "time": (0, 1e15, "0 s", "1000 s"),
    "cycles": (0, 1e15, "0 cycles", "1e15 cycles"),
    "Hz": (1, 1e21, "1 Hz", "1000 EHz"),
    "ops/s": (1, 1e24, "1 OP/s", "1e6 EOP/s"),
    "ops/cycle": (1e-6, 1e18, "1e-6 OP/cycle", "1 EOP/cycle"),
    "share": (0, 1e6, "0", "1e6"),
}
"""Least and most of each dimension, in its base unit and as text; zero is left to the reader of a value."""
BY_CYCLE = {"time": "cycles", "bytes/s": "bytes/cycle", "ops/s": "ops/cycle"}
_PATTERN = re.compile(r"\s*([-+]?(?:\d[\d_]*\.?[\d_]*|\.\d+)(?:[eE][-+]?\d+)?)\s*([^\d\s].*?)?\s*")


@dataclass(frozen=True)
class Quantity:
    """A number in the base unit of its dimension: bytes, bytes/s, time (ps), Hz, ops/s, cycles, share."""

    value: float
    dimension: str
    text: str = field(default="", compare=False)

    def __str__(self) -> str:
        return self.text or f"{self.value:g} {self.dimension}"


def quantity(text: str | int | float | Quantity, dimension: str | None = None) -> Quantity:
    """Read ``450 GB/s``; with ``dimension``, refuse every other kind.

    Where a time, a rate or a throughput is asked for, the form per clock cycle is taken too; a plain
    number is taken only for shares and for zero, because a bare 34 may be cycles or nanoseconds.
    """
    if isinstance(text, Quantity):
        found = text
    else:
        found = _parse(text, dimension)
    if dimension and found.dimension not in (dimension, BY_CYCLE.get(dimension)):
        raise QuantityError(
            f"'{found.text}' is a {_kind(found.dimension)}, but a {_kind(dimension)} is needed",
            advice=f"write it like {EXAMPLES.get(dimension, dimension)}",
        )
    return found


def _parse(raw: str | int | float, dimension: str | None) -> Quantity:
    if isinstance(raw, bool) or not isinstance(raw, (str, int, float)):
        raise QuantityError(f"{raw!r} is not a quantity", advice=_example(dimension))
    text = _text(raw).strip()
    match = _PATTERN.fullmatch(text)
    if not match:
        raise QuantityError(f"'{text}' is not a number with a unit", advice=_example(dimension))
    number, unit = float(match.group(1).replace("_", "")), (match.group(2) or "").replace(" ", "")
    if not math.isfinite(number) or number < 0:
        advice = f"write {text.lstrip('-')}" if -math.inf < number < 0 else _example(dimension)
        raise QuantityError(f"'{text}' must be finite and not negative", advice=advice)
    if not unit:
        if dimension == "share" or (number == 0 and dimension):
            return Quantity(within_limits(number, dimension, text), dimension, text)
        raise QuantityError(f"'{text}' has no unit", advice=_example(dimension))
    if unit not in UNITS:
        raise QuantityError(f"unit '{unit}' in '{text}' is unknown", advice=_unit_advice(unit, dimension))
    kind, factor = UNITS[unit]
    return Quantity(within_limits(number * factor, kind, text), kind, text)


_SCALABLE = re.compile(r"\s*([0-9][0-9_.]*(?:[eE][-+]?\d+)?)(.*)", re.DOTALL)


def times(value: Any, factor: float) -> str | None:
    """Return ``450 GB/s`` multiplied, in its own unit; None unless it is a number above 0."""
    match = _SCALABLE.fullmatch(str(value))
    number = float(match.group(1).replace("_", "")) if match is not None else 0.0
    return f"{number * factor:.12g}{match.group(2)}" if match is not None and number > 0 else None


def within_limits(value: float, dimension: str, text: str) -> float:
    """Return a value in the base unit of its dimension, or refuse one that no machine has."""
    least, most, lowest, highest = LIMITS[dimension]
    if value != 0 and not least <= value <= most:
        what = f"less than {lowest}, the least" if value < least else f"more than {highest}, the most"
        raise QuantityError(f"'{text}' is {what} for a {_kind(dimension)}", advice=_example(dimension))
    return value


def _text(raw: str | int | float) -> str:
    try:
        return str(raw)
    except ValueError:  # Python refuses to print integers of thousands of digits
        raise QuantityError("a number of thousands of digits is not a quantity") from None


def _example(dimension: str | None) -> str:
    return f"write it like {EXAMPLES.get(dimension or '', '450 GB/s, 12 ns or 228 KiB')}"


def _unit_advice(unit: str, dimension: str | None) -> str:
    wanted = {dimension, BY_CYCLE.get(dimension or "")} if dimension else None
    names = [u for u, (kind, _) in UNITS.items() if wanted is None or kind in wanted]
    names = [u for u in names if not u.endswith(("Bps", "bps", "/sec"))]  # known, but not what we teach
    same = [name for name in names if name.lower() == unit.lower()]
    if same:
        # Case carries meaning (b is a bit, B a byte): offer the spelling that agrees in most letters, and
        # bytes where none agrees better, since sizes are rarely meant in bits.
        best = max(same, key=lambda n: sum(a == b for a, b in zip(n, unit, strict=True)) + 2 * ("B" in n))
        return f"did you mean '{best}'?"
    advice = did_you_mean(unit, names)
    return advice if advice.startswith("did you mean") else _example(dimension)


def _kind(dimension: str) -> str:
    names = {
        "bytes": "size",
        "bytes/s": "rate",
        "bytes/cycle": "rate per cycle",
        "time": "time",
        "cycles": "number of cycles",
        "ops/s": "throughput",
        "ops/cycle": "throughput per cycle",
        "share": "share",
        "Hz": "frequency",
    }
    return names.get(dimension, dimension)


_SIZE = re.compile(r"([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([kmgt]?)", re.IGNORECASE)
_BITS = re.compile(r".*[0-9]\s*[A-Za-z]i?b")


def size(text: str | int) -> int:
    """Return a number of bytes: ``1GiB``, ``64 kB``, ``128M`` or a plain integer.

    ``K``, ``M``, ``G`` and ``T`` alone count in 1024, as in nccl-tests; ``kB``, ``MB`` and ``GB`` in 1000.

    >>> size("1GiB") == size("1G") == 1 << 30
    True
    """
    if isinstance(text, int) and not isinstance(text, bool):
        if text < 0:
            raise QuantityError(f"'{_text(text)}' must not be negative", advice=_example("bytes"))
        return int(within_limits(text, "bytes", _text(text)))
    plain = text.strip() if isinstance(text, str) else ""
    found = _SIZE.fullmatch(plain)
    if found is not None and (found[2] or "." not in found[1]):
        factor = BINARY[f"{found[2].upper()}i"] if found[2] else 1
        amount = round(float(found[1]) * factor) if "." in found[1] else int(found[1]) * factor
        return int(within_limits(amount, "bytes", plain))
    if _BITS.fullmatch(plain):
        raise QuantityError(f"'{plain}' is a number of bits, not bytes", advice=_example("bytes"))
    return round(quantity(text, "bytes").value)


def whole(value: object) -> int | None:
    """Return an integer, Python's or NumPy's, as Python's; None for everything else: no bool, no text, no
    2.0."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


TIMES = ((10**12, "s"), (10**9, "ms"), (10**6, "µs"), (10**3, "ns"))


def format_bytes(count: float) -> str:
    """Return bytes with a binary unit, or a decimal one where only that is round: ``228 KiB``, ``80 GB``."""
    if count < 1000:
        return f"{count:.4g} B"
    unit = next(p for p in reversed(BINARY) if count >= BINARY[p] or p == "Ki")
    binary, decimal = f"{count / BINARY[unit]:.4g} {unit}B", format_rate(count, "B")
    exact = [
        round(float(number) * UNITS[name][1]) == count for number, name in map(str.split, (binary, decimal))
    ]
    return decimal if exact == [False, True] else binary


def format_time(picoseconds: float) -> str:
    """Return a time with a unit: ``13.03 µs``."""
    for factor, unit in TIMES:
        if picoseconds >= factor:
            return f"{picoseconds / factor:.4g} {unit}"
    return f"{picoseconds:.4g} ps"


def format_rate(per_second: float, unit: str = "B/s") -> str:
    """Return a rate with a decimal prefix: ``450 GB/s``, ``989 TFLOP/s``."""
    for prefix in ("E", "P", "T", "G", "M", "k"):
        if per_second >= DECIMAL[prefix]:
            return f"{per_second / DECIMAL[prefix]:.4g} {prefix}{unit}"
    return f"{per_second:.4g} {unit}"
