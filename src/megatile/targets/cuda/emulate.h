/* The meaning of what kernels use of a GPU, on a CPU: every thread of a block is a fibre, and blocks run one
   after the other, or all at once where they wait for each other (a cooperative launch). A fibre gives way where threads meet (barriers, shuffles, mma, waits); what was copied in the
   background arrives when it is waited for, and shared memory begins as NaN, so that what was forgotten shows. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <deque>
#include <vector>
#ifndef SCHEDULE /* another number: another order of threads */
#define SCHEDULE 0
#endif
#define DEVICE inline
#define INLINE static inline __attribute__((unused))
#define KERNEL static void
#define TABLE static const long
#define SHARED char *const shared = emulated.shared
#define __syncthreads() emulated.meet(&emulated.here->all, emulated.threads)
#define __syncwarp(mask) emulated.sync_lanes(mask)
#define __threadfence() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#define LAUNCH(kernel, blocks, threads, bytes, deadlock, ...) \
  emulated.run([&] { kernel(__VA_ARGS__); }, blocks, threads, bytes, 1, failure, deadlock)
#define LAUNCH_TOGETHER(kernel, blocks, threads, bytes, deadlock, ...) \
  emulated.run([&] { kernel(__VA_ARGS__); }, blocks, threads, bytes, blocks, failure, deadlock)
#define CLEAR(at, bytes) memset(at, 0, bytes)

static struct { unsigned x; } threadIdx, blockIdx;
INLINE float float_of(u32 x) { float f; memcpy(&f, &x, 4); return f; }
INLINE u32 bits_of(float x) { u32 u; memcpy(&u, &x, 4); return u; }

/* Another stack: registers that a function must keep are pushed, the stack is changed, they are popped. */
#if defined(__x86_64__)
extern "C" void megatile_switch(void **from, void *to) __attribute__((visibility("hidden")));
asm(".text\n.hidden megatile_switch\n.globl megatile_switch\nmegatile_switch:\n"
    "push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15\n"
    "mov %rsp, (%rdi); mov %rsi, %rsp\n"
    "pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp; ret\n");
struct Fibre {
  void *stack = 0;
  void prepare(char *memory, size_t size, void (*body)()) {
    void **top = (void **)((u64)(memory + size) & ~63ul);
    *--top = 0, *--top = (void *)body;
    stack = top - 6;
  }
};
static void change(Fibre &from, Fibre &to) { megatile_switch(&from.stack, to.stack); }
#else
#include <ucontext.h>
struct Fibre {
  ucontext_t context;
  void prepare(char *memory, size_t size, void (*body)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = memory, context.uc_stack.ss_size = size, context.uc_link = 0;
    makecontext(&context, body, 0);
  }
};
static void change(Fibre &from, Fibre &to) { swapcontext(&from.context, &to.context); }
#endif

static struct Emulated {
  struct Meeting { long arrived = 0; int generation = 0; };
  struct Lanes { u32 mask; Meeting meeting; u64 slot[2][32]; u32 operand[2][32][6]; };
  struct Copy { char *to; const char *from; int bytes, size; long group; };
  struct Mbarrier { short arrivals, missing; int phase; };
  struct Behind { std::vector<Copy> copies; Mbarrier *at; }; /* an arrival that follows copies in the background */
  struct Thread { Fibre fibre; bool done; const int *watched; int seen; long group; std::vector<Copy> copies; std::deque<Behind> behind; std::vector<u64> wide; };
  struct Block { Meeting all, named[16]; int yes[16][2]; std::vector<Thread> each; std::vector<std::vector<Lanes *>> warps; };
  static const size_t STACK = 1 << 18;
  std::vector<Block> blocks;
  Block *here = 0; /* the block whose turn it is */
  Fibre home;
  char *stacks = 0, *shared = 0;
  size_t stacks_of = 0;
  int threads = 0;
  void (*body)(void *);
  void *closure;

