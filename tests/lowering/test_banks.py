"""Lanes that want different words of one bank take turns; padded and swizzled tiles have no such turns."""

import pytest
from tests.lowering.shared import scaled

import megatile as mt
import megatile.language as T
from megatile.lowering.explain import figures


def transpose(pad: int, dtype: str = "f32", n: int = 64):
    @T.program
    def program(X: T.Tensor((n, n), dtype), Y: T.Tensor((n, n), dtype)):
        with T.Kernel(block=1, threads=128):
            x = T.alloc((n, n + pad), dtype, level="l1")
            y = T.alloc((n, n), dtype, level="l1")
            T.copy(x[0:n, 0:n], X[0, 0])
            for i, j in T.Parallel(n, n):
                y[i, j] = x[j, i]
            T.copy(Y[0, 0], y)

    return program


@pytest.mark.parametrize(
    ("pad", "dtype", "turns"),
    [(0, "f32", 32), (1, "f32", 1), (2, "f32", 2), (16, "f32", 16), (0, "f16", 32), (2, "f16", 1)],
)
def test_strides_of_columns(pad, dtype, turns):
    lowered = mt.lower(transpose(pad, dtype), machine="dgx-h100")
    found = figures(lowered)
    if turns == 1:
        assert found.conflicts == {}
    else:
        ((line, (memory, tile, meet)),) = found.conflicts.items()
        assert line.endswith("test_banks.py:19")
        assert (memory, tile, meet) == ("shared", "x", turns)
        assert f"{turns} lanes use one bank" in str(found)
        assert found.as_dict()["bank_conflicts"][0]["turns"] == turns


def test_turns_take_their_time():
    """128 warps of 32 lanes, each 32 turns of a cycle: 4096 cycles of 1.83 GHz."""
    slow, fast = (mt.simulate(transpose(pad), machine="dgx-h100") for pad in (0, 1))
    nests = [
        max(r.trace[i].duration_ps for i in range(len(r.trace)) if r.trace[i].operation == "nest")
        for r in (slow, fast)
    ]
    turns = 64 * 64 / 32 * (32 + 1)  # the store's own turn too
    assert nests[0] == pytest.approx(turns / 1.83e9 * 1e12, rel=0.01)
    assert nests[1] < nests[0] / 20


def test_a_swizzled_layout_of_tilelang_has_no_turns():
    import megatile.tilelang.language as TL
    from megatile import tilelang

    def kernel(swizzled: bool):
        @TL.prim_func
        def main(X: TL.Tensor((64, 64), "float32"), Y: TL.Tensor((64, 64), "float32")):
            with TL.Kernel(1, threads=128):
                x = TL.alloc_shared((64, 64), "float32")
                y = TL.alloc_shared((64, 64), "float32")
                if swizzled:
                    TL.annotate_layout({x: tilelang.layout.make_swizzled_layout(x)})
                TL.copy(X, x)
                for i, j in TL.Parallel(64, 64):
                    y[i, j] = x[j, i]
                TL.copy(y, Y)

        return main

    plain, arranged = (
        tilelang.compile(kernel(s)).get_profiler().do_bench(machine="dgx-h100") for s in (False, True)
    )
    assert plain > 1.3 * arranged


def product(machine: str, pad: int = 0, k: int = 64, n: int = 128):
    @T.program
    def program(
        A: T.Tensor((128, k * 8), "f16"), B: T.Tensor((k * 8, n), "f16"), C: T.Tensor((128, n), "f32")
    ):
        with T.Kernel(block=1, threads=128):
            a = T.alloc((128, k + pad), "f16", level="l1")
            b = T.alloc((k, n + pad), "f16", level="l1")
            c = T.alloc((128, n), "f32")
            T.clear(c)
            for i in T.Pipelined(8, num_stages=2):
                T.copy(a[0:128, 0:k], A[0, i * k])
                T.copy(b[0:k, 0:n], B[i * k, 0])
                T.gemm(a[0:128, 0:k], b[0:k, 0:n], c)
            T.copy(C[0, 0], c)

    lowered = mt.lower(program, machine=machine)
    return figures(lowered), longest(lowered, "tensor")


