// What tile programs cannot say about a computer: the latency of its memories, the rate of its units, and how
// long a signal takes from one process to another. BITS is the width of its vectors.
typedef float floats __attribute__((vector_size(BITS / 8)));
typedef double doubles __attribute__((vector_size(BITS / 8)));

// Follow pointers, each to the next: nothing can be asked for in time.
void *follow(void **at, long steps) {
  for (; steps > 0; steps--) at = (void **)*at;
  return at;
}

// The sum of an array, a line at a time in four sums.
float read_all(const floats *x, long lines, long rounds) {
  floats s[4] = {{0}, {0}, {0}, {0}};
  for (; rounds > 0; rounds--)
    for (long i = 0; i + 4 <= lines; i += 4)
      for (int j = 0; j < 4; j++) s[j] += x[i + j];
  floats all = s[0] + s[1] + s[2] + s[3];
  return all[0];
}

// Twelve chains of fused multiplications and additions: more than any pipeline is deep. They begin with
// different numbers: equal ones would be computed once.
#define CHAINS(name, vector, scalar)                                              \
  scalar name(long steps, scalar factor, scalar term) {                           \
    vector a = {0}, b = a + 1, c = a + 2, d = a + 3, e = a + 4, f = a + 5, g = a + 6, h = a + 7, i = a + 8, j = a + 9, k = a + 10, l = a + 11; \
    vector x = a + factor, y = a + term;                                          \
    for (; steps > 0; steps--) {                                                  \
      a = a * x + y, b = b * x + y, c = c * x + y, d = d * x + y;                 \
      e = e * x + y, f = f * x + y, g = g * x + y, h = h * x + y;                 \
      i = i * x + y, j = j * x + y, k = k * x + y, l = l * x + y;                 \
    }                                                                             \
    a += b + c + d + e + f + g + h + i + j + k + l;                               \
    return a[0];                                                                  \
  }
CHAINS(chains_f32, floats, float)
CHAINS(chains_f64, doubles, double)

// A signal to a peer and its answer, again and again.
int answers(void *world, int *mine, int *other, long rounds, long first, int (*signal)(void *, int *, long),
            int (*wait)(void *, int *, long)) {
  for (long r = 1; r <= rounds; r++) {
    if (first) signal(world, other, 1);
    if (wait(world, mine, r)) return 1;
    if (!first) signal(world, other, 1);
  }
  return 0;
}
