"""Small kernels in TileLang's spelling, against NumPy and torch."""

import numpy as np
import pytest

import megatile.tilelang as tilelang
import megatile.tilelang.language as T
from megatile.core.errors import MegatileError
from megatile.language.tile.errors import ProgramError


@tilelang.jit
def scaled_product(A, B, rows, columns, inner, dtype=T.float16):
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), dtype)
    B: T.Tensor((K, N), dtype)
    C = T.empty((M, N), T.float32)
    with T.Kernel(T.ceildiv(N, columns), T.ceildiv(M, rows), threads=128, cluster_dims=(1, 1)) as (bx, by):
        a = T.alloc_shared((rows, inner), dtype)
        b = T.alloc_shared((inner, columns), dtype)
        c = T.alloc_fragment((rows, columns), T.float32)
        T.use_swizzle(panel_size=8)
        T.clear(c)
        for k in T.Pipelined(T.ceildiv(K, inner), num_stages=2):
            T.copy(A[by * rows, k * inner], a)
            T.copy(B[k * inner : (k + 1) * inner, bx * columns : (bx + 1) * columns], b)
            T.gemm(a, b, c)
        for i, j in T.Parallel(rows, columns):
            c[i, j] = T.max(c[i, j] * 2.0, 0)
        T.copy(c, C[by * rows, bx * columns])
    return C


@pytest.mark.parametrize("shape", [(64, 64, 64), (33, 70, 17), (1, 5, 3)])
def test_a_kernel_that_declares_its_tensors_runs_when_it_is_called(shape):
    m, n, k = shape
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype("f2") for s in ((m, k), (k, n)))
    found = scaled_product(a, b, 32, 32, 16)
    wanted = np.maximum(2 * (a.astype("f4") @ b.astype("f4")), 0)
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)


@T.macro
def doubled(A):
    N = A.shape[0]
    B = T.empty((N,), A.dtype)
    with T.Kernel(T.ceildiv(N, 32), threads=32) as bx:
        for i in T.Parallel(32):
            B[bx * 32 + i] = A[bx * 32 + i] * 2.0
    return B


@tilelang.jit
def declared_inside(A):
    N = T.const("N")
    A: T.Tensor[[N], T.float32]
    return doubled(A)


@tilelang.jit
def declared_outside(A: T.Tensor((48,), T.float32)):
    return doubled(A)


@pytest.mark.parametrize("kernel", [declared_inside, declared_outside])
def test_a_macro_may_launch_for_the_kernel_that_calls_it(kernel):
    a = np.arange(48, dtype="f4")
    np.testing.assert_array_equal(kernel(a), a * 2)


def test_several_functions_are_compiled_at_once():
    first, second = tilelang.par_compile([declared_inside.get_tir(N=size) for size in (32, 64)])
    assert [len(str(one.program)) > 0 for one in (first, second)] == [True, True]
    assert first.program.params[0].shape == (32,)
    assert second.program.params[0].shape == (64,)


def test_extents_are_given_by_name_and_hints_stay_in_the_program():
    kernel = scaled_product.compile(M=64, N=32, K=32, rows=32, columns=32, inner=16)
    assert "hint(\"use_swizzle\", text='panel_size=8')" in str(kernel.program)
    assert "hint(\"cluster_dims\", text='1, 1')" in str(kernel.program)
    unknown = scaled_product.compile(M=64, rows=32, columns=32, inner=16)
    assert "built when its arrays are known: the shape of 'A' has the unknown extent K" in (
        unknown.get_kernel_source()
    )
    with pytest.raises(ProgramError, match="unknown extent"):
        unknown.get_profiler().run_once()


def test_an_index_that_is_not_a_whole_number_is_refused_at_its_line():
    def kernel(A: T.Tensor((8, 8), T.float32)):
        with T.Kernel(1, threads=32) as bx:
            A[bx / 2, 0] = 1.0

    with pytest.raises(
        ProgramError, match=r"test_kernels.py:\d+: index 0 of 'A' is .*indices are whole"
    ) as info:
        tilelang.compile(T.prim_func(kernel))
    assert "A[bx / 2, 0]" in str(info.value)


