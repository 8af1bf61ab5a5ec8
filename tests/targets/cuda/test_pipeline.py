"""``targets/cuda/pipeline.py``: copies of later steps while a step computes."""

from __future__ import annotations

import megatile as mt
import megatile.language as T


def test_tiles_of_the_loop_before_are_filled_behind_a_barrier() -> None:
    @T.program
    def program(A: T.Tensor((128, 512), "f16"), B: T.Tensor((512, 64), "f16"), C: T.Tensor((128, 64), "f32")):
        with T.Kernel(block=1, threads=128):
            a = T.alloc((64, 64), "f16", level="l1")
            b = T.alloc((64, 64), "f16", level="l1")
            c = T.alloc((64, 64), "f32", level="l0")
            for t in T.serial(2):
                T.clear(c)
                for k in T.Pipelined(8, num_stages=3):
                    T.copy(a, A[t * 64, k * 64])
                    T.copy(b, B[k * 64, 0])
                    T.gemm(a, b, c)
                T.copy(C[t * 64, 0], c)

    text = mt.export(program, "cuda", machine="hgx-a100")
    between = text[text.rindex("T.Pipelined", 0, text.index("auto fetch")) : text.index("auto fetch")]
    assert "__syncthreads();" in between
