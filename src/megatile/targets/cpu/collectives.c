/* Collectives of units that share memory, for all programs of this computer. */
/* Elements of any dtype, in the order of their indices: read as float, double, long or u64, whichever is wide;
   where they only move, dtypes 14 and 15 are any of two bytes or one. */
enum { FLOAT, DOUBLE, LONG, UNSIGNED, TWO_BYTES, ONE_BYTE, CHUNK = 1024 };
static const int sizes[] = {8, 4, 2, 2, 1, 1, 8, 8, 4, 4, 2, 2, 1, 1, 2, 1}, wide_sizes[] = {4, 8, 8, 8, 2, 1};
static const int wides[] = {DOUBLE, FLOAT, FLOAT, FLOAT, FLOAT, FLOAT, LONG, UNSIGNED, LONG, LONG, LONG, LONG, LONG, LONG, TWO_BYTES, ONE_BYTE};
static int wide_of(const struct box *b) { return wides[b->dtype]; }
static long elements(const struct box *b) { long n = 1; for (int d = 0; d < b->rank; d++) n *= b->extent[d]; return n; }
static char *element(const struct box *b, long flat) {
  long at = 0;
  for (int d = b->rank - 1; d >= 0; d--) { at += flat % b->extent[d] * b->stride[d]; flat /= b->extent[d]; }
  return (char *)b->at + at * sizes[b->dtype];
}
/* The dimensions that lie behind each other as one. */
static struct box joined(const struct box *from) {
  struct box b = *from;
  while (b.rank > 1 && b.stride[b.rank - 2] == b.extent[b.rank - 1] * b.stride[b.rank - 1]) {
    b.extent[b.rank - 2] *= b.extent[b.rank - 1], b.stride[b.rank - 2] = b.stride[b.rank - 1];
    b.rank--;
  }
  return b;
}

#define ROW(statement) for (; i < n; i++) statement; break;
#define READ_NARROW(name, T) if (s == 1) for (; i + W <= n; i += W) st_f32(f + i, ld_##name((T *)p + i)); ROW(f[i] = ld1_##name((T *)p + i * s))
#define WRITE_NARROW(name, T) if (s == 1) for (; i + W <= n; i += W) st_##name((T *)p + i, ld_f32(f + i)); ROW(st1_##name((T *)p + i * s, f[i]))
static void read_row(int dtype, const char *p, long s, long n, void *to) {
  float *const f = to; double *const d = to; long *const l = to; long i = 0;
  if (s == 1 && sizes[dtype] == wide_sizes[wides[dtype]]) { memcpy(to, p, n * sizes[dtype]); return; }
  switch (dtype) {
    case 0: ROW(d[i] = ((double *)p)[i * s]) case 1: ROW(f[i] = ((float *)p)[i * s])
    case 2: READ_NARROW(f16, u16) case 3: READ_NARROW(bf16, u16)
    case 4: READ_NARROW(f8e4m3, u8) case 5: READ_NARROW(f8e5m2, u8)
    case 6: case 7: ROW(l[i] = ((long *)p)[i * s]) case 8: ROW(l[i] = ((int *)p)[i * s])
    case 9: ROW(l[i] = ((u32 *)p)[i * s]) case 10: ROW(l[i] = ((short *)p)[i * s]) case 11: ROW(l[i] = ((u16 *)p)[i * s])
    case 12: ROW(l[i] = ((signed char *)p)[i * s]) case 13: ROW(l[i] = ((u8 *)p)[i * s])
    case 14: ROW(((u16 *)to)[i] = ((u16 *)p)[i * s]) default: ROW(((u8 *)to)[i] = ((u8 *)p)[i * s])
  }
}
static void write_row(int dtype, char *p, long s, long n, const void *from) {
  const float *const f = from; const double *const d = from; const long *const l = from; long i = 0;
  if (s == 1 && sizes[dtype] == wide_sizes[wides[dtype]]) { memcpy(p, from, n * sizes[dtype]); return; }
  switch (dtype) {
    case 0: ROW(((double *)p)[i * s] = d[i]) case 1: ROW(((float *)p)[i * s] = f[i])
    case 2: WRITE_NARROW(f16, u16) case 3: WRITE_NARROW(bf16, u16)
    case 4: WRITE_NARROW(f8e4m3, u8) case 5: WRITE_NARROW(f8e5m2, u8)
    case 6: case 7: ROW(((long *)p)[i * s] = l[i]) case 8: case 9: ROW(((int *)p)[i * s] = l[i])
    case 10: case 11: ROW(((short *)p)[i * s] = l[i]) case 12: case 13: ROW(((u8 *)p)[i * s] = l[i])
    case 14: ROW(((u16 *)p)[i * s] = ((u16 *)from)[i]) default: ROW(((u8 *)p)[i * s] = ((u8 *)from)[i])
  }
}
#define EACH_ROW(b, first, n, work) \
  for (long at_ = first, left_ = n; left_ > 0;) { \
    const long row_ = (b)->rank ? (b)->extent[(b)->rank - 1] : 1, length = lmin(row_ - at_ % row_, left_), stride = (b)->rank ? (b)->stride[(b)->rank - 1] : 1; \
    char *const place = element(b, at_); \
    work; \
    at_ += length, left_ -= length; \
  }
