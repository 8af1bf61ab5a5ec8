/* Processes (or threads) that share memory: barriers, signals and collectives as memory operations.

   A world is a header in memory that all members map, at any address. Every wait ends when `lost` is set (the
   number of a dead member, from 1) or when the process that began everything is gone; then it gives -1.
   Members wait by spinning, then by yielding, then asleep in the kernel. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#endif

enum { SMALL = 1024, BLOCK = 16384, LINE = 64, MOST = 256 };

struct world {
  uint32_t members, lost, parent, spins;
  struct { uint32_t count, turn, asleep, pad[13]; } gate;
  struct { uint32_t turn, pad[15]; } own[MOST]; /* how many small messages a member has left */
  /* then: 2 * members * SMALL bytes of small messages */
};

static unsigned char *small(struct world *w, uint32_t turn, uint32_t rank) {
  return (unsigned char *)(w + 1) + ((turn & 1) * w->members + rank) * SMALL;
}

long mt_world_bytes(long members) { return sizeof(struct world) + 2 * members * SMALL; }
long mt_most_members(void) { return MOST; }

/* `parent` is the process without which no member goes on, 0 for none. */
void mt_world_begin(struct world *w, long members, long cores, long parent) {
  memset(w, 0, sizeof *w);
  w->members = members, w->parent = parent, w->spins = members <= cores ? 4000 : 0;
}

static inline void rest(void) {
#if defined(__x86_64__)
  __asm__ volatile("pause");
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static int gone(struct world *w) {
  const uint32_t parent = w->parent;
  return __atomic_load_n(&w->lost, __ATOMIC_RELAXED) || (parent && parent != (uint32_t)getpid() && parent != (uint32_t)getppid());
}

static void sleep_on(uint32_t *word, uint32_t value) {
#if defined(__linux__)
  struct timespec most = {0, 20 * 1000 * 1000};
  syscall(SYS_futex, word, FUTEX_WAIT, value, &most, 0, 0);
#else
  usleep(50);
#endif
}

static void wake(uint32_t *word) {
#if defined(__linux__)
  syscall(SYS_futex, word, FUTEX_WAKE, 1 << 30, 0, 0, 0);
#endif
}

/* Until a word differs from `old`; 0, or -1 if somebody is lost. */
static int changed(struct world *w, uint32_t *word, uint32_t old) {
  for (uint32_t i = 0; __atomic_load_n(word, __ATOMIC_ACQUIRE) == old; i++) {
    if (i < w->spins) { rest(); continue; }
    if (i < w->spins + 40) { sched_yield(); continue; }
    if (gone(w)) return -1;
    __atomic_fetch_add(&w->gate.asleep, 1, __ATOMIC_SEQ_CST);
    sleep_on(word, old);
    __atomic_fetch_sub(&w->gate.asleep, 1, __ATOMIC_SEQ_CST);
  }
  return __atomic_load_n(&w->lost, __ATOMIC_RELAXED) ? -1 : 0;
}

static void change(struct world *w, uint32_t *word) {
  __atomic_fetch_add(word, 1, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&w->gate.asleep, __ATOMIC_SEQ_CST)) wake(word);
}

/* A member has nothing to do until others have done something, and had nothing so many times before; -1 if somebody
   is lost. */
int mt_idle(struct world *w, long times) {
  if (times < 2000 && times % 64) sched_yield(); else usleep(times < 2000 ? 50 : 300);
  return gone(w) ? -1 : 0;
}

int mt_barrier(struct world *w) {
  uint32_t turn = __atomic_load_n(&w->gate.turn, __ATOMIC_ACQUIRE);
  if (__atomic_add_fetch(&w->gate.count, 1, __ATOMIC_ACQ_REL) == w->members) {
    __atomic_store_n(&w->gate.count, 0, __ATOMIC_RELAXED);
    change(w, &w->gate.turn);
    return __atomic_load_n(&w->lost, __ATOMIC_RELAXED) ? -1 : 0;
  }
  return changed(w, &w->gate.turn, turn);
}

