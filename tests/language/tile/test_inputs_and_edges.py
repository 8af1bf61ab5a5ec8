"""What a newcomer trips over: copies in the other order, inputs, edges, parts of others, dtypes, limits."""

import warnings
from typing import Any

import numpy as np
import pytest
from tests.language.tile.shared import ones

import megatile as mt
import megatile.language as T
from megatile.core.dtypes import numpy_dtype
from megatile.core.errors import MegatileError
from megatile.core.operations import cast
from megatile.ir.parser import parse
from megatile.language.tile.errors import ProgramError, ProgramWarning
from megatile.plan.model import PlanError
from megatile.targets.interpret.errors import ArgumentError, OutOfBoundsError, RemoteAccessError

# --- the order of copies, and inputs ----------------------------------------------------------------


@T.program
def reversed_copies(A: T.Tensor((8, 8), "f32"), B: T.Tensor((8, 8), "f32")):
    with T.Kernel(block=1, threads=32):
        s = T.alloc_shared((8, 8), "f32")
        T.clear(s)
        T.copy(A[0, 0], s)
        T.copy(s, B[0, 0])


def test_an_argument_overwritten_by_a_tile_that_was_only_filled() -> None:
    with pytest.warns(ProgramWarning, match="T.copy overwrites tensor 'A' with 's'.*order looks reversed"):
        mt.run(reversed_copies, ones(8, 8), ones(8, 8))


def test_an_array_given_as_an_input_is_kept() -> None:
    a = ones(8, 8)
    with pytest.raises(ArgumentError, match=r"(?s)'A' is given as T.Input.*T.copy\(A\[0, 0\], s\)"):
        mt.run(reversed_copies, T.Input(a), ones(8, 8))
    assert (a == 1).all()


def test_an_argument_declared_as_input_is_not_written() -> None:
    @T.program
    def kernel(A: T.Input((8, 8), "f32"), B: T.Tensor((8, 8), "f32")):
        with T.Kernel(block=1, threads=32):
            s = T.alloc_shared((8, 8), "f32")
            T.clear(s)
            T.copy(A[0, 0], s)

    with pytest.raises(ProgramError, match=r"'A' is an input \(T.Input\) and is written"):
        mt.run(kernel, ones(8, 8), ones(8, 8))


def test_inputs_are_in_the_text() -> None:
    @T.program
    def kernel(A: T.Input((8, 8), T.float16), B: T.Tensor((8, 8), "f32")):
        with T.Kernel(block=1, threads=32):
            T.copy(B, A)

    program = kernel.build()
    assert "A: input[f16[8, 8]]" in str(program)
    assert parse(str(program)) == program
    out = np.zeros((8, 8), np.float32)
    mt.run(kernel, T.Input(np.full((8, 8), 2, np.float16)), out)
    assert (out == 2).all()


def test_a_program_whose_results_are_lost() -> None:
    @T.program
    def kernel(A: T.Tensor((8,), "f32")):
        with T.Kernel(block=1, threads=32):
            s = T.alloc_shared((8,), "f32")
            T.copy(s, A)

    with pytest.warns(ProgramWarning, match=r"nothing is written to any argument.*T.copy\(A, s\)"):
        mt.run(kernel, ones(8))


def test_writing_a_constant_is_not_a_mistake() -> None:
    @T.program
    def kernel(A: T.Tensor((8,), "f32")):
        with T.Kernel(block=1, threads=32):
            s = T.alloc_shared((8,), "f32")
            T.clear(s)
            T.copy(A, s)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mt.run(kernel, ones(8))


# --- edges ------------------------------------------------------------------------------------------


@T.program
def tiles_of_four(A: T.Tensor((6, 8), "f32"), B: T.Tensor((16, 8), "f32"), C: T.Tensor((5, 8), "f32")):
    with T.Kernel(block=4, threads=32) as b:
        t = T.alloc_fragment((4, 8), "f32")
        T.copy(t, A[b * 4, 0])
        T.copy(B[b * 4, 0], t)
        T.copy(C[b * 4, 0], t)


def test_a_tile_entirely_outside_is_zero_and_is_not_written() -> None:
    b, c = np.full((16, 8), 9, np.float32), np.full((5, 8), 9, np.float32)
    mt.run(tiles_of_four, ones(6, 8), b, c)
    np.testing.assert_array_equal(b[:, 0], [1] * 6 + [0] * 10)
    np.testing.assert_array_equal(c[:, 0], [1] * 5)


