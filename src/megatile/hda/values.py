"""Values of a machine description: how each kind is read, and what it is once the machine is built."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field, InstanceOf, PlainSerializer, PlainValidator

from megatile.core.arithmetic import Lambda
from megatile.core.errors import MegatileError
from megatile.core.quantities import Quantity, quantity


def _reject(problem: MegatileError) -> ValueError:
    return ValueError(problem.message + (f" (try: {problem.advice})" if problem.advice else ""))


def _reader(dimension: str) -> Any:
    def read(raw: Any) -> Quantity:
        try:
            return quantity(raw, dimension)
        except MegatileError as problem:
            raise _reject(problem) from None

    return BeforeValidator(read)


def _whole(raw: Any) -> Any:
    if isinstance(raw, float) and raw.is_integer():
        return int(raw)
    if isinstance(raw, bool) or not isinstance(raw, int):
        raise ValueError(f"must be a whole number, got {raw!r}")
    return raw


def _count(raw: Any) -> Any:
    if _whole(raw) < 1:
        raise ValueError(f"a count must be at least 1, got {raw}")
    if raw > 10**15:
        raise ValueError(f"a count of {raw} is too large")
    return raw


def _name(raw: Any) -> Any:
    if not isinstance(raw, str) or not raw.strip() or not raw.isprintable():
        raise ValueError(f"must be a name, got {raw!r}")
    return raw


def _lambda(raw: Any) -> Any:
    if raw is None:
        return raw
    try:
        Lambda.parse(raw, arity=2)
    except MegatileError as problem:
        raise _reject(problem) from None
    return raw


# Of a union pydantic would report every branch, so a value of several kinds is read by one function.


def _source(raw: Any) -> Any:
    texts = raw.values() if isinstance(raw, dict) else [raw]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"must be a string, or a string for each key, got {raw!r}")
    return raw


def _instances(raw: Any) -> Any:
    return tuple(_whole(extent) for extent in raw) if isinstance(raw, (list, tuple)) else _whole(raw)


def _many(raw: Any) -> Any:
    return tuple(raw) if isinstance(raw, (list, tuple)) else (raw,)


def _edge(raw: Any) -> Any:
    parts = list(raw) if isinstance(raw, (list, tuple)) else []
    if len(parts) == 2:
        parts.append(1)
    if len(parts) != 3:
        raise ValueError(f"an edge is [a, b] or [a, b, cables], not {raw!r}")
    return _whole(parts[0]), _whole(parts[1]), _count(parts[2])


def _by_dtype(raw: Any) -> Any:
    return raw if isinstance(raw, dict) else {"any": raw}


_AS_TEXT = PlainSerializer(str, return_type=str)
Size = Annotated[InstanceOf[Quantity], _reader("bytes"), _AS_TEXT]
Rate = Annotated[InstanceOf[Quantity], _reader("bytes/s"), _AS_TEXT]
Time = Annotated[InstanceOf[Quantity], _reader("time"), _AS_TEXT]
Frequency = Annotated[InstanceOf[Quantity], _reader("Hz"), _AS_TEXT]
Throughput = Annotated[InstanceOf[Quantity], _reader("ops/s"), _AS_TEXT]
Share = Annotated[InstanceOf[Quantity], _reader("share"), _AS_TEXT]
Count = Annotated[int, BeforeValidator(_count)]
Whole = Annotated[int, BeforeValidator(_whole), Field(ge=0)]
Factor = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
Name = Annotated[str, BeforeValidator(_name)]
InferLambda = Annotated[str, BeforeValidator(_lambda)]
Source = Annotated[str | dict[str, str], PlainValidator(_source)]
Instances = Annotated[int | tuple[int, ...], PlainValidator(_instances)]
Edge = Annotated[tuple[int, int, int], BeforeValidator(_edge)]
Wraps = Annotated[tuple[bool, ...], BeforeValidator(_many)]
Arities = Annotated[tuple[Count, ...], BeforeValidator(_many)]
DtypeKey = Literal[
    "any", "f64", "f32", "tf32", "f16", "bf16", "f8", "f8e4m3", "f8e5m2", "f4", "i64", "i32", "i8", "u8"
]


class Written(NamedTuple):
    """Marks a number of a machine's part that is written otherwise: as a quantity with its unit."""

    kind: Any


Bytes = Annotated[int, Written(Size)]
PerSecond = Annotated[float, Written(Rate)]
Picoseconds = Annotated[int, Written(Time)]
Microseconds = Annotated[float, Written(Time)]
Portion = Annotated[float, Written(Share)]
Throughputs = Annotated[
    Mapping[str, float], Written(Annotated[dict[DtypeKey, Throughput], BeforeValidator(_by_dtype)])
]
