"""From a Program to C: one function per dispatched phase, statements in the order of the text."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path as File
from typing import Any

from megatile.core.expr import Const
from megatile.ir import nodes as n
from megatile.ir.passes.resolve_views import without_views
from megatile.ir.program import Program
from megatile.targets.common.allocation import LINE, Allocation, Storage, rounded
from megatile.targets.common.elements import NARROW
from megatile.targets.common.scope import Box, Scope, Text
from megatile.targets.common.writer import NUMBERS, Source, Writer
from megatile.targets.cpu import fusing, products, waiting
from megatile.targets.cpu.dots import Dot
from megatile.targets.cpu.forwarding import forwarded
from megatile.targets.cpu.gemm import gemm, micro_kernel
from megatile.targets.cpu.moving import change
from megatile.targets.cpu.passes import by_columns, flops, hoisted, operands, without_copies
from megatile.targets.cpu.statements import STATEMENTS

PRELUDE, POSTS, TOGETHER, COLLECTIVES = (
    (File(__file__).parent / name).read_text(encoding="utf-8")
    for name in ("prelude.c", "collectives.h", "together.c", "collectives.c")
)
PRELUDE = PRELUDE.replace("NUMBERS", NUMBERS)
_CALLED = """
static void (*collective)(const struct line *, struct failure *, int);
static void (*own_share)(const struct line *, long, struct failure *, int);
void megatile_collectives(void *all, void *share) { collective = all, own_share = share; }
"""
_WORDS = """auto break case char const continue default do double else enum extern float for goto if inline
int long register restrict return short signed sizeof static struct switch typedef union unsigned void
volatile while run here work scratch index worker failure pool launch main argument"""


class CpuAllocation(Allocation):
    """Tiles lie in the memory of one dispatched instance, or of the launch."""

    def __init__(self, program: Program, words: frozenset[str]):
        self.by_columns, self.operands = by_columns(program), operands(program)
        self.words = words
        super().__init__(program)

    def _tile(self, alloc: n.Alloc, instance: int | None, free: bool) -> None:
        name = self.names[alloc.name]
        private = name.private and instance is not None
        low = instance if private and instance is not None else 0
        above = tuple(s.name for s in self.launch.scales[low : name.owner_depth])
        as_words = alloc.dtype in self.words and alloc.name in self.operands
        wide = free and private and alloc.dtype in NARROW and not as_words
        free_columns = alloc.name in self.by_columns and alloc.name not in self.viewed
        turned = free and private and len(alloc.shape) == 2 and free_columns
        strides = (1, alloc.shape[0]) if turned else ()
        made = Storage(
            alloc.name,
            alloc.dtype,
            alloc.shape,
            name.copies,
            "instance" if private else "launch",
            above,
            wide=wide,
            strides=strides,
        )
        size = rounded(made.bytes(self.launch))
        if private:
            made.offset, self.instance_bytes = self.instance_bytes, self.instance_bytes + size
        else:
            made.offset, self.launch_bytes = self.launch_bytes, self.launch_bytes + size
        self.table[alloc.name] = made


class Generator(Writer):
    change = staticmethod(change)
    rules = STATEMENTS

    def __init__(self, program: Program, width: int, rows: int, words: frozenset[str]):
        self.width, self.rows, self.words = width, rows, words
        super().__init__(program, _TAKEN)
        self.kernels: dict[Any, str] = {}
        self.phases: list[str] = []
        self.scratch_used = self.scratch_bytes = 0
        self.meets = False
        """Whether there are collectives."""
        self.prepared: dict[int, Box] = {}
        """Operands of products that were turned before their loop."""
        self.packs: list[tuple[products.Pack, int]] | None = None
        """What the phase that is being written wants packed before it."""
        self.pack_places: dict[tuple[products.Pack, int], int] = {}
        self.pack_functions: dict[tuple[products.Pack, int], tuple[str, int]] = {}
        written = {self.storages.names[name].base for name in n.written(program.body)}
        self.constant = {p.name for p in program.params} - written
        self.reached: dict[str, int] = {}
        """What units touch in others, and the depth of the largest of these units."""
        for s in n.walk(program.body):
            reached = s.flag if isinstance(s, n.Signal) and s.dst is not None else n.remote(s)
            if reached is not None:
                name, scale = self.storages.names[reached], getattr(s, "scale", None)
                depth = name.owner_depth if scale is None else program.launch.depth(scale)
                self.reached[name.base] = min(depth, self.reached.get(name.base, depth))

    def placed(self, program: Program) -> CpuAllocation:
        return CpuAllocation(program, self.words)

    # --- functions and memory ---------------------------------------------------------------------

    def micro_kernel(
        self, dot: Dot, height: int, vectors: int, strides: tuple[int, int, int, int], begin: str
    ) -> str:
        key = (dot, height, vectors, strides, begin)
        if key not in self.kernels:
            name = self.kernels[key] = self.fresh(f"gemm_{dot.operand}_{height}x{vectors}_")
            self.functions += micro_kernel(name, dot, height, vectors, strides, begin, self.width)
        return self.kernels[key]

    def scratch(self, size: int, c_type: str) -> str:
        at = self.scratch_used
        self.scratch_used += rounded(size)
        self.scratch_bytes = max(self.scratch_bytes, self.scratch_used)
        return f"(({c_type} *)(scratch + {at}))"

    def persistent(self, size: int, c_type: str) -> str:
        """Return memory of the instance for what outlives a statement."""
        at = self.storages.instance_bytes
        self.storages.instance_bytes += rounded(size)
        return f"(({c_type} *)(work + {at}))"

    # --- the whole --------------------------------------------------------------------------------

    def source(self) -> Source:
        text = Text(1)
        scope = Scope(self, text, {s.name: Const(0) for s in self.launch.scales if s.count == 1}, 0)
        with self.variables(scope, self.program.body):
            self.statements(scope, self.program.body)
        table = self.storages
        flags = [f"  memset(launch + {s.offset}, 0, {s.bytes(self.launch)});" for s in self.flags("launch")]
        sizes = {"W": self.width, "LAUNCH": table.launch_bytes, "INSTANCE": table.instance_bytes}
        sizes["SCRATCH"] = self.scratch_bytes
        head = [f"#define {name} {max(size, LINE) if name != 'W' else size}" for name, size in sizes.items()]
        head += [PRELUDE, self._run_struct()]
        for values, name in self.tables.items():
            head.append(f"static const long {name}[] = {{{', '.join(map(str, values))}}};")
        arrays = "\n".join(self.arrays(self.program.body, instance=False))
        entry = _ENTRY.format(
            arguments="\n".join(
                f"  r.{self.name(p.name)} = arguments[{i}];" for i, p in enumerate(self.program.params)
            ),
            flags="\n".join(flags),
            arrays=arrays,
            body="\n".join(text.lines),
        )
        waits = any("struct post post" in line for line in self.functions)
        together = [POSTS, TOGETHER, _CALLED] if waits else []
        parts = [*head, _PARALLEL, *together, *self.functions, entry]
        units = math.prod(s.count for s in self.launch.scales[: self.launch.depth(self.launch.dispatch)])
        room = (sizes["LAUNCH"], units * (sizes["INSTANCE"] + (1 << 12)))
        meets = f"#define W {self.width}\n{PRELUDE}{POSTS}{COLLECTIVES}" if self.meets else None
        return Source("\n".join(parts), tuple(self.sites), tuple(self.phases), room=room, collectives=meets)

    def _run_struct(self) -> str:
        fields = "".join(
            f"  {self.storages.table[p.name].c_type} *{self.name(p.name)};\n" for p in self.program.params
        )
        return (
            f"/* {self.program.name}: its arguments and its memory */\nstruct run {{\n{fields}"
            "  char *launch, *work, *scratch;\n  struct failure *failure;\n  struct pool *pool;\n"
            "  double *times;\n};"
        )

    def arrays(self, body: tuple[n.Node, ...], instance: bool) -> Iterator[str]:
        """Pointers to what a body touches."""
        touched = {self.storages.names[r.source].base for node in n.walk(body) for _, r in n.regions(node)}
        for name, storage in self.storages.table.items():
            if name not in touched:
                continue
            plain, kind_ = self.name(name), storage.c_type
            memory = "run->launch" if storage.home == "launch" else "work"
            place = f"({kind_} *)({memory} + {storage.offset})"
            if storage.home != "instance" or instance:
                place = f"run->{plain}" if storage.home == "argument" else place
                yield f"  {kind_} *const {plain} = {place}; (void){plain};"

    # --- statements -------------------------------------------------------------------------------

    def statements(self, scope: Scope, body: tuple[n.Node, ...]) -> None:
        at = 0
        while at < len(body):
            node = body[at]
            self.scratch_used = 0
            found: products.Product | fusing.Fused | fusing.Scaled | None = None
            if isinstance(node, (n.Fill, n.Loop)):
                found = products.recognised(scope, body, at)
            elif isinstance(node, n.Parallel):
                found = fusing.recognised(scope, body, at) or fusing.scaled(scope, body, at)
            with self.at(node, scope.text, comment=type(node) not in (n.Alloc, n.Reshape, n.Hint)):
                if isinstance(found, products.Product):
                    self._comments(scope.text, body[at + 1 : at + found.used])
                    products.product(scope, found)
                elif isinstance(found, fusing.Scaled):
                    self._comments(scope.text, (found.gemm,))
                    gemm(scope, found.gemm, found.factors)
                elif found is not None:
                    self._comments(scope.text, (found.reduce,))
                    fusing.fused(scope, found)
                else:
                    self.rules[type(node)](scope, node)
            at += found.used if found is not None else 1

    def _comments(self, text: Text, body: tuple[n.Node, ...]) -> None:
        """The lines of statements that are done together with one before them."""
        for node in body:
            with self.at(node, text):
                for _, inner in n.bodies(node):
                    self._comments(text, inner)

    def packed(self, pack: products.Pack, columns: int = 0) -> tuple[str, int]:
        """Return a pointer to a packed tensor, and its rows' distance; it is packed before this phase."""
        assert self.packs is not None
        storage = self.storages.storage(pack.tensor)
        depth = storage.shape[-2:][pack.along]
        key = (pack, columns)
        if key not in self.pack_places:
            self.pack_places[key] = self.storages.launch_bytes
            self.storages.launch_bytes += products.size_of(storage, pack, columns)
        pointer = f"(({pack.dot.element} *)(run->launch + {self.pack_places[key]}))"
        if key not in self.packs:
            self.packs.append(key)
        return pointer, depth // pack.dot.group + products.PADDING

    def region(self, scope: Scope, node: n.ScaleRegion) -> None:
        """Every unit of a scale below this one; one after the other, or over the threads of the pool."""
        low, high = scope.depth, self.launch.depth(node.scale)
        count = math.prod(s.count for s in self.launch.scales[low:high])
        dispatched = not scope.instance and self.launch.is_dispatched(low, high)
        if waiting.must_wait(self, node, count, low, high):
            waiting.region(self, scope, node, low, high, dispatched)
        elif dispatched:
            self._dispatched(scope, node, low, high)
        else:
            with scope.text.block(), self.units(scope, low, high) as inner:
                self._unit(inner, node.body)

    def _dispatched(self, scope: Scope, node: n.ScaleRegion, low: int, high: int) -> None:
        """The instances of a region, by the threads of the pool, in any order."""
        instance = min(high, self.launch.depth(self.launch.dispatch))
        name = self.fresh(f"{node.scale}_")
        line = f"line {node.span.line}" if node.span else ""
        inner = Scope(self, Text(1), dict(scope.path), low, {}, dict(scope.ranges), (low, high), True)
        fields = self.captured(scope, inner, node)
        before, self.packs = self.packs, [] if instance == high else None
        with self.units(inner, low, instance, rank="index") as unit:
            for storage in self.flags("instance"):
                unit.text.add(f"memset(work + {storage.offset}, 0, {storage.bytes(self.launch)});")
            if instance < high:
                with unit.text.block(), self.units(unit, instance, high) as below:
                    self._unit(below, node.body)
            else:
                self._unit(unit, node.body)
        packs, self.packs = self.packs or [], before
        struct = "".join(f" {kind_} {field};" for kind_, field, _ in fields)
        self.functions += [
            f"struct {name} {{ struct run *run;{struct} }};",
            f"static void {name}(void *argument, long worker, long index) {{",
            f"  struct {name} *const here = argument;",
            "  struct run *const run = here->run;",
            "  struct failure *const failure = run->failure;",
            "  if (__atomic_load_n(&failure->site, __ATOMIC_RELAXED)) return;",
            "  char *const work = run->work + worker * INSTANCE; (void)work;",
            "  char *const scratch = run->scratch + worker * SCRATCH; (void)scratch;",
            *(f"  const {kind_} {field} = here->{field};" for kind_, field, _ in fields),
            *self.arrays(node.body, instance=True),
            *inner.text.lines,
            "}",
            "",
        ]
        count = math.prod(s.count for s in self.launch.scales[low:instance])
        with scope.text.block():
            for key in packs:
                function, pieces = self._pack_function(scope, key)
                self.phases.append(f"pack {key[0].tensor} for {name}")
                scope.text.add(f"parallel(run, {function}, run, {pieces}, {len(self.phases) - 1});")
            values = "".join(f", {value}" for _, _, value in fields)
            self.phases.append(f"{name} {line}".strip())
            scope.text.add(
                f"struct {name} here = {{run{values}}};",
                f"parallel(run, {name}, &here, {count}, {len(self.phases) - 1});",
            )

    def _pack_function(self, scope: Scope, key: tuple[products.Pack, int]) -> tuple[str, int]:
        if key not in self.pack_functions:
            name = self.fresh(f"pack_{self.name(key[0].tensor)}_")
            pointer = f"(({key[0].dot.element} *)(run->launch + {self.pack_places[key]}))"
            lines, pieces = products.pack_function(scope, name, *key, pointer)
            self.functions += lines
            self.pack_functions[key] = name, pieces
        return self.pack_functions[key]


