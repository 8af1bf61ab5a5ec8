/* What generated kernels are written with: on a GPU (nvcc, NVRTC; sm_80 and later) instructions, elsewhere
   functions that mean the same (emulate.h). */
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long u64;
struct failure { int site; long value; };
#ifdef __CUDACC__
#define DEVICE __device__ __forceinline__
#define INLINE static DEVICE
#define KERNEL extern "C" __global__ void
#define TABLE static __device__ const long
#define SHARED extern __shared__ __align__(128) char shared[]
#ifdef __CUDACC_RTC__
#define __builtin_inff() __int_as_float(0x7f800000)
#define __builtin_inf() __longlong_as_double(0x7ff0000000000000)
#define __builtin_nanf(x) __int_as_float(0x7fc00000)
#define __builtin_nan(x) __longlong_as_double(0x7ff8000000000000)
#endif
#define __builtin_fabsf fabsf
#define __builtin_fabs fabs
#define __builtin_labs labs
INLINE float float_of(u32 x) { return __uint_as_float(x); }
INLINE u32 bits_of(float x) { return __float_as_uint(x); }
INLINE float from_f16(u32 h) { float f; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"((u16)h)); return f; }
INLINE u32 to_f16(float x) { u16 h; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x)); return h; }
INLINE u32 both_f16(float x, float y) { u32 h; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(h) : "f"(y), "f"(x)); return h; }
INLINE u32 both_bf16(float x, float y) { u32 h; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(h) : "f"(y), "f"(x)); return h; }
INLINE u32 to_bf16(float x) { u16 h; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(x)); return h; }
/* 16 x 16 elements of a (rows) by 16 x 8 of b (columns), added to 16 x 8 of d; fragments of a warp. */
#define MMA(name, type) INLINE void name(float *d, const u32 *a, const u32 *b) { asm volatile(                 \
  "mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
  : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])); }
MMA(mma_f16, "f16")
MMA(mma_bf16, "bf16")
/* The same, 32 elements of 8 bits deep. */
#define MMA8(name, type) INLINE void name(int *d, const u32 *a, const u32 *b) { asm volatile(                  \
  "mma.sync.aligned.m16n8k32.row.col.s32." type "." type ".s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
  : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])); }
MMA8(mma_i8, "s8")
MMA8(mma_u8, "u8")
/* sm_89 and sm_120 multiply 8-bit floats; ptxas makes f16 of them for the others, and an addition for each result. */
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ / 10 == 89 || __CUDA_ARCH__ >= 1200)
#define MMA_F8(name, type, convert) INLINE void name(float *d, const u32 *a, const u32 *b) { asm volatile(     \
  "mma.sync.aligned.m16n8k32.row.col.f32." type "." type ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
  : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])); }
#else
#define MMA_F8(name, type, convert) INLINE void name(float *d, const u32 *a, const u32 *b) { mma_by_halves(d, a, b, [](u32 c) { return halves_##convert(c); }); }
#endif
/* Four (two) matrices of 8 rows of 16 bytes in shared memory: lane l gives row l % 8 of matrix l / 8, and gets of
   each matrix the word l % 4 of row l / 4; trans: of 16-bit elements, those of rows l % 4 * 2 and below in column l / 4. */
#define LDMATRIX4(name, how) INLINE void name(u32 *r, const void *row) { asm volatile(                         \
  "ldmatrix.sync.aligned.m8n8.x4" how ".shared.b16 {%0, %1, %2, %3}, [%4];"                                    \
  : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"((u32)__cvta_generic_to_shared(row)) : "memory"); }
#define LDMATRIX2(name, how) INLINE void name(u32 *r, const void *row) { asm volatile(                         \
  "ldmatrix.sync.aligned.m8n8.x2" how ".shared.b16 {%0, %1}, [%2];"                                            \
  : "=r"(r[0]), "=r"(r[1]) : "r"((u32)__cvta_generic_to_shared(row)) : "memory"); }