  Thread &self() { return here->each[threadIdx.x]; }
  void give_way(const int *watched) {
    Thread &me = self();
    me.watched = watched, me.seen = watched ? __atomic_load_n(watched, __ATOMIC_ACQUIRE) : 0;
    change(me.fibre, home);
  }
  void meet(Meeting *m, int count) {
    if (++m->arrived >= count) m->arrived = 0, m->generation++;
    else give_way(&m->generation);
  }
  Lanes *lanes(u32 mask) {
    auto &known = here->warps[threadIdx.x / 32];
    for (Lanes *one : known) if (one->mask == mask) return one;
    Lanes *made = new Lanes();
    made->mask = mask;
    known.push_back(made);
    return made;
  }
  int present(u32 mask) {
    const int left = threads - (int)(threadIdx.x / 32 * 32);
    return __builtin_popcount(left >= 32 ? mask : mask & ((1u << left) - 1));
  }
  void sync_lanes(u32 mask = ~0u) { meet(&lanes(mask)->meeting, present(mask)); }
  u64 shuffled(u32 mask, u64 value, int lane) {
    Lanes *l = lanes(mask);
    const int side = l->meeting.generation & 1;
    l->slot[side][threadIdx.x % 32] = value;
    meet(&l->meeting, present(mask));
    /* Who asks without being named, or asks one who is not, gets anything on a GPU: here NaN. */
    return mask >> threadIdx.x % 32 & mask >> (lane & 31) & 1 ? l->slot[side][lane & 31] : ~0ul;
  }
  static void done(const Copy &c) { memcpy(c.to, c.from, c.bytes), memset(c.to + c.bytes, 0, c.size - c.bytes); }
  static void arrive_at(Mbarrier *m) {
    if (--m->missing == 0) m->missing = m->arrivals, m->phase++;
  }
  static bool finish_behind(Thread &one) {
    if (one.behind.empty()) return false;
    for (const Copy &c : one.behind.front().copies) done(c);
    arrive_at(one.behind.front().at);
    one.behind.pop_front();
    return true;
  }
  void arrive(long groups) {
    Thread &me = self();
    while (finish_behind(me)) {}
    std::vector<Copy> late;
    for (Copy &c : me.copies)
      if (c.group < me.group - groups) done(c);
      else late.push_back(c);
    me.copies.swap(late);
  }
  /* One time in four: whether copies arrive at mbarriers now, and (SCHEDULE) whether a thread stands still. */
  u64 chance = SCHEDULE;
  bool sometimes() { return (chance = chance * 6364136223846793005ul + 1442695040888963407ul) >> 62 == 0; }
  bool copies_arrive(bool nothing_else) {
    bool any = false;
    for (Block &b : blocks)
      for (Thread &one : b.each)
        if (!one.behind.empty() && ((nothing_else && !any) || sometimes())) any |= finish_behind(one);
    return any;
  }

  /* How often 8 lanes went to the banks of shared memory with 16 bytes each, and how many turns they took: by ldmatrix,
     by cp.async. A bank has words of 4 bytes, in 32 banks in turn. */
  long banks[2][2] = {};
  void note_turns(int kind, const u64 *rows) {
    int most = 0;
    for (int bank = 0; bank < 8; bank++) {
      std::vector<u64> wanted;
      for (int i = 0; i < 8; i++) {
        bool is_new = rows[i] / 16 % 8 == (u64)bank;
        for (u64 other : wanted) is_new &= other != rows[i];
        if (is_new) wanted.push_back(rows[i]);
      }
      most = (int)wanted.size() > most ? (int)wanted.size() : most;
    }
    banks[kind][0]++, banks[kind][1] += most;
  }
  void note_copies(Block &block) {
    for (size_t first = 0; first + 8 <= block.each.size(); first += 8)
      for (size_t at = 0; at < block.each[first].wide.size(); at++) {
        u64 rows[8];
        for (int i = 0; i < 8; i++) {
          const auto &places = block.each[first + i].wide;
          rows[i] = at < places.size() ? places[at] : rows[0];
        }
        note_turns(1, rows);
      }
  }

  static void begin();
  /* `together` blocks at a time. */
  template <class Body> void run(Body one, long count, int each, size_t bytes, long together, struct failure *failure, int deadlock) {
    body = [](void *c) { (*(Body *)c)(); };
    closure = &one;
    threads = each;
    const size_t fibres = (size_t)each * together, room = (bytes + 255) / 128 * 128;
    if (stacks_of < fibres) { free(stacks); stacks = (char *)malloc(fibres * STACK); stacks_of = fibres; }
    char *const memory = (char *)aligned_alloc(128, room * together);
    for (long first = 0; first < count && !failure->site; first += together) {
      memset(memory, 0xff, room * together);
      blocks.clear();
      blocks.resize(together);
      for (long b = 0; b < together; b++) {
        blocks[b].each.resize(each), blocks[b].warps.resize((each + 31) / 32);
        for (int t = 0; t < each; t++) {
          Thread &thread = blocks[b].each[t];
          thread.done = false, thread.watched = 0, thread.group = 0, thread.copies.clear(), thread.behind.clear();
          thread.fibre.prepare(stacks + (b * each + t) * STACK, STACK, begin);
        }
      }
      for (long left = fibres; left;) {
        bool moved = false;
        for (long b = 0; b < together; b++)
          for (int t = 0; t < each; t++) {
            Thread &thread = blocks[b].each[t];
            if (thread.done || (thread.watched && __atomic_load_n(thread.watched, __ATOMIC_ACQUIRE) == thread.seen)) continue;
            moved = true;
            if (SCHEDULE && sometimes()) continue;
            here = &blocks[b], blockIdx.x = first + b, threadIdx.x = t, shared = memory + b * room;
            change(home, thread.fibre);
            left -= thread.done;
          }
        if (copies_arrive(!moved)) moved = true;
        if (!moved) { failure->site = deadlock, failure->value = left; break; }
      }
      for (Block &b : blocks) note_copies(b);
      for (Block &b : blocks) for (auto &w : b.warps) for (Lanes *l : w) delete l;
    }
    free(memory);
  }
} emulated;
extern "C" const long *megatile_banks(void) { return emulated.banks[0]; }
void Emulated::begin() {
  emulated.body(emulated.closure);
  emulated.arrive(0);
  emulated.self().done = true;
  change(emulated.self().fibre, emulated.home);
}

