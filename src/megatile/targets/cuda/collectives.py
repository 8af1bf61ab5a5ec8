"""Collectives of the units of one CUDA block: each reads what the others have in shared memory."""

from __future__ import annotations

import math

from megatile.core.expr import Symbol
from megatile.ir import nodes as n
from megatile.targets.common.elements import Value, combined, converted, kind, loaded
from megatile.targets.common.errors import CompileError
from megatile.targets.common.expressions import whole
from megatile.targets.common.peers import KINDS, check_innermost, line, peer
from megatile.targets.cuda.elements import Side, shared_out
from megatile.targets.cuda.scope import DeviceScope, Hazards

_NUMBER = {"f": "float", "d": "double", "l": "long"}


def between_blocks(scope: DeviceScope, what: str) -> bool:
    """Whether the units that act together are blocks; units of several blocks cannot."""
    kernel = scope.gen.kernel
    if scope.group[0] >= kernel.instance:
        return False
    if not kernel.together or scope.group[1] != kernel.instance:
        raise CompileError(
            f"{what} would make parts of several blocks wait for each other, which CUDA source does not do",
            advice="let whole blocks wait, or use target='cpu'",
        )
    return True


def rendezvous(scope: DeviceScope, axis: int | None = None) -> None:
    """All units of the group, that is, all threads of the unit above them; or those of a line of blocks."""
    scope.finish_copies()
    if scope.group[0] < scope.gen.kernel.instance:
        first, _, count = line(scope, axis)
        scope.text.add(
            f"blocks_meet({scope.gen.meeting(scope.gen.kernel.instance, axis)} + {first}, {count});"
        )
    elif sync := scope.gen.team(scope.group[0]).sync:
        scope.text.add(sync)
    scope.hazards = Hazards()


def collective(scope: DeviceScope, node: n.Collective) -> None:
    """Read, meet, write, meet: the results wait in registers until all have read."""
    check_innermost(scope, node)
    word = KINDS.get(node.kind)
    if node.kind != "gather_view" and (word is None or (len(node.source) > 1 and node.fn is None)):
        what = f"T.{node.kind}{' with counts' if word is not None else ''}"
        raise CompileError(f"{what} cannot be written as CUDA yet", advice="copy with dst=")
    between_blocks(scope, f"T.{node.kind}")
    rendezvous(scope)
    if node.kind == "gather_view":
        return
    with scope.text.block():
        sides = [Side(scope, region) for region in node.to]
        large = max(range(len(sides)), key=lambda k: len(sides[k].box.axes))
        extents = [a.extent for a in sides[large].box.axes]
        for side in sides:
            if side.box.clipped or kind(side.storage.dtype) not in _NUMBER:
                raise CompileError(
                    f"T.{node.kind} over an edge cannot be written as CUDA", advice="use whole tiles"
                )
        total = math.prod(map(scope.most, extents))
        of = kind(sides[large].storage.dtype)
        scope.text.add(f"{_NUMBER[of]} kept[{-(-total // scope.crew.size)}][{len(sides)}];", "int at = 0;")
        with shared_out(scope, extents) as indices:
            _combined(scope, node, of, indices)
            scope.text.add("at++;")
        rendezvous(scope)
        scope.text.add("at = 0;")
        with shared_out(scope, extents) as indices:
            for number, side in enumerate(sides):
                mine, more = indices[: len(side.box.axes)], indices[len(side.box.axes) :]
                raw = Value(f"kept[at][{number}]", {"l": "int", "d": "f64"}.get(of, "f32"))
                with scope.text.block(f"if ({' && '.join(f'{i} == 0' for i in more)})" if more else ""):
                    side.store(mine, side.box.axes, converted(raw, side.storage.dtype))
            scope.text.add("at++;")
    rendezvous(scope)


def _combined(scope: DeviceScope, node: n.Collective, of: str, indices: list[str]) -> None:
    """``kept[at]``: what the element becomes, of the elements of the units."""
    _, stride, count = line(scope, node.axis)
    rank = scope.rank if node.axis is None else f"({scope.rank} / {stride} % {count})"
    dim, there = node.dim, list(indices)
    word = KINDS[node.kind]
    if word in ("ALLGATHER", "ALL_TO_ALL"):
        length = whole(scope.box(node.source[0]).axes[dim].extent, scope)
        if word == "ALL_TO_ALL":
            length = f"({length} / {count})"
        there[dim] = f"({indices[dim]} % {length}{f' + {rank} * {length}' if word == 'ALL_TO_ALL' else ''})"
        _each(scope, node, f"{indices[dim]} / {length}", count, there)
    elif word == "BROADCAST":
        _each(scope, node, scope.whole(node.root), count, there)
    else:
        if word == "REDUCE_SCATTER":
            length = whole(scope.box(node.to[0]).axes[dim].extent, scope)
            there[dim] = f"({indices[dim]} + {rank} * {length})"
        members = scope.gen.fresh("unit")
        merge = scope.gen.merge(node.fn) if node.fn is not None else None
        with scope.loop(members, "0", str(count)):
            _each(scope, node, members, count, there, merge or combined(node.op, of, "{}", "{}"))


def _each(
    scope: DeviceScope, node: n.Collective, unit: str, count: int, indices: list[str], both: str = ""
) -> None:
    """The elements of one unit are kept, or put together with those of the units before it."""
    name = scope.gen.fresh("member")
    scope.text.add(f"const long {name} = {unit};")
    with scope.known(f"@{name}", Value(name, "int"), (0, count - 1)):
        one = peer(scope, Symbol(f"@{name}"), node)
        values = []
        for region in node.source:
            box = scope.box(region, one)
            place = box.at(indices[: len(box.axes)])
            values.append(loaded(box.storage.dtype, box.storage.wide, place, False).text)
    if both and node.fn is not None:
        scope.text.add(f"const float other[] = {{{', '.join(values)}}}, mine[] = {{{_so_far(len(values))}}};")
        taken = "; ".join(f"kept[at][{k}] = other[{k}]" for k in range(len(values)))
        scope.text.add(f"if ({unit} == 0) {{ {taken}; }} else {both}(mine, other, kept[at]);")
    else:
        value = f"{unit} == 0 ? {values[0]} : {both.format('kept[at][0]', values[0])}" if both else values[0]
        scope.text.add(f"kept[at][0] = {value};")


def _so_far(count: int) -> str:
    return ", ".join(f"kept[at][{k}]" for k in range(count))
