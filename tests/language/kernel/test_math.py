"""``language/kernel/math.py``: words of ``tl`` that mean the same while a kernel is read and while it
runs."""

from __future__ import annotations

import numpy as np
import pytest

from megatile.language import tl
from megatile.plan.check import check
from megatile.plan.execute import execute

MATH = {
    "maximum": (lambda t, x, y: t.maximum(x, y), np.maximum),
    "minimum": (lambda t, x, y: t.minimum(x, y), np.minimum),
    "add": (lambda t, x, y: x + y, np.add),
    "sub": (lambda t, x, y: x - y, np.subtract),
    "mul": (lambda t, x, y: x * y, np.multiply),
    "div": (lambda t, x, y: x / y, np.divide),
    "rsub": (lambda t, x, y: 1.0 - x, lambda x, y: 1 - x),
    "neg": (lambda t, x, y: -x, lambda x, y: -x),
    "fma": (lambda t, x, y: t.fma(x, y, y), lambda x, y: x * y + y),
    "clamp": (lambda t, x, y: t.clamp(x, 0.25, 0.75), lambda x, y: np.clip(x, 0.25, 0.75)),
    "exp": (lambda t, x, y: t.exp(x), lambda x, y: np.exp(x)),
    "exp2": (lambda t, x, y: t.exp2(x), lambda x, y: np.exp2(x)),
    "log": (lambda t, x, y: t.log(x), lambda x, y: np.log(x)),
    "log2": (lambda t, x, y: t.log2(x), lambda x, y: np.log2(x)),
    "sqrt": (lambda t, x, y: t.sqrt(x), lambda x, y: np.sqrt(x)),
    "rsqrt": (lambda t, x, y: t.rsqrt(x), lambda x, y: 1 / np.sqrt(x)),
    "abs": (lambda t, x, y: abs(x - y), lambda x, y: np.abs(x - y)),
    "sigmoid": (lambda t, x, y: t.sigmoid(x), lambda x, y: 1 / (1 + np.exp(-x))),
    "tanh": (lambda t, x, y: t.tanh(x), lambda x, y: np.tanh(x)),
    "cos": (lambda t, x, y: t.cos(x), lambda x, y: np.cos(x)),
    "sin": (lambda t, x, y: t.sin(x), lambda x, y: np.sin(x)),
    "where": (lambda t, x, y: t.where(x > y, x, 0), lambda x, y: np.where(x > y, x, 0)),
    "softmax": (
        lambda t, x, y: t.softmax(x, axis=0),
        lambda x, y: np.exp(x - x.max(0)) / np.exp(x - x.max(0)).sum(0),
    ),
    "sum": (lambda t, x, y: x * t.sum(y, axis=1, keepdims=True), lambda x, y: x * y.sum(1, keepdims=True)),
    "max": (lambda t, x, y: x - t.max(y, axis=0, keepdims=True), lambda x, y: x - y.max(0, keepdims=True)),
    "min": (lambda t, x, y: x - t.min(y, axis=0, keepdims=True), lambda x, y: x - y.min(0, keepdims=True)),
    "trans": (lambda t, x, y: t.trans(t.trans(x)), lambda x, y: x),
    "cast": (lambda t, x, y: x.to("f16").to("f32"), lambda x, y: x.astype("f2").astype("f4")),
    "full": (lambda t, x, y: x + t.full((3, 4), 2, "f32") + t.zeros((3, 4)), lambda x, y: x + 2),
    "dot": (lambda t, x, y: t.dot(t.dot(x, t.trans(y)), y), lambda x, y: x @ y.T @ y),
}


@pytest.mark.parametrize("name", sorted(MATH))
def test_math(name):
    function, meaning = MATH[name]

    def kernel(x_ptr, y_ptr, out_ptr, tl):
        x, y = tl.load(x_ptr, (3, 4), "f32"), tl.load(y_ptr, (3, 4), "f32")
        tl.store(out_ptr, function(tl, x, y))

    tensors = [
        tl.Tensor(n, (3, 4), "f32", role) for n, role in (("x", "input"), ("y", "input"), ("o", "output"))
    ]
    plan = tl.read_kernel(kernel_of(kernel), tensors, world_size=1, topology="none")
    check(plan)
    rng = np.random.default_rng(1)
    x, y = (rng.uniform(0.1, 1, (1, 3, 4)).astype("f4") for _ in range(2))
    pointer = {"x": x, "y": y}
    np.testing.assert_allclose(execute(plan, pointer)["o"][0], meaning(x[0], y[0]), rtol=2e-6, atol=1e-6)


def kernel_of(kernel):
    """Every unit's part begins at its own address; with one unit that is the pointer itself."""
    return kernel


def test_cdiv_and_program_ids_of_one_unit():
    def kernel(t_ptr, tl):
        assert tl.cdiv(7, 2) == 4
        assert tl.num_programs(1) == 1
        tl.store(t_ptr, tl.load(t_ptr, (2,)) * tl.cdiv(5, 2))

    plan = tl.read_kernel(kernel, [tl.Tensor("t", (2,))], world_size=1, topology="none")
    np.testing.assert_array_equal(execute(plan, {"t": np.ones((1, 2), "f2")})["t"], [[3, 3]])
