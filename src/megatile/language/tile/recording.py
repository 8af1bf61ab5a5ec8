"""Statements under a bare ``with instance:``, outside every kernel, become a Program too.

    with launched_instance:                 # HDA.instantiate(...)
        with T.Scale("block"):
            T.copy(tile, A[0:64, 0:64])     # A = T.Tensor((M, N), "f32"), named by the order of its first use
    launched_instance.program

Python runs them as they stand: loops of ``T`` stay loops, Python's own are unrolled, and an ``if`` on a rank
needs a function under ``@T.program``.
"""

from __future__ import annotations

from megatile.core.errors import MegatileError
from megatile.hda import Instance
from megatile.ir.launch import ROOT, Param
from megatile.ir.program import Program
from megatile.language.tile.builder import ProgramBuilder, located
from megatile.language.tile.errors import ProgramError
from megatile.language.tile.program import check_views, finished
from megatile.language.tile.reader import Reader
from megatile.language.tile.tiles import ACTIVE, Symbol, Tensor, Tile


class Recording:
    """The Program of one ``with`` block; `builder` is active until `finish`."""

    def __init__(self, instance: Instance):
        self.builder = ProgramBuilder(instance.hda, "program")
        self.builder.reader = Reader(self.builder)
        self.builder.argument = self.argument
        self.builder.begin(instance)
        self.params: list[Param] = []
        self.arguments: dict[int, tuple[Tensor, Tile]] = {}
        ACTIVE.set(self.builder)

    def argument(self, tensor: Tensor) -> Tile:
        """Return the argument of a ``T.Tensor`` outside a kernel's head."""
        if id(tensor) not in self.arguments:
            name = self.builder.fresh(f"argument{len(self.params)}")
            if any(isinstance(extent, Symbol) for extent in tensor.shape):
                raise ProgramError(
                    "a tensor of a bare launch has an unknown extent", advice="give numbers, not T.dynamic"
                )
            tile = Tile(self.builder, name, tensor.shape, tensor.shape, tensor.dtype, ROOT, "tensor")
            self.arguments[id(tensor)] = tensor, tile
            self.params.append(Param(name, tensor.shape, tensor.dtype, tensor.is_input))
        return self.arguments[id(tensor)][1]

    def finish(self, whole: bool) -> Program | None:
        """Return the Program; None if the block was left by an exception."""
        try:
            if not whole:
                return None
            self.builder.close_implied()
            check_views(self.builder)
            return finished(self.builder, tuple(self.params))
        except MegatileError as error:
            raise located(error, self.builder.place).with_traceback(None) from None
        finally:
            ACTIVE.set(None)


Instance.recorder = Recording
