"""Words of single threads."""

import numpy as np
import pytest

import megatile.tilelang as tilelang
import megatile.tilelang.language as T
from megatile.core.errors import MegatileError
from megatile.ir import nodes as n
from megatile.targets.interpret.errors import DataRaceError


@tilelang.jit
def dot_rows(A, B):
    rows, columns = T.const("rows, columns")
    A: T.Tensor((rows, columns), T.float32)
    B: T.Tensor((columns,), T.float32)
    out = T.empty((rows,), T.float32)
    with T.Kernel(T.ceildiv(rows, 4), threads=(4, 8)) as block:
        ty = T.get_thread_binding(0)
        tx = T.thread_binding(0, 8, thread="threadIdx.y")
        mine = T.alloc_local((1,), T.float32)
        total = T.alloc_local((1,), T.float32)
        T.clear(mine)
        for k in T.serial(T.ceildiv(columns, 8)):
            mine[0] += A[block * 4 + ty, k * 8 + tx] * B[k * 8 + tx]
        with T.attr(T.comm_reducer(lambda x, y: x + y, [T.float32(0)]), "reduce_scope", 0):
            T.evaluate(T.tvm_thread_allreduce(1, mine[0], True, total[0], tx, dtype="handle"))
        if tx == 0:
            out[block * 4 + ty] = total[0]
    return out


@pytest.mark.parametrize("shape", [(4, 8), (7, 19), (1, 3)])
def test_a_sum_over_an_axis_of_threads(shape):
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal(shape).astype("f4"), rng.standard_normal(shape[1]).astype("f4")
    np.testing.assert_allclose(dot_rows(a, b), a @ b, rtol=1e-5, atol=1e-5)


@tilelang.jit
def copied_by_threads(A):
    n = T.const("n")
    A: T.Tensor((n, 64), T.float16)
    out = T.empty((n, 64), T.float16)
    with T.Kernel(n, threads=16) as row:
        tx = T.get_thread_binding()
        shared = T.alloc_shared((64,), T.float16)
        T.ptx_cp_async(T.access_ptr(shared[tx * 4], "w", 4), T.access_ptr(A[row, tx * 4], "r", 4), 4)
        T.sync_threads()
        T.copy(shared, out[row, 0])
    return out


def test_threads_copy_what_their_pointers_cover():
    a = np.arange(192, dtype="f2").reshape(3, 64)
    np.testing.assert_array_equal(copied_by_threads(a), a)


@tilelang.jit
def meeting(A):
    n = T.const("n")
    A: T.Tensor((n,), T.float32)
    between = T.alloc_global((n,), T.float32)
    out = T.empty((n,), T.float32)
    with T.Kernel(n, threads=32) as i:
        between[i] = A[i] * 2
        T.sync_grid()
        out[i] = between[(i + 1) % n]
    return out


def test_the_blocks_of_a_grid_meet():
    a = np.arange(5, dtype="f4")
    np.testing.assert_array_equal(meeting(a), np.roll(a * 2, -1))


def test_a_reduction_that_is_not_known_is_refused():
    with pytest.raises(MegatileError, match="a reduction over threads that is not a sum"):
        T.comm_reducer(lambda x, y: x, [0])


@tilelang.jit
def picked(A):
    n = T.const("n")
    A: T.Tensor((n,), T.int32)
    out = T.empty((n,), T.int32)
    count = T.empty((1,), T.int32)
    with T.Kernel(1, threads=32):
        tx = T.get_thread_binding()
        found = T.alloc_shared((1,), T.int32)
        place = T.alloc_var(T.int32)
        value = T.alloc_var(T.int32)
        T.fill(found, 0)
        for k in T.serial(T.ceildiv(n, 32)):
            if k * 32 + tx < n:
                value = A[k * 32 + tx]
                if value % 3 == 0:
                    place = T.atomic_add(found[0], 1, return_prev=True)
                    out[place] = value
        T.sync_threads()
        if tx == 0:
            count[0] = found[0]
    return out, count


def test_places_are_fetched_by_atomics():
    a = np.arange(50, dtype="i4")
    out, count = picked(a)
    assert count[0] == 17
    assert sorted(out[:17]) == list(range(0, 50, 3))


