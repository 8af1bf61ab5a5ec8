/* Memory of several computers that looks like one: a page that this one may not touch is asked for first.

   Every computer has all pages at the same addresses. One may write a page alone, or several may read it; a
   program that does more is interrupted (SIGSEGV), the ask is written to a pipe, and it goes on at the answer. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { NOTHING, READING, WRITING, FAR = 256 };

static struct {
  char *base, *allowed; /* what this process may do with each page */
  long pages, size, next, far, resumed; /* how often the program went on */
  long page, wrote;                     /* the last ask, and the instruction that made it */
  uintptr_t instruction;
  int ask, answer, lost;
  struct sigaction before;
} memory;

static int rights(int access) { return access == WRITING ? PROT_READ | PROT_WRITE : access == READING ? PROT_READ : PROT_NONE; }

int mt_pages_allow(long first, long count, int access) {
  memset(memory.allowed + first, access, count);
  return mprotect(memory.base + first * memory.size, count * memory.size, rights(access));
}

static int writes(long page, void *context) {
#if defined(__linux__) && defined(__x86_64__)
  (void)page;
  return ((ucontext_t *)context)->uc_mcontext.gregs[REG_ERR] >> 1 & 1;
#else
  (void)context;
  return memory.allowed[page] == READING; /* it may read, and was interrupted all the same */
#endif
}

static uintptr_t instruction(void *context) {
#if defined(__linux__) && defined(__x86_64__)
  return ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
#elif defined(__linux__) && defined(__aarch64__)
  return ((ucontext_t *)context)->uc_mcontext.pc;
#else
  (void)context;
  return 0;
#endif
}

static void on_fault(int number, siginfo_t *info, void *context) {
  const long at = (char *)info->si_addr - memory.base, page = at / memory.size;
  const int kept = errno;
  (void)number;
  if (at < 0 || page >= memory.pages) { sigaction(SIGSEGV, &memory.before, 0); return; }
  if (!__atomic_load_n(&memory.lost, __ATOMIC_ACQUIRE)) {
    const int write_ = writes(page, context);
    memory.far = page == memory.next ? memory.far * 2 : 1; /* who goes on behind the last ask wants more */
    if (memory.far > FAR) memory.far = FAR;
    const long count = memory.far < memory.pages - page ? memory.far : memory.pages - page;
    /* An instruction that is interrupted again wants two pages at once, or one after the other in steps. */
    const int again = memory.instruction == instruction(context) && memory.page != page;
    const int64_t ask[5] = {page, count, write_, again ? memory.page : -1, memory.wrote};
    int64_t got = 1;
    memory.instruction = instruction(context), memory.page = page, memory.wrote = write_;
    while (write(memory.ask, ask, sizeof ask) < 0 && errno == EINTR);
    while (read(memory.answer, &got, sizeof got) < 0 && errno == EINTR);
    memory.next = page + got;
  }
  if (__atomic_load_n(&memory.lost, __ATOMIC_ACQUIRE)) /* go on with whatever is there, to the next wait */
    mprotect(memory.base, memory.pages * memory.size, PROT_READ | PROT_WRITE);
  errno = kept;
  __atomic_fetch_add(&memory.resumed, 1, __ATOMIC_RELEASE);
}
long mt_pages_resumed(void) { return __atomic_load_n(&memory.resumed, __ATOMIC_ACQUIRE); }

int mt_pages_begin(char *base, char *allowed, long pages, long size, int ask, int answer) {
  struct sigaction action;
  memory.base = base, memory.allowed = allowed, memory.pages = pages, memory.size = size;
  memory.ask = ask, memory.answer = answer, memory.lost = 0, memory.next = -1, memory.far = 1;
  memory.resumed = memory.page = memory.instruction = 0;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = on_fault, action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  return mt_pages_allow(0, pages, READING) || sigaction(SIGSEGV, &action, &memory.before);
}

void mt_pages_lose(void) { __atomic_store_n(&memory.lost, 1, __ATOMIC_RELEASE); }
int mt_pages_end(void) { return sigaction(SIGSEGV, &memory.before, 0); }

/* A unit has nothing to do until others have done something. */
int mt_pages_idle(void *none, long times) {
  (void)none, (void)times;
  usleep(200);
  return __atomic_load_n(&memory.lost, __ATOMIC_ACQUIRE) ? -1 : 0;
}

/* The same place in memory for all: 0, or -1 if this process has something there. */
int mt_pages_place(char *at, long bytes, int handle) {
#if defined(MAP_FIXED_NOREPLACE)
  char *got = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, handle, 0);
#else
  char *got = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, handle, 0);
#endif
  if (got == MAP_FAILED) return -1;
  if (got == at) return 0;
  munmap(got, bytes);
  return -1;
}
void mt_pages_remove(char *at, long bytes) { munmap(at, bytes); }

/* Collectives call a function of the program, which other processes have at other addresses: the own one. */
typedef void collective_t(const struct line *, struct failure *, int);
static collective_t *collective;
static struct { char *base; long bytes, rank, ranks; } common;
void mt_pages_collectives(void *all, char *base, long bytes, long rank, long ranks) {
  collective = (collective_t *)all;
  common.base = base, common.bytes = bytes, common.rank = rank, common.ranks = ranks;
}
void mt_pages_collective(const struct line *l, struct failure *failure, int site) {
  struct post **const posts = l->group->posts;
  const long count = l->group->count, low = common.rank * count / common.ranks, high = (common.rank + 1) * count / common.ranks;
  if ((char *)posts >= common.base && (char *)posts < common.base + common.bytes)
    for (long i = 0; i < l->count; i++) {
      const long unit = l->first + i * l->stride;
      if (unit >= low && unit < high) { posts[l->first]->merge = posts[unit]->merge; break; }
    }
  collective(l, failure, site);
}
