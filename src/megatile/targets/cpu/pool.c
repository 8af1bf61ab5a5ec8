/* Threads that take the instances of a phase: each those of its own part first, so that in the next phase and
   the next call it finds its data in its caches, then what others have left. One pool serves all kernels of a
   process. Each thread keeps to a processor of its own, none to the caller's: a scheduler that sees threads which sleep
   between phases may leave them all on one. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

typedef void body_t(void *, long, long);
struct pool { long threads; void (*run)(struct pool *, body_t *, void *, long); };
struct part { _Alignas(64) long next; };
struct shared {
  struct pool pool; /* first: kernels see only this */
  pthread_mutex_t lock;
  pthread_cond_t begin;
  pid_t owner;
  body_t *body;
  void *here;
  long count, busy, turn, sleeping;
  struct part *parts;
  pthread_t *workers;
  int *processors, processor_count, home; /* those this process may use; where the workers keep away from */
};

static void take(struct shared *p, long worker, body_t *body, void *here, long count) {
  const long threads = p->pool.threads;
  for (long k = 0; k < threads; k++) {
    const long whose = (worker + k) % threads, first = whose * count / threads, end = (whose + 1) * count / threads;
    long *const next = &p->parts[whose].next;
    /* the only one of another that has not begun is left to it: its data would have to come from that thread's caches */
    for (long i; (!k || (i = __atomic_load_n(next, __ATOMIC_RELAXED)) + 1 < end || i > first) && (i = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED)) < end;) body(here, worker, i);
  }
}

static inline void rest(void) {
#if defined(__x86_64__)
  __asm__ volatile("pause");
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

struct start { struct shared *pool; long worker; };
static void *work(void *argument) {
  struct start start = *(struct start *)argument;
  struct shared *p = start.pool;
  free(argument);
  for (long seen = 0;;) {
    int spins = 2000; /* some tens of microseconds: the next phase often follows at once */
    while (__atomic_load_n(&p->turn, __ATOMIC_ACQUIRE) == seen && spins--) rest();
    if (__atomic_load_n(&p->turn, __ATOMIC_ACQUIRE) == seen) {
      pthread_mutex_lock(&p->lock);
      p->sleeping++;
      while (p->turn == seen) pthread_cond_wait(&p->begin, &p->lock);
      p->sleeping--;
      pthread_mutex_unlock(&p->lock);
    }
    seen++;
    take(p, start.worker, p->body, p->here, p->count);
    __atomic_fetch_sub(&p->busy, 1, __ATOMIC_RELEASE);
  }
  return 0;
}

/* The caller is on processor `home`: the workers go to those that follow, unless there are too few. */
static void place(struct shared *p, int home) {
#if defined(__linux__)
  p->home = home;
  int at = 0, count = p->processor_count;
  while (at < count && p->processors[at] != home) at++;
  for (long worker = 1; worker < p->pool.threads; worker++) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(p->processors[(at + worker) % count], &one);
    pthread_setaffinity_np(p->workers[worker], sizeof one, &one);
  }
#endif
}

static void processors(struct shared *p) {
#if defined(__linux__)
  cpu_set_t all;
  if (sched_getaffinity(0, sizeof all, &all) || CPU_COUNT(&all) < p->pool.threads) return;
  if (!(p->processors = malloc(CPU_COUNT(&all) * sizeof *p->processors))) return;
  for (int i = 0; i < CPU_SETSIZE; i++)
    if (CPU_ISSET(i, &all)) p->processors[p->processor_count++] = i;
#endif
}

static pthread_mutex_t only = PTHREAD_MUTEX_INITIALIZER;
static void run(struct pool *pool, body_t *body, void *here, long count) {
  struct shared *p = (struct shared *)pool;
  if (p->owner != getpid() || pthread_mutex_trylock(&only)) { /* after a fork, or inside another run */
    for (long i = 0; i < count; i++) body(here, 0, i);
    return;
  }
#if defined(__linux__)
  if (p->processor_count && sched_getcpu() != p->home) place(p, sched_getcpu());
#endif
  p->body = body, p->here = here, p->count = count;
  for (long worker = 0; worker < p->pool.threads; worker++)
    __atomic_store_n(&p->parts[worker].next, worker * count / p->pool.threads, __ATOMIC_RELAXED);
  __atomic_store_n(&p->busy, p->pool.threads - 1, __ATOMIC_RELAXED);
  pthread_mutex_lock(&p->lock);
  __atomic_fetch_add(&p->turn, 1, __ATOMIC_RELEASE);
  if (p->sleeping) pthread_cond_broadcast(&p->begin);
  pthread_mutex_unlock(&p->lock);
  take(p, 0, body, here, count);
  for (long spins = 0; __atomic_load_n(&p->busy, __ATOMIC_ACQUIRE); spins++)
    if (spins < 10000) rest(); else usleep(20);
  pthread_mutex_unlock(&only);
}

struct pool *megatile_pool(long threads) {
  struct shared *p = calloc(1, sizeof *p);
  if (!p) return 0;
  p->pool.threads = 1, p->pool.run = run, p->owner = getpid(), p->home = -1;
  pthread_mutex_init(&p->lock, 0);
  pthread_cond_init(&p->begin, 0);
  p->workers = calloc(threads, sizeof *p->workers);
  if (!(p->parts = aligned_alloc(64, threads * sizeof *p->parts))) return 0;
  for (long worker = 1; p->workers && worker < threads; worker++) {
    struct start *start = malloc(sizeof *start);
    if (!start) break;
    start->pool = p, start->worker = worker;
    if (pthread_create(&p->workers[worker], 0, work, start)) { free(start); break; }
    pthread_detach(p->workers[worker]);
    p->pool.threads++;
  }
  processors(p);
  return &p->pool;
}