@tilelang.jit
def triangle(A):
    n = T.const("n")
    A: T.Tensor((n, n), T.float32)
    out = T.empty((n,), T.float32)
    with T.Kernel(1, threads=32):
        tx = T.get_thread_binding()
        total = T.alloc_local((1,), T.float32)
        T.clear(total)
        if tx < n:
            for k in T.serial(tx + 1):
                total[0] += A[tx, k]
            out[tx] = total[0]
    return out


def test_every_thread_runs_its_own_number_of_rounds():
    a = np.arange(49, dtype="f4").reshape(7, 7)
    np.testing.assert_array_equal(triangle(a), np.tril(a).sum(1))


@tilelang.jit
def nested(A):
    rows = T.dynamic("rows")
    A: T.Tensor((rows * 4, 3), T.float32)
    out = T.empty((rows, 4), T.float32)
    with T.Kernel(rows, threads=32) as row:
        tile = T.alloc_fragment((4,), T.float32)
        T.clear(tile)
        for i in T.Parallel(4):
            for j in T.Parallel(3):
                tile[i] += A[row * 4 + i, j]
        T.copy(tile, out[row, 0])
    return out


def test_an_extent_inside_a_product_is_found_and_parallel_loops_nest():
    a = np.arange(24, dtype="f4").reshape(8, 3)
    np.testing.assert_array_equal(nested(a), a.sum(1).reshape(2, 4))


@tilelang.jit
def two_readers(A):
    n = T.const("n")
    A: T.Tensor((n, 16), T.float32)
    left = T.empty((n, 16), T.float32)
    right = T.empty((n, 16), T.float32)
    with T.Kernel(1, threads=384):
        tile = T.alloc_shared((16,), T.float32)
        full = T.alloc_barrier(arrive_count=128)
        free = T.alloc_barrier(arrive_count=256)
        tx = T.get_thread_binding()
        if tx < 128:
            for k in T.serial(n):
                T.barrier_wait(full, k & 1)
                T.copy(tile, left[k, 0])
                T.barrier_arrive(free)
        elif tx < 256:
            for k in T.serial(n):
                T.barrier_wait(full, k & 1)
                T.copy(tile, right[k, 0])
                T.barrier_arrive(free)
        else:
            for k in T.serial(n):
                T.barrier_wait(free, (k & 1) ^ 1)
                T.copy(A[k, 0], tile)
                T.barrier_arrive(full)
    return left, right


def test_a_phase_needs_the_arrivals_of_both_roles():
    a = np.arange(96, dtype="f4").reshape(6, 16)
    for found in two_readers(a):
        np.testing.assert_array_equal(found, a)


@tilelang.jit
def row_sums(A):
    rows, columns = T.const("rows, columns")
    A: T.Tensor((rows, columns), T.float16)
    out = T.empty((rows,), T.float32)
    with T.Kernel(1, threads=32):
        total = T.alloc_reducer(rows, T.float32, replication="all")
        T.clear(total)
        for i, j in T.Parallel(rows, columns):
            total[i] += A[i, j]
        T.finalize_reducer(total)
        T.copy(total, out)
    return out


def test_iterations_add_to_a_reducer():
    a = np.arange(12, dtype="f2").reshape(3, 4)
    np.testing.assert_array_equal(row_sums(a), a.sum(1))


@tilelang.jit
def butterfly(A):
    A: T.Tensor((64,), T.float32)
    out = T.empty((64,), T.float32)
    with T.Kernel(1, threads=64):
        tx = T.get_thread_binding()
        mine = T.alloc_local((1,), T.float32)
        other = T.alloc_local((1,), T.float32)
        mine[0] = A[tx]
        for i in T.serial(5):
            other[0] = T.tvm_warp_shuffle(0xFFFFFFFF, mine[0], (tx ^ (1 << i)) % 32, 32, 32)
            mine[0] = mine[0] + other[0]
        out[tx] = mine[0]
    return out


def test_threads_of_a_warp_shuffle():
    a = np.arange(64, dtype="f4")
    np.testing.assert_array_equal(butterfly(a), np.repeat(a.reshape(2, 32).sum(1), 32))


@tilelang.jit
def foreign(A):
    n = T.const("n")
    A: T.Tensor((n,), T.int8)
    out = T.empty((n, 4), T.int32)
    with T.Kernel(n, threads=32) as i:
        parts = T.alloc_local((4,), T.int32)
        T.call_extern("split_in_four", T.address_of(A[i]), T.address_of(parts[0]), dtype="handle")
        T.call_extern("handle", "split_in_four", T.address_of(A[i]), T.address_of(parts[0]))
        for k in T.Parallel(4):
            out[i, k] = parts[k]
    return out


