"""The header that gives CUDA its meaning on the CPU, against other sources than its own: the fragments of
m16n8k16 and the matrices of ldmatrix as CuTe's tables have them, groups of cp.async as the PTX manual counts
them, masks of lanes."""

import ctypes

import ml_dtypes
import numpy as np
import pytest

from megatile.targets.cuda.generator import DEVICE
from megatile.targets.cuda.kernel import emulated

# CuTe, SM80_16x8x16_F32F16F16F32_TN: of thread (t0 of 4, t1 of 8) and value (v0, v1, v2), strides into the
# column-major tile; A is 16 by 16 (rows, depth), B 8 by 16 (columns, depth), C 16 by 8 (rows, columns).
A_STRIDES, B_STRIDES, C_STRIDES = ((32, 1), (16, 8, 128)), ((16, 1), (8, 64)), ((32, 1), (16, 8))

# CuTe, SM75_U32x4_LDSM_N and SM75_U16x8_LDSM_T: of thread (t0 of 4, t1 of 8) and value (half h of 2, matrix m
# of 4), strides into the rows that the threads gave, in elements of 16 bits, 8 for each thread.
ROWS, COLUMNS = ((2, 8), (1, 64)), ((16, 1), (8, 64))

PROBE = """
KERNEL matrices(const u16 *in, u32 *out, int turned, int count, int shift) {
  SHARED;
  u16 *const tile = (u16 *)shared;
  for (int i = threadIdx.x; i < 520; i += 32) tile[i] = in[i];
  __syncthreads();
  u32 r[4] = {0, 0, 0, 0};
  const u16 *const row = tile + threadIdx.x % (8 * count) * 8 + shift;
  if (count == 4) { if (turned) ldmatrix_x4_trans(r, row); else ldmatrix_x4(r, row); }
  else { if (turned) ldmatrix_x2_trans(r, row); else ldmatrix_x2(r, row); }
  for (int m = 0; m < 4; m++) out[threadIdx.x * 4 + m] = r[m];
}
KERNEL probe(const u16 *a, const u16 *b, float *c, int bf16) {
  u32 x[4], y[2];
  float d[4] = {1, 1, 1, 1};
  for (int r = 0; r < 4; r++) x[r] = a[threadIdx.x * 8 + 2 * r] | (u32)a[threadIdx.x * 8 + 2 * r + 1] << 16;
  for (int r = 0; r < 2; r++) y[r] = b[threadIdx.x * 4 + 2 * r] | (u32)b[threadIdx.x * 4 + 2 * r + 1] << 16;
  if (bf16) mma_bf16(d, x, y); else mma_f16(d, x, y);
  for (int r = 0; r < 4; r++) c[threadIdx.x * 4 + r] = d[r];
}
KERNEL bytes_of(const u32 *a, const u32 *b, float *c, int kind) {
  const u32 *const x = a + threadIdx.x * 4, *const y = b + threadIdx.x * 2;
  float d[4] = {1, 1, 1, 1};
  int n[4] = {1, 1, 1, 1};
  if (kind == 0) mma_f8e4m3(d, x, y);
  else if (kind == 1) mma_f8e5m2(d, x, y);
  else if (kind == 2) mma_by_halves(d, x, y, [](u32 h) { return halves_from_f8e4m3(h); });
  else if (kind == 3) mma_i8(n, x, y);
  else mma_u8(n, x, y);
  for (int r = 0; r < 4; r++) c[threadIdx.x * 4 + r] = kind < 3 ? d[r] : (float)n[r];
}
KERNEL lanes_of(float *out) {
  const float mine = threadIdx.x;
  out[threadIdx.x] = __shfl_xor_sync(lanes(8), mine, 3);
  out[32 + threadIdx.x] = __shfl_xor_sync(lanes(8), mine, 8);
}
KERNEL groups(const float *in, float *out) {
  SHARED;
  float *const tile = (float *)shared;
  for (int g = 0; g < 3; g++) { cp_async16(tile + 4 * g, in + 4 * g, g == 2 ? 8 : 16); if (g < 2) cp_async_commit(); }
  cp_async_wait<1>();
  for (int i = 0; i < 12; i++) out[i] = tile[i];
  cp_async_wait<0>();
  for (int i = 0; i < 12; i++) out[12 + i] = tile[i];
  cp_async_commit();
  cp_async_wait<0>();
  for (int i = 0; i < 12; i++) out[24 + i] = tile[i];
}
extern "C" void run_probe(const u16 *a, const u16 *b, float *c, int bf16, struct failure *failure) { LAUNCH(probe, 1, 32, 0, 1, a, b, c, bf16); }
extern "C" void run_bytes(const u32 *a, const u32 *b, float *c, int kind, struct failure *failure) { LAUNCH(bytes_of, 1, 32, 0, 1, a, b, c, kind); }
extern "C" void run_matrices(const u16 *in, u32 *out, int turned, int count, int shift, struct failure *failure) { LAUNCH(matrices, 1, 32, 2048, 1, in, out, turned, count, shift); }
extern "C" void run_lanes(float *out, struct failure *failure) { LAUNCH(lanes_of, 1, 32, 0, 1, out); }
extern "C" void run_groups(const float *in, float *out, struct failure *failure) { LAUNCH(groups, 1, 1, 256, 1, in, out); }
"""  # noqa: E501


