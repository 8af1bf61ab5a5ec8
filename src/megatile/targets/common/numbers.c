/* Numbers as Python has them, for every target; needs INLINE, u64 and fail(). */
INLINE long inside(struct failure *f, int site, long i, long n) {
  return __builtin_expect((u64)i < (u64)n, 1) ? i : fail(f, site, i);
}
INLINE long lmin(long a, long b) { return a < b ? a : b; }
INLINE long lmax(long a, long b) { return a > b ? a : b; }
INLINE long floordiv(long a, long b) { return a / b - ((a % b != 0) & ((a ^ b) < 0)); }
INLINE long modulo(long a, long b) { long r = a % b; return r + (((r != 0) & ((r ^ b) < 0)) ? b : 0); }
INLINE long divisor(struct failure *f, int site, long b) { return __builtin_expect(b != 0, 1) ? b : fail(f, site, 0) + 1; }
INLINE long power(long a, long n) { long r = 1; for (; n > 0; n >>= 1, a *= a) if (n & 1) r *= a; return r; }
INLINE float fmax_(float a, float b) { return a > b || a != a ? a : b; }
INLINE float fmin_(float a, float b) { return a < b || a != a ? a : b; }
INLINE double dmax_(double a, double b) { return a > b || a != a ? a : b; }
INLINE double dmin_(double a, double b) { return a < b || a != a ? a : b; }
INLINE float fmodulo(float a, float b) { float r = fmodf(a, b); return r != 0 && (r < 0) != (b < 0) ? r + b : r; }
INLINE double dmodulo(double a, double b) { double r = fmod(a, b); return r != 0 && (r < 0) != (b < 0) ? r + b : r; }
INLINE double dfloordiv(double a, double b) { return b == 0 ? a / b : floor((a - dmodulo(a, b)) / b + 0.5); }
INLINE float ffloordiv(float a, float b) { return b == 0 ? a / b : (float)floor(((double)a - fmodulo(a, b)) / b + 0.5); }
INLINE long whole(double x, double low, double high, long top) { return x != x ? 0 : x >= high ? top : x <= low ? (long)low : (long)x; }
