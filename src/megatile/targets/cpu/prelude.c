/* What generated kernels are written with: vectors of W floats, conversions, functions, failures. */
typedef float vf __attribute__((vector_size(4 * W)));
typedef int vi __attribute__((vector_size(4 * W)));
typedef unsigned int vu __attribute__((vector_size(4 * W)));
typedef unsigned short vh __attribute__((vector_size(2 * W)));
typedef signed char vb __attribute__((vector_size(W)));
typedef unsigned char vc __attribute__((vector_size(W)));
typedef short vs __attribute__((vector_size(2 * W)));
typedef double vd __attribute__((vector_size(4 * W)));
typedef int word __attribute__((aligned(1), may_alias)); /* what a processor multiplies two or four at a time */
typedef float vf_at __attribute__((vector_size(4 * W), aligned(4), may_alias));
typedef int vi_at __attribute__((vector_size(4 * W), aligned(4), may_alias));
typedef unsigned short vh_at __attribute__((vector_size(2 * W), aligned(2), may_alias));
typedef signed char vb_at __attribute__((vector_size(W), aligned(1), may_alias));
typedef unsigned char vc_at __attribute__((vector_size(W), aligned(1), may_alias));
typedef short vs_at __attribute__((vector_size(2 * W), aligned(2), may_alias));
typedef double vd_at __attribute__((vector_size(4 * W), aligned(8), may_alias));
typedef int vw_at __attribute__((vector_size(4 * W), aligned(1), may_alias));
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long u64;
#define INLINE static inline __attribute__((always_inline, unused))
#define RARELY __attribute__((noinline, cold, unused)) static

void *aligned_alloc(u64, u64), *memcpy(void *, const void *, u64), *memset(void *, int, u64);
void free(void *);
float powf(float, float), fmodf(float, float), sinf(float), cosf(float);
double pow(double, double), fmod(double, double), exp(double), exp2(double), log(double), log2(double);
double sin(double), cos(double), tanh(double), erf(double), floor(double), ceil(double), sqrt(double);