def test_what_is_missing_is_named_by_the_word_of_the_language():
    with pytest.raises(ProgramError, match=r"T\.reduce_sum missing 1 required positional argument: 'out'"):

        @T.prim_func
        def kernel(A: T.Tensor((8, 8), T.float32)):
            with T.Kernel(1, threads=32):
                T.reduce_sum(A)


def test_shapes_that_do_not_agree_are_refused():
    with pytest.raises(ProgramError, match=r"dimension 0 of 'B' is 9, but 8 is declared"):
        scaled_product(np.zeros((4, 8), "f2"), np.zeros((9, 4), "f2"), 32, 32, 16)


@tilelang.jit(out_idx=[-1])
def row_sums(columns, width):
    rows = T.dynamic("rows")

    @T.prim_func
    def main(A: T.Tensor((rows, columns), T.float32), factor: T.float32, B: T.Tensor([rows], T.float32)):
        with T.Kernel(rows, threads=32) as row:
            part = T.alloc_fragment((width,), T.float32)
            total = T.alloc_fragment((1,), T.float32)
            count: T.int32 = 0
            T.clear(total)
            for k in range(T.ceildiv(columns, width)):
                T.copy(A[row, k * width : (k + 1) * width], part)
                T.reduce_sum(part, total, dim=0, clear=False)
                count = count + 1
            B[row] = total[0] * factor + count

    return main


def test_a_kernel_that_is_returned_takes_numbers_and_gives_its_results():
    kernel = row_sums(37, 8)
    assert row_sums(37, 8) is kernel
    for rows in (1, 5):
        a = np.arange(rows * 37, dtype="f4").reshape(rows, 37)
        np.testing.assert_allclose(kernel(a, 0.5), a.sum(1) * 0.5 + 5)
    with pytest.raises(ProgramError, match=r"takes 2 arguments \(A, factor\), but 1 were given"):
        kernel(np.zeros((2, 37), "f4"))


@tilelang.jit
def guarded(A, index):
    n, m = T.const("n, m")
    A: T.Tensor((n,), T.float32)
    index: T.Tensor((m,), T.int32)
    out = T.empty((m,), T.float32)
    beyond = T.empty((m,), T.float32)
    with T.Kernel(1, threads=32):
        for i in T.Parallel(m):
            out[i] = T.if_then_else(index[i] >= 0, A[index[i]], -1.0)
            beyond[i] = A[i + 2]
            beyond[i + m] = 1.0
    return out, beyond


def test_a_condition_guards_an_index_and_the_edge_is_padded():
    a = np.arange(5, dtype="f4") + 1
    index = np.array([3, -1, 0, -7], "i4")
    out, beyond = guarded(a, index)
    np.testing.assert_array_equal(out, [4, -1, 1, -1])
    np.testing.assert_array_equal(beyond, [3, 4, 5, 0])


@tilelang.jit
def threads_of_a_block(A, B):
    n = T.const("n")
    A: T.Tensor((n,), T.float32)
    B: T.Tensor((n,), T.float32)
    with T.Kernel(T.ceildiv(n, 32), threads=32) as bx:
        tx = T.get_thread_binding()
        shared = T.alloc_shared((32,), T.float32)
        mine = T.alloc_local((2,), T.float32)
        mine[0] = A[bx * 32 + tx]
        shared[tx] = mine[0]
        T.sync_threads()
        mine[1] = shared[31 - tx]
        if tx % 2 == 0:
            mine[1] = mine[1] * 10
        B[bx * 32 + tx] = mine[0] + mine[1]


def test_threads_run_in_step_with_tiles_of_their_own():
    a = np.arange(48, dtype="f4")
    b = np.zeros(48, "f4")
    threads_of_a_block(a, b)
    padded = np.zeros(64, "f4")
    padded[:48] = a
    turned = padded.reshape(2, 32)[:, ::-1] * np.where(np.arange(32) % 2 == 0, 10, 1)
    np.testing.assert_array_equal(b, (padded + turned.reshape(-1))[:48])