_PARALLEL = """
/* Where several processes run this program together, in memory that all have at the same place. */
struct procs {
  long rank, size, inside, lost, used, room;
  char *heap;
  void *world;
  int (*barrier)(void *), (*idle)(void *, long);
};
static struct procs procs;
void megatile_processes(struct procs *p) { procs = *p; }
static inline int divided(void) { return procs.size && !procs.inside; }
static inline long own_first(long count) { return divided() ? procs.rank * count / procs.size : 0; }
static inline long own_after(long count) { return divided() ? (procs.rank + 1) * count / procs.size : count; }
static inline void meet(void) {
  if (divided() && !procs.lost && procs.barrier(procs.world)) procs.lost = 1;
}
int clock_gettime(int, long *);
static inline double now(void) { long t[2]; clock_gettime(1, t); return t[0] + t[1] * 1e-9; }
static void parallel(struct run *run, void (*body)(void *, long, long), void *here, long count, int phase) {
  const double start = run->times ? now() : 0;
  if (divided()) {
    const long first = own_first(count), last = own_after(count);
    procs.inside++; /* what is inside an instance is not divided */
    for (long i = first; i < last; i++) body(here, 0, i);
    procs.inside--;
    meet();
  } else if (count == 1 || !run->pool) for (long i = 0; i < count; i++) body(here, 0, i);
  else run->pool->run(run->pool, body, here, count);
  if (run->times) run->times[phase] += now() - start;
}
"""

