"""Collectives of the units of one CUDA block: each reads what the others have in shared memory."""

from __future__ import annotations

from megatile.core.expr import Expr, Symbol
from megatile.ir import nodes as n
from megatile.targets.cpu.elements import Value, converted, kind
from megatile.targets.cpu.errors import CompileError
from megatile.targets.cpu.waiting import KINDS, line, peer
from megatile.targets.cuda.elements import Side, shared_out
from megatile.targets.cuda.scope import DeviceScope, Hazards

_REDUCED = {
    "f": {"sum": "{} + {}", "max": "fmax_({}, {})", "min": "fmin_({}, {})", "prod": "{} * {}"},
    "d": {"sum": "{} + {}", "max": "dmax_({}, {})", "min": "dmin_({}, {})", "prod": "{} * {}"},
    "l": {"sum": "{} + {}", "max": "lmax({}, {})", "min": "lmin({}, {})", "prod": "{} * {}"},
}
_NUMBER = {"f": "float", "d": "double", "l": "long"}


def inside_block(scope: DeviceScope, what: str) -> None:
    if scope.group[0] < scope.gen.kernel.instance:
        raise CompileError(
            f"{what} would make blocks wait for each other, which CUDA source does not do yet",
            advice="use target='cpu', or several launches",
        )


def meet(scope: DeviceScope) -> None:
    """All units of the group, that is, all threads of the unit above them."""
    sync = scope.gen.team(scope.group[0]).sync
    if sync:
        scope.text.add(sync)
    scope.hazards = Hazards()


def collective(scope: DeviceScope, node: n.Collective) -> None:
    """Read, meet, write, meet: the results wait in registers until all have read."""
    reduces = KINDS.get(node.kind) == "ALLREDUCE"
    if node.kind == "gather_view":
        meet(scope)
        return
    if not (reduces or node.kind == "broadcast") or node.fn is not None or len(node.source) != 1:
        raise CompileError(
            f"T.{node.kind}{' with fn=' if node.fn else ''} cannot be written as CUDA yet",
            advice="use T.allreduce or T.broadcast, or copy with dst=",
        )
    meet(scope)
    with scope.text.block():
        to = Side(scope, node.to[0])
        of = kind(to.storage.dtype)
        total = 1
        for axis in to.axes:
            found = scope.bound(axis.extent)
            total *= max(found[1], 1) if found else 1
        if of not in _NUMBER or any(scope.bound(a.extent) is None for a in to.axes):
            raise CompileError(
                f"T.{node.kind} of {to.storage.dtype} cannot be written as CUDA yet", advice="use f32"
            )
        scope.text.add(f"{_NUMBER[of]} kept[{-(-total // scope.crew.size)}];", "int at = 0;")
        _, _, count = line(scope, node.axis)
        with shared_out(scope, [a.extent for a in to.axes]) as indices:
            if not reduces:
                value = _of(scope, node, node.root, indices)
                scope.text.add(f"kept[at++] = {value};")
            else:
                scope.text.add(f"{_NUMBER[of]} acc = 0;")
                unit = scope.gen.fresh("unit")
                with (
                    scope.loop(unit, "0", str(count)),
                    scope.known(f"@{unit}", Value(unit, "int"), (0, count - 1)),
                ):
                    value = _of(scope, node, Symbol(f"@{unit}"), indices)
                    both = _REDUCED[of][node.op].format("acc", value)
                    scope.text.add(f"acc = {unit} == 0 ? {value} : {both};")
                scope.text.add("kept[at++] = acc;")
        meet(scope)
        scope.text.add("at = 0;")
        raw = Value("kept[at++]", "int" if of == "l" else to.storage.dtype if of == "d" else "f32")
        with shared_out(scope, [a.extent for a in to.axes]) as indices:
            to.store(indices, to.axes, converted(raw, to.storage.dtype))
    meet(scope)


def _of(scope: DeviceScope, node: n.Collective, unit: Expr, indices: list[str]) -> str:
    """The element of another unit."""
    one = peer(scope, unit, node.axis)
    source = Side(scope, node.source[0], one)
    return source.load(indices, source.axes).text