@tilelang.jit
def two_launches(A):
    n = T.const("n")
    A: T.Tensor((n,), T.float32)
    between = T.alloc_global((n,), T.float32)
    out = T.empty((n,), T.float32)
    with T.Kernel(n, threads=32) as i:
        between[i] = A[i] * 2
    with T.Kernel(n, threads=32) as i:
        out[i] = between[n - 1 - i] + 1
    return out


def test_one_program_may_launch_twice():
    a = np.arange(6, dtype="f4")
    np.testing.assert_array_equal(two_launches(a), a[::-1] * 2 + 1)


@tilelang.jit
def roles(A):
    n = T.const("n")
    A: T.Tensor((n, 16), T.float32)
    out = T.empty((16,), T.float32)
    with T.Kernel(1, threads=256):
        shared = T.alloc_shared((16,), T.float32)
        total = T.alloc_fragment((16,), T.float32)
        full = T.alloc_barrier(arrive_count=128)
        empty = T.alloc_barrier(arrive_count=128)
        with T.ws(1):
            T.clear(total)
        for k in T.serial(n):
            with T.ws(0):
                T.barrier_wait(empty, (k + 1) % 2)
                T.copy(A[k, 0], shared)
                T.barrier_arrive(full)
            with T.ws(1):
                T.barrier_wait(full, k % 2)
                for i in T.Parallel(16):
                    total[i] += shared[i]
                T.barrier_arrive(empty)
        with T.ws(1):
            T.copy(total, out)
    return out


def test_barriers_have_phases():
    a = np.arange(48, dtype="f4").reshape(3, 16)
    np.testing.assert_array_equal(roles(a), a.sum(0))


def test_reinterpret_reads_the_bits():
    @tilelang.jit
    def bits(A):
        n = T.const("n")
        A: T.Tensor((n,), T.float32)
        out = T.empty((n,), T.int32)
        with T.Kernel(1, threads=32):
            for i in T.Parallel(n):
                out[i] = T.reinterpret(A[i], T.int32)
        return out

    a = np.array([1.0, -2.5, 0.0], "f4")
    np.testing.assert_array_equal(bits(a), a.view("i4"))


def test_an_unknown_word_suggests_the_nearest():
    with pytest.raises(MegatileError, match=r"T\.alloc_fragmnt is not in megatile's TileLang spelling"):
        _ = T.alloc_fragmnt


def test_dtypes_are_names_and_descriptions():
    assert T.float16 == "float16" == T.float16
    assert T.float16 == "f16"
    assert T.float16 != T.bfloat16
    assert (T.float16.bits, T.int32.bytes, str(T.float)) == (16, 4, "float32")
    assert T.dtype(np.float32) == T.float32
    torch = pytest.importorskip("torch", reason="needs torch")
    assert T.dtype(torch.bfloat16) == T.bfloat16
    assert T.float16.as_torch() is torch.float16


def test_profiler_compares_with_a_reference():
    torch = pytest.importorskip("torch", reason="needs torch")
    kernel = scaled_product.compile(M=40, N=32, K=32, rows=32, columns=32, inner=16)
    profiler = kernel.get_profiler()
    profiler.assert_allclose(lambda a, b: torch.relu(2 * (a.float() @ b.float())))
    with pytest.raises(AssertionError, match="of the elements differ"):
        profiler.assert_allclose(lambda a, b: a.float() @ b.float())
    assert profiler.do_bench() > 0


@tilelang.jit
def read_again(A):
    n = T.const("n")
    A: T.Tensor((n, 8), T.float32)
    out = T.empty((n * 2, 4), T.float32)
    bits = T.empty((2, 8), T.int32)
    with T.Kernel(1, threads=32):
        flat = T.Tensor((n * 2, 4), T.float32, A.data)
        tile = T.alloc_shared((2, 8), T.float32)
        T.copy(A[0:2, :], tile)
        turned = T.reshape(tile, (4, 4))
        for i, j in T.Parallel(4, 4):
            turned[i, j] = turned[i, j] + 1.0
        T.copy(flat, out)
        T.copy(turned, out[0, 0])
        T.copy(T.view(tile, dtype=T.int32), bits)
    return out, bits