/* The first failure of a run; what goes on after it touches no memory outside. */
struct failure { int site; long value; };
struct pool { long threads; void (*run)(struct pool *, void (*)(void *, long, long), void *, long); };
RARELY long fail(struct failure *f, int site, long value) {
  int none = 0;
  if (__atomic_compare_exchange_n(&f->site, &none, site, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) f->value = value;
  return 0;
}

NUMBERS
#define BITCAST(from, to, x) ({ from s_ = (x); to t_; memcpy(&t_, &s_, sizeof t_); t_; })

/* Vectors. */
INLINE vf vset(float x) { return x - (vf){0}; }
INLINE vi viset(int x) { return x - (vi){0}; }
INLINE vf sel(vi m, vf a, vf b) { return (vf)((m & (vi)a) | (~m & (vi)b)); }
INLINE vi isel(vi m, vi a, vi b) { return (m & a) | (~m & b); }
INLINE vf ld_f32(const float *p) { return *(const vf_at *)p; }
INLINE void st_f32(float *p, vf v) { *(vf_at *)p = v; }
INLINE vi ld_i32(const int *p) { return *(const vi_at *)p; }
INLINE void st_i32(int *p, vi v) { *(vi_at *)p = v; }
INLINE vd ld_f64(const double *p) { return *(const vd_at *)p; }
INLINE void st_f64(double *p, vd v) { *(vd_at *)p = v; }
INLINE vi ld_word(const word *p) { return *(const vw_at *)p; }
INLINE vi iota(void) { vi r; for (int i = 0; i < W; i++) r[i] = i; return r; }
/* The larger and the smaller of two; the second if one is NaN, as the instructions have it. */
#if defined(__AVX512F__) && W == 16
#define TWO(name, instruction) INLINE vf name(vf a, vf b) { vf r; __asm__(instruction " %2, %1, %0" : "=v"(r) : "v"(a), "v"(b)); return r; }
TWO(larger, "vmaxps")
TWO(smaller, "vminps")
TWO(vscaled, "vscalefps") /* a * 2**b, b whole */
#elif defined(__AVX__) && W == 8
#define TWO(name, instruction) INLINE vf name(vf a, vf b) { vf r; __asm__(instruction " %2, %1, %0" : "=x"(r) : "x"(a), "x"(b)); return r; }
TWO(larger, "vmaxps")
TWO(smaller, "vminps")
#else
INLINE vf larger(vf a, vf b) { return sel(a > b, a, b); }
INLINE vf smaller(vf a, vf b) { return sel(a < b, a, b); }
#endif
#if defined(__AVX512F__) && W == 16 /* what is NaN in b stays in it: one step after a, where sel would be two */
#define KEEPS_NAN(name, instruction) INLINE vf name(vf a, vf b) { __asm__("vcmpordps %0, %0, %%k1\n\t" instruction " %1, %0, %0%{%%k1%}" : "+v"(b) : "v"(a) : "k1"); return b; }
KEEPS_NAN(vmax, "vmaxps")
KEEPS_NAN(vmin, "vminps")
#else
INLINE vf vmax(vf a, vf b) { return sel(b != b, b, larger(b, a)); }
INLINE vf vmin(vf a, vf b) { return sel(b != b, b, smaller(b, a)); }
#endif
INLINE vi vimax(vi a, vi b) { return isel(a > b, a, b); }
INLINE vi vimin(vi a, vi b) { return isel(a < b, a, b); }
INLINE vf vabs(vf a) { return (vf)((vi)a & 0x7fffffff); }
INLINE vi viabs(vi a) { return isel(a < 0, -a, a); }
INLINE vf vfloat(vi a) { return __builtin_convertvector(a, vf); }
INLINE vi vtrunc(vf a) { /* floats cut to i32: NaN is 0, what is too large the nearest end */
  vf c = sel(a > 2147483520.0f, vset(2147483520.0f), sel(a >= -2147483648.0f, a, vset(-2147483648.0f)));
  vi r = __builtin_convertvector(sel(a == a, c, vset(0)), vi);
  return isel(a >= 2147483648.0f, viset(0x7fffffff), r);
}
INLINE vf vfloor(vf a) {
  vf r = vfloat(__builtin_convertvector(sel(vabs(a) < 8388608.0f, a, vset(0)), vi));
  r -= sel(r > a, vset(1), vset(0));
  return sel(vabs(a) < 8388608.0f, (vf)((vi)r | ((vi)a & (int)0x80000000)), a);
}
INLINE vf vceil(vf a) { return -vfloor(-a); }
#define EACH(name, expression) INLINE vf name(vf a) { vf r; for (int i = 0; i < W; i++) { float x = a[i]; r[i] = expression; } return r; }
EACH(vsqrt, __builtin_sqrtf(x))
EACH(vsin, sinf(x))
EACH(vcos, cosf(x))

/* exp, log, tanh, erf: within 2 units of the last place of f32. */
#if !(defined(__AVX512F__) && W == 16)
INLINE vf vscaled(vf a, vf b) { /* a * 2**b, b whole: in two steps so that nothing overflows on the way */
  vi n = __builtin_convertvector(sel(b == b, b, vset(0)), vi), h = n >> 1;
  return a * (vf)((h + 127) << 23) * (vf)((n - h + 127) << 23);
}
#endif
INLINE vf vexp2(vf a) {
#if defined(__AVX512DQ__) && W == 16
  vf n = a, r; /* vscalefps rounds down what it is given; so does the fraction here */
  __asm__("vreduceps $1, %1, %0" : "=v"(r) : "v"(a));
#else
  vf x = smaller(vset(130.0f), larger(vset(-160.0f), a)), n = (x + 12582912.0f) - 12582912.0f;
  n -= sel(n > x, vset(1), vset(0));
  vf r = x - n;
#endif
  vf p = 1.0f + r * (((((0.000216129192f * r + 0.00124678458f) * r + 0.00967545155f) * r + 0.0554852821f) * r + 0.240229309f) * r + 0.693147063f);
  return vscaled(p, n);
}
INLINE vf vexp(vf a) {
  vf x = smaller(vset(90.0f), larger(vset(-110.0f), a));
  vf n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;
  vf r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  vf p = 1.0f + (r + r * r * (((((0.000199160175f * r + 0.00139473216f) * r + 0.00833326951f) * r + 0.0416662507f) * r + 0.166666672f) * r + 0.5f));
  return vscaled(p, n);
}
INLINE vf vlogs(vf a, float scale_high, float scale_low, float of_exponent_high, float of_exponent_low) {
  vi tiny = a < 1.17549435e-38f;
  vf x = sel(tiny, a * 8388608.0f, a);
  vi bits = (vi)x, e = (bits - 0x3f3504f3) >> 23;
  vf f = (vf)(bits - (e << 23)) - 1.0f, k = vfloat(e) - sel(tiny, vset(23), vset(0));
  vf q = f * f * f * (((((((((0.0691476688f * f + -0.117895022f) * f + 0.118730843f) * f + -0.12384408f) * f + 0.142186508f) * f + -0.166692466f) * f + 0.200022265f) * f + -0.249999866f) * f + 0.333333105f)) - 0.5f * f * f; /* log(1 + f) = f + q */
  vf r = k * of_exponent_high + (f * scale_high + (q * scale_high + ((f + q) * scale_low + k * of_exponent_low)));
  vf inf = vset(__builtin_inff());
  r = sel(a == 0.0f, -inf, sel(a == inf, inf, r));
  return sel((a < 0.0f) | (a != a), vset(__builtin_nanf("")), r);
}
INLINE vf vlog(vf a) { return vlogs(a, 1.0f, 0.0f, 0.693359375f, -2.12194440e-4f); }
INLINE vf vlog2(vf a) { return vlogs(a, 1.44238281f, 0.000312277703f, 1.0f, 0.0f); }
INLINE vf vtanh(vf a) {
  vf t = vabs(a), s = a * a;
  vf small = a + a * s * ((((((0.00236536958f * s + -0.00838887133f) * s + 0.0217752177f) * s + -0.0539586172f) * s + 0.133332878f) * s + -0.333333313f));
  vf big = 1.0f - 2.0f / (vexp(sel(t > 10.0f, vset(10.0f), t) * 2.0f) + 1.0f);
  big = (vf)((vi)big | ((vi)a & (int)0x80000000));
  return sel(t < 0.55f, small, sel(a == a, big, a));
}
INLINE vf verf(vf a) {
  vf t = vabs(a), s = a * a;
  vf small = a + a * ((((((((-1.01719997e-05f * s + 0.000114207425f) * s + -0.000850264041f) * s + 0.00522212964f) * s + -0.0268657617f) * s + 0.112837873f) * s + -0.376126379f) * s + 0.128379166f));
  vf u = sel(t > 4.0f, vset(4.0f), t);
  vf big = 1.0f - vexp((((((((((1.03400441e-06f * u + -1.66163081e-05f) * u + 9.46041473e-05f) * u + -2.40050758e-05f) * u + -0.00303086638f) * u + 0.0232724249f) * u + -0.106329709f) * u + -0.634642601f) * u + -1.12902308f) * u + 9.33365736e-05f));
  big = (vf)((vi)big | ((vi)a & (int)0x80000000));
  return sel(t < 0.93f, small, sel(a == a, big, a));
}
INLINE vf vrsqrt(vf a) { return 1.0f / vsqrt(a); }
INLINE vf vsigmoid(vf a) { return 1.0f / (1.0f + vexp(-a)); }
#define ONE(name) INLINE float name##_f(float x) { return v##name(vset(x))[0]; }
ONE(exp) ONE(exp2) ONE(log) ONE(log2) ONE(tanh) ONE(erf) ONE(sigmoid)
INLINE float sqrt_f(float x) { return __builtin_sqrtf(x); }
INLINE float rsqrt_f(float x) { return 1.0f / __builtin_sqrtf(x); }
INLINE float floor_f(float x) { return __builtin_floorf(x); }
INLINE float ceil_f(float x) { return __builtin_ceilf(x); }
INLINE float sin_f(float x) { return sinf(x); }
INLINE float cos_f(float x) { return cosf(x); }

/* Narrow floats. */
INLINE vf of_bits(vu u) { return (vf)u; }
INLINE vu hwide(vh h) { return (vu)__builtin_convertvector(h, vu); }
INLINE vh hnarrow(vu u) { return __builtin_convertvector(u, vh); }
INLINE vf from_bf16(vu h) { return of_bits(h << 16); }
INLINE vu to_bf16(vf a) {
  vu u = (vu)a, r = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  return (vu)isel(a == a, (vi)r, (vi)((u >> 16) | 0x40));
}
INLINE vf from_f16(vu h) {
  vu sign = (h & 0x8000) << 16, rest = (h & 0x7fff) << 13;
  vf x = of_bits(rest) * 5.192296858534828e33f; /* 2**112 */
  vu wide = (vu)isel((vi)(rest >= 0x0f800000), (vi)(rest | 0x7f800000), (vi)x);
  return of_bits(wide | sign);
}
INLINE vu to_f16(vf a) {
  vu u = (vu)a, sign = (u >> 16) & 0x8000, m = u & 0x7fffffff;
  vu normal = (m - 0x38000000 + 0xfff + ((m >> 13) & 1)) >> 13;
  vu tiny = (vu)(of_bits(m) + 0.5f) - 0x3f000000; /* the last bit of 0.5 is that of the smallest number */
  vu r = (vu)isel((vi)(m < 0x38800000), (vi)tiny, (vi)normal);
  r = (vu)isel((vi)(m >= 0x477ff000), (vi)viset(0x7c00), (vi)r);
  return sign | (vu)isel((vi)(m > 0x7f800000), (vi)((m >> 13) | 0x7e00) & 0x7fff, (vi)r);
}
INLINE vf from_f8e4m3(vu c) {
  vu sign = (c & 0x80) << 24, rest = (c & 0x7f) << 20;
  vf x = of_bits(rest) * 1.329227995784916e36f; /* 2**120 */
  return of_bits((vu)isel((vi)((c & 0x7f) == 0x7f), viset(0x7fc00000), (vi)x) | sign);
}
INLINE vu to_f8e4m3(vf a) {
  vu u = (vu)a, sign = (u >> 24) & 0x80, m = u & 0x7fffffff;
  vu normal = (m - 0x3c000000 + 0x7ffff + ((m >> 20) & 1)) >> 20;
  vu tiny = (vu)(of_bits(m) + 16384.0f) - 0x46800000; /* steps of 2**-9 */
  vu r = (vu)isel((vi)(m < 0x3c800000), (vi)tiny, (vi)normal);
  return sign | (vu)isel((vi)(m > 0x43e80000), viset(0x7f), (vi)r);
}
INLINE vf from_f8e5m2(vu c) { return from_f16(c << 8); }
INLINE vu to_f8e5m2(vf a) {
  vu u = (vu)a, sign = (u >> 24) & 0x80, m = u & 0x7fffffff;
  vu normal = (m - 0x38000000 + 0xfffff + ((m >> 21) & 1)) >> 21;
  vu tiny = (vu)(of_bits(m) + 128.0f) - 0x43000000; /* steps of 2**-16 */
  vu r = (vu)isel((vi)(m < 0x38800000), (vi)tiny, (vi)normal);
  r = (vu)isel((vi)(m >= 0x47700000), viset(0x7c), (vi)r);
  return sign | (vu)isel((vi)(m > 0x7f800000), viset(0x7e), (vi)r);
}
INLINE vf round_tf32(vf a) {
  vu u = (vu)a, r = (u + 0xfff + ((u >> 13) & 1)) & 0xffffe000;
  return sel(vabs(a) < __builtin_inff(), of_bits(r), a);
}
#define NARROW(name, element, vector, at)                                                                    \
  INLINE vf ld_##name(const element *p) { return from_##name((vu)__builtin_convertvector((vector)*(const at *)p, vu)); } \
  INLINE void st_##name(element *p, vf v) { *(at *)p = __builtin_convertvector(to_##name(v), vector); }      \
  INLINE vf round_##name(vf v) { return from_##name(to_##name(v)); }                                         \
  INLINE float ld1_##name(const element *p) { return from_##name((vu)viset(*p))[0]; }                        \
  INLINE void st1_##name(element *p, float v) { *p = (element)to_##name(vset(v))[0]; }                       \
  INLINE float round1_##name(float v) { return round_##name(vset(v))[0]; }
NARROW(bf16, u16, vh, vh_at)
NARROW(f16, u16, vh, vh_at)
NARROW(f8e4m3, u8, vc, vc_at)
NARROW(f8e5m2, u8, vc, vc_at)
INLINE float round1_tf32(float v) { return round_tf32(vset(v))[0]; }
INLINE vi ld_i8(const signed char *p) { return __builtin_convertvector((vb)*(const vb_at *)p, vi); }
INLINE vi ld_u8(const u8 *p) { return __builtin_convertvector((vc)*(const vc_at *)p, vi); }
INLINE vi ld_i16(const short *p) { return __builtin_convertvector((vs)*(const vs_at *)p, vi); }
INLINE void st_i16(short *p, vi v) { *(vs_at *)p = __builtin_convertvector(v, vs); }
INLINE void st_i8(signed char *p, vi v) { *(vb_at *)p = __builtin_convertvector(v, vb); }
INLINE void st_u8(u8 *p, vi v) { *(vc_at *)p = __builtin_convertvector(v, vc); }

/* The first n elements of a vector. */
#define PART(name, element, vector)                                                                          \
  INLINE vector ldn_##name(const element *p, long n) { element t[W] = {0}; for (long i = 0; i < n; i++) t[i] = p[i]; return ld_##name(t); } \
  INLINE void stn_##name(element *p, vector v, long n) { element t[W]; st_##name(t, v); for (long i = 0; i < n; i++) p[i] = t[i]; }
PART(f32, float, vf)
PART(bf16, u16, vf)
PART(f16, u16, vf)
PART(f8e4m3, u8, vf)
PART(f8e5m2, u8, vf)
PART(i32, int, vi)
PART(i16, short, vi)
PART(i8, signed char, vi)
PART(u8, u8, vi)
INLINE vf first(vf v, long n, float rest) { return sel(iota() < (int)n, v, vset(rest)); }
INLINE vf rotated(vf v, int w) {
#if defined(__clang__)
  vf r; for (int i = 0; i < W; i++) r[i] = v[(i + w) % W]; return r;
#else
  return __builtin_shuffle(v, (iota() + w) & (W - 1));
#endif
}
#define HORIZONTAL(name, both) INLINE float name(vf v) { _Pragma("GCC unroll 4") for (int w = W / 2; w; w /= 2) { const vf o = rotated(v, w); v = both; } return v[0]; }
HORIZONTAL(hsum, v + o)
HORIZONTAL(hmax, vmax(v, o))
HORIZONTAL(hmin, vmin(v, o))

/* W rows of W floats, turned: rows become columns. */
static void turn(float *to, long to_stride, const float *from, long from_stride) {
#if defined(__clang__)
  for (int i = 0; i < W; i++) for (int j = 0; j < W; j++) to[j * to_stride + i] = from[i * from_stride + j];
#else
  vf r[W];
  const vi l = iota();
#pragma GCC unroll 16
  for (int i = 0; i < W; i++) r[i] = ld_f32(from + i * from_stride);
#pragma GCC unroll 4
  for (int w = 1; w < W; w *= 2) { /* blocks of w change places across the diagonal */
    const vi right = (l & w) != 0, low = isel(right, l + (W - w), l), high = isel(right, l + W, l + w);
#pragma GCC unroll 16
    for (int i = 0; i < W; i++)
      if (!(i & w)) {
        const vf a = r[i], b = r[i + w];
        r[i] = __builtin_shuffle(a, b, low), r[i + w] = __builtin_shuffle(a, b, high);
      }
  }
#pragma GCC unroll 16
  for (int i = 0; i < W; i++) st_f32(to + i * to_stride, r[i]);
#endif
}

/* Words: several operands that follow each other along k. ADD_x adds the products of two vectors of words to
   their sums; weave_x_y makes words of rows. */
#if defined(__AVX512F__) && W == 16
#define WORDS(c, a, b, instruction) __asm__(instruction " %2, %1, %0" : "+v"(c) : "v"(a), "v"(b))
#endif
#if defined(__AVX512BF16__) && W == 16
#define ADD_bf16(c, a, b) WORDS(c, a, b, "vdpbf16ps")
#else
#define ADD_bf16(c, a, b) (c += (vf)((a) << 16) * (vf)((b) << 16), c += (vf)((a) & (int)0xffff0000) * (vf)((b) & (int)0xffff0000))
#endif
#if defined(__AVX512VNNI__) && W == 16
#define ADD_i16(c, a, b) WORDS(c, a, b, "vpdpwssd")
#define ADD_i8(c, a, b) WORDS(c, a, b, "vpdpbusd") /* those of a without sign */
#else
#define BYTE(a, shift) ((vu)(a) << shift >> 24)
#define SIGNED(b, shift) (vu)((vi)((vu)(b) << shift) >> 24)
#define ADD_i8(c, a, b) (c += BYTE(a, 24) * SIGNED(b, 24) + BYTE(a, 16) * SIGNED(b, 16) + BYTE(a, 8) * SIGNED(b, 8) + BYTE(a, 0) * SIGNED(b, 0))
#endif
#if !defined(ADD_i16) && ((defined(__AVX512BW__) && W == 16) || (defined(__AVX2__) && W == 8))
#define ADD_i16(c, a, b) do { vi m_; __asm__("vpmaddwd %2, %1, %0" : "=v"(m_) : "v"(a), "v"(b)); c += (vu)m_; } while (0)
#elif !defined(ADD_i16)
#define HALF(a, shift) (vu)((vi)((vu)(a) << shift) >> 16)
#define ADD_i16(c, a, b) (c += HALF(a, 16) * HALF(b, 16) + HALF(a, 0) * HALF(b, 0))
#endif
#define WEAVE(name, element, vector, scalar)                                                                 \
  static __attribute__((unused)) void weave_##name(word *to, const element *from, long stride, long n) {      \
    long i = 0;                                                                                              \
    for (const element *p = from; i + W <= n; i += W, p = from + i) *(vw_at *)(to + i) = (vi)(vector);        \
    for (const element *p = from + i; i < n; i++, p++) to[i] = (int)(scalar);                                 \
  }
