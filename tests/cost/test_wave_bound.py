"""Blocks that run in waves: the bound never exceeds the time, is tighter than what is busy, and prunes."""

from dataclasses import replace
from functools import partial

import pytest
from tests.tuning.factories import gemm

import megatile as mt
from megatile.cost.static_bound import floor
from megatile.cost.wave_bound import first_blocks, wave_bound
from megatile.plan import model as pm


@pytest.mark.parametrize("machine", ["dgx-h100", "mi300x-8", "hgx-a100"])
@pytest.mark.parametrize("tile", [(32, 32, 16, 1), (64, 64, 32, 2), (128, 64, 32, 3), (128, 128, 64, 1)])
@pytest.mark.parametrize("size", [(1000, 512, 512), (640, 1280, 1024)])
def test_it_is_a_lower_bound(machine, tile, size):
    low = mt.lower(gemm(*size, *tile), machine=machine)
    assert 0 <= wave_bound(low.plan, low.machine) <= mt.simulate(low, record=False).time_ps


def test_it_sees_latency_that_nothing_hides():
    low = mt.lower(gemm(2048, 2048, 512, 128, 128, 32, 1), machine="mi300x-8")
    assert floor(low.plan, low.machine) < 0.9 * wave_bound(low.plan, low.machine)


def test_branch_and_bound_prunes_on_chiplets():
    choices = {"bM": [64, 128, 256], "bN": [64, 128], "bK": [32, 64], "stages": [2, 3]}
    found = mt.tune(
        partial(gemm, 1024, 1024, 1024), choices, machine="mi300x-8", progress=False, verify=False, workers=1
    )
    assert found.counts["simulated"] <= 12 <= found.counts["pruned"]


def test_blocks_of_unequal_work_have_no_such_bound():
    import megatile.language as T

    @T.program
    def triangle(X: T.Tensor((64, 64), "f32"), Y: T.Tensor((64,), "f32")):
        with T.Kernel(block=64, threads=32) as b:
            x, s = T.alloc((64,), "f32"), T.alloc((1,), "f32")
            T.clear(s)
            for k in T.serial(b + 1):
                T.copy(x, X[k, 0])
                T.reduce_sum(x, s, dim=0, clear=False)
            T.copy(Y[b], s)

    low = mt.lower(triangle, machine="dgx-h100")
    assert wave_bound(low.plan, low.machine) == 0


def test_only_blocks_that_run_alone_and_in_turns_have_first_ones():
    plan = mt.lower(gemm(512, 512, 64, 128, 128, 32, 1), machine="dgx-h100").plan
    count = plan.levels[0].count
    assert first_blocks(plan, count - 1).levels[0].grid == (count - 1,)
    assert first_blocks(plan, count) is None
    assert first_blocks(replace(plan, levels=(replace(plan.levels[0], slots=None),)), 1) is None
    assert first_blocks(replace(plan, flags=(pm.Flag("ready"),)), 1) is None
