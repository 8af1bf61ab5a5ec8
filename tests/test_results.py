"""What all results have in common: times in each unit, a short text, the same in a notebook."""

import numpy as np
import pytest

import megatile as mt
import megatile.language as T


@T.program
def doubled(X: T.Tensor((256,), "f32"), Y: T.Tensor((256,), "f32")):
    with T.Kernel(block=2, threads=128) as b:
        x = T.alloc((128,), "f32")
        T.copy(x, X[b * 128])
        for i in T.Parallel(128):
            x[i] = 2.0 * x[i]
        T.copy(Y[b * 128], x)


TIMED = {
    "simulate": lambda: mt.simulate(doubled, machine="dgx-h100"),
    "verdict": lambda: mt.simulate(doubled, machine="dgx-h100").verdict(),
    "finding": lambda: mt.simulate(doubled, machine="dgx-h100").verdict().findings[0],
    "tune": lambda: mt.tune(
        lambda n=1: doubled, {"n": [1]}, machine="dgx-h100", verify=False, progress=False
    ),
    "predict_kernel": lambda: mt.predict_kernel("gemm", m=512, n=512, k=512, machine="dgx-h100"),
    "predict": lambda: mt.collectives.predict("all_reduce", machine="dgx-h100", nbytes=4096),
    "train": lambda: mt.model("Llama-3.1-8B").train(machine="dgx-h100"),
}
OTHERS = {
    "lower": lambda: mt.lower(doubled, machine="dgx-h100"),
    "price": lambda: mt.price(mt.lower(doubled, machine="dgx-h100").plan, "dgx-h100"),
    "run": lambda: mt.run(doubled, np.ones(256, "f4"), np.zeros(256, "f4")),
    "sweep": lambda: mt.sweep(doubled, {"memory.hbm.bandwidth": ["1 TB/s", "2 TB/s"]}, machine="dgx-h100"),
    "model": lambda: mt.model("Llama-3.1-8B"),
    "memory": lambda: mt.model("Llama-3.1-8B").memory(machine="dgx-h100"),
}


@pytest.mark.parametrize("name", [*TIMED, *OTHERS])
def test_results_have_a_short_text_also_in_notebooks(name):
    result = (TIMED | OTHERS)[name]()
    assert len(repr(result)) < 200
    assert "object at 0x" not in repr(result)
    assert result._repr_html_().startswith("<")


@pytest.mark.parametrize("name", TIMED)
def test_times_are_the_same_in_every_unit(name):
    result = TIMED[name]()
    assert result.time_ps > 0
    assert result.time_ns == pytest.approx(result.time_ps / 1e3)
    assert result.time_us == pytest.approx(result.time_ps / 1e6)