#define PAIR(load) ((load(p) & 0xffff) | load(p + stride) << 16)
#define QUAD(load) ((load(p) & 0xff) | (load(p + stride) & 0xff) << 8 | (load(p + 2 * stride) & 0xff) << 16 | load(p + 3 * stride) << 24)
#define BITS_u16(p) hwide(*(const vh_at *)(p))
#define BITS_f32(p) to_bf16(ld_f32(p))
#define BITS_i16(p) (vu)ld_i16(p)
#define BITS_i8(p) (vu)ld_i8(p)
#define BITS_u8(p) (vu)ld_u8(p)
#define BITS1(p) (u32)*(p)
#define BITS1_f32(p) to_bf16(vset(*(p)))[0]
WEAVE(bf16_bf16, u16, PAIR(BITS_u16), PAIR(BITS1))
WEAVE(bf16_f32, float, PAIR(BITS_f32), PAIR(BITS1_f32))
WEAVE(i16_i16, short, PAIR(BITS_i16), PAIR(BITS1))
WEAVE(i16_i8, signed char, PAIR(BITS_i8), PAIR(BITS1))
WEAVE(i16_u8, u8, PAIR(BITS_u8), PAIR(BITS1))
WEAVE(i8_i8, signed char, QUAD(BITS_i8), QUAD(BITS1))
static __attribute__((unused)) void shifted(word *p, long n) { /* 128 added to every byte */
  long i = 0;
  for (; i + W <= n; i += W) *(vw_at *)(p + i) = ld_word(p + i) ^ (int)0x80808080;
  for (; i < n; i++) p[i] ^= (int)0x80808080;
}