static void read_box(const struct box *b, long first, long n, void *to) {
  char *out = to;
  EACH_ROW(b, first, n, (read_row(b->dtype, place, stride, length, out), out += length * wide_sizes[wide_of(b)]))
}
static double fetch(const void *data, int wide, long i) {
  return wide == FLOAT ? ((float *)data)[i] : wide == DOUBLE ? ((double *)data)[i] : wide == LONG ? ((long *)data)[i] : ((u64 *)data)[i];
}
static void write_box(const struct box *b, long first, long n, const void *from, int wide) {
  const int own = wide_of(b);
  const char *in = from;
  for (long most = wide == own ? n : CHUNK; n > 0; first += most, n -= most, in += most * wide_sizes[wide]) {
    const long part = lmin(n, most);
    double other[CHUNK];
    const char *data = in;
    if (wide != own) { /* converted first, a piece at a time */
      for (long i = 0; i < part; i++) {
        const double v = fetch(in, wide, i);
        if (own == FLOAT) ((float *)other)[i] = v; else if (own == DOUBLE) other[i] = v;
        else ((long *)other)[i] = wide < LONG ? (long)v : ((long *)in)[i];
      }
      data = (char *)other;
    }
    EACH_ROW(b, first, part, (write_row(b->dtype, place, stride, length, data), data += length * wide_sizes[own]))
  }
}

#define COMBINE(T) { \
  T *const x = a; const T *const y = b; \
  if (op == 0) for (long i = done; i < n; i++) x[i] += y[i]; \
  else if (op == 1) for (long i = done; i < n; i++) x[i] = x[i] > y[i] || x[i] != x[i] ? x[i] : y[i]; \
  else if (op == 2) for (long i = done; i < n; i++) x[i] = x[i] < y[i] || x[i] != x[i] ? x[i] : y[i]; \
  else for (long i = done; i < n; i++) x[i] *= y[i]; }
#define LANES(name, f) INLINE long name(float *x, const float *y, long n) { \
  long i = 0; for (; i + W <= n; i += W) { const vf p = ld_f32(x + i), q = ld_f32(y + i); st_f32(x + i, f); } return i; }
LANES(add_lanes, p + q) LANES(max_lanes, vmax(p, q)) LANES(min_lanes, vmin(p, q)) LANES(multiply_lanes, p * q)
static void combine(int wide, int op, void *a, const void *b, long n) {
  long done = 0;
  if (wide == FLOAT) done = op == 0 ? add_lanes(a, b, n) : op == 1 ? max_lanes(a, b, n) : op == 2 ? min_lanes(a, b, n) : multiply_lanes(a, b, n);
  if (wide == FLOAT) COMBINE(float) else if (wide == DOUBLE) COMBINE(double) else if (wide == LONG) COMBINE(long) else COMBINE(u64)
}