def test_a_tile_is_read_with_another_shape_and_dtype():
    a = np.arange(24, dtype="f4").reshape(3, 8)
    out, bits = read_again(a)
    wanted = a.reshape(6, 4).copy()
    wanted[:4] += 1
    np.testing.assert_array_equal(out, wanted)
    np.testing.assert_array_equal(bits, (a[:2] + 1).view("i4"))


@tilelang.jit
def windows(image, weights, kernel, stride, pad):
    N, H, W, C, F = T.const("N, H, W, C, F")
    image: T.Tensor((N, H, W, C), T.float32)
    weights: T.Tensor((kernel, kernel, C, F), T.float32)
    OH, OW = (H + 2 * pad - kernel) // stride + 1, (W + 2 * pad - kernel) // stride + 1
    out = T.empty((N, OH, OW, F), T.float32)
    with T.Kernel(T.ceildiv(N * OH * OW, 16), threads=64) as by:
        columns = T.alloc_shared((16, kernel * kernel * C), T.float32)
        matrix = T.alloc_shared((kernel * kernel * C, F), T.float32)
        result = T.alloc_fragment((16, F), T.float32)
        flat_weights = T.Tensor((kernel * kernel * C, F), T.float32, weights.data)
        flat_out = T.Tensor((N * OH * OW, F), T.float32, out.data)
        T.im2col(image, columns, by, 0, kernel, stride, 1, pad)
        T.copy(flat_weights, matrix)
        T.gemm(columns, matrix, result, clear_accum=True)
        T.copy(result, flat_out[by * 16, 0])
    return out


@pytest.mark.parametrize(("stride", "pad"), [(1, 1), (2, 0)])
def test_windows_of_a_convolution(stride, pad):
    torch = pytest.importorskip("torch", reason="needs torch")
    image, weights = torch.randn(2, 7, 6, 4), torch.randn(3, 3, 4, 5)
    wanted = torch.nn.functional.conv2d(
        image.permute(0, 3, 1, 2), weights.permute(3, 2, 0, 1), stride=stride, padding=pad
    )
    found = windows(image, weights, 3, stride, pad)
    torch.testing.assert_close(found, wanted.permute(0, 2, 3, 1), rtol=1e-4, atol=1e-4)


@tilelang.jit
def producer_and_consumer(A):
    n = T.const("n")
    A: T.Tensor((n, 32), T.float32)
    out = T.empty((32,), T.float32)
    with T.Kernel(1, threads=256):
        tx = T.get_thread_binding()
        shared = T.alloc_shared((32,), T.float32)
        total = T.alloc_fragment((32,), T.float32)
        full = T.alloc_barrier(arrive_count=128)
        free = T.alloc_barrier(arrive_count=128)
        if tx < 128:
            for k in T.serial(n):
                T.barrier_wait(free, (k + 1) % 2)
                T.copy(A[k, 0], shared)
                T.barrier_arrive(full)
        else:
            T.clear(total)
            for k in T.serial(n):
                T.barrier_wait(full, k % 2)
                for i in T.Parallel(32):
                    total[i] += shared[i]
                T.barrier_arrive(free)
            T.copy(total, out)
    return out


def test_roles_of_threads_run_at_the_same_time():
    a = np.arange(160, dtype="f4").reshape(5, 32)
    np.testing.assert_array_equal(producer_and_consumer(a), a.sum(0))


def test_a_barrier_that_is_missing_between_roles_is_a_race():
    @tilelang.jit
    def racy(A):
        n = T.const("n")
        A: T.Tensor((n, 32), T.float32)
        out = T.empty((32,), T.float32)
        with T.Kernel(1, threads=256):
            tx = T.get_thread_binding()
            shared = T.alloc_shared((32,), T.float32)
            T.clear(shared)
            if tx < 128:
                T.copy(A[0, 0], shared)
            else:
                T.copy(shared, out)
        return out

    with pytest.raises(MegatileError, match="data race on 'shared'"):
        racy(np.ones((2, 32), "f4"))


@tilelang.jit
def rows_in_turn(A):
    m, k = T.dynamic("m"), T.dynamic("k")
    A: T.Tensor((m, k), T.float32)
    out = T.empty((m,), T.float32)
    with T.Kernel(m, threads=32) as i:
        total = T.alloc_fragment((1,), T.float32)
        T.clear(total)
        for k in T.serial(A.shape[1]):
            total[0] += A[i, k] * (k + 1)
        out[i] = total[0]
    return out


