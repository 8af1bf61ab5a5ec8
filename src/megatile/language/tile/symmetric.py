"""``T.Symmetric``: an argument of which every device has its own copy, addressable by rank.

The array has a leading dimension of devices; in the kernel the name means this device's copy, and another
device's with ``src=`` or ``dst=``:

    def kernel(X: T.Symmetric((M, N), "f32")):
        ...
        T.copy(X, tile, dst=(rank + 1) % size)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from megatile.core.placement import Shard
from megatile.ir.launch import Param
from megatile.language.tile.builder import ProgramBuilder
from megatile.language.tile.errors import ProgramError
from megatile.language.tile.memory import view
from megatile.language.tile.scales import Scale
from megatile.language.tile.tiles import Symbol, Tensor

RANKS = "ranks"
"""The name of the extent of devices."""


def Symmetric(shape: Any, dtype: Any = "f32") -> Tensor:
    """Annotation: every device has a copy of this shape; the array given has one more extent, of devices, in
    front."""
    extents = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    return Tensor((Symbol(RANKS), *extents), dtype, symmetric=True)


def share_out(builder: ProgramBuilder) -> None:
    """Every device gets its copy of the symmetric arguments: the launch is known now."""
    own = [one for one in builder.symmetric if one.part is None]
    if not own or builder.launch is None:
        return
    device = builder.machine.scale("device").name
    count = builder.launch.count(device)
    for one in own:
        given = one.tile.shape[0]
        if not isinstance(given, Symbol) and given != count:
            raise ProgramError(
                f"'{one.name}' has copies for {given} devices, and the launch has {count}",
                advice=f"give an array of shape ({count}, {', '.join(map(str, one.shape))})",
            )
        one.tile.shape = (count, *one.shape)
        one.tile.bound = (count, *one.tile.bound[1:])
    region = Scale(device)
    region.__enter__()
    for one in own:
        one.part = view(one.tile, layout=Shard(0))
    region.__exit__(None)


def shared_out(builder: ProgramBuilder, params: tuple[Param, ...]) -> tuple[Param, ...]:
    """Arguments with the extents that the launch gave them."""
    found = {one.name: one.tile.shape[0] for one in builder.symmetric}
    if found and RANKS in builder.symbols:
        builder.symbols.remove(RANKS)
    return tuple(replace(p, shape=(found[p.name], *p.shape[1:])) if p.name in found else p for p in params)