def test_foreign_code_has_a_registered_meaning():
    a = np.array([0b11100100, 0b00000001, 0b10101010], "u1").view("i1")
    with pytest.raises(MegatileError, match=r"T.call_extern\('split_in_four'\) has no meaning here"):
        foreign(a)

    def split_in_four(source, target):
        for k in T.serial(4):
            target[k] = (source[0] >> (2 * k)) & 3

    tilelang.register_extern("split_in_four", split_in_four)
    np.testing.assert_array_equal(foreign(a), [[0, 1, 2, 3], [1, 0, 0, 0], [2, 2, 2, 2]])


def test_how_a_loop_is_pipelined_stays_in_the_program():
    @tilelang.jit
    def staged(A):
        A: T.Tensor((32,), T.float32)
        out = T.empty((32,), T.float32)
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((8,), T.float32)
            for k in T.Pipelined(4, order=[-1, 0], stage=[-1, 0], group=[[0], [1]]):
                T.copy(A[k * 8], tile)
                T.copy(tile, out[k * 8])
        return out

    text = str(staged.compile().program)
    assert "hint(\"pipeline\", text='order=[-1, 0], stage=[-1, 0], group=[[0], [1]]')" in text


def test_tiles_made_and_cleared_under_a_condition_of_the_thread_belong_to_the_threads_that_meet_it():
    @T.prim_func
    def histogram(x: T.Tensor((64,), "int32"), y: T.Tensor((4,), "int32")):
        with T.Kernel(1, threads=64) as bx:
            tx = T.get_thread_binding()
            counts = T.alloc_shared([64, 4], "int32")
            T.clear(counts)
            counts[tx, x[tx]] += 1
            end = T.alloc_var("int32")
            end = T.min(bx * 4 + 4, 4)
            if tx < end:
                both = T.alloc_local([2], "int32")
                T.clear(both)
                for i in T.serial(64):
                    both[i % 2] += counts[i, tx]
                y[tx] = both[0] + both[1]

    x, y = np.random.default_rng(0).integers(0, 4, 64).astype("i4"), np.zeros(4, "i4")
    tilelang.compile(histogram)(x, y)
    np.testing.assert_array_equal(y, np.bincount(x, minlength=4))


def handed_on(waits: bool, threads: int = 256):
    """One role fills two slots in turn, the other reads them."""

    @T.prim_func
    def kernel(A: T.Tensor((6, 16), T.float32), C: T.Tensor((6, 16), T.float32)):
        with T.Kernel(1, threads=threads):
            a = T.alloc_shared((2, 16), T.float32)
            ready = T.alloc_barrier([threads // 2] * 2)
            done = T.alloc_barrier([threads // 2] * 2)
            tx = T.get_thread_binding()
            for i in T.Pipelined(6, num_stages=0):
                slot = i % 2
                if tx < threads // 2:
                    if waits:
                        T.barrier_wait(done[slot], (i // 2 + 1) % 2)
                    T.copy(A[i, 0], a[slot, :])
                    T.barrier_arrive(ready[slot])
                else:
                    T.barrier_wait(ready[slot], i // 2 % 2)
                    T.copy(a[slot, :], C[i, 0])
                    T.barrier_arrive(done[slot])

    return tilelang.compile(kernel)


@pytest.mark.parametrize(("threads", "scale"), [(256, "warpgroup"), (64, "warp")])
def test_roles_of_a_loop_are_in_steps_of_their_own(threads, scale):
    a, c = np.random.default_rng(0).random((6, 16), np.float32), np.zeros((6, 16), np.float32)
    kernel = handed_on(True, threads)
    kernel(a, c)
    np.testing.assert_array_equal(c, a)
    regions = [node for node in n.walk(kernel.program.body) if isinstance(node, n.ScaleRegion)]
    assert [one.scale for one in regions] == ["block", scale]
    assert all(isinstance(branch.body[-1], n.Loop) for branch in regions[1].body)
    with pytest.raises(DataRaceError, match="'a'"):
        handed_on(False, threads)(a, c)
