/* Units that wait for each other: each is a function that returns where it has to wait and goes on from there. */
enum { DONE, WAITS, MOVED, TURN };
struct meeting { long arrived, generation; };
typedef int step_t(void *frame, void *here, long worker);
struct round { step_t *step; char *frames; long size; struct here *here; struct pool *pool; long left, moved, low, count, lanes, patience; };
struct unit { int state; long rank; struct round *inner; }; /* a frame begins so; inner: of a region in which units wait for others than each other */
struct here { struct run *run; char *work; struct group group; };
INLINE void rest(void) {
#if defined(__x86_64__)
  __asm__ volatile("pause");
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/* Memory for units that wait for each other: of all processes where they are in several. */
static void *room(u64 bytes) {
  if (!divided()) return calloc(1, bytes);
  char *const at = procs.heap + procs.used;
  bytes = (bytes + 63) / 64 * 64;
  if (procs.used + (long)bytes > procs.room) return 0;
  procs.used += bytes;
  meet();
  if (!procs.rank) memset(at, 0, bytes);
  meet();
  return at;
}
static void given_back(void *memory) {
  if (!divided()) { free(memory); return; }
  meet();
  procs.used = (char *)memory - procs.heap;
}

INLINE int arrive(struct meeting *m, long needed, long *seen) { /* whether this unit is the last to come */
  *seen = __atomic_load_n(&m->generation, __ATOMIC_ACQUIRE);
  return __atomic_add_fetch(&m->arrived, 1, __ATOMIC_ACQ_REL) == needed;
}
INLINE void release(struct meeting *m) {
  __atomic_store_n(&m->arrived, 0, __ATOMIC_RELAXED);
  __atomic_add_fetch(&m->generation, 1, __ATOMIC_RELEASE);
}
INLINE int passed(struct meeting *m, long seen) { return __atomic_load_n(&m->generation, __ATOMIC_ACQUIRE) != seen; }

INLINE struct unit *frame(struct round *r, long index) { return (struct unit *)(r->frames + index * r->size); }

/* One step of a unit; whether it moved. */
static int stepped(struct round *r, long index, long worker) {
  int now = TURN, moved = 0;
  if (procs.size) procs.inside++;
  for (int turns = 0; turns < 64 && now == TURN; turns++) moved |= (now = r->step(frame(r, index), r->here, worker)) != WAITS;
  if (procs.size) procs.inside--;
  if (now == DONE) { frame(r, index)->state = -1; __atomic_fetch_sub(&r->left, 1, __ATOMIC_RELAXED); }
  return moved;
}

/* The units of a lane, in turn, until all are done or wait for others who do not come soon. */
static void lane(void *argument, long worker, long index) {
  struct round *const r = argument;
  const long first = r->low + index * r->count / r->lanes, after = r->low + (index + 1) * r->count / r->lanes;
  for (long patience = r->patience; patience >= 0;) {
    int moved = 0, left = 0;
    for (long i = first; i < after; i++) {
      if (frame(r, i)->state < 0) continue;
      left = 1;
      moved |= stepped(r, i, worker);
    }
    if (moved) __atomic_store_n(&r->moved, 1, __ATOMIC_RELAXED);
    if (!left) return;
    if (moved && r->patience) patience = r->patience; else patience--, rest();
  }
}
static void one_turn(struct round *r, long worker, int phase) {
  double *const times = phase < 0 ? 0 : r->here->run->times, start = times ? now() : 0;
  r->moved = 0;
  if (r->lanes > 1) r->pool->run(r->pool, lane, r, r->lanes);
  else lane(r, worker, 0);
  if (times) times[phase] += now() - start;
}

/* Frames of all units of a group, the places where they meet, and of those that have some their own memory. */
static int opened(struct round *r, step_t *step, long size, long count, long keys, u64 works, struct here *here, struct pool *pool) {
  const u64 frames = (u64)size * count, meetings = sizeof(struct meeting) * keys * count;
  const u64 before = (frames + meetings + sizeof(void *) * count + 63) / 64 * 64;
  char *const memory = room(before + works);
  if (!memory) return 0;
  here->group = (struct group){count, (struct meeting *)(memory + frames), (struct post **)(memory + frames + meetings)};
  if (works) here->work = memory + before;
  const long low = own_first(count), high = own_after(count), lanes = pool && count > 1 ? lmin(count, pool->threads) : 1;
  *r = (struct round){step, memory, size, here, pool, high - low, 0, low, high - low, lanes, 0};
  for (long i = low; i < high; i++) frame(r, i)->rank = i;
  meet();
  return 1;
}
static void closed(struct round *r) {
  for (long i = r->low; i < r->low + r->count; i++)
    if (frame(r, i)->inner) { closed(frame(r, i)->inner); free(frame(r, i)->inner); }
  given_back(r->frames);
}

/* Inside a unit that waits: it takes a turn of its units at each of its own; whether they have ended. */
static struct round *begun(step_t *step, long size, long count, long keys, u64 works, struct here *here, struct pool *pool) {
  struct round *const r = calloc(1, sizeof *r);
  if (r && !opened(r, step, size, count, keys, works, here, pool)) { free(r); return 0; }
  return r;
}
static int ended(struct round **inner, long worker, int phase, int *moved) {
  struct round *const r = *inner;
  if (!r) return 1;
  one_turn(r, worker, phase);
  *moved |= r->moved;
  if (r->left) return 0;
  closed(r);
  free(r);
  *inner = 0;
  return 1;
}

/* All units of a group, in turn, until none is left. */
static void together(step_t *step, long size, long count, long keys, u64 works, struct here *here, struct pool *pool, int site, long worker, int phase) {
  struct failure *const failure = here->run->failure;
  const int outer = divided(); /* this process has only some of the units */
  struct round r;
  if (!opened(&r, step, size, count, keys, works, here, pool)) { fail(failure, site, -1); return; }
  r.patience = r.lanes > 1 ? lmax(20000 * r.lanes / count, 1) : 0;
  for (long idle = 0; r.left;) {
    one_turn(&r, worker, phase);
    idle = r.moved ? 0 : idle + 1;
    if (!r.moved && outer) { if (procs.idle(procs.world, idle)) procs.lost = 1; }
    else if (!r.moved) fail(failure, site, r.left);
    if (procs.lost) break;
    if (__atomic_load_n(&failure->site, __ATOMIC_RELAXED)) break;
  }
  closed(&r);
}
