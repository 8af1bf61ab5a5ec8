"""``lowering/passes/choose_implementations.py``: what does each copy, product and reduction."""

import re
from typing import Any

import numpy as np
import pytest
from tests.lowering.passes.shared import H100
from tests.lowering.shared import gemm, pipelined, text_after

import megatile as mt
import megatile.language as T
from megatile.core.expr import Const
from megatile.cost.implementations import CANDIDATES
from megatile.ir import nodes as n
from megatile.lowering.errors import LoweringError
from megatile.lowering.passes.choose_implementations import _Chooser
from megatile.plan.build import PlanBuilder


def test_an_index_counts_as_one_element() -> None:
    start, eight = Const(0), Const(8)
    region = n.Region("x", (n.Dim(start, None), n.Dim(start, eight)))
    assert _Chooser.sizes(region, 1) == [1, 8]
    assert _Chooser.sizes(region, 2) == [1, 1, 8]


def arrays(M=64, N=64, K=64):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, s).astype(np.float16) for s in ((M, K), (K, N)))
    return a, b, np.zeros(M, np.float32)


@pytest.mark.parametrize(
    "forced",
    [{}, {"impl": "tensor"}, {"impl": "vector"}, {"copy": "lsu"}, {"copy": "tma"}, {"reduce": "shared"}],
)
def test_every_implementation_gives_the_same(forced) -> None:
    kernel = gemm(**forced)
    a, b, r = arrays()
    want = (a.astype("f4") @ b.astype("f4")).sum(1)
    mt.run(kernel, a, b, r)
    np.testing.assert_array_equal(r, want)
    np.testing.assert_array_equal(mt.execute(kernel, a, b, 0 * r)["R"], want)


def test_slower_implementations_take_longer() -> None:
    size = {"M": 128, "N": 128, "K": 128}
    usual = mt.simulate(gemm(**size)).time_ps
    for forced in ({"impl": "vector"}, {"reduce": "shared"}):
        assert mt.simulate(gemm(**forced, **size)).time_ps > usual, forced
    assert mt.simulate(gemm(copy="tma", **size)).time_ps == usual


def stream(copy: str | None, blocks: int = 8, steps: int = 32):
    """Tiles of a tensor that blocks go through, the next ones on their way while they work on one."""

    @T.program
    def kernel(X: T.Tensor((blocks * steps * 64, 64), "f32"), Y: T.Tensor((blocks * 64, 64), "f32")):
        with T.Kernel(block=blocks, threads=128) as bx:
            x = T.alloc((64, 64), "f32", level="l1")
            y = T.alloc((64, 64), "f32")
            T.clear(y)
            for k in T.Pipelined(steps, num_stages=3):
                T.copy(x, X[(bx * steps + k) * 64, 0], impl=copy)
                for i, j in T.Parallel(64, 64):
                    y[i, j] = y[i, j] * x[i, j] + x[i, j] * 3.0 + 1.0
            T.copy(Y[bx * 64, 0], y)

    return kernel


def test_lanes_that_carry_copies_do_nothing_else() -> None:
    """A bulk engine has more latency, but runs ahead; loads by the lanes keep them from their work."""
    usual, lanes = (mt.simulate(stream(copy)).time_ps for copy in (None, "lsu"))
    assert mt.simulate(stream("tma")).time_ps == usual < 0.9 * lanes


def test_times_of_single_copies_are_those_of_the_machine_file() -> None:
    """A copy of 16 KiB: start-up, latency and bandwidth of the engine, with the memories' latencies."""
    text = """plan("p", scale="block", grid=(1,))
X = tile(f32, (4096,), memory="hbm", role="inout")
s = tile(f32, (4096,), memory="shared")
with units((0, 1, 1)):
    s <- copy(X, bytes=16384, by="{}")
"""
    times = {
        by: mt.simulate(mt.Plan.from_text(text.format(by)), machine=H100).time_ps
        for by in ("tma", "lsu", "copy_engine", "", "no such engine")
    }
    cycle = 1e12 / 1.83e9
    assert times["tma"] == times[""] == times["no such engine"]
    assert times["tma"] - times["lsu"] == pytest.approx((170 - 20) * cycle, abs=3)
    slower = 16384 / (396e9 * 2) * 1e12 - 16384 / (128 / cycle * 1e12) * 1e12
    assert times["copy_engine"] - times["tma"] == pytest.approx(2e6 - 170 * cycle + max(0, slower), rel=0.05)


@pytest.mark.parametrize("rows", [1, 64, 128])
def test_one_tile_goes_by_what_brings_it_first(rows: int) -> None:
    """The bulk copy engine takes longer to begin, the lanes longer for every element; in a loop the engine
    works on the next tile meanwhile."""

    def move(impl: str | None) -> Any:
        @T.program
        def kernel(X: T.Tensor((132 * rows, 128), "f16"), Y: T.Tensor((132 * rows, 128), "f16")):
            with T.Kernel(block=132, threads=256) as b:
                x = T.alloc((rows, 128), "f16", level="l1")
                T.copy(x, X[b * rows, 0], impl=impl)
                T.copy(Y[b * rows, 0], x, impl=impl)

        return mt.simulate(kernel, machine="dgx-h100").time_ps

    times = {impl: move(impl) for impl in ("tma", "lsu")}
    assert move(None) == min(times.values())
    assert (times["lsu"] < times["tma"]) == (rows < 128)


