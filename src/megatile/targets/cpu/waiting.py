"""Units that wait for each other."""

from __future__ import annotations

from typing import NoReturn

from megatile.ir import nodes as n
from megatile.targets.cpu.errors import CompileError

_WAITING = (n.Barrier, n.Collective, n.Wait, n.Signal)


def refused(node: n.Node) -> NoReturn:
    raise CompileError(
        f"T.{type(node).__name__.lower()} between units cannot be compiled yet", advice="mt.run takes it"
    )


def waits(region: n.Scale, count: int) -> None:
    """Refuses regions whose units wait for each other."""
    if count == 1:
        return
    for node in _own(region.body):
        if isinstance(node, _WAITING):
            error = CompileError(
                f"units of scale '{region.scale}' that wait for each other cannot be compiled yet",
                place=node.span.place() if node.span else None,
                advice="mt.run takes them",
            )
            raise error


def _own(body: tuple[n.Node, ...]) -> list[n.Node]:
    found: list[n.Node] = []
    for node in body:
        found.append(node)
        if not isinstance(node, n.Scale):
            for _, inner in n.bodies(node):
                found += _own(inner)
    return found