def test_strict_bounds_refuse_it() -> None:
    with pytest.raises(OutOfBoundsError, match=r"'A\[8:12\]' lies entirely outside"):
        mt.run(tiles_of_four, ones(6, 8), ones(16, 8), ones(5, 8), strict_bounds=True)


@T.program
def slices_of_four(A: T.Tensor((6,), "f32"), B: T.Tensor((8,), "f32")):
    with T.Kernel(block=2, threads=32) as b:
        t = T.alloc_fragment((4,), "f32")
        T.copy(t, A[b * 4 : b * 4 + 4])
        T.copy(B[b * 4], t)


def test_a_slice_over_the_edge_is_padded_and_noted_once() -> None:
    out = np.full(8, 9, np.float32)
    with pytest.warns(ProgramWarning, match=r"'A\[4:8\]' is out of bounds.*padded with zeros") as noted:
        mt.run(slices_of_four, ones(6), out)
    assert len(noted) == 1
    np.testing.assert_array_equal(out, [1] * 6 + [0] * 2)
    with pytest.raises(OutOfBoundsError, match=r"'A\[4:8\]' is out of bounds"):
        mt.run(slices_of_four, ones(6), out, strict_bounds=True)


def test_tiles_end_where_they_end() -> None:
    @T.program
    def kernel(A: T.Tensor((4,), "f32")):
        with T.Kernel(block=1, threads=32):
            t = T.alloc_shared((6,), "f32")
            T.clear(t)
            for k in T.serial(2):
                T.copy(A, t[4 * k : 4 * k + 4])

    with pytest.raises(OutOfBoundsError, match=r"'t\[4:8\]' is out of bounds"):
        mt.run(kernel, ones(4))


# --- parts of other devices ---------------------------------------------------------------------------


def neighbours(element: bool, gathered: bool) -> Any:
    @T.program
    def kernel(A: T.Tensor((4, 8), "f32"), B: T.Tensor((4, 8), "f32")):
        with T.Kernel(device=4, block=1, threads=32):
            with T.Scale("device") as (d, n):
                v, w = T.view(A, layout=T.FullRow), T.view(B, layout=T.FullRow)
                if gathered:
                    T.allgather(v)
                with T.Scale("block"):
                    t = T.alloc((1, 8), "f32")
                    if element:
                        for i in T.Parallel(8):
                            t[0, i] = A[(d + 1) % n, i]
                    else:
                        T.copy(t, A[(d + 1) % n, 0])
                    T.copy(w, t)

    return kernel


@pytest.mark.parametrize("element", [False, True])
def test_the_part_of_another_device_is_not_ones_own(element: bool) -> None:
    a, b = np.arange(32, dtype=np.float32).reshape(4, 8), ones(4, 8)
    with pytest.raises(RemoteAccessError, match="touches 'A' at .* in the part of another device.*src=rank"):
        mt.run(neighbours(element, gathered=False), a, b)
    mt.run(neighbours(element, gathered=True), a, b)
    np.testing.assert_array_equal(b, np.roll(a, -1, axis=0))


# --- limits and names -----------------------------------------------------------------------------------


def test_implementations_have_names() -> None:
    def kernel(name: str) -> Any:
        @T.program
        def copies(A: T.Tensor((8,), "f32")):
            with T.Kernel(block=1, threads=128):
                t = T.alloc_fragment((8,), "f32")
                T.copy(t, A, impl=name)
                T.copy(A, t)

        return copies

    with pytest.raises(MegatileError, match="there is no implementation 'banana' of copy.*copy_engine"):
        mt.run(kernel("banana"), ones(8))
    with pytest.raises(MegatileError, match="did you mean 'tma'"):
        mt.run(kernel("tmA"), ones(8))
    mt.run(kernel("tma"), ones(8))


def test_advice_for_tiles_has_an_index_for_each_dimension() -> None:
    @T.program
    def kernel(A: T.Tensor((8, 4), "f32")):
        with T.Kernel(block=1, threads=128):
            T.fill(A, T.exp(A))

    with pytest.raises(ProgramError, match=r"for i, j in T.Parallel\(8, 4\): ... A\[i, j\] ..."):
        mt.run(kernel, ones(8, 4))


def test_a_run_prints_as_one_line() -> None:
    out = np.zeros((16, 8), np.float32)
    text = str(mt.run(tiles_of_four, ones(6, 8), out, ones(5, 8)))
    assert "\n" not in text
    assert text.startswith("<run of 'tiles_of_four' on dgx-h100: ")


