"""``language/tile/capacity.py``: compare the bytes of tiles in each memory layer with its capacity."""

import warnings
from typing import Any

import numpy as np
import pytest
from tests.language.tile.shared import ones

import megatile as mt
import megatile.language as T
from megatile.core.dtypes import bits
from megatile.language.tile.errors import ProgramError, ProgramWarning


def test_registers_of_a_thread() -> None:
    def kernel(columns: int) -> Any:
        @T.program
        def big(A: T.Tensor((128, columns), "f32")):
            with T.Kernel(block=1, threads=128):
                t = T.alloc_fragment((128, columns), "f32")
                T.copy(t, A)
                T.copy(A, t)

        return big

    message = "need 1024 B of 'registers' in each of its 128 threads, but a thread has at most 1020 B"
    with pytest.raises(ProgramError, match=message):
        mt.run(kernel(256), ones(128, 256))
    mt.run(kernel(255), ones(128, 255))
    mt.run(kernel(256), ones(128, 256), machine="mi300x-8")


def test_a_message_counts_all_tiles() -> None:
    """The second of three tiles exceeds what there is: what is needed is the sum of all three."""

    @T.program
    def three(A: T.Tensor((256, 256), "f32")):
        with T.Kernel(block=1, threads=128):
            tiles = [T.alloc((256, rows), "f32", level="l1") for rows in (128, 144, 16)]
            for tile in tiles:
                T.clear(tile)

    with pytest.raises(
        ProgramError, match=r"need 288 KiB of 'shared', but there are 227 KiB \(the largest: '"
    ):
        mt.lower(three, machine="dgx-h100")


def two_sums(threads: int, columns: int = 256) -> Any:
    @T.program
    def both(A: T.Tensor((128, columns), "f32"), B: T.Tensor((128, columns), "f32")):
        with T.Kernel(block=1, threads=threads):
            a, b = T.alloc((128, columns), "f32"), T.alloc((128, columns), "f32")
            T.copy(a, A)
            T.copy(b, B)
            T.copy(B, a)
            T.copy(A, b)

    return both


def test_tiles_leave_registers_for_addresses() -> None:
    """512 threads have 128 registers each, and two tiles of 128 x 256 take them all."""
    message = (
        r"take 512 B of 'registers' in each of its 512 threads, and leave 0 of the 64 B that addresses need"
    )
    with pytest.warns(ProgramWarning, match=message):
        mt.lower(two_sums(512), machine="dgx-h100")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mt.lower(two_sums(512, 192), machine="dgx-h100")
        mt.lower(two_sums(512), machine="mi300x-8")  # has twice the registers


def test_four_bits_are_half_a_byte_of_memory() -> None:
    assert bits("i4") == bits("f4e2m1") == 4 and bits("e8m0") == 8

    @T.program
    def kernel(A: T.Tensor((8,), "f32")):
        with T.Kernel(block=1, threads=32):
            T.alloc_shared((400 * 1024,), "i4")
            T.clear(A)

    mt.run(kernel, ones(8))


def test_tiles_of_regions_one_after_the_other_are_not_alive_at_once():
    @T.program
    def steps(X: T.Tensor((128, 128), "f32"), Y: T.Tensor((128, 128), "f32")):
        with T.Kernel(device=1, block=1, threads=256), T.Scale("device"):
            for _ in range(4):  # each has half of what the threads may have
                with T.Scale("block"):
                    x = T.alloc((128, 256), "f32")
                    T.copy(x[:, 0:128], X[0, 0])
                    T.copy(Y[0, 0], x[:, 0:128])

    x, y = np.ones((128, 128), np.float32), np.zeros((128, 128), np.float32)
    mt.run(steps, x, y, machine="dgx-h100")
    assert (y == 1).all()


def pipelined(stages: int, rows: int) -> Any:
    @T.program
    def p(A: T.Tensor((1024, 256), "f16"), B: T.Tensor((1024, 256), "f16")):
        with T.Kernel(block=1, threads=128):
            a = T.alloc((rows, 256), "f16", level="l1")
            b = T.alloc((rows, 256), "f16", level="l1")
            for k in T.Pipelined(1024 // rows, num_stages=stages):
                T.copy(a, A[k * rows, 0])
                T.copy(b, a)
                T.copy(B[k * rows, 0], b)

    return p


def test_stages_that_do_not_fit_are_reported() -> None:
    deep = pipelined(4, 128)  # one buffer is 64 KiB; b stays one
    with pytest.warns(
        ProgramWarning,
        match=r"\.py:\d+: 4 stages of pipelined loop 'k' need 320 KiB of 'shared' per block, but there are "
        r"227 KiB; 2 fit \(try: num_stages=2, or smaller tiles\)",
    ):
        deep.build()
    a = np.random.default_rng(0).standard_normal((1024, 256)).astype(np.float16)
    b = np.zeros_like(a)
    mt.run(deep, a, b)
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("stages", "rows"), [(2, 128), (1, 128), (4, 64)])
def test_stages_that_fit(stages: int, rows: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pipelined(stages, rows).build()
