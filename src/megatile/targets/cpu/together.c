/* Units that wait for each other: each is a function that returns where it has to wait and goes on from there. */
enum { DONE, WAITS, MOVED, TURN };
struct meeting { long arrived, generation; };
struct box { void *at; int dtype, rank; long extent[8], stride[8]; };
struct post { int kind, op, dim, sources, targets; long root; void (*merge)(const float *, const float *, float *); struct box box[8]; };
struct group { long count; struct meeting *meetings; struct post **posts; };
typedef int step_t(void *frame, void *here, long worker);
struct round { step_t *step; char *frames; long size; void *here; long left, moved; };
void *calloc(u64, u64);

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

static void one_round(void *argument, long worker, long index) {
  struct round *const r = argument;
  char *const frame = r->frames + index * r->size;
  if (*(int *)frame < 0) return;
  int now = TURN;
  if (procs.size) procs.inside++;
  for (int turns = 0; turns < 64 && now == TURN; turns++) now = r->step(frame, r->here, worker);
  if (procs.size) procs.inside--;
  if (now == DONE) { *(int *)frame = -1; __atomic_fetch_sub(&r->left, 1, __ATOMIC_RELAXED); }
  if (now != WAITS) __atomic_store_n(&r->moved, 1, __ATOMIC_RELAXED);
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
  struct round r = {step, memory, size, here, high - low, 0};
  while (r.left) {
    r.moved = 0;
    if (pool && count > 1) pool->run(pool, one_round, &r, count);
    else for (long i = low; i < high; i++) one_round(&r, worker, i);
    if (!r.moved && outer) { if (procs.idle(procs.world)) procs.lost = 1; }
    else if (!r.moved) fail(run->failure, site, r.left);
    if (procs.lost) break;
    if (__atomic_load_n(&run->failure->site, __ATOMIC_RELAXED)) break;
  }
  given_back(memory);
}

/* Elements of any dtype. */
static long double get(const struct box *b, const char *p) {
  switch (b->dtype) {
    case 0: return *(double *)p; case 1: return *(float *)p; case 2: return ld1_f16((u16 *)p); case 3: return ld1_bf16((u16 *)p);
    case 4: return ld1_f8e4m3((u8 *)p); case 5: return ld1_f8e5m2((u8 *)p); case 6: return *(long *)p; case 7: return *(u64 *)p;
    case 8: return *(int *)p; case 9: return *(u32 *)p; case 10: return *(short *)p; case 11: return *(u16 *)p;
    case 12: return *(signed char *)p; default: return *(u8 *)p;
  }
}
static void put(const struct box *b, char *p, long double v) {
  switch (b->dtype) {
    case 0: *(double *)p = v; break; case 1: *(float *)p = v; break; case 2: st1_f16((u16 *)p, v); break;
    case 3: st1_bf16((u16 *)p, v); break; case 4: st1_f8e4m3((u8 *)p, v); break; case 5: st1_f8e5m2((u8 *)p, v); break;
    case 6: *(long *)p = v; break; case 7: *(u64 *)p = v; break; case 8: *(int *)p = (long)v; break;
    case 9: *(u32 *)p = (long)v; break; case 10: *(short *)p = (long)v; break; case 11: *(u16 *)p = (long)v; break;
    case 12: *(signed char *)p = (long)v; break; default: *(u8 *)p = (long)v;
  }
}
static const int sizes[] = {8, 4, 2, 2, 1, 1, 8, 8, 4, 4, 2, 2, 1, 1};
static long elements(const struct box *b) { long n = 1; for (int d = 0; d < b->rank; d++) n *= b->extent[d]; return n; }
static char *element(const struct box *b, long flat) {
  long at = 0;
  for (int d = b->rank - 1; d >= 0; d--) { at += flat % b->extent[d] * b->stride[d]; flat /= b->extent[d]; }
  return (char *)b->at + at * sizes[b->dtype];
}
static long double combine(int op, long double a, long double b) {
  return op == 0 ? a + b : op == 1 ? (a > b || a != a ? a : b) : op == 2 ? (a < b || a != a ? a : b) : a * b;
}

struct line { struct group *group; long first, stride, count; };
INLINE struct post *member(const struct line *l, long i) { return l->group->posts[l->first + i * l->stride]; }

/* Elements from one box to another whose extents differ along dim: from `skip` there, to `start` here. */
static void piece(const struct box *to, const struct box *from, const long double *data, int dim, long skip, long start, long length) {
  const long n = elements(from);
  for (long e = 0; e < n; e++) {
    long index[8], rest = e;
    for (int d = from->rank - 1; d >= 0; d--) { index[d] = rest % from->extent[d]; rest /= from->extent[d]; }
    if (index[dim] < skip || index[dim] >= skip + length) continue;
    index[dim] += start - skip;
    long at = 0;
    for (int d = 0; d < to->rank; d++) at += index[d] * to->stride[d];
    put(to, (char *)to->at + at * sizes[to->dtype], data[e]);
  }
}

