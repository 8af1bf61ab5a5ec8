/* What units that meet give and want: boxes of elements, and the collective that all want together. */
enum { ALLREDUCE, ALLGATHER, REDUCE_SCATTER, ALL_TO_ALL, BROADCAST, UNEVEN };
struct box { void *at; int dtype, rank; long extent[8], stride[8]; };
struct post { int kind, op, dim, sources, targets; long root; void (*merge)(const float *, const float *, float *); struct box box[8]; };
struct group { long count; struct meeting *meetings; struct post **posts; };
struct line { struct group *group; long first, stride, count; };
void *calloc(u64, u64);
