"""The bound without a run: by hand, below every simulated time, and near it where engines are busy."""

from dataclasses import replace

import pytest
from tests.tuning.factories import gemm

import megatile as mt
import megatile.language as T
from megatile.cost.static_bound import floor
from megatile.plan import model as pm
from megatile.plan.build import PlanBuilder
from megatile.timing.resources import Resources


def triangle(n=256, b=16):
    """Blocks that do more the further down they are."""

    @T.program
    def kernel(A: T.Tensor((n, n), "f32"), C: T.Tensor((n, n), "f32")):
        with T.Kernel(block=n // b, threads=128) as by:
            a = T.alloc((b, b), "f32", level="l1")
            c = T.alloc((b, b), "f32", level="l0")
            T.clear(c)
            for k in T.serial(by + 1):
                T.copy(a, A[by * b, k * b])
                for i, j in T.Parallel(b, b):
                    c[i, j] = c[i, j] + a[i, j]
            T.copy(C[by * b, 0], c)

    return kernel


PROGRAMS = {
    "gemm": gemm(),
    "ragged gemm": gemm(100, 72, 40, bM=32, bN=32, bK=16),
    "one block": gemm(32, 32, 512, stages=2),
    "many blocks": gemm(512, 512, 32),
    "pipelined": gemm(256, 256, 256, bM=64, bN=64, bK=64, stages=3),
    "triangle": triangle(),
}


@pytest.mark.parametrize("machine", ["dgx-h100", "mi300x-8"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_no_program_beats_its_floor(name, machine):
    low = mt.lower(PROGRAMS[name], machine=machine)
    bound, time = floor(low.plan, low.machine), mt.simulate(low.plan, machine=low.machine).time_ps
    assert 0 < bound <= time


@pytest.mark.parametrize(("blocks", "turns"), [(1, 1), (132, 1), (133, 2), (265, 3)])
def test_whole_blocks_in_turn_by_hand(blocks, turns):
    b = PlanBuilder("many", scale="device", units=1)
    level = b.level("block", scale="block", grid=blocks, parent="device", slots=2)
    x = b.tile("x", (1024,), "f32", memory="shared", level=level)
    with b.stream(level=level):
        b.compute("fill", x, value=1.0)
        with b.loop(0, 10):
            b.compute("exp", x, [x])
    plan, hda = b.finish(), mt.machine("dgx-h100")
    view = Resources(hda, plan).of("block")
    fill, exp = (s for s in pm.statements(plan.streams[0].body) if isinstance(s, pm.Compute))
    each = view.compute_ps(fill, 1024, 0) + 10 * view.compute_ps(exp, int(exp.work.flops.evaluate({})), 0)
    start = Resources(hda, plan).start_ps(0)
    assert floor(plan, hda) == start + turns * each
    assert mt.simulate(plan, machine=hda).time_ps >= floor(plan, hda)
    eight = replace(
        plan, grid=(8,), streams=tuple(replace(s, units=((0, 8 * blocks, 1),)) for s in plan.streams)
    )
    assert floor(eight, hda) == floor(plan, hda)  # every device has cores of its own


def test_it_is_near_where_engines_are_busy():
    low = mt.lower(gemm(1024, 1024, 512, bM=128, bN=128, bK=64, stages=3), machine="dgx-h100")
    assert floor(low.plan, low.machine) > 0.7 * mt.simulate(low.plan, machine=low.machine).time_ps


def exchange(n, rounds=16, devices=4):
    """Devices put a large tile into the memory of the next one, round after round."""

    @T.program
    def kernel(A: T.Tensor((devices * n, 1024), "f32")):
        with T.Kernel(device=devices) as d:
            mine = T.view(A, layout=T.Shard(0))
            box = T.alloc((2, n, 1024), "f32", level="l2")
            T.copy(box[0], mine)
            T.barrier()
            for s in T.serial(rounds):
                T.copy(box[(s + 1) % 2], box[s % 2], dst=(d + 1) % devices)
                T.barrier()
            T.copy(mine, box[rounds % 2])

    return kernel


@pytest.mark.parametrize("machine", ["dgx-h100", "mi300x-8", "hgx-a100", "h100-cluster"])
def test_links_bound_what_is_dominated_by_communication(machine):
    low = mt.lower(exchange(8192), machine=machine)
    bound, time = floor(low.plan, low.machine), mt.simulate(low, record=False).time_ps
    assert 0.8 * time < bound <= time
    assert mt.price(low).lower_ps <= time