void mt_lose(struct world *w, long rank) {
  __atomic_store_n(&w->lost, (uint32_t)rank + 1, __ATOMIC_SEQ_CST);
  wake(&w->gate.turn);
  for (uint32_t r = 0; r < w->members; r++) wake(&w->own[r].turn);
}

long mt_lost(struct world *w) { return (long)__atomic_load_n(&w->lost, __ATOMIC_SEQ_CST) - 1; }

/* Flags: counters anywhere in shared memory. */
void mt_signal(struct world *w, uint32_t *flag, long amount) {
  __atomic_fetch_add(flag, (uint32_t)amount, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&w->gate.asleep, __ATOMIC_SEQ_CST)) wake(flag);
}

int mt_wait(struct world *w, uint32_t *flag, long value) {
  for (uint32_t seen; (seen = __atomic_load_n(flag, __ATOMIC_ACQUIRE)) < (uint32_t)value;)
    if (changed(w, flag, seen)) return -1;
  return 0;
}

/* Elements: 0 f32, 1 f64, 2 i32, 3 i64, 4 f16, 5 bf16, 6 i8, 7 u8. Operations: 0 sum, 1 max, 2 min, 3 prod. */
static const int SIZES[] = {4, 8, 4, 8, 2, 2, 1, 1};

static inline float from_bf16(uint16_t h) { uint32_t u = (uint32_t)h << 16; float f; memcpy(&f, &u, 4); return f; }
static inline uint16_t to_bf16(float f) {
  uint32_t u; memcpy(&u, &f, 4);
  if ((u & 0x7fffffff) > 0x7f800000) return (u >> 16) | 0x40;
  return (u + 0x7fff + ((u >> 16) & 1)) >> 16;
}
static inline float from_f16(uint16_t h) { _Float16 x; memcpy(&x, &h, 2); return (float)x; }
static inline uint16_t to_f16(float f) { _Float16 x = (_Float16)f; uint16_t h; memcpy(&h, &x, 2); return h; }

#define MERGES(T, A, B) \
  switch (op) { \
    case 0: for (long i = 0; i < n; i++) a[i] = A + B; break; \
    case 1: for (long i = 0; i < n; i++) { T x = A, y = B; a[i] = (x > y || x != x) ? x : y; } break; \
    case 2: for (long i = 0; i < n; i++) { T x = A, y = B; a[i] = (x < y || x != x) ? x : y; } break; \
    default: for (long i = 0; i < n; i++) a[i] = A * B; \
  }
#define MERGE(NAME, T) static void NAME(void *restrict p, const void *restrict q, long n, int op) { \
  T *restrict a = p; const T *restrict b = q; MERGES(T, a[i], b[i]) }
MERGE(merge_f32, float) MERGE(merge_f64, double) MERGE(merge_i32, int32_t) MERGE(merge_i64, int64_t)
MERGE(merge_i8, int8_t) MERGE(merge_u8, uint8_t)
#define NARROW(NAME, FROM) static void NAME(void *restrict p, const void *restrict q, long n, int op) { \
  float *restrict a = p; const uint16_t *restrict b = q; MERGES(float, a[i], FROM(b[i])) }
NARROW(merge_f16, from_f16) NARROW(merge_bf16, from_bf16)
static void (*const merge[])(void *restrict, const void *restrict, long, int) = {
  merge_f32, merge_f64, merge_i32, merge_i64, merge_f16, merge_bf16, merge_i8, merge_u8};