_ENTRY = """
static char *spare; /* memory of the run before */
int megatile_run(void **arguments, struct pool *pool, struct failure *failure, double *times) {{
  struct run r, *const run = &r;
  const long workers = pool ? pool->threads : 1, worker = 0;
  char *memory = __atomic_exchange_n(&spare, 0, __ATOMIC_ACQ_REL);
  if (memory && *(long *)memory != workers) {{ free(memory); memory = 0; }}
  if (!memory) memory = aligned_alloc(64, 64 + LAUNCH + workers * (INSTANCE + SCRATCH));
  if (!memory) return 1;
  *(long *)memory = workers;
  char *const launch = procs.size ? procs.heap : memory + 64, *const own = memory + 64 + LAUNCH;
  char *const scratch = own + workers * INSTANCE;
  (void)scratch, (void)worker;
{arguments}
  r.launch = launch, r.work = own, r.scratch = scratch;
  r.failure = failure, r.pool = pool, r.times = times;
{flags}
  meet();
{arrays}
{body}
  meet();
  memory = __atomic_exchange_n(&spare, memory, __ATOMIC_ACQ_REL);
  if (memory) free(memory);
  return procs.lost ? 2 : 0;
}}
"""

_TAKEN = set(re.findall(r"\w+", PRELUDE + POSTS + TOGETHER + _CALLED + _PARALLEL + _ENTRY + _WORDS))


def generate(program: Program, width: int, rows: int, words: frozenset[str] = frozenset()) -> Source:
    """Return the C of a Program, for vectors of ``width`` floats, products of so many ``rows``, and
    ``words``."""
    program = without_views(program)
    made = Generator(without_copies(hoisted(forwarded(program))), width, rows, words).source()
    return replace(made, flops=flops(program))