template <class T> INLINE T shuffled(u32 mask, T value, int lane) {
  u64 bits = 0;
  memcpy(&bits, &value, sizeof value);
  bits = emulated.shuffled(mask, bits, lane);
  memcpy(&value, &bits, sizeof value);
  return value;
}
#define __shfl_xor_sync(mask, value, by) shuffled(mask, value, (int)(threadIdx.x % 32) ^ (by))
#define __shfl_sync(mask, value, lane) shuffled(mask, value, lane)
template <class T> INLINE T atomicCAS(T *at, T expected, T value) {
  __atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  return expected;
}
INLINE int atomicAdd(int *at, int value) { return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST); }
INLINE float atomicAdd(float *at, float value) { const float old = *at; *at = old + value; return old; }
INLINE void named_sync(int id, int threads) { emulated.meet(emulated.here->named + id, threads); }
INLINE int named_any(int id, int threads, int yes) {
  auto *const m = emulated.here->named + id;
  int *const slot = emulated.here->yes[id] + m->generation % 2;
  *slot = (m->arrived ? *slot : 0) | yes;
  named_sync(id, threads);
  return *slot;
}
struct meeting { int arrived, generation; };
INLINE void meet_at(struct meeting *m, int units) {
  const int seen = m->generation;
  if (atomicAdd(&m->arrived, 1) == units - 1) m->arrived = 0, m->generation++;
  else while (m->generation == seen) emulated.give_way(&m->generation);
}
INLINE void blocks_meet(struct meeting *m, int blocks) {
  __syncthreads();
  if (threadIdx.x == 0) meet_at(m, blocks);
  __syncthreads();
}
INLINE void take_turns(void) { emulated.give_way(0); }
INLINE int has_until(const int *flag, long value) { return *(const volatile int *)flag >= value; }
INLINE int has_phase(const int *flag, long count, long parity) { return *(const volatile int *)flag / count % 2 != parity % 2; }
INLINE void wait_until(const int *flag, long value) { while (*(const volatile int *)flag < value) emulated.give_way(flag); }
INLINE void wait_phase(const int *flag, long count, long parity) { while (*(const volatile int *)flag / count % 2 == parity % 2) emulated.give_way(flag); }
#define CP_ASYNC(n) INLINE void cp_async##n(void *to, const void *from, int bytes) {                           \
  emulated.self().copies.push_back({(char *)to, (const char *)from, bytes, n, emulated.self().group});         \
  if (n == 16) emulated.self().wide.push_back((u64)to); }
CP_ASYNC(16)
CP_ASYNC(8)
CP_ASYNC(4)
INLINE void mbarrier_init(long *b, int arrivals) { *(Emulated::Mbarrier *)b = {(short)arrivals, (short)arrivals, 0}; }
INLINE void mbarrier_arrive(long *b) { Emulated::arrive_at((Emulated::Mbarrier *)b); }
INLINE void mbarrier_arrive_behind(long *b) {
  auto &me = emulated.self();
  me.behind.push_back({me.copies, (Emulated::Mbarrier *)b});
  me.copies.clear();
}
INLINE void mbarrier_wait(long *b, long phase) {
  auto *const m = (Emulated::Mbarrier *)b;
  while ((m->phase & 1) == (phase & 1)) emulated.give_way(&m->phase);
}
INLINE void cp_async_commit(void) { emulated.self().group++; }
INLINE void cp_async_wait_all(void) { emulated.self().group++, emulated.arrive(0); }
template <int groups> INLINE void cp_async_wait(void) { emulated.arrive(groups); }

