"""``tl`` kernels: read into a Plan and executed, run in the mock, and plain NumPy all agree."""

from __future__ import annotations

import numpy as np
import pytest
from tests.language.kernel import kernels

from megatile.core.expr import member, unit
from megatile.language import tl
from megatile.language.kernel.directions import counted
from megatile.language.kernel.mock import run_kernel_in_mock
from megatile.plan.check import check
from megatile.plan.execute import execute
from megatile.plan.model import Plan, statements
from megatile.sim import simulate


def numbers(units, elements, dtype="f2"):
    return np.random.default_rng(units).integers(-3, 4, (units, elements)).astype(dtype)


def sum_everywhere(x):
    return np.broadcast_to(x.sum(axis=0), x.shape)


def hypercube(units):
    return counted(max(1, units.bit_length() - 1), unit ^ (1 << member))


KERNELS = {
    "hello_send": (
        kernels.hello_send,
        lambda n: (),
        "ring_1d",
        (1, 2, 5, 8),
        lambda x: np.roll(x, 1, axis=0),
    ),
    "naive_ring": (kernels.naive_ring, lambda n: (n,), "ring_1d", (1, 2, 3, 8), sum_everywhere),
    "async_ring": (kernels.async_ring, lambda n: (n,), "ring_1d", (2, 5), sum_everywhere),
    "chunked_ring": (kernels.chunked_ring, lambda n: (n,), "ring_1d", (2, 4, 8), sum_everywhere),
    "two_way_ring": (kernels.two_way_ring, lambda n: (n,), "ring_1d", (2, 5), sum_everywhere),
    "tree": (kernels.tree, lambda n: (n,), "tree_binary", (1, 2, 7, 12), sum_everywhere),
    "mesh": (kernels.mesh, lambda n: (int(n**0.5),), "mesh_2d_no_wrap", (4, 9, 16), sum_everywhere),
    "halving_doubling": (
        kernels.halving_doubling,
        lambda n: (n.bit_length() - 1,),
        hypercube,
        (2, 4, 8),
        sum_everywhere,
    ),
    "copy_to_destination": (
        kernels.copy_to_destination,
        lambda n: (0xC0FFEE0000,),
        "ring_1d",
        (2, 4),
        lambda x: np.roll(x, 1, axis=0),
    ),
    "from_anywhere": (
        kernels.from_anywhere,
        lambda n: (),
        "ring_1d",
        (3, 4),
        lambda x: np.roll(x, 1, axis=0) + np.roll(x, -1, axis=0),
    ),
}
CASES = [(name, n) for name, entry in KERNELS.items() for n in entry[3]]
ELEMENTS = 16


def read(name, units, **options):
    kernel, extra, topology, _, _ = KERNELS[name]
    wires = topology(units) if callable(topology) else topology
    arguments = [tl.Tensor("t", (ELEMENTS,)), ELEMENTS, *extra(units)]
    return tl.read_kernel(kernel, arguments, world_size=units, topology=wires, **options)


@pytest.mark.parametrize(("name", "units"), CASES)
def test_plan_mock_and_numpy_agree(name, units):
    kernel, extra, topology, _, meaning = KERNELS[name]
    x = numbers(units, ELEMENTS)
    expected = meaning(x)
    plan = read(name, units)
    check(plan)
    np.testing.assert_array_equal(execute(plan, {"t": x})["t"], expected)
    wires = topology(units) if callable(topology) else topology
    mock = run_kernel_in_mock(kernel, units, wires, list(x), (ELEMENTS, *extra(units)))
    np.testing.assert_array_equal(np.stack(mock), expected)
    assert Plan.from_text(str(plan)) == plan


@pytest.mark.parametrize("name", ["hello_send", "naive_ring", "tree"])
def test_size_of_a_plan_does_not_depend_on_the_number_of_units(name):
    small, large = read(name, 8), read(name, 4096)
    assert len(small.streams) == len(large.streams) == 1
    count = [sum(1 for _ in statements(p.streams[0].body)) for p in (small, large)]
    assert count[0] == count[1]


def test_mesh_and_halving_doubling_are_one_class_of_constant_length():
    for name, sizes in (("mesh", (9, 64)), ("halving_doubling", (4, 8))):
        plans = [read(name, n) for n in sizes]
        assert [len(p.streams) for p in plans] == [1, 1]
        assert len({sum(1 for _ in statements(p.streams[0].body)) for p in plans}) == 1


def test_two_axes_of_program_id():
    plan = tl.read_kernel(kernels.hello_send, [tl.Tensor("t", (4,)), 4], grid=(4, 2))
    x = numbers(8, 4)
    np.testing.assert_array_equal(execute(plan, {"t": x})["t"], np.roll(x, 1, axis=0))
    mock = run_kernel_in_mock(kernels.hello_send, 8, "ring_1d", list(x), (4,), pes_per_cube=4)
    np.testing.assert_array_equal(np.stack(mock), np.roll(x, 1, axis=0))
    # The address is recognised as the unit's own, so no access leaves the unit.
    assert all(r.at is None for s in plan.streams[0].body for r in (getattr(s, "reads", ()) or ()))


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


def test_scratch_that_is_used_again_does_not_leak():
    """A tile read late keeps its value although the same line made newer ones meanwhile."""

    def kernel(t_ptr, tl):
        x = tl.load(t_ptr + tl.program_id(0) * 4, (2,))
        first = second = x
        for step in range(5):
            first, second = x + step, first
        tl.store(t_ptr + tl.program_id(0) * 4, first * 10 + second)

    plan = tl.read_kernel(kernel, [tl.Tensor("t", (2,))], world_size=2, topology="none")
    x = numbers(2, 2)
    np.testing.assert_array_equal(execute(plan, {"t": x})["t"], (x + 4) * 10 + x + 3)
