"""Rules about elements that a unit moves more than once: phases that could be one."""

import pytest

import megatile as mt
import megatile.language as T
from megatile.language import tl
from megatile.verdict.study import Study
from megatile.verdict.traffic import loaded_in_two_passes, stored_after, stored_again


def normalised(phases, rows=2048, columns=2048):
    """Rows less their mean, over their deviation; the second phase loads them, and both, again."""

    @T.program
    def made(
        X: T.Tensor((rows, columns), "f16"), Mean: T.Tensor((rows,), "f32"),
        Dev: T.Tensor((rows,), "f32"), Y: T.Tensor((rows, columns), "f16"),
    ):  # fmt: skip
        with T.Kernel(block=rows // 4, threads=128) as b:
            with T.Scale("block"):
                x, y = T.alloc((4, columns), "f32"), T.alloc((4, columns), "f32")
                mean, dev = T.alloc((4,), "f32"), T.alloc((4,), "f32")
                T.copy(x, X[b * 4, 0])
                T.reduce_sum(x, mean, dim=1)
                for i, j in T.Parallel(4, columns):
                    y[i, j] = (x[i, j] - mean[i]) * (x[i, j] - mean[i])
                T.reduce_sum(y, dev, dim=1)
                T.copy(Mean[b * 4], mean)
                T.copy(Dev[b * 4], dev)
                if phases == 1:
                    for i, j in T.Parallel(4, columns):
                        x[i, j] = (x[i, j] - mean[i]) * dev[i]
                    T.copy(Y[b * 4, 0], x)
            if phases == 2:
                with T.Scale("block"):
                    x, mean, dev = T.alloc((4, columns), "f32"), T.alloc((4,), "f32"), T.alloc((4,), "f32")
                    T.copy(mean, Mean[b * 4])
                    T.copy(dev, Dev[b * 4])
                    T.copy(x, X[b * 4, 0])
                    for i, j in T.Parallel(4, columns):
                        x[i, j] = (x[i, j] - mean[i]) * dev[i]
                    T.copy(Y[b * 4, 0], x)

    return made


def test_phases_that_load_a_tensor_again_and_pass_on_several_are_one():
    slow, fast = (mt.simulate(normalised(phases), machine="hgx-a100") for phases in (2, 1))
    found = slow.verdict().findings[0]
    assert found.name == "round trip"
    assert "'Mean', 'Dev' come back to the same block, and 'X' is loaded by both" in found.bottleneck
    assert found.gain == pytest.approx(slow.time_ps / fast.time_ps, rel=0.1)


def test_a_stream_in_place_is_no_round_trip():
    """Every part is loaded before it is stored; what the stream stores before are other parts."""

    def doubled(x_ptr, n_elem, tl):
        mine = x_ptr + tl.program_id(0) * n_elem * 2
        for i in range(n_elem // 256):
            tl.store(mine + i * 512, tl.load(mine + i * 512, shape=(256,), dtype="f16") * 2.0)

    plan = tl.read_kernel(doubled, [tl.Tensor("x", (4096,)), 4096], world_size=8)
    found = mt.simulate(plan, machine="ahbm").verdict().findings
    assert [one.name for one in found][:1] == ["short steps"]
    assert "round trip" not in [one.name for one in found]


def stored(each):
    M, N, K = 1024, 1024, 512

    @T.program
    def product(A: T.Tensor((M, K), "f16"), B: T.Tensor((K, N), "f16"), C: T.Tensor((M, N), "f32")):
        with T.Kernel(block=(N // 128, M // 128), threads=256) as (bx, by):
            a, b = T.alloc((128, 32), "f16", level="l1"), T.alloc((32, 128), "f16", level="l1")
            c = T.alloc((128, 128), "f32")
            T.clear(c)
            for k in T.Pipelined(K // 32, num_stages=2):
                T.copy(a, A[by * 128, k * 32])
                T.copy(b, B[k * 32, bx * 128])
                T.gemm(a, b, c)
                if each:
                    T.copy(C[by * 128, bx * 128], c)
            if not each:
                T.copy(C[by * 128, bx * 128], c)

    return product


def test_a_store_in_every_round_is_timed_after_the_loop():
    slow, fast = (mt.simulate(stored(each), machine="mi300x-8") for each in (True, False))
    (found,) = stored_again(Study(slow))
    assert found.time_ps == fast.time_ps
    assert stored_after(fast.lowered.source) is fast.lowered.source


def log_sums(passes, rows=2048, columns=32768):
    """The logarithm of a sum of exponentials: the maximum first, or with a running maximum."""

    @T.program
    def made(X: T.Tensor((rows, columns), "f32"), Y: T.Tensor((rows,), "f32")):
        with T.Kernel(block=rows // 8, threads=128) as b:
            x, y = T.alloc((8, 1024), "f32"), T.alloc((8, 1024), "f32")
            top, total, before = (T.alloc((8,), "f32") for _ in range(3))
            T.fill(top, -T.infinity("f32"))
            T.clear(total)
            if passes == 2:
                for k in T.Pipelined(columns // 1024, num_stages=2):
                    T.copy(x, X[b * 8, k * 1024])
                    T.reduce_max(x, top, dim=1, clear=False)
            for q in T.Pipelined(columns // 1024, num_stages=2):
                T.copy(y, X[b * 8, q * 1024])
                if passes == 1:
                    T.copy(before, top)
                    T.reduce_max(y, top, dim=1, clear=False)
                    for i in T.Parallel(8):
                        total[i] = total[i] * T.exp(before[i] - top[i])
                for i, j in T.Parallel(8, 1024):
                    y[i, j] = T.exp(y[i, j] - top[i])
                T.reduce_sum(y, total, dim=1, clear=False)
            T.copy(Y[b * 8], total)

    return made


def test_two_passes_that_only_reduce_could_be_one():
    slow, fast = (mt.simulate(log_sums(passes), machine="hgx-a100") for passes in (2, 1))
    (found,) = loaded_in_two_passes(Study(slow))
    assert found.gain == pytest.approx(slow.time_ps / fast.time_ps, rel=0.1)
    assert not list(loaded_in_two_passes(Study(fast)))
