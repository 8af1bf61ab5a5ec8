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
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from megatile.core.errors import Place
from megatile.core.expr import ONE, ZERO, Expr, unit
from megatile.core.operations import OPERATIONS
from megatile.plan.model import (
    CarryInt,
    CarryTile,
    Channel,
    Collective,
    Compute,
    Free,
    If,
    Level,
    Loop,
    MergeInt,
    MergeTile,
    Plan,
    ReadScalar,
    Receive,
    ReceiveAny,
    Region,
    Send,
    Signal,
    Statement,
    Tile,
    Wait,
    Work,
)

INDENT = "    "


def to_text(plan: Plan) -> str:
    return "\n".join(_plan_lines(plan)) + "\n"


def from_text(text: str) -> Plan:
    from megatile.plan.parse import parse_plan

    return parse_plan(text)


def _plan_lines(plan: Plan) -> Iterator[str]:
    place = f", place={plan.place}" if plan.place != unit else ""
    yield f"plan({_string(plan.name)}, scale={_string(plan.scale)}, grid={plan.grid}{place})"
    for level in plan.levels:
        yield f"{level.name} = {_level(level)}"
    for tile in plan.tiles:
        yield f"{tile.name} = {_tile(tile)}"
    for channel in plan.channels:
        yield f"{channel.name} = {_channel(channel)}"
    for flag in plan.flags:
        yield f"{flag.name} = flag({', '.join([f'members={flag.members}', *_in_level(flag)])})"
    for group in plan.groups:
        yield f"{group.name} = group({', '.join([str(group.key), *_in_level(group)])})"
    for stream in plan.streams:
        yield f"with units({', '.join([*map(str, stream.units), *_in_level(stream)])}):"
        yield from _block(stream.body, 1)


