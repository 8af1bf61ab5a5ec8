"""Units that have more to do than others, and estimates with equal work."""

import pytest

import megatile as mt
import megatile.language as T
from megatile.verdict.blocks import balance
from megatile.verdict.imbalance import evened, unit_balance
from megatile.verdict.study import Study


def test_blocks_of_one_device_that_have_more_to_do_are_a_matter_of_devices():
    @T.program
    def causal(
        X: T.Tensor((4 * 512, 64), "f16"), W: T.Tensor((512, 64), "f16"), Y: T.Tensor((4 * 512, 64), "f32")
    ):
        with T.Kernel(device=4, block=132, threads=128) as b:
            with T.Scale("device") as (r, _):
                x, w, y = (
                    T.view(X, layout=T.FullRow),
                    T.view(W, layout=T.Replica),
                    T.view(Y, layout=T.FullRow),
                )
                with T.Scale("block"):
                    p, q = T.alloc((64, 64), "f16", level="l1"), T.alloc((64, 64), "f16", level="l1")
                    z = T.alloc((64, 64), "f32")
                    T.copy(p, x[b % 8 * 64, 0])
                    T.clear(z)
                    for k in T.serial((r + 1) * 2):
                        T.copy(q, w[k * 64, 0])
                        T.gemm(p, q, z)
                    T.copy(y[b % 8 * 64, 0], z)

    study = Study(mt.simulate(causal, machine="dgx-h100"))
    assert [one.name for one in unit_balance(study)] == ["unit balance"]
    assert not list(balance(study))


def triangular(paired, panels=128, columns=4):
    @T.program
    def made(A: T.Tensor((panels * 64, panels * 64), "f16"), C: T.Tensor((panels * 64, 512), "f32")):
        with T.Kernel(block=(columns // 4 * 2, panels // 2), threads=128) as (bx, by):
            a, c = T.alloc((64, 64), "f16", level="l1"), T.alloc((64, 256), "f32")
            w = T.alloc((64, 256), "f16", level="l1")
            T.clear(w)
            for part in T.serial(2):
                row = by * 2 + part
                if paired:
                    row = by + part * (panels - 1 - 2 * by)
                T.clear(c)
                for k in T.Pipelined(row + 1, num_stages=3):
                    T.copy(a, A[row * 64, k * 64])
                    T.gemm(a, w, c)
                T.copy(C[row * 64, bx * 256], c)

    return made


def running_sums(rows=8, n=1 << 18, chunk=4096):
    @T.program
    def made(X: T.Tensor((rows, n), "f32"), Y: T.Tensor((rows, n), "f32")):
        with T.Kernel(block=rows, threads=256) as b:
            x, part, carry = T.alloc((1, chunk), "f32"), T.alloc((1,), "f32"), T.alloc((1,), "f32")
            T.clear(carry)
            for k in T.Pipelined(n // chunk, num_stages=2):
                T.copy(x, X[b, k * chunk])
                T.reduce_sum(x, part, dim=1)
                T.cumsum(x, dim=1)
                for i, j in T.Parallel(1, chunk):
                    x[i, j] = x[i, j] + carry[i]
                for i in T.Parallel(1):
                    carry[i] = carry[i] + part[i]
                T.copy(Y[b, k * chunk], x)

    return made


def test_blocks_with_loops_of_the_mean_length_take_what_pairs_take():
    slow, fast = (mt.simulate(triangular(paired), machine="dgx-h100") for paired in (False, True))
    assert evened(fast.plan, "block") is None or slow.time_ps > fast.time_ps
    (found,) = balance(Study(slow))
    assert found.gain == pytest.approx(slow.time_ps / fast.time_ps, rel=0.2)
    assert "pair long items with short ones" in found.step


def test_scans_on_few_blocks_need_two_passes():
    result = mt.simulate(running_sums(), machine="dgx-h100")
    found = result.verdict().findings[0]
    assert found.name == "too few blocks"
    assert "two passes" in found.step
    assert found.bound
    assert 2 < found.gain < 12