def longest(lowered, engine: str, line: str = "") -> int:
    events = list(mt.simulate(lowered).trace)
    return max(e.duration_ps for e in events if e.engine == engine and e.source.endswith(line))


def test_rows_of_a_products_operands_meet_in_banks():
    """``ldmatrix`` reads 8 rows of 16 bytes: rows of 384 bytes lie in the same four banks. Rows of 128 bytes
    are swizzled, as the CUDA text does it."""
    (plain, slow), (padded, fast) = (product("hgx-a100", pad, 192, 64) for pad in (0, 8))
    ((line, (memory, tile, turns)),) = plain.conflicts.items()
    assert (memory, tile, turns) == ("shared", "a", 8)
    assert line.endswith("test_banks.py:92")
    assert padded.conflicts == {}
    turns = (128 * 8 + 64) * 192 * 2 / 128  # of 128 bytes in a cycle of 1.41 GHz, those of a eight times
    assert slow == pytest.approx(turns / 1.41e9 * 1e12, rel=0.03)
    assert slow > 1.5 * fast
    (swizzled, quick), (_, as_padded) = product("hgx-a100"), product("hgx-a100", 8)
    assert swizzled.conflicts == {}
    assert quick == as_padded
    assert product("dgx-h100", 0, 192, 64)[0].conflicts == {}  # operands lie as the engine likes them


def test_columns_that_lanes_copy_meet_in_banks():
    def columns(pad: int):
        @T.program
        def program(X: T.Tensor((64, 64), "f32"), Y: T.Tensor((64,), "f32")):
            with T.Kernel(block=1, threads=64):
                x = T.alloc((64, 64 + pad), "f32", level="l1")
                y = T.alloc((64, 1), "f32")
                T.copy(x[0:64, 0:64], X[0, 0])
                T.copy(y, x[0:64, 3:4])
                for i in T.Parallel(64):
                    Y[i] = y[i, 0]

        lowered = mt.lower(program, machine="dgx-h100")
        return figures(lowered).conflicts, longest(lowered, "vector", "test_banks.py:129")

    (plain, slow), (padded, fast) = columns(0), columns(4)
    ((line, (_, tile, turns)),) = plain.items()
    assert (tile, turns) == ("x", 32)
    assert line.endswith("test_banks.py:129")
    assert [turns for _, _, turns in padded.values()] == [4]
    assert columns(1)[0] == {}
    assert slow > fast


def test_lanes_far_apart_move_a_sector_each():
    """32 lanes in 32 rows: 32 sectors of 32 B for 128 B, on machines that say what a sector is."""
    (slow,), (fast,) = (
        [
            s.work
            for s in mt.lower(scaled(way), machine="dgx-h100").plan.streams[0].body
            if s.operation == "nest"
        ]
        for way in ("columns", "rows")
    )
    assert (slow.fetched, fast.fetched) == (64 * 64 * 32, 0)
    slow_ps, fast_ps = (mt.simulate(scaled(w), machine="dgx-h100").time_ps for w in ("columns", "rows"))
    moved = 2048 * 2048 * 4 / mt.machine("dgx-h100").memory("hbm").effective_bandwidth * 1e12
    assert slow_ps - fast_ps == pytest.approx(7 * moved, rel=0.05)
    slow_ps, fast_ps = (mt.simulate(scaled(w), machine="tpu-v5p").time_ps for w in ("columns", "rows"))
    assert slow_ps == fast_ps
    slow_ps, fast_ps = (mt.simulate(scaled(w), machine="mi300x-8").time_ps for w in ("columns", "rows"))
    assert slow_ps > 2 * fast_ps


def test_rows_that_data_choose_are_read_in_sectors_and_not_as_the_whole_tensor():
    @T.program
    def rows(X: T.Tensor((65536, 32), "f32"), N: T.Tensor((1024,), "i32"), Y: T.Tensor((1024, 32), "f32")):
        with T.Kernel(block=32, threads=128) as b:
            chosen = T.alloc((32,), "i32")
            y = T.alloc((32, 32), "f32")
            T.copy(chosen, N[b * 32])
            for i, j in T.Parallel(32, 32):
                y[i, j] = X[chosen[i], j]
            T.copy(Y[b * 32, 0], y)

    mine = mt.simulate(rows, machine="dgx-h100").time_ps
    assert mine < 6e6
