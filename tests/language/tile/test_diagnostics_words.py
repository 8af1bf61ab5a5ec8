"""Words of the language used with what they do not take: each is refused with what to write instead."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.language.tile.refusals import Refusals, check_refused

import megatile as mt
import megatile.language as T
from megatile.core.errors import MegatileError
from megatile.language.tile.errors import ProgramError
from megatile.targets.interpret.errors import RunError

refused = Refusals()


# --- collectives ----------------------------------------------------------------------------------


@refused(r"T.allreduce has no operand.*T.allreduce\(x\)", "T.allreduce(")
def sum_of_nothing(A, B):
    with T.Kernel(device=2), T.Scale("device"):
        T.allreduce()


@refused(r"function of T.allreduce returns 1 values for 2 tiles.*one value for each tile", "T.allreduce(")
def merge_of_too_few(A, B):
    with T.Kernel(device=2), T.Scale("device"):
        x, y = T.alloc((4,), "f32", level="l2"), T.alloc((4,), "f32", level="l2")
        T.allreduce(x, y, fn=lambda a, b: a[0])


@refused(r"function of T.allreduce takes two arguments.*def merge\(left, right\)", "T.allreduce(")
def merge_of_one(A, B):
    with T.Kernel(device=2), T.Scale("device"):
        x = T.alloc((4,), "f32", level="l2")
        T.allreduce(x, fn=lambda a: a)


@refused(r"T.allgather\(x\) needs a view whose layout shares elements out.*T.allgather\(out, x\)")
def gather_of_a_tile(A, B):
    with T.Kernel(device=2), T.Scale("device"):
        x = T.alloc((4,), "f32", level="l2")
        T.allgather(x)


@refused(r"T.reduce_scatter\(x\) needs a view with layout=T.Partial\(op\).*T.reduce_scatter\(out, x\)")
def scatter_of_a_tile(A, B):
    with T.Kernel(device=2), T.Scale("device"):
        x = T.alloc((4,), "f32", level="l2")
        T.reduce_scatter(x)


# --- launch, loops --------------------------------------------------------------------------------


@refused(r"T.Kernel with plain numbers and block=.*block=\(gx, gy\)", "T.Kernel(4, block=2)")
def plain_and_named_blocks(A, B):
    with T.Kernel(4, block=2):
        pass


@refused(r"T.Kernel without scales.*T.Kernel\(block=64", "T.Kernel()")
def empty_launch(A, B):
    with T.Kernel():
        pass


@refused(r"a loop takes \(stop\), \(start, stop\) or .*not 0 numbers.*T.serial\(n\)", "T.serial()")
def loop_of_nothing(A, B):
    with T.Kernel(block=1):
        for k in T.serial():
            T.clear(A)


@refused(r"a loop with step 0 never ends.*at least 1", "T.serial(0, 4, 0)")
def loop_without_step(A, B):
    with T.Kernel(block=1):
        for k in T.serial(0, 4, 0):
            T.clear(A)


@refused(r"a loop counts in whole numbers, not to 2.5 .*n // m", "T.Pipelined(5 / 2)")
def loop_of_a_fraction(A, B):
    with T.Kernel(block=1):
        for k in T.Pipelined(5 / 2):
            T.clear(A)


@refused(r"T.Parallel needs at least one extent.*T.Parallel\(m, n\)", "T.Parallel()")
def parallel_of_nothing(A, B):
    with T.Kernel(block=1):
        for _ in T.Parallel():
            A[0, 0] = 1.0


@refused(r"range\(0, 10+\) would be unrolled, more than 65536 rounds.*T.serial", "for _ in range(10**30):")
def endless():
    with T.Kernel(block=2):
        x = T.alloc((4,), "f32")
        for _ in range(10**30):
            T.clear(x)


@refused(r"a number cannot be looped over.*for k in T.serial", "for k in bx:")
def loop_over_a_number(A, B):
    with T.Kernel(block=(4, 2)) as (bx, by):
        for k in bx:
            T.clear(A)


@refused(r"'x' changes its kind in a loop.*keep it a number")
def loop_that_changes_a_kind(A, B):
    with T.Kernel(block=1) as bx:
        x = 1
        for k in T.serial(4):
            T.fill(A, x)
            x = T.alloc((4,), "f32")


# --- tiles, views and regions ---------------------------------------------------------------------


@refused(r"layout='rows' is not a layout.*T.FullRow", "T.view(A, layout='rows')")
def layout_by_name(A, B):
    with T.Kernel(device=2), T.Scale("device"):
        T.view(A, layout='rows')  # fmt: skip


@refused(r"T.view needs a tensor, a tile or a view.*T.view\(A, layout", "T.view(A[0:4, :]")
def view_of_a_region(A, B):
    with T.Kernel(device=2), T.Scale("device"):
        T.view(A[0:4, :], layout=T.FullRow)


@refused(r"T.Shard\(axis=1\): the scale has 1 dimensions.*a tuple of extents", "T.Shard(0, axis=1)")
def shard_of_a_missing_axis(A, B):
    with T.Kernel(device=2), T.Scale("device"):
        T.view(A, layout=T.Shard(0, axis=1))


@refused(r"the owner function fails: IndexError.*called while building", "T.view(A")
def owner_that_fails(A, B):
    table = [0, 1]
    with T.Kernel(device=2), T.Scale("device"):
        T.view(A, layout=lambda i, j: table[i])


@refused(r"the owner function fails: ZeroDivisionError", "T.view(A")
def owner_that_divides_by_zero(A, B):
    with T.Kernel(device=2), T.Scale("device"):
        T.view(A, layout=lambda i, j: 1 // 0)


@refused(r"T.copy of a flag.*T.signal and T.wait")
def copy_of_a_flag(A, B):
    with T.Kernel(block=2), T.Scale("block") as (r, n):
        flag = T.alloc((1,), "i32")
        T.signal(flag[0], dst=0)
        T.copy(A[0, 0], flag)


@refused(r"T.cumsum: dim=2, but 'A' \(16, 16\) has 2 dimensions.*count from 0")
def running_sum_over_nothing(A, B):
    with T.Kernel(block=1):
        T.cumsum(A, B, dim=2)


@refused(r"T.atomic_add needs one element.*T.atomic_add\(x\[i, j\], value\)")
def atomic_of_a_row(A, B):
    with T.Kernel(block=1):
        T.atomic_add(A[0, :], 1.0)


@refused(r"T.wait needs one flag.*T.wait\(flag\[i\]")
def wait_for_several(A, B):
    with T.Kernel(block=1):
        flags = T.alloc((4,), "i32")
        T.wait(flags, 1)


@refused(r"T.gemm: B is 'b' \(16\), not a matrix.*two extents")
def product_with_a_vector(A, B):
    with T.Kernel(block=1):
        b = T.alloc((16,), "f32")
        T.gemm(A, b, B)


@refused(r"destination of T.clear must be a tile or a region of one, not int", "T.clear(4)")
def clear_a_number(A, B):
    with T.Kernel(block=1):
        T.clear(4)


@refused(r"A of T.gemm is the anchor 'A\[...\]', which has no extents of its own.*A\[i:i\+n, :\]")
def product_of_an_anchor(A, B):
    with T.Kernel(block=1):
        T.gemm(A[0, 0], B, B)


@refused(r"the anchor 'x\[...\]' has 1 dimensions, 'A' \(16, 16\) has more.*index every dimension")
def anchor_of_too_few(A, B):
    with T.Kernel(block=1):
        x = T.alloc((16,), "f32")
        T.copy(x[0], A)


@refused(r"'one' is not a number of the program.*numbers, indices and tile elements")
def fill_with_text(A, B):
    with T.Kernel(block=1):
        T.fill(A, "one")


@refused(r"'A' cannot be looped over.*T.Parallel or T.serial")
def loop_over_a_tensor(A, B):
    with T.Kernel(block=1):
        for row in A:
            T.clear(row)


@refused(r"T.clear is a slice of 'A' with a step.*copy it into a tile first", "A[0:16:2, :]")
def slice_with_a_stride(A, B):
    with T.Kernel(block=1):
        T.clear(A[0:16:2, :])


@refused(r"T.copy of a slice with a step to or from another unit.*copy it into a tile first", "A[::2, :]")
def put_of_a_slice_with_a_step(A, B):
    with T.Kernel(device=2, block=1), T.Scale("device"):
        t = T.alloc((8, 16), "f32", level="l2")
        T.copy(t, A[::2, :], dst=0)


@refused(r"'A\[...\]' with a step.*':' for every dimension", "A[::2, ...]")
def step_and_ellipsis(A, B):
    with T.Kernel(block=1):
        T.copy(B, A[::2, ...])


@refused(r"'A' is sliced with step -1.*whole numbers from 1", "A[::-1, :]")
def slice_with_a_negative_step(A, B):
    with T.Kernel(block=1):
        T.copy(B, A[::-1, :])


@refused(r"the slice of dimension 0 of 'A' has length -4.*x\[low:high\]", "A[8:4, :]")
def slice_backwards(A, B):
    with T.Kernel(block=1):
        T.clear(A[8:4, :])


@refused(r"'A\[...\]' is a region, and one value is assigned to it.*T.fill\(A\[...\]", "A[0, :] = 1.0")
def value_to_a_region(A, B):
    with T.Kernel(block=1):
        A[0, :] = 1.0


# --- Python in a kernel ---------------------------------------------------------------------------


@refused(r"a kernel cannot be asynchronous")
def asynchronous(A, B):
    async def later():
        pass


@refused(r"a kernel cannot be a generator.*write a loop", "yield A")
def generator(A, B):
    with T.Kernel(block=1):
        yield A


@refused(r"a function inside a kernel cannot have decorators.*define it outside", "def inner(x):")
def decorated(A, B):
    @staticmethod
    def inner(x):
        return x


@refused(r"'for ... else' is not supported.*after the loop")
def for_else(A, B):
    with T.Kernel(block=1):
        for k in T.serial(4):
            T.clear(A)
        else:
            T.clear(B)


@refused(r"'while ... else' is not supported.*after the loop")
def while_else(A, B):
    while False:
        T.clear(A)
    else:
        T.clear(B)


@refused(r"'locals\(\)' has no meaning in a kernel.*name what you need", "locals()")
def looks_at_locals(A, B):
    with T.Kernel(block=1):
        print(locals())


@refused(r"np.maximum of a value known only when the program runs.*write T.max", "np.maximum")
def maximum_of_numpy(A, B):
    with T.Kernel(block=1):
        for i in T.Parallel(16):
            A[i, 0] = np.maximum(B[i, 0], 0)


@refused(r"a tile has no '.fill'.*write T.fill\(...\)", "A.fill(3)")
def method_of_a_tile(A, B):
    with T.Kernel(block=1):
        A.fill(3)


@refused(r"a tile has no '.strides'.*tiles have shape", "A.strides")
def attribute_of_a_tile(A, B):
    with T.Kernel(block=1):
        T.fill(A, A.strides[0])


@refused(r"'A' @ ... of whole tiles.*T.gemm\(A, B, C\)", "A @ B")
def matrix_product_of_python(A, B):
    with T.Kernel(block=1):
        C = A @ B


@refused(r"KeyError: 'width'.*Python runs this line while building", "{}")
def python_error(A, B):
    with T.Kernel(block=1):
        T.fill(A, {}["width"])


@pytest.mark.parametrize(("body", "message", "line"), refused.cases)
def test_refused(body: Callable[..., Any], message: str, line: str) -> None:
    check_refused(body, message, line)


# --- the rest -------------------------------------------------------------------------------------


def test_a_symbol_is_a_name() -> None:
    with pytest.raises(ProgramError, match=r"T.dynamic\('2 M'\).*T.dynamic\('M'\)"):
        T.dynamic("2 M")


def test_a_lambda_is_not_a_kernel() -> None:
    with pytest.raises(
        MegatileError, match="cannot read '<lambda>': |a kernel is a function written with 'def'"
    ):
        T.program(lambda: T.clear(0)).build()  # fmt: skip


def test_words_outside_a_kernel_name_the_users_line() -> None:
    with pytest.raises(ProgramError, match="a tile operation outside a kernel") as caught:
        T.alloc((4,), "f32")
    assert caught.value.place.file == __file__
    assert 'T.alloc((4,), "f32")' in str(caught.value)
    trace = caught.value.__traceback__
    assert trace.tb_next is not None and trace.tb_next.tb_next is None  # one frame: the word itself
    with pytest.raises(ProgramError, match="T.Parallel outside a kernel") as caught:
        list(T.Parallel(4))
    assert caught.value.place.file == __file__


def test_algorithms_are_known_and_fit() -> None:
    def gather(algorithm: str) -> Any:
        @T.program
        def p(A: T.Tensor((4,), "f32")):
            with T.Kernel(device=2), T.Scale("device") as (r, n):
                x, whole = T.alloc((2,), "f32", level="l2"), T.alloc((4,), "f32", level="l2")
                T.fill(x, r)
                T.allgather(whole, x, algorithm=algorithm)
                if r == 0:
                    T.copy(A, whole)

        return p

    a = np.zeros(4, np.float32)
    mt.run(gather("ring"), a)
    np.testing.assert_array_equal(a, [0, 0, 1, 1])
    with pytest.raises(
        RunError, match=r"(?s)T.allgather: there is no algorithm 'rign'.*did you mean 'ring'.*\^"
    ):
        mt.run(gather("rign"), a)
    with pytest.raises(RunError, match=r"the algorithm 'double_tree' does another collective.*one of .*ring"):
        mt.run(gather("double_tree"), a)
