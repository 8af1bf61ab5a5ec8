"""``language/tile/inference.py``: the layout of ``T.view(x)`` without one, from its uses."""

import numpy as np
import pytest
from tests.language.tile.shared import arrays

import megatile as mt
import megatile.language as T
from megatile.language.tile.errors import ProgramError


def viewed(body, shapes=((64, 16), (16, 32), (64, 32))):
    """A kernel whose two warp groups see tiles a, b and c through views."""

    @T.program
    def kernel(A: T.Tensor(shapes[0], "f32"), B: T.Tensor(shapes[1], "f32"), C: T.Tensor(shapes[2], "f32")):
        with T.Kernel(block=1, threads=256):
            a = T.alloc(shapes[0], "f32", level="l1")
            b = T.alloc(shapes[1], "f32", level="l1")
            c = T.alloc(shapes[2], "f32", level="l0")
            T.copy(a, A)
            T.copy(b, B)
            T.clear(c)
            with T.Scale("warpgroup") as w:
                body(a, b, c, w)
            T.copy(C, c)

    return kernel


def layouts(kernel) -> dict[str, str]:
    from megatile.ir.nodes import View, walk

    return {v.source: str(v.layout) for v in walk(kernel.build().body) if isinstance(v, View)}


def product_rows(a, b, c, w) -> None:
    T.gemm(T.view(a), T.view(b), T.view(c, layout=T.FullRow))


def product_columns(a, b, c, w) -> None:
    T.gemm(T.view(a), T.view(b), T.view(c), policy=T.GemmWarpPolicy.FullCol)


def product_from_a(a, b, c, w) -> None:
    T.gemm(T.view(a, layout=T.FullRow), T.view(b), T.view(c))


def product_inner(a, b, c, w) -> None:
    my_c = T.view(c)
    T.gemm(T.view(a, layout=T.FullCol), T.view(b), my_c)
    T.allreduce(my_c)


def product_by_extents(a, b, c, w) -> None:
    mine = T.alloc((64, 16), "f32", level="l0")
    T.clear(mine)
    T.gemm(T.view(a), T.view(b), mine)
    T.copy(T.view(c), mine)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (product_rows, ("Shard(0)", "Replicate", "Shard(0)")),
        (product_columns, ("Replicate", "Shard(1)", "Shard(1)")),
        (product_from_a, ("Shard(0)", "Replicate", "Shard(0)")),
        (product_inner, ("Shard(1)", "Shard(0)", "Partial")),
        (product_by_extents, ("Replicate", "Shard(1)", "Shard(1)")),
    ],
)
def test_products_say_how_their_views_are_divided(body, found) -> None:
    kernel = viewed(body)
    seen = [layout.replace("dim=", "") for layout in map(layouts(kernel).get, "abc")]
    assert all(got.startswith(want.rstrip(")")) for got, want in zip(seen, found, strict=True)), seen
    a, b = arrays((64, 16), (16, 32))
    c = np.zeros((64, 32), np.float32)
    mt.run(kernel, a, b, c)
    np.testing.assert_array_equal(c, a @ b)
    np.testing.assert_array_equal(mt.execute(kernel, a, b, 0 * c)["C"], a @ b)


def test_copies_elements_and_reductions_say_it() -> None:
    @T.program
    def kernel(A: T.Tensor((64, 16), "f32"), R: T.Tensor((64,), "f32")):
        with T.Kernel(block=1, threads=256):
            a = T.alloc((64, 16), "f32", level="l1")
            twice = T.alloc((64, 16), "f32", level="l0")
            total = T.alloc((64,), "f32", level="l0")
            T.copy(a, A)
            with T.Scale("warpgroup"):
                mine, my_total = T.view(twice), T.view(total)
                part = T.view(a, layout=T.FullRow)
                for i, j in T.Parallel(32, 16):
                    mine[i, j] = part[i, j] * 2.0
                T.reduce_sum(mine, my_total, dim=1)
            T.copy(R, total)

    (a,) = arrays((64, 16))
    r = np.zeros(64, np.float32)
    mt.run(kernel, a, r)
    np.testing.assert_array_equal(r, 2 * a.sum(1))


def no_evidence(a, b, c, w) -> None:
    T.clear(T.view(c))


def only_its_own_shape(a, b, c, w) -> None:
    mine = T.view(c)
    other = T.alloc(mine.shape, "f32", level="l0")
    T.copy(other, mine)


def several_ways(a, b, c, w) -> None:
    T.gemm(T.view(a), T.view(b), T.view(c))


@pytest.mark.parametrize("body", [no_evidence, only_its_own_shape, several_ways])
def test_views_whose_uses_do_not_say_it(body) -> None:
    with pytest.raises(
        ProgramError, match=r"T.view of '[abc]' at scale 'warpgroup' has no layout.*FullRow"
    ) as e:
        viewed(body).build()
    assert e.value.place is not None
    assert "T.view(" in str(e.value)
