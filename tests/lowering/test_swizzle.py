"""Factors of products are swizzled: the simulator counts turns in banks with the layout of the CUDA text."""

import pytest

import megatile as mt
import megatile.language as T
from megatile.lowering.explain import figures
from megatile.lowering.swizzle import exchanged, swizzled


def product(depth: int = 64, by_atomics: bool = False, divided: bool = False):
    @T.program
    def program(
        A: T.Tensor((64, depth), "f16"), B: T.Tensor((depth, 64), "f16"), C: T.Tensor((64, 64), "f32")
    ):
        with T.Kernel(block=1, threads=128):
            a = T.alloc((64, depth), "f16", level="l1")
            b = T.alloc((depth, 64), "f16", level="l1")
            c = T.alloc((64, 64), "f32")
            T.copy(a, A[0, 0])
            T.copy(b, B[0, 0])
            if divided:
                with T.Scale("warp"):
                    T.clear(T.view(a, layout=lambda i, j: i % 4))
            if by_atomics:
                T.atomic_add(a[0, 0], 0.0)
            T.gemm(a, b, c, clear_accum=True)
            T.copy(C[0, 0], c)

    return program


@pytest.mark.parametrize(
    ("program", "found"),
    [
        (product(), {"a", "b"}),
        (product(48), {"b"}),  # rows of 96 bytes are no power of two
        (product(by_atomics=True), {"b"}),
        (product(divided=True), {"b"}),  # as others divide it
    ],
)
def test_what_is_swizzled_has_no_turns(program, found):
    built = program.build()
    assert swizzled(built) == found
    conflicts = {tile for _, tile, _ in figures(mt.lower(program, machine="hgx-a100")).conflicts.values()}
    assert not conflicts & found
    if "atomic" in str(built):
        assert conflicts == {"a"}


@pytest.mark.parametrize(("pitch", "width"), [(16, 2), (64, 2), (128, 2), (64, 1), (256, 4)])
def test_chunks_change_places(pitch, width):
    """Each element has its own place, in its row; eight rows of 16 bytes are in different banks."""
    places = [exchanged(at, pitch, width) for at in range(32 * pitch)]
    assert sorted(places) == list(range(32 * pitch))
    line = max(pitch, 128 // width)
    assert all(at // line == place // line for at, place in enumerate(places))
    banks = {places[row * pitch] * width % 128 // 16 for row in range(8)}
    assert len(banks) == 8