@pytest.mark.parametrize("word", ["check", "execute", "launch", "simulate", "price"])
def test_nothing_is_not_a_plan(word: str) -> None:
    more = {"machine": "dgx-h100"} if word in ("simulate", "price") else {}
    with pytest.raises(PlanError, match=f"mt.{word} takes a Plan.*not NoneType"):
        getattr(mt, word)(None, **more)


def test_programs_over_edges_are_taken_where_plans_are() -> None:
    inputs = np.arange(48, dtype=np.float32).reshape(6, 8)
    expected = [inputs.copy(), np.full((16, 8), 9, np.float32), np.full((5, 8), 9, np.float32)]
    given = [array.copy() for array in expected]
    compiled = [array.copy() for array in expected]
    mt.run(tiles_of_four, *expected)
    mt.check(tiles_of_four, machine="dgx-h100")
    found = mt.execute(tiles_of_four, *given, machine="dgx-h100")
    mt.launch(tiles_of_four, *compiled, machine="dgx-h100", processes=2)
    assert set(found) >= {"B", "C"}
    for name, array, other in zip("ABC", expected, compiled, strict=True):
        np.testing.assert_array_equal(np.reshape(found.get(name, array), array.shape), array)
        np.testing.assert_array_equal(other, array)
    timed = mt.simulate(tiles_of_four, *given, machine="dgx-h100")
    bounds = mt.price(tiles_of_four, *given, machine="dgx-h100")
    assert bounds.lower_ps <= timed.time_ps <= bounds.upper_ps


# --- dtypes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["u16", "u32", "u64", "i4", "u4", "f4e2m1", "e8m0", "tf32"])
def test_every_dtype_is_stored_and_converted(name: str) -> None:
    @T.program
    def kernel(A: T.Tensor((8,), "f32"), B: T.Tensor((8,), name), C: T.Tensor((8,), "f32")):
        with T.Kernel(block=1, threads=32):
            t = T.alloc_shared((8,), name)
            T.copy(t, A)
            T.copy(B, t)
            for i in T.Parallel(8):
                C[i] = T.cast(t[i], "f32") + 1

    a = np.array([1, 2, 4, 0.5, 6, 2.0001, 1, 2], np.float32)
    b, c = np.zeros(8, numpy_dtype(name)), np.zeros(8, np.float32)
    mt.run(kernel, a, b, c)
    np.testing.assert_array_equal(b, cast(a, name))
    np.testing.assert_array_equal(c, cast(a, name).astype(np.float32) + 1)


def test_dtypes_as_objects() -> None:
    assert T.float16 == "f16"
    assert T.float8_e4m3fn == T.float8_e4m3 == "f8e4m3"
    assert T.Tensor((4,), T.bfloat16).dtype == "bf16"

    @T.program
    def kernel(A: T.Tensor((8,), T.float32)):
        with T.Kernel(block=1, threads=32):
            t = T.alloc_fragment((8,), T.float16)
            T.fill(t, T.float16(2049))  # which f16 does not have
            for i in T.Parallel(8):
                A[i] = T.float32(t[i]) / 2

    a = ones(8)
    mt.run(kernel, a)
    assert (a == 1024).all()


def test_tf32_rounds_to_ten_bits() -> None:
    x = np.array([1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-10, np.inf, np.nan, -3e38], np.float32)
    expected = np.array([1, 1 + 2**-9, 1 + 2**-10, np.inf, np.nan, -3e38], np.float32)
    np.testing.assert_allclose(cast(x, "tf32"), expected, rtol=2**-11)
    np.testing.assert_array_equal(cast(x, "tf32")[:3], expected[:3])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: T.program(3), "a program is made of a function, not of int"),
        (lambda: T.Tensor((4, "x"), "f32"), "'x' is not an extent of a tensor"),
        (lambda: shard_in_order("backwards"), r"T.Shard\(order='backwards'\) of 'A'"),
        (lambda: mt.run(many_blocks, ones(8)), "instances of 'block' are more than"),
    ],
)
def test_what_is_not_taken(make: Any, message: str) -> None:
    with pytest.raises(MegatileError, match=message):
        make()


def shard_in_order(order: str) -> None:
    @T.program
    def kernel(A: T.Tensor((8, 8), "f32")):
        with T.Kernel(device=2), T.Scale("device"):
            T.clear(T.view(A, layout=T.Shard(0, order=order)))

    kernel.build()


@T.program
def many_blocks(A: T.Tensor((8,), "f32")):
    with T.Kernel(block=(100_000, 100_000), threads=32):
        T.clear(A)