def header() -> ctypes.CDLL:
    return emulated(DEVICE + PROBE).load()


def table(strides: tuple[tuple[int, ...], tuple[int, ...]]) -> np.ndarray:
    """Where each value of each thread is in the column-major tile: [thread, value]."""
    (low, high), values = strides
    thread = np.arange(32)
    found = (thread % 4 * low + thread // 4 * high)[:, None]
    number = np.arange(2 ** len(values))
    return found + sum((number >> bit & 1) * stride for bit, stride in enumerate(values))[None, :]


def pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def test_fragments_are_where_cute_has_them() -> None:
    random, library = np.random.default_rng(0), header()
    for bf16, kind in ((0, np.float16), (1, ml_dtypes.bfloat16)):
        a, b = (random.integers(-8, 9, s).astype(kind) for s in ((16, 16), (8, 16)))
        # Column-major: element (i, k) of a tile of n rows is at i + k * n.
        mine, theirs = (x.T.reshape(-1)[table(s)] for x, s in ((a, A_STRIDES), (b, B_STRIDES)))
        out, failure = np.zeros((32, 4), "f4"), np.zeros(4, "i8")
        library.run_probe(
            pointer(np.ascontiguousarray(mine)), pointer(np.ascontiguousarray(theirs)), pointer(out), bf16,
            pointer(failure),
        )  # fmt: skip
        c = np.zeros(128, "f4")
        c[table(C_STRIDES)] = out
        wanted = 1 + a.astype("f4") @ b.astype("f4").T
        np.testing.assert_array_equal(c.reshape(8, 16).T, wanted)


BYTES = (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn, np.int8, np.uint8)


@pytest.mark.parametrize("kind", range(len(BYTES)))
def test_fragments_of_bytes_are_where_cute_has_them(kind: int) -> None:
    """CuTe, SM80_16x8x32_S32S8S8S32_TN: as for 16 bits, with four values of 8 bits in every word."""
    random = np.random.default_rng(kind)
    a, b = (random.integers(0 if kind == 4 else -4, 5, s).astype(BYTES[kind]) for s in ((16, 32), (8, 32)))
    strides = ((64, 1), (16, 32, 8, 256)), ((32, 1), (8, 16, 128))
    mine, theirs = (x.T.reshape(-1)[table(s)] for x, s in zip((a, b), strides, strict=True))
    out, failure = np.zeros((32, 4), "f4"), np.zeros(4, "i8")
    header().run_bytes(
        *(pointer(np.ascontiguousarray(x)) for x in (mine, theirs)), pointer(out), kind, pointer(failure)
    )
    c = np.zeros(128, "f4")
    c[table(C_STRIDES)] = out
    np.testing.assert_array_equal(c.reshape(8, 16).T, 1 + a.astype("f4") @ b.astype("f4").T)


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("turned", [False, True])
def test_matrices_are_where_cute_has_them(turned: bool, count: int) -> None:
    library = header()
    given, out, failure = np.arange(520, dtype="u2"), np.zeros((32, 4, 2), "u2"), np.zeros(4, "i8")
    library.run_matrices(pointer(given), pointer(out), int(turned), count, 0, pointer(failure))
    (low, high), (half, matrix) = COLUMNS if turned else ROWS
    thread, m, h = np.arange(32)[:, None, None], np.arange(count)[:, None], np.arange(2)
    wanted = thread % 4 * low + thread // 4 * high + h * half + m * matrix
    np.testing.assert_array_equal(out[:, :count], wanted)
    library.run_matrices(pointer(given), pointer(out), int(turned), count, 1, pointer(failure))
    assert (out[:, :count] == 0xFFFF).all(), "rows that are not at multiples of 16 bytes are not read"


def test_lanes_outside_a_mask_have_no_value() -> None:
    out, failure = np.zeros((2, 32), "f4"), np.zeros(4, "i8")
    header().run_lanes(pointer(out), pointer(failure))
    np.testing.assert_array_equal(out[0], np.arange(32) ^ 3)
    assert np.isnan(out[1]).all()


def test_copies_arrive_with_their_group() -> None:
    """wait_group N leaves the last N groups that were committed; what is not committed is not waited for."""
    given, out, failure = np.arange(12, dtype="f4"), np.zeros((3, 12), "f4"), np.zeros(4, "i8")
    header().run_groups(pointer(given), pointer(out), pointer(failure))
    nothing = np.full(4, np.nan)
    np.testing.assert_array_equal(out[0], np.concatenate([given[:4], nothing, nothing]))
    np.testing.assert_array_equal(out[1], np.concatenate([given[:8], nothing]))
    np.testing.assert_array_equal(out[2], np.concatenate([given[:10], [0, 0]]))
