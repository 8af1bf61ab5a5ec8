"""What is refused while building: message, advice, and the user's line with a caret."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.language.tile.refusals import Refusals, check_refused

import megatile.language as T

refused = Refusals()


@refused(r"there is no T.allocate .*did you mean 'alloc'\?", "T.allocate(")
def unknown_word(A, B):
    with T.Kernel(block=1):
        T.allocate((4,), "f32")


@refused(r"T.gemm has no argument 'trans_B' .*did you mean 'transpose_B'\?", "T.gemm(")
def unknown_argument(A, B):
    with T.Kernel(block=1):
        T.gemm(A, A, B, trans_B=True)


@refused(r"T.alloc has no argument 'scope' .*its arguments are shape, dtype, level", "T.alloc(")
def unlike_any_argument(A, B):
    with T.Kernel(block=1):
        T.alloc((4,), "f32", scope="shared")


@refused(r"T.copy missing 1 required positional argument: 'source' .*write T.copy\(to, source", "T.copy(A)")
def missing_argument(A, B):
    with T.Kernel(block=1):
        T.copy(A)


@refused(r"np.exp of a value known only when the program runs .*write T.exp", "np.exp(")
def numpy_function(A, B):
    with T.Kernel(block=1):
        for i in T.Parallel(16):
            A[i, 0] = np.exp(B[i, 0])


@refused(r"3 names for 2 values .*as many names as there are values", "as (x, y, z)")
def too_many_coordinates(A, B):
    with T.Kernel(block=(2, 2)) as (x, y, z):
        pass


@refused(r"the owner function does not take 2 indices .*lambda i, j:", "lambda i: i")
def owner_of_one_index(A, B):
    with T.Kernel(device=2), T.Scale("device"):
        T.view(A, layout=lambda i: i // 8)


@refused(r"there is no scale 'blok'.*did you mean 'block'\?", "T.Kernel(blok=4)")
def unknown_keyword(A, B):
    with T.Kernel(blok=4):
        pass


@refused(r"there is no scale 'warpgrp'.*did you mean 'warpgroup'", 'T.Scale("warpgrp")')
def unknown_scale(A, B):
    with T.Kernel(block=1), T.Scale("warpgrp"):
        pass


@refused(r"T.Scale\(\"device\"\) inside scale 'block', which is not larger")
def scale_outwards(A, B):
    with T.Kernel(device=2, block=1):
        with T.Scale("block"):
            with T.Scale("device"):
                pass


@refused(
    r"this launch has no 'warpgroup': .* do not divide|this launch has no 'warpgroup'", 'T.Scale("warpgroup")'
)
def no_whole_warp_group(A, B):
    with T.Kernel(block=1, threads=96):
        with T.Scale("warpgroup"):
            pass


@refused(r"scale 'device' is given twice", "T.Kernel(device=2, gpu=2)")
def scale_twice(A, B):
    with T.Kernel(device=2, gpu=2):
        pass


@refused(r"block=0.*whole numbers from 1")
def no_blocks(A, B):
    with T.Kernel(block=0):
        pass


@refused(r"16 instances of 'device' asked for, but there are 8")
def too_many_devices(A, B):
    with T.Kernel(device=16):
        pass


@refused(r"a second T.Kernel in one program")
def two_kernels(A, B):
    with T.Kernel(block=1):
        pass
    with T.Kernel(block=1):
        pass


@refused(r"outside the launch.*with T.Kernel", "T.clear(A)")
def no_kernel(A, B):
    T.clear(A)


@refused(
    r"a rank or coordinate of scale 'block' is used at scale 'device'.*inside with T.Scale\(\"block\"\)",
    "T.fill(x, bx)",
)
def coordinate_too_early(A, B):
    with T.Kernel(device=2, block=4) as bx:
        with T.Scale("device"):
            x = T.view(A, layout=T.FullRow)
            T.fill(x, bx)


@refused(r"'x' is a view of scale 'warpgroup', used at scale 'block'.*use 'a' here", "T.copy(A[0, 0], x)")
def view_outside_its_scale(A, B):
    with T.Kernel(block=1, threads=256):
        a = T.alloc((16, 16), "f32")
        with T.Scale("warpgroup"):
            x = T.view(a, layout=T.FullRow)
        T.copy(A[0, 0], x)


@refused(r"'t' lived in a block that has finished")
def tile_of_a_finished_block(A, B):
    with T.Kernel(block=1):
        with T.Scale("block"):
            t = T.alloc((16, 16), "f32")
            T.clear(t)
        with T.Scale("block"):
            T.copy(A, t)


@refused(r"'dev' has no memory|has no memory 'l9'", 'level="l9"')
def unknown_memory(A, B):
    with T.Kernel(block=1):
        T.alloc((4,), "f32", level="l9")


@refused(r"'l2_cache' is a cache: nothing can be allocated in it.*device memory")
def cache(A, B):
    with T.Kernel(block=1):
        T.alloc((4,), "f32", level="l2_cache")


@refused(
    r"the tiles of one block need 4 MiB of 'shared', but there are 227 KiB.*smaller tiles",
    "T.alloc((1024, 1024)",
)
def too_large(A, B):
    with T.Kernel(block=1):
        T.alloc((1024, 1024), "f32", level="l1")


@refused(r"need 288 KiB of 'registers', but there are 256 KiB", "C = T.alloc")
def too_large_together(A, B):
    with T.Kernel(block=1):
        T.alloc((128, 64), "f32")
        C = T.alloc((256, 256), "f32")
        T.clear(C)


@refused(r"dtype 'f33' is unknown.*did you mean")
def unknown_dtype(A, B):
    with T.Kernel(block=1):
        T.alloc((4,), "f33")


@refused(r"T.alloc of shape .* is known only when the program runs.*constant shapes")
def runtime_shape(A, B):
    with T.Kernel(block=4) as bx:
        T.alloc((bx, 4), "f32")


@refused(
    r"T.copy: 'A' \(16, 16\) and 'a' \(4, 4\) have different shapes.*an anchor, 'A\[i, j\]'", "T.copy(A, a)"
)
def shapes_differ(A, B):
    with T.Kernel(block=1):
        a = T.alloc((4, 4), "f32")
        T.clear(a)
        T.copy(A, a)


@refused(r"T.copy from 'a', which nothing writes, to tensor 'A': the order looks reversed.*T.copy\(a, "
r"A\[...\]\)",
         "T.copy(A[0, 0], a)")  # fmt: skip
def reversed_copy(A, B):
    with T.Kernel(block=1):
        a = T.alloc((4, 4), "f32")
        T.copy(A[0, 0], a)


@refused(r"'A' has 2 dimensions, but 3 indices are given.*its shape is \(16, 16\)", "A[0, 0, 0]")
def too_many_indices(A, B):
    with T.Kernel(block=1):
        T.fill(A[0, 0, 0], 0)


@refused(r"'t\[8:24\]' is out of bounds: dimension 0 has 16 elements")
def slice_out_of_bounds(A, B):
    with T.Kernel(block=1):
        t = T.alloc((16, 16), "f32")
        T.fill(t[8:24, :], 0)


@refused(r"index 16 is out of bounds: dimension 1 of 'A' has 16 elements")
def index_out_of_bounds(A, B):
    with T.Kernel(block=1):
        A[0, 16] = 0.0


@refused(r"index 0 of 'A' is float.*// not /")
def float_index(A, B):
    with T.Kernel(block=4) as bx:
        A[bx / 2, 0] = 0.0


@refused(r"T.gemm: inner extents differ.*did you mean transpose_B=True", "T.gemm(a, b, c)")
def gemm_inner(A, B):
    with T.Kernel(block=1):
        a, b, c = (T.alloc(s, "f32") for s in ((4, 8), (4, 8), (4, 4)))
        T.gemm(a, b, c)


@refused(r"inner extents differ: \(4\) of 'a' .* and \(8\) of 'b' .*did you mean transpose_A=True\?")
def gemm_of_which_only_one_transpose_fits(A, B):
    with T.Kernel(block=1):
        a, b, c = (T.alloc(s, "f32") for s in ((8, 4), (8, 8), (4, 8)))
        T.gemm(a, b, c)


@refused(r"inner extents differ: \(6\) of 'a' .* and \(8\) of 'b' .*no transpose makes them so")
def gemm_that_no_transpose_fits(A, B):
    with T.Kernel(block=1):
        a, b, c = (T.alloc(s, "f32") for s in ((8, 6), (8, 8), (8, 8)))
        T.gemm(a, b, c, transpose_B=True)


@refused(r"T.gemm gives \(4, 4\), but C is 'c' \(4, 8\)")
def gemm_result(A, B):
    with T.Kernel(block=1):
        a, b = T.alloc((4, 8), "f32"), T.alloc((8, 4), "f32")
        c = T.alloc((4, 8), "f32")
        T.gemm(a, b, c)


@refused(r"T.gemm of f32 and i32 into f32")
def gemm_dtypes(A, B):
    with T.Kernel(block=1):
        a, b, c = (T.alloc((4, 4), d) for d in ("f32", "i32", "f32"))
        T.gemm(a, b, c)


@refused(r"T.reduce_sum of 'A' \(16, 16\) over dim 1 gives \(16\), but the result is 'v' \(8\)")
def reduce_result(A, B):
    with T.Kernel(block=1):
        v = T.alloc((8,), "f32")
        T.reduce_sum(A, v, dim=1)


@refused(r"'\|' needs whole numbers, not f32")
def bits_of_floats(A, B):
    with T.Kernel(block=1):
        for i, j in T.Parallel(4, 4):
            A[i, j] = A[i, j] | B[i, j]


@refused(r"'a' is a whole tile where a single number is needed.*T.Parallel\(4, 4\)", "a + 1.0")
def arithmetic_on_a_tile(A, B):
    with T.Kernel(block=1):
        a = T.alloc((4, 4), "f32")
        T.clear(a)
        A[0, 0] = a + 1.0


@refused(r"a region cannot be assigned to 'A\[...\]'.*T.copy")
def assigned_region(A, B):
    with T.Kernel(block=1):
        A[0:4, 0:4] = B[0:4, 0:4]


@refused(r"T.view of 'A' at scale 'device' has no layout.*T.FullRow", "T.view(A)")
def no_layout(A, B):
    with T.Kernel(device=2), T.Scale("device"):
        T.view(A)


@refused(r"'A' is already placed as shard\(0\) at scale 'device', not shard\(1\)")
def two_layouts(A, B):
    with T.Kernel(device=2):
        with T.Scale("device"):
            T.view(A, layout=T.FullRow)
            T.view(A, layout=T.FullCol)


@refused(r"T.Shard\(2\) of 'A', which has 2 dimensions")
def no_such_dimension(A, B):
    with T.Kernel(device=2), T.Scale("device"):
        T.view(A, layout=T.Shard(2))


@refused(r"the owner function names unit 3, but there are 2 units")
def owner_out_of_range(A, B):
    with T.Kernel(device=2), T.Scale("device"):
        T.view(A, layout=lambda i, j: i // 4)


@refused(r"elements of unit 0 are not a product of per-dimension index sets")
def owner_no_product(A, B):
    with T.Kernel(device=2), T.Scale("device"):
        T.view(A, layout=lambda i, j: (i + j) % 2)


@refused(
    r"T.allreduce: 'A' is one tensor of scale 'launch', not one per 'device'.*T.view\(A, layout=T.Replica\)"
)
def collective_of_a_tensor(A, B):
    with T.Kernel(device=2), T.Scale("device"):
        T.allreduce(A)


@refused(r"T.allreduce with op='mean'.*sum, max, min")
def unknown_reduction(A, B):
    with T.Kernel(device=2), T.Scale("device"):
        T.allreduce(T.view(A, layout=T.Replica), op="mean")


@refused(r"T.allreduce of several tiles without fn=.*T.lse_merge")
def several_without_function(A, B):
    with T.Kernel(device=2), T.Scale("device"):
        T.allreduce(T.view(A, layout=T.Replica), T.view(B, layout=T.Replica))


@refused(r"T.allgather: 'b' \(8, 16\) is not 2 times 'a' \(8, 16\) in one dimension")
def gather_shape(A, B):
    with T.Kernel(device=2):
        with T.Scale("device"):
            a = T.view(A, layout=T.FullRow)
            b = T.view(B, layout=T.FullRow)
            T.allgather(b, a)


@refused(r"axis=1: scale 'device' has 1 dimensions.*launch it with a tuple")
def no_such_axis(A, B):
    with T.Kernel(device=2), T.Scale("device"):
        T.barrier(axis=1)


@refused(r"T.copy with dst= reaches into 'A', which is not one tile per 'device'")
def put_into_a_tensor(A, B):
    with T.Kernel(device=2), T.Scale("device"):
        T.copy(A, B, dst=0)


@refused(r"T.copy with both dst= and src=")
def put_and_get(A, B):
    with T.Kernel(device=2), T.Scale("device"):
        T.copy(A, B, dst=0, src=1)


@refused(r"a flag of dtype f32.*\"i32\"")
def float_flag(A, B):
    with T.Kernel(block=1):
        f = T.alloc((1,), "f32")
        T.signal(f)


@refused(r"copy inside T.Parallel.*elementwise code only", "T.copy(A[0, 0], B[0, 0])")
def copy_in_parallel(A, B):
    with T.Kernel(block=1):
        for i in T.Parallel(4):
            T.copy(A[0, 0], B[0, 0])


@refused(r"T.Parallel inside T.Parallel")
def parallel_in_parallel(A, B):
    with T.Kernel(block=1):
        for i in T.Parallel(4):
            for j in T.Parallel(4):
                A[i, j] = 0.0


@refused(r"'break' in T.Parallel, under a condition known only at run time.*under 'if' or 'else'")
def break_in_parallel(A, B):
    with T.Kernel(block=4):
        for i in T.Parallel(4):
            for k in T.serial(4):
                if A[i, k] > 0:
                    break
                B[i, k] = 1.0


@refused(r"'break' of a loop around the T.Scale it is in.*put what follows under 'if' instead")
def break_of_a_larger_scale(A, B):
    with T.Kernel(block=1, threads=128):
        for _k in T.serial(4):
            with T.Scale("warp") as (w, _n):
                if w == 1:
                    break
                T.clear(A)


@refused(r"'return' .*inside T.Scale\(\"warp\"\): the 'block' around it would go on.*under 'if'")
def return_of_a_smaller_scale(A, B):
    with T.Kernel(block=1, threads=128):
        with T.Scale("warp") as (w, _n):
            for k in T.serial(4):
                if w == k:
                    return
        T.clear(A)


@refused(r"a region follows one that units left: 'return'.*under 'if' instead of leaving it")
def region_after_return(A, B):
    with T.Kernel(device=2):
        with T.Scale("device") as (d, _n):
            for k in T.serial(4):
                if d == k:
                    return
        with T.Scale("device"):
            T.clear(T.view(A, layout=T.Replica))


@refused(r"'return' in a function that a kernel calls.*return at its end")
def return_inside_a_helper(A, B):
    def helper(x):
        for k in T.serial(4):
            if x == k:
                return

    with T.Kernel(block=4) as bx:
        helper(bx)


@refused(r"a loop over Python values is left under a condition known only at run time.*T.serial")
def break_of_a_python_list(A, B):
    with T.Kernel(block=4) as bx:
        for width in [1, 3, 5]:
            if bx == width:
                break
            T.clear(A[width, 0:4])


@refused(r"T.bounded with most=0.*whole number from 1")
def while_without_turns(A, B):
    with T.Kernel(block=4) as bx:
        while T.bounded(bx < 3, 0):
            T.clear(A)


@refused(r"is known only when the program runs, and is needed as a Python number", "range(bx)")
def range_of_a_coordinate(A, B):
    with T.Kernel(block=4) as bx:
        for _ in range(bx):
            T.barrier()


@refused(
    r"'second' names another tile in the next iteration, but a loop body is read once.*k % 2|'first' "
    r"names another"
)
def swapped_tiles(A, B):
    with T.Kernel(block=1):
        first, second = T.alloc((4,), "f32"), T.alloc((4,), "f32")
        for _k in T.serial(4):
            T.fill(first, 0)
            first, second = second, first
        T.copy(A[0, 0:4], first)


@refused(r"'k' changes in a loop or branch and is used after it")
def index_after_its_loop(A, B):
    with T.Kernel(block=1):
        for k in T.serial(4):
            A[k, 0] = 0.0
        A[k, 1] = 0.0


@refused(
    r"'undefined_name' is not defined.*define 'undefined_name' before the kernel", "A[0, 0] = undefined_name"
)
def undefined(A, B):
    with T.Kernel(block=1):
        A[0, 0] = undefined_name


@refused(r"'AA' is not defined.*did you mean 'A'")
def misspelt_tile(A, B):
    with T.Kernel(block=1):
        T.clear(AA)


@refused(r"division by zero|is divided by zero")
def division(A, B):
    with T.Kernel(block=4) as bx:
        A[bx // (4 - 4), 0] = 0.0


@refused(r"assertion failed while building: sizes")
def build_time_assertion(A, B):
    with T.Kernel(block=1):
        assert A.shape[0] == 3, "sizes"


@refused(r"num_stages='two'")
def stages_no_number(A, B):
    with T.Kernel(block=1):
        for _k in T.Pipelined(4, num_stages="two"):
            pass


@refused(
    r"stages of pipelined loop 'k' conflict: this copy reads 'A' ahead of time.*num_stages=1",
    "T.copy(a, A[k, 0])",
)
def pipeline_overtakes(A, B):
    with T.Kernel(block=1):
        a = T.alloc((16,), "f32")
        for k in T.Pipelined(15, num_stages=2):
            T.copy(a, A[k, 0])
            T.copy(A[k + 1, 0], a)


@refused(r"stages of pipelined loop 'k' conflict: 'a' is read .*before it is copied")
def pipeline_carries(A, B):
    with T.Kernel(block=1):
        a = T.alloc((16,), "f32")
        T.clear(a)
        for k in T.Pipelined(16, num_stages=2):
            T.copy(B[k, 0], a)
            T.copy(a, A[k, 0])


@refused(r"T.read_scalar of f32")
def scalar_of_floats(A, B):
    with T.Kernel(block=1):
        T.read_scalar(A[0, 0])


@refused(r"put into a text.*T.print")
def formatted_value(A, B):
    with T.Kernel(block=2) as bx:
        T.print(f"block {bx}")


@pytest.mark.parametrize(("body", "message", "line"), refused.cases)
def test_refused(body: Callable[..., Any], message: str, line: str) -> None:
    check_refused(body, message, line)