LDMATRIX4(ldmatrix_x4, "")
LDMATRIX4(ldmatrix_x4_trans, ".trans")
LDMATRIX2(ldmatrix_x2, "")
LDMATRIX2(ldmatrix_x2_trans, ".trans")
/* Words to global memory, as one: ptxas does not always see that they follow each other. */
INLINE void store_global(void *to, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" :: "l"(__cvta_generic_to_global(to)), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
/* The first `bytes` of 16 (8, 4) from global to shared memory, the rest zero, in the background. */
#define CP_ASYNC(size, cache) INLINE void cp_async##size(void *to, const void *from, int bytes) {             \
  asm volatile("cp.async." cache ".shared.global [%0], [%1], " #size ", %2;"                                   \
               :: "r"((u32)__cvta_generic_to_shared(to)), "l"(from), "r"(bytes) : "memory"); }
CP_ASYNC(16, "cg")
CP_ASYNC(8, "ca")
CP_ASYNC(4, "ca")
INLINE void cp_async_commit(void) { asm volatile("cp.async.commit_group;" ::: "memory"); }
INLINE void cp_async_wait_all(void) { asm volatile("cp.async.wait_all;" ::: "memory"); }
template <int groups> INLINE void cp_async_wait(void) { asm volatile("cp.async.wait_group %0;" :: "n"(groups) : "memory"); }
/* Some warps of the block meet. */
INLINE void named_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(threads) : "memory"); }
/* The same, and whether any of them says yes. */
INLINE int named_any(int id, int threads, int yes) {
  int any;
  asm volatile("{ .reg .pred p, q; setp.ne.s32 q, %3, 0; bar.red.or.pred p, %1, %2, q; selp.s32 %0, 1, 0, p; }"
               : "=r"(any) : "r"(id), "r"(threads), "r"(yes) : "memory");
  return any;
}
/* An mbarrier in shared memory: a phase ends when `arrivals` threads have arrived, and the next one begins. */
#define SHARED_ADDRESS(p) ((u32)__cvta_generic_to_shared(p))
INLINE void mbarrier_init(long *b, int arrivals) { asm volatile("mbarrier.init.shared.b64 [%0], %1;" :: "r"(SHARED_ADDRESS(b)), "r"(arrivals) : "memory"); }
INLINE void mbarrier_arrive(long *b) { asm volatile("{ .reg .b64 s; mbarrier.arrive.shared.b64 s, [%0]; }" :: "r"(SHARED_ADDRESS(b)) : "memory"); }
/* Once what this thread copies in the background is there: it goes on at once. */
INLINE void mbarrier_arrive_behind(long *b) { asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" :: "r"(SHARED_ADDRESS(b)) : "memory"); }
/* Until a phase has ended, which is the present one or the one before: phases are told apart by even and odd. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define MBARRIER_HAS "mbarrier.try_wait.parity.shared.b64"
#else
#define MBARRIER_HAS "mbarrier.test_wait.parity.shared.b64"
#endif
INLINE void mbarrier_wait(long *b, long phase) {
  u32 ended;
  do asm volatile("{ .reg .pred p; " MBARRIER_HAS " p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                  : "=r"(ended) : "r"(SHARED_ADDRESS(b)), "r"((u32)phase & 1) : "memory");
  while (!ended);
}
INLINE void take_turns(void) {}
/* Blocks that are all there at once (a cooperative launch) meet; `meeting` is in global memory, first zero. */
struct meeting { int arrived, generation; };
INLINE void meet_at(struct meeting *m, int units) {
  const int seen = *(volatile int *)&m->generation;
  __threadfence();
  if (atomicAdd(&m->arrived, 1) == units - 1) {
    *(volatile int *)&m->arrived = 0;
    __threadfence();
    atomicAdd(&m->generation, 1);
  } else while (*(volatile int *)&m->generation == seen) __nanosleep(40);
  __threadfence();
}
INLINE void blocks_meet(struct meeting *m, int blocks) {
  __syncthreads();
  if (threadIdx.x == 0) meet_at(m, blocks);
  __syncthreads();
}
INLINE int has_until(const int *flag, long value) { const int is = *(const volatile int *)flag >= value; __threadfence(); return is; }
INLINE int has_phase(const int *flag, long count, long parity) { const int is = *(const volatile int *)flag / count % 2 != parity % 2; __threadfence(); return is; }
INLINE void wait_until(const int *flag, long value) { while (!has_until(flag, value)) __nanosleep(20); }
INLINE void wait_phase(const int *flag, long count, long parity) { while (!has_phase(flag, count, parity)) __nanosleep(20); }
#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#define LAUNCH(kernel, blocks, threads, bytes, deadlock, ...) do {                                             \
    if ((bytes) > 48 * 1024) cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes); \
    kernel<<<blocks, threads, bytes>>>(__VA_ARGS__); } while (0)
