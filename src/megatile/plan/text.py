"""Plans as text; ``parse.py`` reads it back. The text is Python syntax, so it can be read with ``ast``::

    plan("ring", scale="device", grid=(4,))
    x = tile(f32, (4, 16), memory="l2", role="inout")
    ring = channel(source=(unit - 1) % 4, slots=2, slot_bytes=64, memory="l2")
    with units((0, 4, 1)):
        for k in range(0, 3, 1):
            send(ring, x[(unit - k) % 4:+1, 0:+16], to=(unit + 1) % 4, bytes=64)  # ring.py:7
            message <- receive(ring, f32[16], bytes=64)  # ring.py:8
            x[(unit - k - 1) % 4:+1, 0:+16] <- add(x[(unit - k - 1) % 4:+1, 0:+16], message, flops=16)
            free(message)

A region is ``tile[start:+extent, ...]``, ``@ owner`` names another owner, ``fresh.add`` begins a new version.
How each part is written is declared with its fields (``spec.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from megatile.core.errors import Place
from megatile.core.expr import ZERO, Expr
from megatile.core.operations import OPERATIONS
from megatile.plan.model import DECLARED, FORMS, Plan
from megatile.plan.spec import ALWAYS, ARGUMENT, HIDDEN, TARGET, parts
from megatile.plan.statements import (
    CarryInt,
    Compute,
    Flow,
    If,
    Loop,
    MergeInt,
    Region,
    Statement,
    Work,
)

INDENT = "    "


def to_text(plan: Plan) -> str:
    return "\n".join(_plan_lines(plan)) + "\n"


def _plan_lines(plan: Plan) -> Iterator[str]:
    yield call_text("plan", plan)
    for word in DECLARED:
        for thing in getattr(plan, f"{word}s"):
            yield f"{thing.name} = {call_text(word, thing)}"
    for stream in plan.streams:
        yield f"with {call_text('units', stream)}:"
        yield from _block(stream.body, 1)


def region_text(region: Region) -> str:
    spans = [f"{low}:+{_atom(length)}" for low, length in zip(region.start, region.shape, strict=True)]
    text = f"{region.tile}[{', '.join(spans)}]" if spans else region.tile
    return f"{text} @ {_atom(region.at)}" if region.at is not None else text


def _atom(node: Expr) -> str:
    """As a factor: bracketed unless a name, a number or a call."""
    return node.text(99)


def _string(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _value(value: Any) -> str:
    return (
        _string(value) if isinstance(value, str) else str(value) if isinstance(value, Expr) else repr(value)
    )


_ONE: dict[str, Callable[[Any, Any], str]] = {
    "word": lambda v, owner: v,
    "text": lambda v, owner: _string(v),
    "texts": lambda v, owner: f"({', '.join(map(_string, v))},)",
    "literal": lambda v, owner: repr(v),
    "expr": lambda v, owner: str(v),
    "region": lambda v, owner: region_text(v),
    "typed": lambda v, owner: f"{owner.dtype}[{', '.join(map(str, v)) or '()'}]",
    "engine": lambda v, owner: _string(v),
}
_MANY: dict[str, Callable[[Any], list[str]]] = {
    "words": list,
    "literals": lambda v: list(map(str, v)),
    "regions": lambda v: list(map(region_text, v)),
}
"""Arguments that stand for several."""


def _work(work: Work) -> list[str]:
    found = [f"{key}={getattr(work, key)}" for key in ("flops", "bytes") if getattr(work, key) != ZERO]
    found += [f"dtype={_string(work.dtype)}"] if work.dtype != "f32" else []
    return found + [f"{key}={getattr(work, key)}" for key in ("fetched", "atomics") if getattr(work, key)]


_KEYWORDS: dict[str, Callable[[Any], list[str]]] = {
    "work": _work,
    "attributes": lambda v: [f"{key}={_value(item)}" for key, item in v],
}
"""Fields that are several keywords."""


def call_text(word: str, thing: Any) -> str:
    """Return ``target <- word(argument, keyword=value)``, as the fields are declared."""
    targets: dict[int, str] = {}
    arguments, keywords = [], []
    for p in parts(type(thing)):
        value = getattr(thing, p.name)
        if p.shown == TARGET:
            if value is None:
                continue
            if p.order not in targets and p.kind == "region" and p.omit is None:
                keywords.append(f"{p.name}=True")
            targets.setdefault(p.order, _ONE[p.kind](value, thing))
        elif p.shown == ARGUMENT:
            arguments += _MANY[p.kind](value) if p.kind in _MANY else [_ONE[p.kind](value, thing)]
        elif p.kind in _KEYWORDS:
            keywords += _KEYWORDS[p.kind](value)
        elif p.shown != HIDDEN:
            usual = OPERATIONS[thing.operation].engine if p.kind == "engine" else p.omit
            if usual is ALWAYS or value != usual:
                keywords.append(f"{p.name}={_ONE[p.kind](value, thing)}")
    fresh = "fresh." if getattr(thing, "fresh", False) else ""
    call = f"{fresh}{word}({', '.join(arguments + keywords)})"
    return f"{', '.join(targets[order] for order in sorted(targets))} <- {call}" if targets else call


def statement_text(statement: Statement) -> str:
    """Return one line for a message: the command, or the head of a loop or branch."""
    if isinstance(statement, Loop):
        return f"for {statement.index} in range({statement.start}, {statement.stop}, {statement.step})"
    if isinstance(statement, If):
        return f"if {statement.condition}"
    return call_text(statement.operation if isinstance(statement, Compute) else statement.word, statement)


def _comment(source: Place | None) -> str:
    return f"  # {source.file}:{source.line}" if source and source.file and source.line else ""


def _block(body: tuple[Statement, ...], depth: int) -> Iterator[str]:
    pad = INDENT * depth
    if not body:
        yield f"{pad}pass"
    for statement in body:
        colon = ":" if isinstance(statement, (Loop, If)) else ""
        yield f"{pad}{statement_text(statement)}{colon}{_comment(statement.source)}"
        if isinstance(statement, Loop):
            yield from (f"{pad}{INDENT}{_flow('carry', c)}" for c in statement.carries)
            if statement.frees:
                yield f"{pad}{INDENT}frees({', '.join(statement.frees)})"
            if statement.body or not (statement.carries or statement.frees):
                yield from _block(statement.body, depth + 1)
        elif isinstance(statement, If):
            yield from _block(statement.body, depth + 1)
            if statement.orelse:
                yield f"{pad}else:"
                yield from _block(statement.orelse, depth + 1)
            yield from (f"{pad}{_flow('merge', m)}" for m in statement.merges)


def _flow(word: str, flow: Flow) -> str:
    suffix = "_int" if isinstance(flow, (CarryInt, MergeInt)) else ""
    return f"{word}{suffix}({flow.name}, {', '.join(map(str, flow.values))})"


FORMS["to_text"] = to_text
