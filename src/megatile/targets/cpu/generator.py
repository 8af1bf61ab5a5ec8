"""From a Program to C: one function per dispatched phase, statements in the order of the text."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path as File
from typing import Any

from megatile.core.errors import MegatileError, Place
from megatile.core.expr import Const, Symbol, symbols
from megatile.ir import nodes as n
from megatile.ir.program import Program
from megatile.language.tile.errors import ProgramWarning
from megatile.targets.cpu import fusing, products, waiting
from megatile.targets.cpu.elements import Value, converted, kind
from megatile.targets.cpu.forwarding import forwarded
from megatile.targets.cpu.gemm import gemm, micro_kernel
from megatile.targets.cpu.passes import flops, hoisted, without_copies
from megatile.targets.cpu.scalars import lets
from megatile.targets.cpu.scope import Box, Scope, Text
from megatile.targets.cpu.storages import LINE, Storage, Storages
from megatile.targets.interpret.dispatch import is_dispatched

PRELUDE = (File(__file__).parent / "prelude.c").read_text(encoding="utf-8")
TOGETHER = (File(__file__).parent / "together.c").read_text(encoding="utf-8")
_WORDS = """auto break case char const continue default do double else enum extern float for goto if inline
int long register restrict return short signed sizeof static struct switch typedef union unsigned void
volatile while run here work scratch index worker failure pool launch main argument"""
_TAKEN = set(re.findall(r"\w+", PRELUDE + TOGETHER)) | set(_WORDS.split())
_AXES = "xyzw"
_NUMBER = {"f": "float", "d": "double", "l": "long", "b": "int"}


@dataclass(frozen=True)
class Site:
    """A place where a run may fail: what to say, and where it stands."""

    kind: str
    what: str
    place: Place | None


@dataclass(frozen=True)
class Source:
    """Generated C, and what is needed to call it."""

    text: str
    sites: tuple[Site, ...]
    phases: tuple[str, ...]
    flops: int | None = 0
    room: tuple[int, int] = (0, 0)
    """Bytes of the launch's own tiles, and at most of all instances and what they need to wait."""