/* All blocks at once; cudaErrorCooperativeLaunchTooLarge (cudaGetLastError) if the GPU does not hold so many. */
template <class... P, class... G> static void launch_together(void (*kernel)(P...), int blocks, int threads, int bytes, G... given) {
  if (bytes > 48 * 1024) cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  [&](P... each) { void *all[] = {(void *)&each...}; cudaLaunchCooperativeKernel((void *)kernel, blocks, threads, all, bytes, 0); }(given...);
}
#define LAUNCH_TOGETHER(kernel, blocks, threads, bytes, deadlock, ...) launch_together(kernel, blocks, threads, bytes, __VA_ARGS__)
#define CLEAR(at, bytes) cudaMemsetAsync(at, 0, bytes, 0)
#endif
#else
#include "emulate.h"
#endif

INLINE long fail(struct failure *f, int site, long value) {
  if (atomicCAS(&f->site, 0, site) == 0) f->value = value;
  return 0;
}
NUMBERS
template <class To, class From> INLINE To bitcast(From x) {
  union { From from; To to; } u;
  u.from = x;
  return u.to;
}
#define BITCAST(from, to, x) bitcast<to, from>(x)
INLINE float exp_f(float x) { return expf(x); }
INLINE float exp2_f(float x) { return exp2f(x); }
INLINE float log_f(float x) { return logf(x); }
INLINE float log2_f(float x) { return log2f(x); }
INLINE float tanh_f(float x) { return tanhf(x); }
INLINE float erf_f(float x) { return erff(x); }
INLINE float sigmoid_f(float x) { return 1.0f / (1.0f + expf(-x)); }
INLINE float sqrt_f(float x) { return sqrtf(x); }
INLINE float rsqrt_f(float x) { return 1.0f / sqrtf(x); }
INLINE float floor_f(float x) { return floorf(x); }
INLINE float ceil_f(float x) { return ceilf(x); }
INLINE float sin_f(float x) { return sinf(x); }
INLINE float cos_f(float x) { return cosf(x); }

/* Narrow floats: held in 16 or 8 bits, computed with as f32. */
INLINE float from_bf16(u32 h) { return float_of(h << 16); }
INLINE float from_f8e5m2(u32 c) { return from_f16(c << 8); }
INLINE float from_f8e4m3(u32 c) {
  const u32 sign = (c & 0x80) << 24, rest = c & 0x7f;
  return float_of((rest == 0x7f ? 0x7fc00000u : bits_of(float_of(rest << 20) * 1.329227995784916e36f)) | sign);
}
/* `drop` bits fewer, nearest even: 0.5 * 2**`one` is where the smallest numbers end and have the same last bit. */
INLINE u32 narrowed(u32 m, int drop, u32 bias, u32 smallest, float step) {
  if (m < smallest) return bits_of(float_of(m) + step) - bits_of(step);
  return (m - bias + (1u << (drop - 1)) - 1 + ((m >> drop) & 1)) >> drop;
}
INLINE u32 to_f8e4m3(float x) {
  const u32 u = bits_of(x), m = u & 0x7fffffff;
  return ((u >> 24) & 0x80) | (m > 0x43e80000 ? 0x7f : narrowed(m, 20, 0x3c000000, 0x3c800000, 16384.0f));
}
INLINE u32 to_f8e5m2(float x) {
  const u32 u = bits_of(x), m = u & 0x7fffffff;
  return ((u >> 24) & 0x80) | (m > 0x7f800000 ? 0x7e : m >= 0x47700000 ? 0x7c : narrowed(m, 21, 0x38000000, 0x38800000, 128.0f));
}
INLINE float round1_tf32(float x) {
  const u32 u = bits_of(x), r = (u + 0xfff + ((u >> 13) & 1)) & 0xffffe000;
  return (u & 0x7f800000) == 0x7f800000 ? x : float_of(r);
}
#define NARROW(name, element)                                                                                  \
  INLINE float ld1_##name(const element *p) { return from_##name(*p); }                                        \
  INLINE void st1_##name(element *p, float x) { *p = (element)to_##name(x); }                                  \
  INLINE float round1_##name(float x) { return from_##name(to_##name(x)); }
