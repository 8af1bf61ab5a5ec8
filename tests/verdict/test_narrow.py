"""Rules about types wider than need be: tiles in f64, tensors in f32."""

import pytest

import megatile as mt
import megatile.language as T


def softmax(work, data="bf16", rows=512, columns=1024):
    @T.program
    def made(X: T.Tensor((rows, columns), data), Y: T.Tensor((rows, columns), data)):
        with T.Kernel(block=rows // 4, threads=256) as bx:
            x, top = T.alloc((4, columns), work), T.alloc((4,), work)
            total = T.alloc((4,), work)
            T.copy(x, X[bx * 4, 0])
            T.reduce_max(x, top, dim=1)
            for i, j in T.Parallel(4, columns):
                x[i, j] = T.exp(x[i, j] - top[i])
            T.reduce_sum(x, total, dim=1)
            for i, j in T.Parallel(4, columns):
                x[i, j] = x[i, j] / total[i]
            T.copy(Y[bx * 4, 0], x)

    return made


@pytest.mark.parametrize("machine", ["l20-8", "hgx-a100"])
def test_tiles_in_f64_for_narrower_tensors_are_named(machine):
    slow, fast = (mt.simulate(softmax(work), machine=machine) for work in ("f64", "f32"))
    found = slow.verdict().findings[0]
    assert found.name == "wide arithmetic"
    assert "'top', 'total', 'x'" in found.bottleneck
    assert found.gain == pytest.approx(slow.time_ps / fast.time_ps, rel=0.05)


def test_tiles_in_f64_are_right_for_tensors_in_f64():
    found = mt.simulate(softmax("f64", data="f64"), machine="l20-8").verdict().findings
    assert "wide arithmetic" not in [one.name for one in found]


def test_small_tensors_in_f32_are_not_called_wide():
    @T.program
    def scaled(
        X: T.Tensor((4096, 4096), "f16"), S: T.Tensor((4096,), "f32"), Y: T.Tensor((4096, 4096), "f16")
    ):
        with T.Kernel(block=2048, threads=256) as bx:
            x, s = T.alloc((2, 4096), "f32"), T.alloc((2,), "f32")
            T.copy(x, X[bx * 2, 0])
            T.copy(s, S[bx * 2])
            for i, j in T.Parallel(2, 4096):
                x[i, j] = x[i, j] * s[i]
            T.copy(Y[bx * 2, 0], x)

    found = mt.simulate(scaled, machine="dgx-h100").verdict().findings
    assert "wide tensors" not in [one.name for one in found]