INLINE float from_f16(u32 h) { u16 bits = (u16)h; _Float16 x; memcpy(&x, &bits, 2); return (float)x; }
INLINE u32 to_f16(float f) { const _Float16 x = (_Float16)f; u16 h; memcpy(&h, &x, 2); return h; }
INLINE u32 to_bf16(float f) {
  const u32 u = bits_of(f);
  return f == f ? (u + 0x7fff + ((u >> 16) & 1)) >> 16 : (u >> 16) | 0x40;
}
INLINE void store_global(void *to, u32 a, u32 b, u32 c, u32 d) {
  const u32 words[] = {a, b, c, d};
  if ((u64)to % 16 == 0) memcpy(to, words, 16);
}
INLINE u32 both_f16(float x, float y) { return to_f16(x) | to_f16(y) << 16; }
INLINE u32 both_bf16(float x, float y) { return to_bf16(x) | to_bf16(y) << 16; }
/* Every lane publishes its row, then picks its words. A row that is not at a multiple of 16 bytes would be a fault. */
template <int count, bool trans> static void ldmatrix(u32 *r, const void *row) {
  Emulated::Lanes *const l = emulated.lanes(~0u);
  const int side = l->meeting.generation & 1, lane = threadIdx.x % 32;
  l->slot[side][lane] = (u64)row;
  emulated.sync_lanes();
  for (int m = 0; m < count; m++) {
    if (lane == 0) emulated.note_turns(0, l->slot[side] + m * 8);
    u16 both[2];
    for (int h = 0; h < 2; h++) {
      const u16 *const from = (const u16 *)l->slot[side][m * 8 + (trans ? lane % 4 * 2 + h : lane / 4)];
      both[h] = (u64)from % 16 ? 0xffff : from[trans ? lane / 4 : lane % 4 * 2 + h];
    }
    memcpy(r + m, both, 4);
  }
}
INLINE void ldmatrix_x4(u32 *r, const void *row) { ldmatrix<4, false>(r, row); }
INLINE void ldmatrix_x2(u32 *r, const void *row) { ldmatrix<2, false>(r, row); }
INLINE void ldmatrix_x4_trans(u32 *r, const void *row) { ldmatrix<4, true>(r, row); }
INLINE void ldmatrix_x2_trans(u32 *r, const void *row) { ldmatrix<2, true>(r, row); }
/* Where the PTX manual puts the elements of m16n8k16 (8 bits: k32): a lane has rows lane / 4 and 8 below, in each the
   word lane % 4 and the one 4 to the right; of sums, columns lane % 4 * 2 and the next. */
template <class Sum, class Convert> static void mma(Sum *d, const u32 *a, const u32 *b, int bits, Convert convert) {
  Emulated::Lanes *const l = emulated.lanes(~0u);
  const int side = l->meeting.generation & 1, lane = threadIdx.x % 32, each = 32 / bits;
  memcpy(l->operand[side][lane], a, 16);
  memcpy(l->operand[side][lane] + 4, b, 8);
  emulated.sync_lanes();
  for (int q = 0; q < 4; q++) {
    const int row = lane / 4 + q / 2 * 8, column = lane % 4 * 2 + q % 2;
    Sum sum = 0;
    for (int k = 0; k < 8 * each; k++) {
      const u32 x = l->operand[side][row % 8 * 4 + k / each % 4][row / 8 + k / each / 4 * 2] >> k % each * bits;
      const u32 y = l->operand[side][column * 4 + k / each % 4][4 + k / each / 4] >> k % each * bits;
      sum += convert(x & ((1u << bits) - 1)) * convert(y & ((1u << bits) - 1));
    }
    d[q] += sum;
  }
}
INLINE void mma_f16(float *d, const u32 *a, const u32 *b) { mma(d, a, b, 16, [](u32 h) { return from_f16(h); }); }
INLINE void mma_bf16(float *d, const u32 *a, const u32 *b) { mma(d, a, b, 16, [](u32 h) { return float_of(h << 16); }); }
INLINE void mma_i8(int *d, const u32 *a, const u32 *b) { mma(d, a, b, 8, [](u32 c) { return (int)(signed char)c; }); }
INLINE void mma_u8(int *d, const u32 *a, const u32 *b) { mma(d, a, b, 8, [](u32 c) { return (int)c; }); }
#define MMA_F8(name, type, convert) INLINE void name(float *d, const u32 *a, const u32 *b) { mma(d, a, b, 8, [](u32 c) { return convert(c); }); }