NARROW(bf16, u16)
NARROW(f16, u16)
NARROW(f8e4m3, u8)
NARROW(f8e5m2, u8)
/* Two 8-bit floats as f16, which is exact. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define HALVES_F8(name, type) INLINE u32 halves_from_##name(u32 c) { u32 h; asm("cvt.rn.f16x2." type "x2 %0, %1;" : "=r"(h) : "h"((u16)c)); return h; }
#else
#define HALVES_F8(name, type) INLINE u32 halves_from_##name(u32 c) { return to_f16(from_##name(c & 0xff)) | to_f16(from_##name(c >> 8 & 0xff)) << 16; }
#endif
HALVES_F8(f8e4m3, "e4m3")
HALVES_F8(f8e5m2, "e5m2")
/* Products of 8-bit floats as two of f16. */
template <class Convert> INLINE void mma_by_halves(float *d, const u32 *a, const u32 *b, Convert convert) {
  for (int shift = 0; shift < 32; shift += 16) {
    u32 x[6];
    for (int i = 0; i < 6; i++) x[i] = convert((i < 4 ? a[i] : b[i - 4]) >> shift);
    mma_f16(d, x, x + 4);
  }
}
MMA_F8(mma_f8e4m3, "e4m3", from_f8e4m3)
MMA_F8(mma_f8e5m2, "e5m2", from_f8e5m2)

/* A tile in shared memory with rows of `pitch` elements, used like a pointer to its first: the 16 bytes of a row are
   exchanged, by another rule in each of 8 rows that would meet in the same banks. */
