"""What writers of C share: names, places of failures, variables, and the units of regions."""

from __future__ import annotations

import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path as File
from typing import ClassVar

from megatile.core.errors import MegatileError, Place
from megatile.core.expr import Symbol, symbols
from megatile.ir import nodes as n
from megatile.ir.program import Program
from megatile.language.tile.errors import ProgramWarning
from megatile.targets.common.allocation import Allocation, Storage
from megatile.targets.common.elements import Value, converted, kind
from megatile.targets.common.expressions import write
from megatile.targets.common.scalars import C_NUMBER, lets, simplify_whole
from megatile.targets.common.scope import Scope, Text

NUMBERS = (File(__file__).parent / "numbers.c").read_text(encoding="utf-8")
_AXES = "xyzw"


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
    collectives: str | None = None
    """The C of the collectives that it calls: the same for all programs."""

    def __str__(self) -> str:
        return self.text


class Writer:
    """Writes the statements of one Program; what each becomes is the target's."""

    storages: Allocation

    def __init__(self, program: Program, taken: set[str]):
        self.program, self.launch, self.taken = program, program.launch, taken
        self.storages = self.placed(program)
        tensors = {p.name for p in program.params} if program.padded else set()
        self.padded = {name for name, one in self.storages.names.items() if one.base in tensors}
        self.names: dict[str, str] = {}
        self.numbers: dict[str, int] = {}
        self.tables: dict[tuple[int, ...], str] = {}
        self.sites: list[Site] = []
        self.node: n.Node | None = None
        self.said: set[type] = set()
        self._label = ""
        self.functions: list[str] = []
        self.merges: dict[n.Merge, str] = {}
        self.around: list[tuple[int, int]] = []
        """The regions around what is being written: the depths between which their units are."""

    def placed(self, program: Program) -> Allocation:
        raise NotImplementedError

    def statements(self, scope: Scope, body: tuple[n.Node, ...]) -> None:
        raise NotImplementedError

    change: ClassVar[Callable[..., None]]
    """``change(scope, storage, pointer, op, new, wanted, result)``: an element changed indivisibly."""
    rules: ClassVar[dict[type[n.Node], Callable[..., None]]]
    """What each kind of statement becomes."""

    def name(self, name: str) -> str:
        """Return the C name of one of the Program's."""
        if name not in self.names:
            plain = re.sub(r"\W", "_", name.lstrip("@"))
            taken = self.taken | set(self.names.values())
            while plain in taken or (
                re.fullmatch(r"\w*?\d+", plain) and plain.rstrip("0123456789") in self.numbers
            ):
                plain += "_v"
            self.names[name] = plain
        return self.names[name]

    def fresh(self, prefix: str) -> str:
        self.numbers[prefix] = self.numbers.get(prefix, 0) + 1
        return f"{prefix}{self.numbers[prefix]}"

    def failure_site(self, kind: str, what: str) -> int:
        site = Site(kind, what, self.node.place if self.node is not None else None)
        if site not in self.sites:
            self.sites.append(site)
        return self.sites.index(site) + 1

    def constant_table(self, values: tuple[int, ...]) -> str:
        if values not in self.tables:
            self.tables[values] = self.fresh("table")
        return self.tables[values]

    def merge(self, fn: n.Merge) -> str:
        """Return the C function of a user's associative function of two tuples."""
        if fn not in self.merges:
            name = self.merges[fn] = self.fresh("merge_")
            scope = Scope(self, Text(), {}, 0)
            self.functions.append(f"INLINE void {name}(const float *a, const float *b, float *r) {{")
            for side in "ab":
                for number in range(len(fn.results)):
                    scope.vars[f"{side}{number}"] = Value(f"{side}[{number}]", "f32")
            for number, result in enumerate(fn.results):
                value = converted(write(simplify_whole(result), scope), "f32")
                self.functions.append(f"  r[{number}] = {value.text};")
            self.functions += ["}", ""]
        return self.merges[fn]

    def left_out(self, node: n.Node) -> None:
        """What is only for looking is not compiled."""
        if type(node) not in self.said:
            self.said.add(type(node))
            where = f"{node.span.file}:{node.span.line}: " if node.span else ""
            word = {n.Print: "T.print", n.Breakpoint: "T.breakpoint"}.get(type(node), type(node).__name__)
            warnings.warn(
                f"{where}{word} does nothing in compiled programs (try: mt.run)", ProgramWarning, stacklevel=2
            )

    def base(self, storage: Storage) -> str:
        if storage.home == "scratch":
            raise AssertionError
        plain = self.name(storage.name)
        own = self.storages.table[storage.name]
        return plain if own.dtype == storage.dtype else f"(({storage.c_type} *){plain})"

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
            error.place = error.place or node.place
            raise
        finally:
            self.node = before

    def flags(self, home: str) -> list[Storage]:
        flags = {a.name for a in n.walk(self.program.body) if isinstance(a, n.Alloc) and a.flag}
        return [s for s in self.storages.table.values() if s.name in flags and s.home == home]

    @contextmanager
    def variables(self, scope: Scope, body: tuple[n.Node, ...]) -> Iterator[None]:
        """The variables that a region sets, beginning with the values they have outside."""
        before = dict(scope.vars), dict(scope.ranges)
        counts = Counter(node.name for node in n.walk(body) if isinstance(node, (n.Let, n.ReadScalar)))
        for name, dtype in lets(body).items():
            outside = scope.vars.get(name)
            c_name = self.name(name) if outside is None else self.fresh(self.name(name) + "_")
            start = converted(outside, dtype).text if outside is not None else "0"
            if scope.frame is not None:
                c_name = scope.frame.add(C_NUMBER[kind(dtype)], c_name)
                scope.text.add(f"{c_name} = {start};")
            else:
                scope.text.add(f"{C_NUMBER[kind(dtype)]} {c_name} = {start}; (void){c_name};")
            scope.vars[name] = Value(c_name, dtype)
            scope.ranges.pop(name, None)
        scope.once = {name for name, count in counts.items() if count == 1}
        yield
        scope.vars, scope.ranges = before

    def _unit(self, scope: Scope, body: tuple[n.Node, ...]) -> None:
        """What one unit of a region does."""
        before, self._label = self._label, ""
        with scope.text.block(), self.variables(scope, body):
            self.statements(scope, body)
        if self._label:
            scope.text.add(f"{self._label}:;")
        self._label = before

    def label(self) -> str:
        """Return the end of the unit's region."""
        self._label = self._label or self.fresh("end")
        return self._label

    @contextmanager
    def units(self, scope: Scope, low: int, high: int, rank: str | None = None) -> Iterator[Scope]:
        """A loop over the units between two depths (or the one unit ``rank``), as a scope."""
        inner = replace(
            scope, path=dict(scope.path), depth=high, vars=dict(scope.vars), ranges=dict(scope.ranges),
            group=(low, high), frame=None, once=set(),
        )  # fmt: skip
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

    def captured(self, scope: Scope, inner: Scope, node: n.ScaleRegion) -> list[tuple[str, str, str]]:
        """Return numbers that a region has from outside: (type, name, value)."""
        fields = []
        for scale, index in scope.path.items():
            if isinstance(index, Symbol):
                fields.append(("long", self.name(f"@{scale}"), scope.vars[index.name].text))
        used = {s for one in n.walk(node.body) for e in n.expressions(one) for s in symbols(e)}
        for name, value in scope.vars.items():
            if name.startswith("@") and "." in name:
                fields.append(("long", self.name(name), value.text))
            elif name in used:
                fields.append((C_NUMBER[value.kind], self.name(name), value.text))
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
