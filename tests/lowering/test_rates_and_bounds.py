"""What no machine and no program may do: beat its bound, or lose where rates are doubled."""

import random
import warnings
from itertools import pairwise

import pytest
from hypothesis import given, settings, strategies as st
from tests.language.tile.random_programs import random_program
from tests.lowering.test_every_program_kind import KINDS
from tests.tuning.factories import gemm

import megatile as mt
import megatile.language as T
from bench_programs import flash_attention
from megatile.cost.static_bound import floor
from megatile.hda.parameters import RATES, figures, scaled
from megatile.plan import model as pm

H100 = mt.machine("dgx-h100")
RATE_NAMES = sorted(n for n in figures(H100) if n.rsplit(".", 1)[1] in RATES and not n.endswith(".size"))


def moves(n: int, rounds: int, work: int):
    """Every block copies tiles and computes on them; both sides can be made long."""

    @T.program
    def kernel(X: T.Tensor((n, 128), "f32"), Y: T.Tensor((n, 128), "f32")):
        with T.Kernel(block=n // 16, threads=128) as b:
            y = T.alloc((16, 128), "f32")
            T.clear(y)
            x = T.alloc((16, 128), "f32", level="l1")
            for _ in T.Pipelined(rounds, num_stages=2):
                T.copy(x, X[b * 16, 0])
                for _ in T.serial(work):
                    for i, j in T.Parallel(16, 128):
                        y[i, j] = T.exp2(y[i, j]) + x[i, j]
            T.copy(Y[b * 16, 0], y)

    return kernel


SIZES = st.sampled_from((32, 64, 96, 256, 512))
PROGRAMS = st.one_of(
    st.builds(gemm, SIZES, SIZES, SIZES, stages=st.integers(1, 3)),
    st.builds(moves, st.sampled_from((16, 256, 2560)), st.integers(1, 6), st.integers(1, 3)),
)
QUICK = settings(max_examples=12, deadline=None, derandomize=True)


@QUICK
@given(PROGRAMS, st.sampled_from(("dgx-h100", "mi300x-8", "cerebras-wse2")))
def test_no_program_beats_its_bound(program, machine) -> None:
    try:
        low = mt.lower(program, machine=machine)
    except mt.MegatileError:  # tiles that a core of the wafer has no room for
        return
    assert 0 < mt.price(low).lower_ps <= mt.simulate(low, record=False).time_ps


@pytest.mark.parametrize("machine", ["dgx-h100", "mi300x-8", "hgx-a100", "cerebras-wse2", "ahbm", "cpu"])
def test_no_random_program_beats_its_bounds(machine) -> None:
    done = 0
    for seed in range(16):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                low = mt.lower(random_program(seed).program, machine=machine)
                time = mt.simulate(low, record=False).time_ps
            except mt.MegatileError:  # more devices than there are, or values that only data say
                continue
        bounds = mt.price(low)
        assert 0 < floor(low.plan, low.machine) <= bounds.lower_ps <= time <= bounds.upper_ps, seed
        done += 1
    assert done


@pytest.mark.parametrize("blocks", [2, 8])
def test_no_broadcast_in_a_cluster_beats_its_bounds(blocks: int) -> None:
    @T.program
    def kernel(X: T.Tensor((64, 128), "f16"), Z: T.Tensor((64 * blocks, 128), "f16")):
        with T.Kernel(cluster=2, block=blocks, threads=128), T.Scale("cluster"), T.Scale("block") as (b, _):
            x = T.alloc((64, 128), "f16", level="l1")
            if b == 0:
                T.copy(x, X[0, 0])
            T.broadcast(x, root=0, impl="multicast")
            T.copy(Z[b * 64, 0], x)

    low = mt.lower(kernel, machine=H100)
    bounds = mt.price(low)
    assert 0 < bounds.lower_ps <= mt.simulate(low, record=False).time_ps <= bounds.upper_ps


@QUICK
@given(PROGRAMS, st.sampled_from(RATE_NAMES))
def test_doubling_a_rate_never_hurts(program, name) -> None:
    low, faster = mt.lower(program, machine=H100), scaled(H100, {name: 2.0})
    assert floor(low.plan, faster) <= floor(low.plan, H100)
    before = mt.simulate(low.plan, machine=H100, record=False).time_ps
    assert mt.simulate(low.plan, machine=faster, record=False).time_ps <= 1.03 * before


@QUICK
@given(st.sampled_from((256, 2560)), st.integers(2, 6), st.integers(1, 4))
def test_overlap_never_beats_the_longer_part(n, rounds, work) -> None:
    result = mt.simulate(moves(n, rounds, work), machine=H100)
    units = min(n // 16, 132)
    assert result.time_ps >= max(busy / units for busy in result.busy.values())


def test_a_larger_cache_never_adds_traffic() -> None:
    low = mt.lower(gemm(512, 512, 512), machine=H100)
    read = []
    for factor in (1 / 12800, 1 / 3200, 1 / 512, 1 / 8, 1):
        hda = scaled(H100, {"memory.l2_cache.size": factor})
        read.append(mt.simulate(low.plan, machine=hda).traffic["hbm"].read_bytes)
    assert read == sorted(read, reverse=True)
    assert read[0] > read[-1]


def test_more_stages_are_faster_until_bandwidth_binds() -> None:
    times = []
    for stages in (1, 2, 3, 4):
        low = mt.lower(gemm(256, 256, 1024, bM=64, bN=64, bK=64, stages=stages), machine=H100)
        times.append((low.plan.levels[0].slots, mt.simulate(low, record=False).time_ps))
    for (slots, before), (more, after) in pairwise(times):
        assert slots != more or after <= before
    assert times[1][1] < times[0][1]


def test_the_bound_of_a_large_product_is_near_its_time() -> None:
    low = mt.lower(gemm(2048, 2048, 2048, bM=128, bN=128, bK=64, stages=3), machine=H100)
    assert mt.price(low).lower_ps == pytest.approx(mt.simulate(low, record=False).time_ps, rel=0.35)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_doubling_a_rate_never_hurts_programs_of_any_kind(kind) -> None:
    program, arrays = kind(2)
    low = mt.lower(program, *arrays, machine=H100)
    if any(isinstance(s, pm.ReadScalar) for stream in low.plan.streams for s in pm.statements(stream.body)):
        return  # data decide what it does
    before, bound = mt.simulate(low.plan, machine=H100, record=False).time_ps, mt.price(low).lower_ps
    for name in random.Random(kind.__name__).sample(RATE_NAMES, 4):
        faster = scaled(H100, {name: 2.0})
        after, least = mt.simulate(low.plan, machine=faster, record=False), mt.price(low.plan, machine=faster)
        assert least.lower_ps <= bound, name
        assert least.lower_ps <= after.time_ps <= 1.03 * before, name


def sends_and_works(rounds: int, work: int):
    """Devices put tiles into the next one's memory while blocks compute on what they have."""

    @T.program
    def kernel(X: T.Tensor((4 * 256, 1024), "f32"), Y: T.Tensor((4 * 256, 1024), "f32")):
        with T.Kernel(device=4, block=16, threads=128), T.Scale("device") as (d, _):
            mine = T.view(X, layout=T.Shard(0))
            out = T.view(Y, layout=T.Shard(0))
            box = T.alloc((256, 1024), "f32", level="l2")
            for _ in T.serial(rounds):
                T.copy(box, mine, dst=(d + 1) % 4)
            with T.Scale("block") as (b, _):
                x = T.alloc((16, 1024), "f32")
                T.copy(x, mine[b * 16, 0])
                for _ in T.serial(work):
                    for i, j in T.Parallel(16, 1024):
                        x[i, j] = T.exp2(x[i, j])
                T.copy(out[b * 16, 0], x)

    return kernel


@pytest.mark.parametrize("machine", ["dgx-h100", "mi300x-8"])
def test_overlapping_devices_never_beat_the_longer_part(machine) -> None:
    def time(*parts: int) -> int:
        return mt.simulate(sends_and_works(*parts), machine=machine, record=False).time_ps

    for rounds, work in ((1, 1), (4, 20), (16, 4)):
        both, sending, working = time(rounds, work), time(rounds, 0), time(0, work)
        assert max(sending, working) <= both <= 1.03 * (sending + working)


def test_a_larger_cache_never_adds_traffic_of_attention() -> None:
    low = mt.lower(flash_attention(1, 4, 2, 512, 64), machine=H100)
    read = []
    for factor in (1 / 12800, 1 / 1600, 1 / 200, 1):
        hda = scaled(H100, {"memory.l2_cache.size": factor})
        read.append(mt.simulate(low.plan, machine=hda).traffic["hbm"].read_bytes)
    assert read == sorted(read, reverse=True)
    assert read[0] > read[-1]


def exponentials(products: bool):
    """Every block multiplies a tile, by itself or by a number."""

    @T.program
    def kernel(A: T.Tensor((64, 64), "f16"), B: T.Tensor((64, 64), "f32")):
        with T.Kernel(block=1, threads=128):
            a = T.alloc((64, 64), "f16", level="l1")
            c = T.alloc((64, 64), "f32")
            T.copy(a, A)
            T.clear(c)
            if products:
                T.gemm(a, a, c)
            for i, j in T.Parallel(64, 64):
                c[i, j] = T.exp2(c[i, j])
            T.copy(B, c)

    return kernel


def test_products_lower_the_clock_of_all_engines() -> None:
    """One clock drives tensor and vector units: exponentials beside products take longer by what is lost."""

    def nest_ps(products: bool, sustained: float) -> int:
        hda = mt.machine("dgx-h100", **{"engines.tensor_core.sustained": sustained})
        trace = mt.simulate(exponentials(products), machine=hda).trace
        (row,) = [i for i, o in enumerate(trace.columns["operation"]) if trace.operations[o] == "nest"]
        return int(trace.columns["end_ps"][row] - trace.columns["start_ps"][row])

    full = nest_ps(True, 1.0)
    assert nest_ps(False, 0.5) == full
    assert nest_ps(True, 0.5) == pytest.approx(2 * full, rel=0.02)
