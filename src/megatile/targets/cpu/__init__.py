"""Tile programs as machine code: C with vector extensions, by the compiler of this computer."""

from megatile.targets.cpu.kernel import Kernel, compile

__all__ = ["Kernel", "compile"]
