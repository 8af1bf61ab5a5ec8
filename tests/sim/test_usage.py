"""``sim/usage.py``: how busy engines, links and memories were, out of what the engine recorded."""

from __future__ import annotations

import pytest
from tests.sim.toys import ring, toy

import megatile as mt
import megatile.language as T
from megatile.lowering.explain import figures
from megatile.plan.build import PlanBuilder
from megatile.sim import simulate


def test_busy_links_and_exposed_communication() -> None:
    """Ring of 3, 64 floats: 2 adds, 4 sends, 2 copies per unit; every link carries 4 messages of 256 B."""
    r = simulate(ring(3, 64), machine=toy(3))
    assert r.time_ps == 1910
    assert r.time_ns == 1.91
    assert r.busy == {"dma": 3 * (4 * 276 + 2 * 94), "vector": 3 * 2 * 69}
    assert len(r.links) == 3
    assert all(share == pytest.approx(4 * 256 / 1910) for share in r.links.values())
    assert r.exposed_ns == pytest.approx((1910 - 2 * 69) / 1000)


def test_shared_memories_have_their_use() -> None:
    b = PlanBuilder("loads", scale="core", units=2)
    x = b.tile("x", (64,), "f32", memory="common", role="input")
    y = b.tile("y", (64,), "f32", memory="local", role="output")
    b.copy(y, x)
    r = simulate(b.finish(), machine=toy(2))
    assert r.memories == {"memory common[0]": pytest.approx(256 / 336)}


def test_the_summary_counts_blocks_and_figures_what_caches_keep():
    @T.program
    def p(X: T.Tensor((1024,), "f32"), Y: T.Tensor((1024,), "f32")):
        with T.Kernel(block=8) as b:
            t = T.alloc((128,), "f32", level="l1")
            T.copy(t, X[b * 128])
            T.copy(Y[b * 128], t)

    result = mt.simulate(p, machine="dgx-h100")
    assert ", 8 blocks on 1 device, " in result.summary().splitlines()[0]
    assert "1× the compulsory traffic of 4 KiB (4 KiB of results stay in the cache)" in str(
        figures(result.lowered, result)
    )