/* out = the n elements at `from[0..members)` merged in order of the members; 16-bit floats in f32. */
static void merged(void *out, unsigned char **from, long at, long n, long members, int kind, int op) {
  int size = SIZES[kind], narrow = kind == 4 || kind == 5;
  if (!narrow) {
    memcpy(out, from[0] + at * size, n * size);
    for (long r = 1; r < members; r++) merge[kind](out, from[r] + at * size, n, op);
    return;
  }
  float sum[BLOCK / 2];
  const uint16_t *first = (uint16_t *)from[0] + at;
  for (long i = 0; i < n; i++) sum[i] = kind == 4 ? from_f16(first[i]) : from_bf16(first[i]);
  for (long r = 1; r < members; r++) merge[kind](sum, from[r] + at * size, n, op);
  uint16_t *to = out;
  for (long i = 0; i < n; i++) to[i] = kind == 4 ? to_f16(sum[i]) : to_bf16(sum[i]);
}

static void share(long count, long members, long rank, long unit, long *low, long *high) {
  long each = (count + members - 1) / members;
  each = (each + unit - 1) / unit * unit;
  *low = each * rank < count ? each * rank : count;
  *high = *low + each < count ? *low + each : count;
}

/* Every member leaves a small message and reads those of all; one wait each, as messages lie in turn. */
static int exchanged(struct world *w, long rank, const void *mine, long bytes, unsigned char **found) {
  uint32_t turn = w->own[rank].turn;
  memcpy(small(w, turn, rank), mine, bytes);
  change(w, &w->own[rank].turn);
  for (long r = 0; r < w->members; r++) {
    while (__atomic_load_n(&w->own[r].turn, __ATOMIC_ACQUIRE) - turn - 1 > 1u << 30)
      if (changed(w, &w->own[r].turn, turn)) return -1;
    found[r] = small(w, turn, r);
  }
  return 0;
}

int mt_all_reduce(struct world *w, long rank, unsigned char **buffers, long count, int kind, int op) {
  int size = SIZES[kind];
  unsigned char *from[MOST];
  if (w->members == 1 || !count) return 0;
  if (count * size <= SMALL) {
    if (exchanged(w, rank, buffers[rank], count * size, from)) return -1;
    merged(buffers[rank], from, 0, count, w->members, kind, op);
    return 0;
  }
  unsigned char block[BLOCK];
  /* So many that what was read of all members is still in the first cache when it is written. */
  long low, high, most = (BLOCK / w->members + LINE - 1) / LINE * LINE / size;
  if (mt_barrier(w)) return -1;
  share(count, w->members, rank, LINE / size, &low, &high);
  for (long at = low; at < high; at += most) {
    long n = high - at < most ? high - at : most;
    merged(block, buffers, at, n, w->members, kind, op);
    for (long r = 0; r < w->members; r++) memcpy(buffers[r] + at * size, block, n * size);
  }
  return mt_barrier(w);
}

/* out[rank] of `count` elements = the merge of everybody's part number `rank`. */
int mt_reduce_scatter(struct world *w, long rank, unsigned char **in, unsigned char *out, long count, int kind, int op) {
  int size = SIZES[kind];
  long most = BLOCK / size;
  if (mt_barrier(w)) return -1;
  for (long at = 0; at < count; at += most) {
    long n = count - at < most ? count - at : most;
    merged(out + at * size, in, rank * count + at, n, w->members, kind, op);
  }
  return mt_barrier(w);
}

int mt_all_gather(struct world *w, long rank, unsigned char **in, unsigned char *out, long bytes) {
  if (mt_barrier(w)) return -1;
  for (long k = 0; k < w->members; k++) {
    long r = (rank + k) % w->members;
    memmove(out + r * bytes, in[r], bytes);
  }
  return mt_barrier(w);
}

int mt_all_to_all(struct world *w, long rank, unsigned char **in, unsigned char *out, long bytes) {
  if (mt_barrier(w)) return -1;
  for (long k = 0; k < w->members; k++) {
    long r = (rank + k) % w->members;
    memcpy(out + r * bytes, in[r] + rank * bytes, bytes);
  }
  return mt_barrier(w);
}

int mt_broadcast(struct world *w, long rank, unsigned char **buffers, long bytes, long root) {
  if (mt_barrier(w)) return -1;
  if (rank != root) memcpy(buffers[rank], buffers[root], bytes);
  return mt_barrier(w);
}