static void merged(const struct line *l, long double **data) { /* a function of several operands, element by element */
  struct post *const p = member(l, 0);
  int largest = 0;
  for (int k = 1; k < p->sources; k++) if (p->box[k].rank > p->box[largest].rank) largest = k;
  const struct box *const big = &p->box[largest];
  for (long e = 0; e < elements(big); e++) {
    float a[8], b[8], r[8];
    long at[8];
    int first[8];
    for (int k = 0; k < p->sources; k++) {
      long below = 1;
      for (int d = p->box[k].rank; d < big->rank; d++) below *= big->extent[d];
      at[k] = e / below, first[k] = e % below == 0;
      a[k] = data[k][at[k]];
    }
    for (long i = 1; i < l->count; i++) {
      for (int k = 0; k < p->sources; k++) b[k] = data[i * 8 + k][at[k]];
      p->merge(a, b, r);
      memcpy(a, r, sizeof a);
    }
    for (long i = 0; i < l->count; i++) {
      struct post *const q = member(l, i);
      for (int k = 0; k < q->targets; k++) if (first[k]) put(&q->box[q->sources + k], element(&q->box[q->sources + k], at[k]), a[k]);
    }
  }
}

enum { ALLREDUCE, ALLGATHER, REDUCE_SCATTER, ALL_TO_ALL, BROADCAST, UNEVEN };
/* All units of a line have come: every source is read, then every result written. */
static void collective(const struct line *l, struct failure *failure, int site) {
  const struct post *const p = member(l, 0);
  const long units = l->count;
  long total = 0;
  for (long i = 0; i < units; i++) {
    const struct post *const q = member(l, i);
    if (q->kind != p->kind || q->op != p->op || q->dim != p->dim || q->sources != p->sources || q->root != p->root) { fail(failure, site, i); return; }
    for (int k = 0; k < q->sources; k++) total += elements(&q->box[k]);
  }
  long double *const memory = calloc(total + 1, sizeof *memory), *next = memory;
  long double **const data = calloc(units * 8, sizeof *data);
  if (!memory || !data) { fail(failure, site, -1); return; }
  for (long i = 0; i < units; i++)
    for (int k = 0; k < p->sources; k++) {
      const struct box *const b = &member(l, i)->box[k];
      const long n = elements(b);
      data[i * 8 + k] = next;
      for (long e = 0; e < n; e++) *next++ = get(b, element(b, e));
    }
  const long n = elements(&p->box[0]);
  if (p->merge) merged(l, data);
  else if (p->kind == ALLREDUCE || p->kind == REDUCE_SCATTER) {
    for (long i = 1; i < units; i++) {
      if (elements(&member(l, i)->box[0]) != n) { fail(failure, site, i); goto end; }
      for (long e = 0; e < n; e++) memory[e] = combine(p->op, memory[e], data[i * 8][e]);
    }
    long start = 0;
    for (long i = 0; i < units; i++) {
      const struct box *const to = &member(l, i)->box[1];
      if (p->kind == ALLREDUCE) for (long e = 0; e < n; e++) put(to, element(to, e), memory[e]);
      else piece(to, &p->box[0], memory, p->dim, start, 0, to->extent[p->dim]), start += to->extent[p->dim];
    }
  } else if (p->kind == BROADCAST) {
    if ((u64)p->root >= (u64)units) { fail(failure, site, p->root); goto end; }
    for (long i = 0; i < units; i++) {
      const struct box *const to = &member(l, i)->box[1];
      for (long e = 0; e < elements(to); e++) put(to, element(to, e), data[p->root * 8][e]);
    }
  } else if (p->kind == ALLGATHER) {
    for (long i = 0, start = 0; i < units; i++) {
      const struct box *const from = &member(l, i)->box[0];
      for (long j = 0; j < units; j++) piece(&member(l, j)->box[1], from, data[i * 8], p->dim, 0, start, from->extent[p->dim]);
      start += from->extent[p->dim];
    }
  } else if (p->kind == ALL_TO_ALL) {
    const long length = p->box[0].extent[p->dim] / units;
    if (length * units != p->box[0].extent[p->dim]) { fail(failure, site, p->box[0].extent[p->dim]); goto end; }
    for (long i = 0; i < units; i++)
      for (long j = 0; j < units; j++) piece(&member(l, j)->box[1], &member(l, i)->box[0], data[i * 8], p->dim, j * length, i * length, length);
  } else { /* parts as long as each unit's counts say: sources are (data, counts), targets (result, received) */
    for (long j = 0; j < units; j++) {
      const struct post *const q = member(l, j);
      long start = 0;
      for (long i = 0; i < units; i++) {
        const struct box *const from = &member(l, i)->box[0];
        long skip = 0;
        for (long k = 0; k < j; k++) skip += (long)data[i * 8 + 1][k];
        const long length = (long)data[i * 8 + 1][j];
        if (length < 0 || skip + length > from->extent[p->dim] || start + length > q->box[2].extent[p->dim]) { fail(failure, site, length); goto end; }
        piece(&q->box[2], from, data[i * 8], p->dim, skip, start, length);
        if (q->targets > 1) put(&q->box[3], element(&q->box[3], i), length);
        start += length;
      }
    }
  }
end:
  free(data);
  free(memory);
}