def test_a_loop_variable_may_have_the_name_of_a_symbolic_extent():
    a = np.arange(15, dtype="f4").reshape(3, 5)
    np.testing.assert_array_equal(rows_in_turn(a), a @ np.arange(1, 6, dtype="f4"))


def test_arrays_made_for_a_profiler_differ_from_each_other():
    kernel = scaled_product.compile(M=8, N=8, K=8, rows=8, columns=8, inner=8)
    first, second = kernel.get_profiler()._get_inputs()
    again, _ = kernel.get_profiler()._get_inputs()
    assert np.array_equal(first, again) and not np.array_equal(first, second)


@tilelang.jit
def summed_heads(A, W):
    heads = T.const("heads")
    per_block = 8 // heads
    length = T.dynamic("length")
    A: T.Tensor((length * heads, 4), T.float32)
    W: T.Tensor((length, heads), T.float32)
    out = T.empty((length, 4), T.float32)
    with T.Kernel(T.ceildiv(length, per_block), threads=32) as block:
        tile = T.alloc_fragment((per_block, 4), T.float32)
        T.clear(tile)
        for i, j in T.Parallel(per_block, 4):
            for h in T.serial(heads):
                row = block * per_block + i
                tile[i, j] += A[row * heads + h, j] * W[row, h]
        T.copy(tile, out[block * per_block, 0])
    return out


def test_an_extent_in_a_product_is_known_from_a_later_array():
    rng = np.random.default_rng(5)
    a, w = rng.standard_normal((14, 4)).astype("f4"), rng.standard_normal((7, 2)).astype("f4")
    wanted = (a.reshape(7, 2, 4) * w[..., None]).sum(1)
    np.testing.assert_allclose(summed_heads(a, w), wanted, rtol=1e-5, atol=1e-6)


def test_a_kernel_with_unknown_extents_is_printed():
    n = T.dynamic("n")

    @T.prim_func
    def open_ended(A: T.Tensor((n,), T.float32)):
        with T.Kernel(1, threads=32):
            T.print(A[0])

    assert str(open_ended).startswith("open_ended: a kernel that is built when its arrays are known")


def one_after_the_other(overlap):
    @tilelang.jit
    def kernel(A):
        A: T.Tensor((128, 256), T.float32)
        out = T.empty((2, 128, 256), T.float32)
        with T.Kernel(1, threads=128):
            first = T.alloc_shared((128, 256), T.float32)
            second = T.alloc_shared((128, 256), T.float32)
            for half in T.serial(2):
                T.copy(A[half * 64 : half * 64 + 64, 0:256], first[half * 64 : half * 64 + 64, 0:256])
            T.copy(first, out[0, 0, 0])
            T.copy(A, second)
            T.copy(first if overlap else second, out[1, 0, 0])

        return out

    return kernel


def test_tiles_that_are_not_alive_together_share_the_shared_memory():
    a = np.random.default_rng(2).standard_normal((128, 256)).astype("f4")
    np.testing.assert_array_equal(one_after_the_other(False)(a), [a, a])
    with pytest.raises(ProgramError, match="need 256 KiB of 'shared', but there are 227 KiB"):
        one_after_the_other(True)(a)


@pytest.mark.parametrize("element", ["int4", "uint4", "float4_e2m1fn"])
def test_elements_of_four_bits_lie_two_in_a_byte(element):
    torch = pytest.importorskip("torch", reason="needs torch")

    @tilelang.jit(out_idx=[1, 2])
    def kernel(M, N):
        @T.prim_func
        def main(A: T.Tensor((M, N), element), B: T.Tensor((M, N), element), C: T.Tensor((M, N), "float32")):
            with T.Kernel(M, threads=32) as row:
                a = T.alloc_shared((1, N), element)
                T.copy(A[row, 0], a)
                T.copy(a, B[row, 0])
                for j in T.Parallel(N):
                    C[row, j] = T.cast(a[0, j], "float32")

        return main

    packed = torch.arange(256, dtype=torch.uint8).reshape(16, 16)
    same, values = kernel(16, 32)(packed.view(T.dtype(element).as_torch()))
    assert torch.equal(same.view(torch.uint8), packed)
    low = np.arange(16)
    e2m1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    meaning = {"uint4": low, "int4": (low ^ 8) - 8, "float4_e2m1fn": np.concatenate([e2m1, -e2m1])}[element]
    np.testing.assert_array_equal(values[:, ::2], np.tile(meaning, (16, 1)))
    np.testing.assert_array_equal(values[:, 1::2], np.tile(meaning[:, None], (1, 16)))


