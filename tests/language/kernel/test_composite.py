"""``language/kernel/composite.py``: operations on tensors in memory, streamed tile by tile."""

from __future__ import annotations

import numpy as np
import pytest
from tests.language.kernel import kernels

from megatile.language import tl
from megatile.plan.check import check
from megatile.plan.execute import execute
from megatile.sim import simulate


@pytest.mark.parametrize("kernel", [kernels.gemm, kernels.streamed_gemm])
@pytest.mark.parametrize(("m", "k", "n"), [(8, 8, 8), (5, 11, 9)])
def test_gemm(kernel, m, k, n):
    arguments = [
        tl.Tensor("a", (m, k), "f16", "input"),
        tl.Tensor("b", (k, n), "f16", "input"),
        tl.Tensor("c", (m, n), "f16", "output"),
        m,
        k,
        n,
    ]
    plan = tl.read_kernel(kernel, arguments, world_size=1, topology="none")
    check(plan)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((1, *shape)).astype("f2") for shape in ((m, k), (k, n)))
    result = execute(plan, {"a": a, "b": b})["c"]
    np.testing.assert_array_equal(result[0], (a[0].astype("f4") @ b[0].astype("f4")).astype("f2"))


@pytest.mark.parametrize("tile", [(4, 8, 8), (2, 3, 5), (64, 64, 64)])
@pytest.mark.parametrize("flat", [False, True])
def test_composites_on_parts_of_tensors(flat, tile):
    """Each unit multiplies its rows of a by all of the weights of unit 0, into the rows of its neighbour."""
    units, m, k, n = 3, 5, 11, 9

    def kernel(a_ptr, b_ptr, c_ptr, tl):
        rank = tl.program_id(0)
        a = tl.ref(a_ptr + rank * 2 * m * k * 2 + m * k * 2, (m, k))  # the lower half of my part
        b = tl.ref(b_ptr, (k, n))
        tl.composite(op="gemm", a=a, b=b, out_ptr=c_ptr + (rank + 1) % units * m * n * 2, tile=tile)

    shapes = {"a": (2 * m, k), "b": (k, n), "c": (m, n)}
    if flat:
        shapes = {name: (rows * columns,) for name, (rows, columns) in shapes.items()}
    roles = {"a": "input", "b": "input", "c": "output"}
    arguments = [tl.Tensor(name, shape, "f16", roles[name]) for name, shape in shapes.items()]
    plan = tl.read_kernel(kernel, arguments, world_size=units, topology="none")
    check(plan)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, (units, *shapes[name])).astype("f2") for name in "ab")
    result = execute(plan, {"a": a, "b": b})["c"].reshape(units, m, n)
    expected = a.reshape(units, 2 * m, k)[:, m:].astype("f4") @ b.reshape(units, k, n)[0].astype("f4")
    np.testing.assert_array_equal(result, np.roll(expected, 1, axis=0).astype("f2"))


@pytest.mark.parametrize("loaded", ["a", "b", "ab"])
def test_composites_use_loaded_operands_where_they_are(loaded):
    """KernBench's variants: each operand is loaded by the kernel, or streamed by the scheduler."""
    m, k, n = 10, 12, 9
    shapes = {"a": (m, k), "b": (k, n), "c": (m, n)}

    def kernel(a_ptr, b_ptr, c_ptr, tl):
        a = tl.load(a_ptr, shape=(m, k), dtype="f16") if "a" in loaded else tl.ref(a_ptr, (m, k))
        b = tl.load(b_ptr, shape=(k, n), dtype="f16") if "b" in loaded else tl.ref(b_ptr, (k, n))
        tl.composite(op="gemm", a=a, b=b, out_ptr=c_ptr, tile=(4, 4, 8))

    arguments = [tl.Tensor(name, shape, "f16") for name, shape in shapes.items()]
    plan = tl.read_kernel(kernel, arguments, world_size=1, topology="none")
    check(plan)
    copied = {tile.name for tile in plan.tiles}
    assert copied >= {f"{name}_tile" for name in "ab" if name not in loaded}
    assert not copied & {f"{name}_tile" for name in loaded}
    rng = np.random.default_rng(0)
    given = {name: rng.integers(-3, 4, (1, *shape)).astype("f2") for name, shape in shapes.items()}
    result = execute(plan, given)["c"][0]
    np.testing.assert_array_equal(result, given["a"][0] @ given["b"][0])


def test_composites_overlap_loads_and_products():
    """Two buffers per operand: a load of the next step is on its way while the first product ends."""
    arguments = [tl.Tensor(name, (64, 64), "f16") for name in "abc"]

    def kernel(a_ptr, b_ptr, c_ptr, tl):
        refs = {name: tl.ref(p, (64, 64)) for name, p in (("a", a_ptr), ("b", b_ptr))}
        tl.composite(op="gemm", **refs, out_ptr=c_ptr, tile=(64, 64, 16))

    plan = tl.read_kernel(kernel, arguments, world_size=1, topology="none")
    events = list(simulate(plan, machine="ahbm").trace)
    products = [e for e in events if e.operation == "gemm_add"]
    loads = [e for e in events if e.operation == "copy"]
    assert len(products) == 4
    assert any(load.start_ps < products[0].end_ps < load.end_ps for load in loads)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tile": (4, 4)}, r"takes tile=\(m, n, k\)"),
        ({"shape": (4, 4)}, "composite takes rows of tensor 'a', which have 8 elements, not 4"),
        ({"op": "conv"}, "there is no composite 'conv'"),
    ],
)
def test_composites_that_cannot_be(options, message):
    shape, op = options.get("shape", (4, 8)), options.get("op", "gemm")

    def kernel(a_ptr, tl):
        a = tl.ref(a_ptr, shape)
        tl.composite(
            op=op, a=a, b=tl.ref(a_ptr, (shape[1], 8)), out_ptr=a_ptr, tile=options.get("tile", (4, 4, 4))
        )

    with pytest.raises(tl.KernelError, match=message):
        tl.read_kernel(kernel, [tl.Tensor("a", (8, 8))], world_size=1, topology="none")