template <class Element, int pitch> struct Swizzled {
  static const int row = pitch * (int)sizeof(Element), line = (row < 128 ? 128 : row) / (int)sizeof(Element);
  static const int ways = row / 16 < 8 ? row / 16 : 8, chunk = 16 / (int)sizeof(Element);
  Element *first;
  u32 at;
  DEVICE Swizzled operator+(long by) const { return {first, at + (u32)by}; }
  DEVICE operator Element *() const { return first + (at ^ at / line % ways * chunk); }
};
/* 16 (8, 4) bytes at once, of which the first `bytes` exist: the rest of the target is zero (copy), or as it was (store). */
template <int width> struct alignas(width) Row { u32 words[width / 4]; };
template <int width> INLINE void copy_row(void *to, const void *from, long bytes) {
  if (bytes >= width) *(Row<width> *)to = *(const Row<width> *)from;
  else for (long i = 0; i < width; i++) ((u8 *)to)[i] = i < bytes ? ((const u8 *)from)[i] : 0;
}
template <int width> INLINE void store_row(void *to, const void *from, long bytes) {
  if (bytes >= width) *(Row<width> *)to = *(const Row<width> *)from;
  else for (long i = 0; i < bytes; i++) ((u8 *)to)[i] = ((const u8 *)from)[i];
}
template <int width> INLINE void load_words(u32 *words, const void *from, long bytes) {
  for (int i = 0; i < width / 4; i++) words[i] = 0;
  if (bytes >= width) {
    const Row<width> row = *(const Row<width> *)from;
    for (int i = 0; i < width / 4; i++) words[i] = row.words[i];
  } else for (int i = 0; i < width; i++) if (i < bytes) words[i / 4] |= (u32)((const u8 *)from)[i] << i % 4 * 8;
}
template <int width, bool global = true> INLINE void store_words(void *to, const u32 *words, long bytes) {
  if (bytes >= width) {
    if constexpr (width == 16 && global) store_global(to, words[0], words[1], words[2], words[3]);
    else if constexpr (width == 16) *(Row<16> *)to = {{words[0], words[1], words[2], words[3]}};
    else if constexpr (width == 8) *(Row<8> *)to = {{words[0], words[1]}};
    else *(u32 *)to = words[0];
  } else for (int i = 0; i < width; i++) if (i < bytes) ((u8 *)to)[i] = (u8)(words[i / 4] >> i % 4 * 8);
}
/* Words 0 and 1 of an upper, 2 and 3 of a lower row: lanes of a pair exchange two, and have four of one row then. */
INLINE void exchange_pairs(u32 *w) {
  const bool odd = threadIdx.x & 1;
  for (int i = 0; i < 2; i++) {
    const u32 got = __shfl_xor_sync(~0u, odd ? w[i] : w[i + 2], 1);
    w[i] = odd ? got : w[i], w[i + 2] = odd ? w[i + 2] : got;
  }
}
/* Four lanes have a word of each of four rows, and get four words of one: lane l of row l. */
INLINE void exchange_quads(u32 *w) {
  for (int by = 1; by < 4; by *= 2) {
    const bool odd = threadIdx.x & by;
    for (int i = 0; i < 4; i++) {
      if (i & by) continue;
      const u32 got = __shfl_xor_sync(~0u, odd ? w[i] : w[i + by], by);
      w[i] = odd ? got : w[i], w[i + by] = odd ? w[i + by] : got;
    }
  }
}
/* Elements in one word: as they lie, or `stride` apart. */
INLINE u32 word(const void *at) { return *(const u32 *)at; }
template <class Pointer> INLINE u32 gathered(Pointer at, int stride) {
  if constexpr (sizeof(*at) == 2) return (u32)(u16)*at | (u32)(u16)*(at + stride) << 16;
  else return (u32)(u8)*at | (u32)(u8)*(at + stride) << 8 | (u32)(u8)*(at + 2 * stride) << 16 | (u32)(u8)*(at + 3 * stride) << 24;
}

/* One element changed indivisibly: `change(old)` in place of what is there; gives what was there. Elements of
   less than 32 bits are changed with the word around them. */
template <class Element, class Change> INLINE Element atomically(Element *at, Change change) {
  if constexpr (sizeof(Element) == 8) {
    unsigned long long *const word = (unsigned long long *)at, seen = *(volatile unsigned long long *)word, then;
    for (;; seen = then) {
      const Element old = bitcast<Element, unsigned long long>(seen);
      then = atomicCAS(word, seen, bitcast<unsigned long long, Element>(change(old)));
      if (then == seen) return old;
    }
  } else {
    const int inside = (int)((u64)at & 3), shift = inside * 8;
    u32 *const word = (u32 *)((char *)at - inside), mask = sizeof(Element) == 4 ? ~0u : ((1u << (sizeof(Element) % 4 * 8)) - 1) << shift;
    for (u32 seen = *(volatile u32 *)word, then;; seen = then) {
      Element old;
      if constexpr (sizeof(Element) == 4) old = bitcast<Element, u32>(seen); else old = (Element)(seen >> shift);
      u32 next;
      if constexpr (sizeof(Element) == 4) next = bitcast<u32, Element>(change(old)); else next = (u32)change(old) << shift;
      then = atomicCAS(word, seen, (seen & ~mask) | (next & mask));
      if (then == seen) return old;
    }
  }
}
/* The lanes of an aligned group of `size` (a power of two). */
INLINE u32 lanes(int size) { return size >= 32 ? ~0u : ((1u << size) - 1) << (threadIdx.x % 32 / size * size); }