def test_copies_by_different_engines_overlap() -> None:
    def time(*by: str) -> int:
        b = PlanBuilder("two", scale="block", units=1)
        for i, name in enumerate(by):
            far = b.tile(f"far{i}", (50_000,), "f16", memory="hbm")
            b.copy(b.tile(f"near{i}", (50_000,), "f16", memory="shared"), far, by=name)
        plan = b.finish()
        result = mt.simulate(plan, machine="dgx-h100", launch=False)
        assert mt.price(plan, "dgx-h100", launch=False).lower_ps <= result.time_ps
        return result.time_ps

    one, same, other = time("tma"), time("tma", "tma"), time("tma", "lsu")
    each = 100_000 / 117e9 * 1e12  # at 64 B for each cycle
    assert same - one == pytest.approx(each, rel=0.1)
    assert other - one < 0.1 * each


@pytest.mark.parametrize(
    ("forced", "message"),
    [
        (
            {"copy": "nic"},
            r"'nic' cannot do this copy at scale 'block' of machine 'dgx-h100'.*may be lsu, tma",
        ),
        ({"impl": "cluster"}, "cluster|block"),
        ({"impl": "tensr"}, "did you mean 'tensor'"),
    ],
)
def test_what_cannot_do_it_is_refused(forced, message) -> None:
    with pytest.raises(mt.MegatileError, match=message):
        mt.lower(gemm(**forced))


def test_a_product_of_a_cluster_by_its_blocks() -> None:
    @T.program
    def kernel(A: T.Tensor((64, 32), "f16"), B: T.Tensor((32, 64), "f16"), C: T.Tensor((64, 64), "f32")):
        with T.Kernel(cta_cluster=2, block=2, threads=128), T.Scale("cta_cluster"):
            a = T.alloc((64, 32), "f16", level="l1")
            b = T.alloc((32, 64), "f16", level="l1")
            c = T.alloc((64, 64), "f32", level="l1")
            T.clear(c)
            T.copy(a, A)
            T.copy(b, B)
            T.gemm(a, b, c, impl="cluster")
            T.copy(C, c)

    a, b, _ = arrays(64, 64, 32)
    c = np.zeros((64, 64), np.float32)
    mt.run(kernel, a, b, c)
    np.testing.assert_array_equal(c, a.astype("f4") @ b.astype("f4"))
    np.testing.assert_array_equal(mt.execute(kernel, a, b, 0 * c)["C"], c)
    assert str(kernel).count("gemm(") == 1
    assert 'scale("block")' in str(kernel)


@pytest.fixture
def halves():
    yield lambda price: T.implementation("gemm", "by_halves", price=price)
    CANDIDATES["Gemm"].pop("by_halves", None)


def by_halves(A, B, C):
    half = A.shape[1] // 2
    T.gemm(A[:, 0:half], B[0:half, :], C)
    T.gemm(A[:, half : 2 * half], B[half : 2 * half, :], C)


def test_a_candidate_of_the_user_is_written_in_t(halves) -> None:
    halves(None)(by_halves)
    a, b, r = arrays()
    mt.run(gemm(impl="by_halves"), a, b, r)
    np.testing.assert_array_equal(r, (a.astype("f4") @ b.astype("f4")).sum(1))
    assert (str(gemm()).count("gemm("), str(gemm(impl="by_halves")).count("gemm(")) == (1, 2)


def test_a_candidate_with_the_best_price_is_taken(halves) -> None:
    halves(lambda r: 1 if r.scale == "block" else None)(by_halves)
    assert str(gemm()).count("gemm(") == 2
    assert str(gemm(impl="tensor")).count("gemm(") == 1
    halves(lambda r: 10**15)(by_halves)
    assert str(gemm()).count("gemm(") == 1


def test_registering_what_is_none(halves) -> None:
    with pytest.raises(mt.MegatileError, match=r"no primitive 'gem'.*did you mean 'gemm'"):
        T.implementation("gem", "mine")
    with pytest.raises(mt.MegatileError, match="'tensor' is already an implementation of gemm"):
        T.implementation("gemm", "tensor")


def test_a_candidate_is_not_made_of_itself(halves) -> None:
    halves(None)(lambda A, B, C: T.gemm(A, B, C, impl="by_halves"))
    with pytest.raises(mt.MegatileError, match="implementation 'by_halves' of gemm is made of itself"):
        gemm(impl="by_halves").build()


@pytest.mark.parametrize(
    "name", ["hgx-a100", "mi300x-8", "v100-8", "l20-8", "tpu-v5p", "cerebras-wse2", "ahbm"]
)
def test_a_tma_is_refused_where_there_is_none(name: str) -> None:
    with pytest.raises(
        LoweringError, match=f"'tma' cannot do this copy .* '{name}' .*impl= may be"
    ) as caught:
        mt.lower(gemm(copy="tma"), machine=name)
    assert caught.value.place is not None


def test_choose_implementations() -> None:
    lowered = mt.lower(pipelined)
    lines = text_after(lowered, "choose_implementations")
    assert 'copy(a[0::64, 0::32], A[0::64, k * 32::32], impl="tma")' in lines
    assert 'gemm(a[0::64, 0::32], b[0::32, 0::64], c[0::64, 0::64], impl="tensor")' in lines
    why = next(line for line in str(lowered.steps[-1]).splitlines() if "gemm(a" in line)
    assert re.search(r"# cheapest: tensor [\d.]+ \w+, vector [\d.]+ \w+$", why)


def test_what_the_user_asked_for_is_reported() -> None:
    @T.program
    def in_bulk(A: T.Tensor((64, 64), "f32"), B: T.Tensor((64, 64), "f32")):
        with T.Kernel(block=1, threads=128):
            a = T.alloc((64, 64), "f32", level="l1")
            T.copy(a, A, impl="tma")
            T.copy(B, a)

    text = str(mt.lower(in_bulk).steps[-1])
    assert re.search(r'A\[0::64, 0::64\], impl="tma"\)  # asked for: lsu [\d.]+ ns, tma', text)