INLINE struct post *member(const struct line *l, long i) { return l->group->posts[l->first + i * l->stride]; }

/* Elements `first` .. of the reduction of all sources, in the order of the units. */
static void reduced(const struct line *l, long first, long n, void *to) {
  const int wide = wide_of(&member(l, 0)->box[0]);
  double other[CHUNK];
  for (long i = 0; i < l->count; i++) {
    const struct box b = joined(&member(l, i)->box[0]);
    read_box(&b, first, n, i ? other : to);
    if (i) combine(wide, member(l, 0)->op, to, other, n);
  }
}

/* Part of a dense source whose extents are those of a box, to another box that differs from it along dim: from
   `skip` there, to `start` here. */
static void piece(const struct box *to, const struct box *from, const char *data, int dim, long skip, long start, long length) {
  const int wide = wide_of(from);
  long outer = 1, inner = 1;
  for (int d = 0; d < from->rank; d++) if (d < dim) outer *= from->extent[d]; else if (d > dim) inner *= from->extent[d];
  for (long o = 0; o < outer; o++)
    write_box(to, (o * to->extent[dim] + start) * inner, length * inner, data + (o * from->extent[dim] + skip) * inner * wide_sizes[wide], wide);
}

static void merged(const struct line *l, char **data) { /* a function of several operands, element by element */
  struct post *const p = member(l, 0);
  int largest = 0, wide[8];
  for (int k = 0; k < p->sources; k++) {
    wide[k] = wide_of(&p->box[k]);
    if (p->box[k].rank > p->box[largest].rank) largest = k;
  }
  const struct box *const big = &p->box[largest];
  for (long e = 0; e < elements(big); e++) {
    float a[8], b[8], r[8];
    long at[8];
    int first[8];
    for (int k = 0; k < p->sources; k++) {
      long below = 1;
      for (int d = p->box[k].rank; d < big->rank; d++) below *= big->extent[d];
      at[k] = e / below, first[k] = e % below == 0;
      a[k] = fetch(data[k], wide[k], at[k]);
    }
    for (long i = 1; i < l->count; i++) {
      for (int k = 0; k < p->sources; k++) b[k] = fetch(data[i * 8 + k], wide[k], at[k]);
      p->merge(a, b, r);
      memcpy(a, r, sizeof a);
    }
    for (long i = 0; i < l->count; i++) {
      struct post *const q = member(l, i);
      for (int k = 0; k < q->targets; k++) if (first[k]) write_box(&q->box[q->sources + k], at[k], 1, a + k, FLOAT);
    }
  }
}

/* Whether all units of a line want the same. */
static int alike(const struct line *l, struct failure *failure, int site) {
  const struct post *const p = member(l, 0);
  for (long i = 0; i < l->count; i++) {
    const struct post *const q = member(l, i);
    int same = q->kind == p->kind && q->op == p->op && q->dim == p->dim && q->sources == p->sources && q->root == p->root;
    if (same && (p->merge || p->kind == ALLREDUCE || p->kind == REDUCE_SCATTER)) same = elements(&q->box[0]) == elements(&p->box[0]);
    if (!same) { fail(failure, site, i); return 0; }
  }
  return 1;
}

/* Elements of narrow dtypes that only move need not be read as numbers. */
static void as_bytes(const struct line *l) {
  const int dtype = member(l, 0)->box[0].dtype, target = member(l, 0)->sources;
  for (long i = 0; i < l->count; i++) if (member(l, i)->box[0].dtype != dtype || member(l, i)->box[target].dtype != dtype) return;
  for (long i = 0; i < l->count && sizes[dtype] < 4; i++)
    member(l, i)->box[0].dtype = member(l, i)->box[target].dtype = sizes[dtype] == 2 ? 14 : 15;
}

