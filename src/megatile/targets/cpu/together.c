/* Units that wait for each other: each is a function that returns where it has to wait and goes on from there. */
enum { DONE, WAITS, MOVED, TURN };
struct meeting { long arrived, generation; };
typedef int step_t(void *frame, void *here, long worker);
struct round { step_t *step; char *frames; long size; void *here; long left, moved, low, count, lanes, patience; };
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

/* One step of a unit; whether it moved. */
static int stepped(struct round *r, long index, long worker) {
  char *const frame = r->frames + index * r->size;
  int now = TURN, moved = 0;
  if (procs.size) procs.inside++;
  for (int turns = 0; turns < 64 && now == TURN; turns++) moved |= (now = r->step(frame, r->here, worker)) != WAITS;
  if (procs.size) procs.inside--;
  if (now == DONE) { *(int *)frame = -1; __atomic_fetch_sub(&r->left, 1, __ATOMIC_RELAXED); }
  return moved;
}

/* The units of a lane, in turn, until all are done or wait for others who do not come soon. */
static void lane(void *argument, long worker, long index) {
  struct round *const r = argument;
  const long first = r->low + index * r->count / r->lanes, after = r->low + (index + 1) * r->count / r->lanes;
  for (long patience = r->patience; patience >= 0;) {
    int moved = 0, left = 0;
    for (long i = first; i < after; i++) {
      if (*(int *)(r->frames + i * r->size) < 0) continue;
      left = 1;
      moved |= stepped(r, i, worker);
    }
    if (moved) __atomic_store_n(&r->moved, 1, __ATOMIC_RELAXED);
    if (!left) return;
    if (moved && r->patience) patience = r->patience; else patience--, rest();
  }
}

/* All units of a group, in turn, until none is left. Their frames begin with the place to go on from. */
static void together(struct run *run, step_t *step, long size, void *here, long count, long keys, struct group *group,
                     int site, long worker, struct pool *pool) {
  const u64 frames = (u64)size * count, meetings = sizeof(struct meeting) * keys * count;
  const int outer = divided(); /* this process has only some of the units */
  char *const memory = room(frames + meetings + sizeof(void *) * count);
  if (!memory) { fail(run->failure, site, -1); return; }
  group->count = count;
  group->meetings = (struct meeting *)(memory + frames);
  group->posts = (struct post **)(memory + frames + meetings);
  const long low = own_first(count), high = own_after(count);
  for (long i = low; i < high; i++) ((long *)(memory + size * i))[1] = i;
  meet();
  const long lanes = pool && count > 1 ? lmin(count, pool->threads) : 1;
  struct round r = {step, memory, size, here, high - low, 0, low, high - low, lanes, lanes > 1 ? lmax(20000 * lanes / count, 1) : 0};
  while (r.left) {
    r.moved = 0;
    if (lanes > 1) pool->run(pool, lane, &r, lanes);
    else lane(&r, worker, 0);
    if (!r.moved && outer) { if (procs.idle(procs.world)) procs.lost = 1; }
    else if (!r.moved) fail(run->failure, site, r.left);
    if (procs.lost) break;
    if (__atomic_load_n(&run->failure->site, __ATOMIC_RELAXED)) break;
  }
  given_back(memory);
}
