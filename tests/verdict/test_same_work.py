"""Programs made again do the same work: they write all of what was written, and read as far."""

import numpy as np
import pytest

import megatile as mt
import megatile.language as T
from megatile.verdict.arguments import arguments_of
from megatile.verdict.same_work import _unique, leaves_out, read, useful_share, written
from megatile.verdict.study import Study


def triangular(M=768, N=256, bM=64, bN=64, bK=64):
    """Blocks of a short and a long panel; the number of panels is rounded down."""
    panels = M // bM

    @T.program
    def made(L: T.Tensor((M, M), "f16"), B: T.Tensor((M, N), "f16"), C: T.Tensor((M, N), "f16")):
        with T.Kernel(block=(T.ceildiv(N, bN), panels // 2), threads=128) as (bx, by):
            a, b = T.alloc((bM, bK), "f16", level="l1"), T.alloc((bK, bN), "f16", level="l1")
            c = T.alloc((bM, bN), "f32")
            for part in T.serial(2):
                row = by + part * (panels - 1 - 2 * by)
                T.clear(c)
                for k in T.Pipelined((row + 1) * (bM // bK), num_stages=2):
                    T.copy(a, L[row * bM, k * bK])
                    T.copy(b, B[k * bK, bx * bN])
                    T.gemm(a, b, c)
                T.copy(C[row * bM, bx * bN], c)

    return made


def plan(**changes):
    return mt.lower(triangular(**changes), machine="dgx-h100").plan


def test_elements_that_are_written_are_counted_once():
    assert written(plan())["C"].elements == 768 * 256
    assert written(plan(bM=256))["C"].elements == 512 * 256
    assert read(plan())["B"].ends == [1, 768, 256]
    assert read(plan(bM=64, bK=48))["B"].ends[1] < 768


@pytest.mark.parametrize("changes", [{"bM": 256, "bK": 128}, {"bM": 96, "bK": 64}, {"bK": 48}])
def test_programs_that_leave_something_out_are_none(changes):
    result = mt.simulate(triangular(), machine="dgx-h100")
    assert leaves_out(result.plan, plan(**changes))
    assert arguments_of(Study(result)).make(changes) is None


def test_programs_with_other_tiles_are_compared_by_what_they_write():
    result = mt.simulate(triangular(), machine="dgx-h100")
    for changes in ({"bN": 128}, {"bM": 128}, {"bM": 32, "bK": 32}):
        assert not leaves_out(result.plan, plan(**changes))
    assert arguments_of(Study(result)).make({"bN": 128}) is not None


def test_only_work_on_nothing_may_be_left_out():
    @T.program
    def edges(A: T.Tensor((200, 64), "f16"), B: T.Tensor((64, 64), "f16"), C: T.Tensor((200, 64), "f16")):
        with T.Kernel(block=2, threads=128) as by:
            a, b = T.alloc((128, 64), "f16", level="l1"), T.alloc((64, 64), "f16", level="l1")
            c = T.alloc((128, 64), "f32")
            T.copy(a, A[by * 128, 0])
            T.copy(b, B)
            T.gemm(a, b, c, clear_accum=True)
            T.copy(C[by * 128, 0], c)

    assert useful_share(mt.lower(edges, machine="dgx-h100").plan) == pytest.approx(200 / 256)
    assert useful_share(plan()) == 1.0


def test_messages_that_round_down_to_none_are_left_out():
    def sent(piece, n=4096):
        @T.program
        def made(X: T.Tensor((2, n), "f32"), Y: T.Tensor((2, n), "f32")):
            with T.Kernel(device=2), T.Scale("device") as (r, _):
                x, y = T.view(X, layout=T.FullRow), T.view(Y, layout=T.FullRow)
                inbox = T.alloc((1, n), "f32", level="l2")
                for i in T.serial(n // piece):
                    T.copy(
                        inbox[:, i * piece : i * piece + piece],
                        x[:, i * piece : i * piece + piece],
                        dst=1 - r,
                    )
                T.barrier()
                T.copy(y, inbox)

        return made

    slow = mt.lower(sent(64), machine="dgx-h100").plan
    assert leaves_out(slow, mt.lower(sent(8192), machine="dgx-h100").plan)
    assert not leaves_out(slow, mt.lower(sent(4096), machine="dgx-h100").plan)


def test_rows_are_told_apart_whatever_their_numbers():
    for top in (3, 1 << 20):
        rows = np.random.default_rng(0).integers(0, top, (200, 4, 2)) // (top // 3) * (top // 3)
        assert sorted(map(bytes, _unique(rows))) == sorted(map(bytes, np.unique(rows, axis=0)))
    assert _unique(np.zeros((0, 2, 2), np.int64)).shape == (0, 2, 2)
