"""Processes that share memory: a heap that all map, and collectives as memory operations.

    from megatile.runtime import shared

    def work(world, x):
        mine = world.symmetric(x.shape, x.dtype)     # every rank has one, and sees those of the others
        mine.local[:] = x + world.rank
        world.all_reduce(mine)
        return float(mine.local.sum())

    sums = shared.run(work, 4, args=(np.ones(8, "f4"),))

Ranks are forked from the calling process, so functions and arrays need no pickling; what ``work`` returns
comes back as JSON. A rank that dies, stops or raises ends the others, and the error names it.
"""

from megatile.runtime.shared.forked import run
from megatile.runtime.shared.world import Symmetric, World

__all__ = ["Symmetric", "World", "run"]