@pytest.mark.parametrize("zeroed", [True, False])
def test_new_tensors_hold_no_zeros_until_a_launch_fills_them(zeroed):
    @tilelang.jit
    def split_k(A, B, split=4):
        M, N, K = T.const("M, N, K")
        A: T.Tensor((M, K), T.float32)
        B: T.Tensor((K, N), T.float32)
        C = T.empty((M, N), T.float32)
        if zeroed:
            with T.Kernel(1, threads=32):
                T.clear(C)
        with T.Kernel(split, threads=32) as bk:
            a = T.alloc_shared((M, K // split), T.float32)
            b = T.alloc_shared((K // split, N), T.float32)
            c = T.alloc_fragment((M, N), T.float32)
            T.copy(A[0, bk * (K // split)], a)
            T.copy(B[bk * (K // split), 0], b)
            T.clear(c)
            T.gemm(a, b, c)
            for i, j in T.Parallel(M, N):
                T.atomic_add(C[i, j], c[i, j])
        return C

    a, b = np.ones((32, 64), "f4"), np.ones((64, 16), "f4")
    if zeroed:
        assert (split_k(a, b) == 64).all()
    else:
        with pytest.raises(
            MegatileError, match=r"'C' is read before it is written.*new tensors hold no zeros"
        ):
            split_k(a, b)


def test_all_units_at_once_read_new_tensors_only_where_a_launch_has_written():
    @tilelang.jit
    def through(A, rows):
        M = T.const("M")
        A: T.Tensor((M,), T.float32)
        W = T.empty((M,), T.float32)
        C = T.empty((M,), T.float32)
        with T.Kernel(rows // 32, threads=32) as b:
            for i in T.Parallel(32):
                W[b * 32 + i] = A[b * 32 + i] + 1
        with T.Kernel(M // 32, threads=32) as b:
            t = T.alloc_fragment((32,), T.float32)
            T.copy(W[b * 32], t)
            T.copy(t, C[b * 32])
        return C

    assert (through(np.ones(128, "f4"), 128) == 2).all()
    with pytest.raises(MegatileError, match=r"'W' is read before it is written: element \(0,\)"):
        through(np.ones(128, "f4"), 96)


@pytest.mark.parametrize("grids", [(2, 2), (1, 1), (2,)])
def test_parts_that_another_kernel_of_the_function_writes_are_not_missed(grids, recwarn):
    """Warnings of rounded grids are for tensors of one kernel."""

    @T.prim_func
    def copied(X: T.Tensor((64, 8), T.float32), Y: T.Tensor((64, 8), T.float32)):
        for part, count in enumerate(grids):
            with T.Kernel(count, threads=32) as b:
                t = T.alloc_shared((16, 8), T.float32)
                T.copy(X[part * 32 + b * 16, 0], t)
                T.copy(t, Y[part * 32 + b * 16, 0])

    said = [str(w.message) for w in recwarn]
    assert any("never written" in text for text in said) == (len(grids) == 1)


def test_ranks_that_are_not_known_yet_give_no_warning_of_rounded_grids(recwarn):
    @T.prim_func
    def of_my_rank(X: T.Tensor((64, 8), T.float32), Y: T.Tensor((64, 8), T.float32)):
        with T.Kernel(2, threads=32) as b:
            t = T.alloc_shared((16, 8), T.float32)
            T.copy(X[T.get_rank() * 32 + b * 16, 0], t)
            T.copy(t, Y[T.get_rank() * 32 + b * 16, 0])

    assert not recwarn.list
