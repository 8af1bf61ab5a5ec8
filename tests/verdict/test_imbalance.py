"""Units that have more to do than others."""

import megatile as mt
import megatile.language as T
from megatile.verdict.blocks import balance
from megatile.verdict.imbalance import unit_balance
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