class Generator:
    def __init__(self, program: Program, width: int, rows: int):
        self.program, self.launch = program, program.launch
        self.width, self.rows = width, rows
        self.storages = Storages(program)
        tensors = {p.name for p in program.params} if program.padded else set()
        self.padded = {name for name, one in self.storages.names.items() if one.base in tensors}
        self.names: dict[str, str] = {}
        self.numbers: dict[str, int] = {}
        self.functions: list[str] = []
        self.kernels: dict[Any, str] = {}
        self.tables: dict[tuple[int, ...], str] = {}
        self.sites: list[Site] = []
        self.phases: list[str] = []
        self.node: n.Node | None = None
        self.scratch_used = self.scratch_bytes = 0
        self.said: set[type] = set()
        self.merges: dict[n.Merge, str] = {}
        self.prepared: dict[int, Box] = {}
        """Operands of products that were turned before their loop."""
        self._label = ""
        self.packs: list[tuple[products.Pack, int]] | None = None
        """What the phase that is being written wants packed before it."""
        self.pack_places: dict[tuple[products.Pack, int], int] = {}
        self.pack_functions: dict[tuple[products.Pack, int], tuple[str, int]] = {}
        touched = (r for node in n.walk(program.body) for kind, r in n.regions(node) if kind != "read")
        written = {self.storages.names[r.source].base for r in touched}
        self.constant = {p.name for p in program.params} - written

    # --- names, places ----------------------------------------------------------------------------

    def name(self, name: str) -> str:
        """The C name of one of the Program's."""
        if name not in self.names:
            plain = re.sub(r"\W", "_", name.lstrip("@"))
            taken = _TAKEN | set(self.names.values())
            while plain in taken or (
                re.fullmatch(r"\w*?\d+", plain) and plain.rstrip("0123456789") in self.numbers
            ):
                plain += "_v"
            self.names[name] = plain
        return self.names[name]

    def fresh(self, prefix: str) -> str:
        self.numbers[prefix] = self.numbers.get(prefix, 0) + 1
        return f"{prefix}{self.numbers[prefix]}"

    def site(self, kind: str, what: str) -> int:
        place = self.node.span.place() if self.node is not None and self.node.span is not None else None
        site = Site(kind, what, place)
        if site not in self.sites:
            self.sites.append(site)
        return self.sites.index(site) + 1

    def constant_table(self, values: tuple[int, ...]) -> str:
        if values not in self.tables:
            self.tables[values] = self.fresh("table")
        return self.tables[values]

    def micro_kernel(self, height: int, vectors: int, strides: tuple[int, int, int, int], begin: str) -> str:
        key = (height, vectors, strides, begin)
        if key not in self.kernels:
            name = self.kernels[key] = self.fresh(f"gemm_{height}x{vectors}_")
            self.functions += micro_kernel(name, height, vectors, strides, begin, self.width)
        return self.kernels[key]

    def base(self, storage: Storage) -> str:
        if storage.home == "scratch":
            raise AssertionError
        plain = self.name(storage.name)
        own = self.storages.table[storage.name]
        return plain if own.dtype == storage.dtype else f"(({storage.c_type} *){plain})"

    def scratch(self, size: int, c_type: str) -> str:
        at = self.scratch_used
        self.scratch_used += -(-size // LINE) * LINE
        self.scratch_bytes = max(self.scratch_bytes, self.scratch_used)
        return f"(({c_type} *)(scratch + {at}))"

    def persistent(self, size: int) -> str:
        """Memory of the instance for floats that outlive a statement."""
        at = self.storages.instance_bytes
        self.storages.instance_bytes += -(-size // LINE) * LINE
        return f"((float *)(work + {at}))"

    def left_out(self, node: n.Node) -> None:
        """What is only for looking is not compiled."""
        if type(node) not in self.said:
            self.said.add(type(node))
            where = f"{node.span.file}:{node.span.line}: " if node.span else ""
            word = {n.Print: "T.print", n.Breakpoint: "T.breakpoint"}.get(type(node), type(node).__name__)
            warnings.warn(
                f"{where}{word} does nothing in compiled programs (try: mt.run)", ProgramWarning, stacklevel=2
            )

    @contextmanager
    def at(self, node: n.Node, text: Text, comment: bool = True) -> Iterator[None]:
        """Errors get the place of the statement; its line stands before its C."""
        before, self.node = self.node, node
        if comment and node.span is not None:
            line = (node.span.place().snippet or "").strip().rstrip("\\")
            text.add(f"// {File(node.span.file).name}:{node.span.line}  {line}")
        try:
            yield
        except MegatileError as error:
            if error.place is None and node.span is not None:
                error.place = node.span.place()
            raise
        finally:
            self.node = before

    # --- the whole --------------------------------------------------------------------------------

    def source(self) -> Source:
        text = Text(1)
        scope = Scope(self, text, {s.name: Const(0) for s in self.launch.scales if s.count == 1}, 0)
        with self.variables(scope, self.program.body, fresh=True):
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
        parts = [*head, _PARALLEL, *([TOGETHER] if waits else []), *self.functions, entry]
        units = math.prod(s.count for s in self.launch.scales[: self.launch.depth(self.launch.dispatch)])
        room = (sizes["LAUNCH"], units * (sizes["INSTANCE"] + (1 << 12)))
        return Source("\n".join(parts), tuple(self.sites), tuple(self.phases), room=room)

    def _run_struct(self) -> str:
        fields = "".join(
            f"  {self.storages.table[p.name].c_type} *{self.name(p.name)};\n" for p in self.program.params
        )
        return (
            f"/* {self.program.name}: its arguments and its memory */\nstruct run {{\n{fields}"
            "  char *launch, *work, *scratch;\n  struct failure *failure;\n  struct pool *pool;\n"
            "  double *times;\n};"
        )

    def flags(self, home: str) -> list[Storage]:
        flags = {a.name for a in n.walk(self.program.body) if isinstance(a, n.Alloc) and a.flag}
        return [s for s in self.storages.table.values() if s.name in flags and s.home == home]

    def arrays(self, body: tuple[n.Node, ...], instance: bool) -> Iterator[str]:
        """Pointers to what a body touches."""
        touched = {self.storages.names[r.source].base for node in n.walk(body) for _, r in n.regions(node)}
        for name, storage in self.storages.table.items():
            if name not in touched:
                continue
            plain, kind_ = self.name(name), storage.c_type
            if storage.home == "argument":
                yield f"  {kind_} *const {plain} = run->{plain}; (void){plain};"
            elif storage.home == "launch":
                place = f"run->launch + {storage.offset}"
                yield f"  {kind_} *const {plain} = ({kind_} *)({place}); (void){plain};"
            elif instance:
                yield f"  {kind_} *const {plain} = ({kind_} *)(work + {storage.offset}); (void){plain};"

    # --- statements -------------------------------------------------------------------------------

    def statements(self, scope: Scope, body: tuple[n.Node, ...]) -> None:
        from megatile.targets.cpu.statements import STATEMENTS

        at = 0
        while at < len(body):
            node = body[at]
            self.scratch_used = 0
            found: products.Product | fusing.Fused | fusing.Scaled | None = None
            if isinstance(node, (n.Fill, n.Loop)):
                found = products.recognised(scope, body, at)
            elif isinstance(node, n.Parallel):
                found = fusing.recognised(scope, body, at) or fusing.scaled(scope, body, at)
            with self.at(node, scope.text, comment=type(node) not in (n.Alloc, n.View, n.Reshape, n.Hint)):
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
                    waiting.check_peer(node)
                    STATEMENTS[type(node)](scope, node)
            at += found.used if found is not None else 1

    def _comments(self, text: Text, body: tuple[n.Node, ...]) -> None:
        """The lines of statements that are done together with one before them."""
        for node in body:
            with self.at(node, text):
                for _, inner in n.bodies(node):
                    self._comments(text, inner)

    def packed(self, pack: products.Pack, columns: int = 0) -> tuple[str, int]:
        """A pointer to a packed tensor, and its rows' distance; it is packed before this phase."""
        assert self.packs is not None
        storage = self.storages.storage(pack.tensor)
        depth = storage.shape[-2:][pack.along]
        key = (pack, columns)
        if key not in self.pack_places:
            self.pack_places[key] = self.storages.launch_bytes
            self.storages.launch_bytes += products.size_of(storage, pack, columns)
        pointer = f"((float *)(run->launch + {self.pack_places[key]}))"
        if key not in self.packs:
            self.packs.append(key)
        return pointer, depth + products.PADDING

    @contextmanager
    def variables(self, scope: Scope, body: tuple[n.Node, ...], fresh: bool = False) -> Iterator[None]:
        """The variables that a region sets, beginning with the values they have outside."""
        before = dict(scope.vars), dict(scope.ranges)
        counts: dict[str, int] = {}
        for node in n.walk(body):
            if isinstance(node, (n.Let, n.ReadScalar)):
                counts[node.name] = counts.get(node.name, 0) + 1
        for name, dtype in lets(body).items():
            outside = scope.vars.get(name)
            c_name = self.name(name) if outside is None else self.fresh(self.name(name) + "_")
            start = converted(outside, dtype).text if outside is not None else "0"
            if scope.frame is not None:
                c_name = scope.frame.add(_NUMBER[kind(dtype)], c_name)
                scope.text.add(f"{c_name} = {start};")
            else:
                scope.text.add(f"{_NUMBER[kind(dtype)]} {c_name} = {start}; (void){c_name};")
            scope.vars[name] = Value(c_name, dtype)
            scope.ranges.pop(name, None)
        scope.once = {name for name, count in counts.items() if count == 1}
        yield
        scope.vars, scope.ranges = before

    def region(self, scope: Scope, node: n.Scale) -> None:
        """Every unit of a scale below this one; one after the other, or over the threads of the pool."""
        low, high = scope.depth, self.launch.depth(node.scale)
        count = math.prod(s.count for s in self.launch.scales[low:high])
        dispatched = not scope.instance and is_dispatched(self.launch, low, high)
        if waiting.must_wait(self, node, count, high):
            waiting.region(self, scope, node, low, high, dispatched)
        elif dispatched:
            self._dispatched(scope, node, low, high)
        else:
            with scope.text.block(), self.units(scope, low, high) as inner:
                self._unit(inner, node.body)

    def _unit(self, scope: Scope, body: tuple[n.Node, ...]) -> None:
        """What one unit of a region does."""
        before, self._label = self._label, ""
        with self.variables(scope, body):
            self.statements(scope, body)
        if self._label:
            scope.text.add(f"{self._label}:;")
        self._label = before

    def label(self) -> str:
        """The end of the unit's region."""
        self._label = self._label or self.fresh("end")
        return self._label

    def merge(self, fn: n.Merge) -> str:
        """The C function of a user's associative function."""
        if fn not in self.merges:
            name = self.merges[fn] = self.fresh("merge_")
            self.functions += waiting.merge_function(self, name, fn)
        return self.merges[fn]

    @contextmanager
    def units(self, scope: Scope, low: int, high: int, rank: str | None = None) -> Iterator[Scope]:
        """A loop over the units between two depths (or the one unit ``rank``), as a scope."""
        inner = Scope(
            self,
            scope.text,
            dict(scope.path),
            high,
            dict(scope.vars),
            dict(scope.ranges),
            (low, high),
            scope.instance,
        )
        scales = [s for s in self.launch.scales[low:high] if s.count > 1]
        if not scales:
            yield inner
            return
        count = math.prod(s.count for s in scales)
        single = self.name(f"@{scales[0].name}") if len(scales) == 1 else None
        variable = rank or single or self.fresh("unit")
        outer = rank is None and low == 0 and not scope.instance
        if outer:
            scope.text.add(f"for (long {variable} = own_first({count}), last = own_after({count});")
            scope.text.add(f"     {variable} < last; {variable}++) {{")
            scope.text.add("  procs.inside++;")
            scope.text.depth += 1
        elif rank is None:
            scope.text.add(f"for (long {variable} = 0; {variable} < {count}; {variable}++) {{")
            scope.text.depth += 1
        below = count
        for scale in scales:
            below //= scale.count
            own = self.name(f"@{scale.name}")
            if own != variable:
                part = variable if below == 1 else f"{variable} / {below}"
                scope.text.add(
                    f"const long {own} = {part}{f' % {scale.count}' if scale is not scales[0] else ''};"
                )
            place_unit(inner, scale.name, own)
        yield inner
        if rank is None:
            scope.text.depth -= 1
            scope.text.add(*(["  procs.inside--;", "}", "meet();"] if outer else ["}"]))

    def _dispatched(self, scope: Scope, node: n.Scale, low: int, high: int) -> None:
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
            pointer = f"((float *)(run->launch + {self.pack_places[key]}))"
            lines, pieces = products.pack_function(scope, name, *key, pointer)
            self.functions += lines
            self.pack_functions[key] = name, pieces
        return self.pack_functions[key]

    def captured(self, scope: Scope, inner: Scope, node: n.Scale) -> list[tuple[str, str, str]]:
        """Numbers that a region has from outside: (type, name, value)."""
        fields = []
        for scale, index in scope.path.items():
            if isinstance(index, Symbol):
                fields.append(("long", self.name(f"@{scale}"), scope.vars[index.name].text))
        used = {s for one in n.walk(node.body) for e in n.expressions(one) for s in symbols(e)}
        for name, value in scope.vars.items():
            if name.startswith("@") and "." in name:
                fields.append(("long", self.name(name), value.text))
            elif name in used:
                fields.append((_NUMBER[value.kind], self.name(name), value.text))
        for name, value in scope.vars.items():
            if name.startswith("@") or name in used:
                inner.vars[name] = Value(self.name(name), value.dtype)
        return fields


def place_unit(scope: Scope, scale: str, c_name: str) -> None:
    """The scope is at unit ``c_name`` of a scale; its coordinates are variables too."""
    gen = scope.gen
    one = gen.launch.scales[gen.launch.depth(scale) - 1]
    scope.path[scale] = Symbol(f"@{scale}")
    scope.vars[f"@{scale}"] = Value(c_name, "int")
    scope.ranges[f"@{scale}"] = (0, one.count - 1)
    below = 1
    for axis, extent in enumerate(one.extents if len(one.extents) > 1 else ()):
        name = f"@{scale}.{axis}"
        plain = gen.name(name.replace(".", "_") if axis >= len(_AXES) else f"@{scale}_{_AXES[axis]}")
        gen.names[name] = plain
        part = c_name if below == 1 else f"{c_name} / {below}"
        last = axis == len(one.extents) - 1
        scope.text.add(f"const long {plain} = {part}{'' if last else f' % {extent}'};")
        scope.vars[name] = Value(plain, "int")
        scope.ranges[name] = (0, extent - 1)
        below *= extent


_PARALLEL = """
/* Where several processes run this program together, in memory that all have at the same place. */
struct procs {
  long rank, size, inside, lost, used, room;
  char *heap;
  void *world;
  int (*barrier)(void *), (*idle)(void *);
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
    for (long i = own_first(count), last = own_after(count); i < last; i++) body(here, 0, i);
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


def generate(program: Program, width: int, rows: int) -> Source:
    """The C of a Program."""
    made = Generator(without_copies(hoisted(forwarded(program))), width, rows).source()
    return replace(made, flops=flops(program))
