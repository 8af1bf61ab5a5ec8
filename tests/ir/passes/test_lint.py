"""``ir/passes/lint.py``: mistakes that show in the text of a Program."""

import megatile.language as T


def test_merging_an_lse_that_is_an_argument() -> None:
    @T.program
    def p(O: T.Tensor((2, 4, 8), "f32"), L: T.Tensor((2, 4), "f32")):  # noqa: E741
        with T.Kernel(device=2), T.Scale("device") as (r, _):
            o, lse = T.alloc((4, 8), "f32", level="l2"), T.alloc((4,), "f32", level="l2")
            T.copy(o, O[r, :, :])
            T.copy(lse, L[r, :])
            T.allreduce(o, lse, fn=T.lse_merge)
            T.copy(L[r, :], lse)

    assert not p.build().warnings
