"""Check the structure of a Program; a violation is a bug of the code that built it."""

from __future__ import annotations

from typing import NoReturn

from megatile.core.errors import MegatileError
from megatile.core.expr import OPERATORS, Applied, Const, Symbol
from megatile.ir import nodes as n
from megatile.ir.expr import Coord, Load, Rank
from megatile.ir.launch import ROOT
from megatile.ir.program import Program, bindings, part_name


class VerificationError(MegatileError):
    """A Program that breaks the rules of the IR."""


def verify(program: Program) -> None:
    """Check that names are defined before they are used, scales nest inwards and operators have their
    arguments."""
    _Verifier(program).body(program.body, ROOT, set(program.symbols))


class _Verifier:
    def __init__(self, program: Program):
        self.program = program
        self.table = bindings(program)
        self.defined: set[str] = set()
        for param in program.params:
            self.define(param.name, param.parts)

    def fail(self, node: n.Node, message: str) -> NoReturn:
        raise VerificationError(message, place=node.place)

    def define(self, name: str, parts: tuple[n.Chain, ...] = ()) -> None:
        self.defined.update((name, *(part_name(name, chain) for chain in parts)))

    def body(self, body: tuple[n.Node, ...], scale: str, seen: set[str]) -> None:
        for node in body:
            self.statement(node, scale, seen)

    def statement(self, node: n.Node, scale: str, seen: set[str]) -> None:
        self.expressions(node, scale, seen)
        for _, region in n.accessed_regions(node):
            self.touched(node, region.source, len(region.dims))
        if isinstance(node, (n.Store, n.Atomic)):
            self.touched(node, node.target, len(node.index))
        elif isinstance(node, (n.Signal, n.Wait)):
            self.touched(node, node.flag, len(node.index))
        if isinstance(node, (n.Alloc, n.View, n.Reshape)):
            if isinstance(node, (n.View, n.Reshape)) and node.source not in self.defined:
                self.fail(node, f"view of '{node.source}', which is not defined")
            self.define(node.name, getattr(node, "parts", ()))
        if isinstance(node, (n.Let, n.ReadScalar)):
            seen.add(node.name)
        if isinstance(node, n.Atomic) and node.result is not None:
            seen.add(node.result)
        if isinstance(node, n.ScaleRegion):
            self.nesting(node, scale)
            scale = node.scale
        own = {node.var} if isinstance(node, n.Loop) else node.vars if isinstance(node, n.Parallel) else ()
        for _, part in n.bodies(node):
            self.body(part, scale, seen.union(own))
        if isinstance(node, (n.If, n.Loop)):  # variables set on both sides, or before a loop, stay
            seen.update(m.name for _, part in n.bodies(node) for m in part if isinstance(m, n.Let))

    def nesting(self, node: n.ScaleRegion, scale: str) -> None:
        launch = self.program.launch
        if node.scale not in [one.name for one in launch.scales]:
            self.fail(node, f"scale '{node.scale}' is not in the launch")
        if launch.depth(node.scale) <= launch.depth(scale):
            self.fail(node, f"scale '{node.scale}' inside '{scale}'")

    def touched(self, node: n.Node, name: str, dims: int) -> None:
        if name not in self.defined:
            self.fail(node, f"'{name}' is used before it is defined")
        rank = len(self.table[name].shape)
        if dims != rank:
            self.fail(node, f"'{name}' has {rank} dimensions, the region {dims}")

    def expressions(self, node: n.Node, scale: str, seen: set[str]) -> None:
        launch = self.program.launch
        names = seen | set(node.vars) if isinstance(node, n.Parallel) else seen
        parts = list(n.expressions(node))
        for part in parts:
            if isinstance(part, Const):
                continue
            if isinstance(part, Symbol):
                if part.name not in names:
                    self.fail(node, f"variable '{part.name}' is used before it has a value")
            elif isinstance(part, Load):
                self.touched(node, part.source, len(part.index))
            elif isinstance(part, (Coord, Rank)):
                if launch.depth(part.scale) > launch.depth(scale):
                    self.fail(node, f"a rank of '{part.scale}' at scale '{scale}'")
            elif isinstance(part, Applied) and len(part.args) != OPERATORS[part.operator].arity:
                self.fail(node, f"'{part.operator}' has {len(part.args)} arguments")
            parts += part.children()