def _string(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _level(level: Level) -> str:
    parts = [f"scale={_string(level.scale)}", f"grid={level.grid}"]
    parts += [f"place={level.place}"] if level.place != unit else []
    parts += [f"parent={_string(level.parent)}"] if level.parent is not None else []
    parts += [f"slots={level.slots}"] if level.slots is not None else []
    return f"level({', '.join(parts)})"


def _in_level(thing: Any) -> list[str]:
    return [f"level={_string(thing.level)}"] if thing.level is not None else []


def _tile(tile: Tile) -> str:
    parts = [tile.dtype, str(tile.shape), f"memory={_string(tile.memory)}"]
    parts += [f"versions={tile.versions}"] if tile.versions != 1 else []
    parts += [f"role={_string(tile.role)}"] if tile.role != "local" else []
    parts += [f"owner={tile.owner}"] if tile.owner != unit else []
    parts += [f"{key}={v}" for key, v in (("owners", tile.owners), ("offset", tile.offset)) if v is not None]
    return f"tile({', '.join(parts + _in_level(tile))})"


def _channel(channel: Channel) -> str:
    parts = [f"source={channel.source}", f"slots={channel.slots}", f"slot_bytes={channel.slot_bytes}"]
    parts.append(f"memory={_string(channel.memory)}")
    parts += [f"members={channel.members}"] if channel.members != 1 else []
    parts += [f"names=({', '.join(map(_string, channel.names))},)"] if channel.names else []
    for key in ("offset", "credit_bytes", "chunk_bytes"):
        value = getattr(channel, key)
        parts += [f"{key}={value}"] if value is not None else []
    parts += [*_in_level(channel), *(["installed=True"] if channel.installed else [])]
    return f"channel({', '.join(parts)})"


def region_text(region: Region) -> str:
    spans = [
        f"{_tight(low)}:+{_atom(length)}" for low, length in zip(region.start, region.shape, strict=True)
    ]
    text = f"{region.tile}[{', '.join(spans)}]" if spans else region.tile
    return f"{text} @ {_atom(region.at)}" if region.at is not None else text


def _tight(node: Expr) -> str:
    return node.text()


def _atom(node: Expr) -> str:
    """As a factor: bracketed unless a name, a number or a call."""
    return node.text(99)


def _work(work: Work, default: str) -> list[str]:
    parts = [f"flops={work.flops}"] if work.flops != ZERO else []
    parts += [f"bytes={work.bytes}"] if work.bytes != ZERO else []
    return parts + ([f"dtype={_string(work.dtype)}"] if work.dtype != default else [])


def _value(value: Any) -> str:
    if isinstance(value, Expr):
        return value.text()
    return _string(value) if isinstance(value, str) else repr(value)


def _call(name: str, *parts: str | list[str]) -> str:
    flat = [p for part in parts for p in (part if isinstance(part, list) else [part])]
    return f"{name}({', '.join(flat)})"


def _compute(s: Compute) -> str:
    engine = [f"engine={_string(s.engine)}"] if s.engine != OPERATIONS[s.operation].engine else []
    attributes = [f"{key}={_value(value)}" for key, value in s.attributes]
    name = f"fresh.{s.operation}" if s.fresh else s.operation
    call = _call(name, [region_text(r) for r in s.reads], attributes, engine, _work(s.work, "f32"))
    return f"{region_text(s.write)} <- {call}"


def _named(key: str, value: Expr, default: Expr = ZERO) -> list[str]:
    return [f"{key}={value}"] if value != default else []


def _send(s: Send) -> str:
    where = [f"to={s.to}", *_named("member", s.member)]
    return _call("send", s.channel, region_text(s.read), where, _work(s.work, "f32"))


def _typed(dtype: str, shape: tuple[Expr, ...]) -> str:
    return f"{dtype}[{', '.join(e.text() for e in shape) or '()'}]"


def _receive(s: Receive | ReceiveAny) -> str:
    if isinstance(s, Receive):
        which, word, name = _named("member", s.member), "receive", s.name
    else:
        which = [f"members={s.members}"]
        word, name = "receive_any", f"{s.name}, {s.chosen}" if s.name else s.chosen
    if s.into is None:
        return f"{name} <- {_call(word, s.channel, _typed(s.dtype, s.shape), which, _work(s.work, 'f32'))}"
    word = f"fresh.{word}" if s.fresh else word
    target = region_text(s.into) + (f", {s.chosen}" if isinstance(s, ReceiveAny) else "")
    into = ["into=True"]
    return (
        f"{target} <- {_call(word, s.channel, _typed(s.dtype, s.shape), which, into, _work(s.work, 'f32'))}"
    )


def _collective(s: Collective) -> str:
    parts = [f"read={region_text(s.read)}"] if s.read else []
    parts += [f"write={region_text(s.write)}"] if s.write else []
    parts += [f"reduction={_string(s.reduction)}"] if s.reduction != "sum" else []
    return _call("collective", _string(s.kind), s.group, parts, _named("root", s.root), _work(s.work, "f32"))


def _signal(s: Signal) -> str:
    return _call("signal", s.flag, f"to={s.to}", _named("member", s.member), _named("amount", s.amount, ONE))


_SIMPLE: dict[type, Callable[[Any], str]] = {
    Compute: _compute,
    Send: _send,
    Receive: _receive,
    ReceiveAny: _receive,
    ReadScalar: lambda s: f"{s.name} <- read_scalar({region_text(s.read)}, bound={s.bound})",
    Signal: _signal,
    Wait: lambda s: _call("wait", s.flag, f"value={s.value}", _named("member", s.member)),
    Collective: _collective,
    Free: lambda s: f"free({', '.join(s.names)})",
}


def statement_text(statement: Statement) -> str:
    """One line for a message: the command, or the head of a loop or branch."""
    if isinstance(statement, Loop):
        return f"for {statement.index} in range({statement.start}, {statement.stop}, {statement.step})"
    if isinstance(statement, If):
        return f"if {statement.condition}"
    return _SIMPLE[type(statement)](statement)


def _comment(place: Place | None) -> str:
    return f"  # {place.file}:{place.line}" if place and place.file and place.line else ""


def _block(body: tuple[Statement, ...], depth: int) -> Iterator[str]:
    pad = INDENT * depth
    if not body:
        yield f"{pad}pass"
    for statement in body:
        head = statement_text(statement)
        if isinstance(statement, Loop):
            yield f"{pad}{head}:{_comment(statement.place)}"
            yield from _loop_head(statement, pad + INDENT)
            if statement.body or not (statement.carries or statement.frees):
                yield from _block(statement.body, depth + 1)
        elif isinstance(statement, If):
            yield f"{pad}{head}:{_comment(statement.place)}"
            yield from _block(statement.body, depth + 1)
            if statement.orelse:
                yield f"{pad}else:"
                yield from _block(statement.orelse, depth + 1)
            yield from (f"{pad}{_flow('merge', m)}" for m in statement.merges)
        else:
            yield f"{pad}{head}{_comment(statement.place)}"


def _loop_head(loop: Loop, pad: str) -> Iterator[str]:
    yield from (f"{pad}{_flow('carry', c)}" for c in loop.carries)
    if loop.frees:
        yield f"{pad}frees({', '.join(loop.frees)})"


def _flow(word: str, flow: CarryTile | CarryInt | MergeTile | MergeInt) -> str:
    if isinstance(flow, (CarryTile, CarryInt)):
        first, second = flow.init, flow.next
    else:
        first, second = flow.then, flow.orelse
    suffix = "_int" if isinstance(flow, (CarryInt, MergeInt)) else ""
    return f"{word}{suffix}({flow.name}, {first}, {second})"