/* A reduction in place, with the results where the operands were: each unit does its share of the elements. */
void own_share(const struct line *l, long rank, struct failure *failure, int site) {
  if (!alike(l, failure, site)) return;
  const struct box *const b = &member(l, 0)->box[0];
  const long n = elements(b), each = ((n + l->count - 1) / l->count + 63) / 64 * 64, end = lmin(n, (rank + 1) * each);
  for (long at = rank * each; at < end; at += CHUNK) {
    double total[CHUNK];
    const long part = lmin(CHUNK, end - at);
    reduced(l, at, part, total);
    for (long i = 0; i < l->count; i++) {
      const struct box to = joined(&member(l, i)->box[1]);
      write_box(&to, at, part, total, wide_of(b));
    }
  }
}

/* All units of a line have come: every source is read, then every result written. */
void collective(const struct line *l, struct failure *failure, int site) {
  if (!alike(l, failure, site)) return;
  const struct post *const p = member(l, 0);
  const long units = l->count, n = elements(&p->box[0]);
  const int reduces = !p->merge && (p->kind == ALLREDUCE || p->kind == REDUCE_SCATTER);
  if (!reduces && !p->merge) as_bytes(l);
  const int wide = wide_of(&p->box[0]);
  if (p->kind == BROADCAST && (u64)p->root >= (u64)units) { fail(failure, site, p->root); return; }
  long total = reduces ? n : 0;
  for (long i = 0; i < units && !reduces; i++)
    for (int k = 0; k < p->sources; k++) total += elements(&member(l, i)->box[k]) + 8;
  char *const memory = calloc(total + 1, 8), *next = memory;
  char **const data = calloc(units * 8, sizeof *data);
  if (!memory || !data) { fail(failure, site, -1); goto end; }
  for (long i = 0; i < units && !reduces; i++)
    for (int k = 0; k < p->sources; k++) {
      const struct box b = joined(&member(l, i)->box[k]);
      data[i * 8 + k] = next;
      if (p->kind != BROADCAST || i == p->root) read_box(&b, 0, elements(&b), next);
      next += elements(&b) * wide_sizes[wide_of(&b)] + 7 & ~7ul;
    }
  if (p->merge) merged(l, data);
  else if (reduces) {
    for (long at = 0; at < n; at += CHUNK) reduced(l, at, lmin(CHUNK, n - at), memory + at * wide_sizes[wide]);
    for (long i = 0, start = 0; i < units; i++) {
      const struct box *const to = &member(l, i)->box[1];
      if (p->kind == ALLREDUCE) write_box(to, 0, n, memory, wide);
      else piece(to, &p->box[0], memory, p->dim, start, 0, to->extent[p->dim]), start += to->extent[p->dim];
    }
  } else if (p->kind == BROADCAST) {
    for (long i = 0; i < units; i++) {
      const struct box to = joined(&member(l, i)->box[1]);
      write_box(&to, 0, elements(&to), data[p->root * 8], wide);
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
    const int counts = wide_of(&p->box[1]);
    for (long j = 0; j < units; j++) {
      const struct post *const q = member(l, j);
      long start = 0;
      for (long i = 0; i < units; i++) {
        const struct box *const from = &member(l, i)->box[0];
        long skip = 0;
        for (long k = 0; k < j; k++) skip += (long)fetch(data[i * 8 + 1], counts, k);
        const long length = (long)fetch(data[i * 8 + 1], counts, j);
        if (length < 0 || skip + length > from->extent[p->dim] || start + length > q->box[2].extent[p->dim]) { fail(failure, site, length); goto end; }
        piece(&q->box[2], from, data[i * 8], p->dim, skip, start, length);
        if (q->targets > 1) write_box(&q->box[3], i, 1, &length, LONG);
        start += length;
      }
    }
  }
end:
  free(data);
  free(memory);
}
