"""``ir/passes/pipeline.py``: stages of pipelined loops."""

import megatile.language as T
from megatile.ir import nodes as n
from megatile.ir.passes.pipeline import stages


def test_pipeline_stages() -> None:
    @T.program
    def p(A: T.Tensor((64, 64), "f32"), C: T.Tensor((16, 64), "f32")):
        with T.Kernel(block=1):
            a, c = T.alloc((16, 16), "f32"), T.alloc((16, 64), "f32")
            b = T.alloc((16, 64), "f32")
            T.clear(c)
            for k in T.Pipelined(4, num_stages=3):
                T.copy(a, A[0, k * 16])
                T.copy(b, A[k * 16, 0])
                T.gemm(a, b, c)
            T.copy(C, c)

    built = p.build()
    loop = next(node for node in n.walk(built.body) if isinstance(node, n.Loop))
    cut = stages(loop, built)
    assert cut.ahead == (0, 1)
    assert cut.rest == (2,)
    assert (cut.depth, len(cut.versions)) == (3, 2)
