"""Units that wait for each other: functions that return where they have to wait, and go on from there.

Variables of such a unit are fields of its frame (``f->``); a ``switch`` at the top leads back to the place
where it waited. All units of a group take turns until none is left; see ``together.c``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from megatile.ir import nodes as n
from megatile.targets.common.errors import CompileError
from megatile.targets.common.expressions import whole
from megatile.targets.common.peers import KINDS, check_innermost, line, met, peer
from megatile.targets.common.scope import ResumeFrame, Scope, Text

if TYPE_CHECKING:
    from megatile.targets.cpu.generator import Generator

_OPS = {"sum": 0, "max": 1, "min": 2, "prod": 3, "fn": 0}
_CODES = {
    name: code
    for code, name in enumerate(
        "f64 f32 f16 bf16 f8e4m3 f8e5m2 i64 u64 i32 u32 i16 u16 i8 u8".split()  # noqa: SIM905
    )
}
_CODES |= {"bool": _CODES["u8"], "tf32": _CODES["f32"]}


def must_wait(gen: Generator, node: n.ScaleRegion, count: int, low: int, high: int) -> bool:
    """Return whether the units of a region meet, reach into each other's tiles, or wait for what others do,
    be it in regions inside them."""
    for one in n.own_statements(node.body):
        if isinstance(one, (n.Collective, n.Wait)) or (isinstance(one, n.Barrier) and count > 1):
            return True
        if _reaches(one, None) or (isinstance(one, n.ScaleRegion) and waits_beyond(gen, one, high)):
            return True
        if count > 1 and any(gen.storages.names[name].owner_depth < high for name in _watched(one)):
            return True
    return waits_beyond(gen, node, low) or any(_reaches(one, node.scale) for one in n.walk(node.body))


def waits_beyond(gen: Generator, node: n.ScaleRegion, depth: int) -> bool:
    """Return whether units of a region, or inside them, wait for what others do than those of the unit at
    ``depth`` around them."""
    names = gen.storages.names
    found = (names[name] for one in n.walk(node.body) for name in _watched(one))
    return any(x.owner_depth < depth or 0 < gen.reached.get(x.base, depth + 1) <= depth for x in found)


def _reaches(node: n.Node, scale: str | None) -> bool:
    """Return whether a statement is for other units, of a scale (None: of the innermost region)."""
    return (n.remote(node) is not None or isinstance(node, n.Signal)) and getattr(
        node, "scale", None
    ) == scale


def _watched(node: n.Node) -> set[str]:
    """Return what a unit looks at until it changes."""
    if isinstance(node, n.Loop) and node.kind == "bounded":
        return {r.source for one in n.walk(node.body) for _, r in n.regions(one)}
    return {node.flag} if isinstance(node, n.Wait) else set()


# --- peers ----------------------------------------------------------------------------------------


def signal(scope: Scope, node: n.Signal) -> None:
    with scope.text.block():
        _, pointer, _ = scope.element(node.flag, node.index, peer(scope, node.dst, node))
        scope.text.add(f"__atomic_fetch_add({pointer}, {scope.whole(node.amount)}, __ATOMIC_SEQ_CST);")


# --- places to wait -------------------------------------------------------------------------------


def _state(scope: Scope, passed: str) -> None:
    """The unit goes on when the condition holds; until then it returns here."""
    assert scope.frame is not None
    scope.frame.states += 1
    number = scope.frame.states
    scope.text.add(
        f"moved = 1, f->is.state = {number};",
        f"case {number}: if (!({passed})) return moved ? MOVED : WAITS;",
        "moved = 1;",
    )


def wait(scope: Scope, node: n.Wait) -> None:
    scope.text.add(f"f->seen = {scope.whole(node.value)};")
    _, pointer, _ = scope.element(node.flag, node.index)
    flag = f"__atomic_load_n({pointer}, __ATOMIC_ACQUIRE)"
    passed = f"{flag} >= f->seen" if node.phase is None else f"{flag} / {node.phase} % 2 != f->seen % 2"
    with scope.text.block():
        _state(scope, passed)


def _meeting(scope: Scope, key: Any, first: str) -> str:
    assert scope.frame is not None
    keys = scope.frame.keys
    number = keys.setdefault(key, len(keys))
    return f"(here->in.group.meetings + {number} * here->in.group.count + {first})"


def barrier(scope: Scope, node: n.Barrier) -> None:
    if scope.frame is None:  # alone
        return
    first, needed = met(scope, node)
    _rendezvous(scope, _meeting(scope, ("barrier", node.name, node.axis, node.units), first), needed)


def collective(scope: Scope, node: n.Collective) -> None:
    check_innermost(scope, node)
    first, stride, count = line(scope, node.axis)
    if scope.frame is None:
        raise CompileError(f"T.{node.kind} cannot be compiled here yet", advice="mt.run takes it")
    scope.gen.meets = True
    meeting = _meeting(scope, ("collective", node.axis), first)
    with scope.text.block():
        if node.kind == "gather_view":
            post = f"(struct post){{.kind = -1, .root = {count}}}"
            scope.text.add(f"f->post = {post};")
        else:
            _post(scope, node)
        scope.text.add("here->in.group.posts[f->is.rank] = &f->post;")
        site = scope.gen.failure_site(
            "collective", f"T.{node.kind}: units that meet must do the same, with equal shapes"
        )
        members = f"&(struct line){{&here->in.group, {first}, {stride}, {count}}}"
        if node.fn is None and KINDS.get(node.kind) == "ALLREDUCE" and node.source == node.to:
            _rendezvous(scope, meeting, count)
            scope.text.add(f"own_share({members}, (f->is.rank - {first}) / {stride}, failure, {site});")
            _rendezvous(scope, meeting, count)
        else:
            last = "" if node.kind == "gather_view" else f"collective({members}, failure, {site});"
            _rendezvous(scope, meeting, count, last)


def _rendezvous(scope: Scope, meeting: str, count: int | str, last: str = "") -> None:
    """Wait until all units are here; the last one to come does something for all."""
    with scope.text.block(f"if (arrive({meeting}, {count}, &f->seen))"):
        scope.text.add(last, f"release({meeting});")
    with scope.text.block("else"):
        _state(scope, f"passed({meeting}, f->seen)")


def _post(scope: Scope, node: n.Collective) -> None:
    """What this unit gives and wants."""
    gen = scope.gen
    kind = "UNEVEN" if node.kind == "all_to_all" and len(node.source) > 1 else KINDS[node.kind]
    merge = gen.merge(node.fn) if node.fn is not None else "0"
    root = scope.whole(node.root) if node.kind == "broadcast" else "0"
    scope.text.add(
        f"f->post = (struct post){{{kind}, {_OPS[node.op]}, {node.dim}, {len(node.source)}, {len(node.to)}, "
        f"{root}, {merge}}};"
    )
    for number, region in enumerate((*node.source, *node.to)):
        box = scope.box(region)
        if box.clipped or box.storage.wide:
            raise CompileError(
                "a collective over an edge, or on a tile of narrow floats, cannot be compiled yet",
                advice="use whole tiles of f32",
            )
        axes = box.axes
        extents, strides = (
            ", ".join(part) or "1"
            for part in ([whole(a.extent, scope) for a in axes], [str(a.stride) for a in axes])
        )
        scope.text.add(
            f"f->post.box[{number}] = (struct box){{{box.pointer}, {_CODES[box.storage.dtype]}, {len(axes)}, "
            f"{{{extents}}}, {{{strides}}}}};"
        )


# --- regions --------------------------------------------------------------------------------------


def region(gen: Generator, scope: Scope, node: n.ScaleRegion, low: int, high: int, dispatched: bool) -> None:
    """All units of a region together; those that wait for others than each other take turns with these."""
    name = gen.fresh(f"{node.scale}_")
    frame = ResumeFrame(name)
    spread = scope.spread
    inner = Scope(
        gen,
        Text(2),
        dict(scope.path),
        low,
        {},
        dict(scope.ranges),
        (low, high),
        scope.instance,
        spread=spread,
    )
    fields = gen.captured(scope, inner, node)
    head = Text(1)
    instance = min(high, gen.launch.depth(gen.launch.dispatch))
    count = math.prod(s.count for s in gen.launch.scales[low:high])
    inner.instance = scope.instance or dispatched
    inside = math.prod(s.count for s in gen.launch.scales[instance:high]) if dispatched else 1
    if dispatched:
        inner.spread = high, f"instances + {{}} / {inside} * INSTANCE"
    elif spread[1]:
        fields.append(("u64", "instances", "instances"))
    body_text, inner.text = inner.text, head
    with gen.units(inner, low, high, rank="f->is.rank") as unit:
        unit.text, unit.frame = body_text, frame
        with gen.variables(unit, node.body):
            gen.statements(unit, node.body)
    work = f"here->in.work + f->is.rank / {inside} * INSTANCE" if dispatched else "here->in.work"
    struct = "".join(f" {kind} {field};" for kind, field, _ in fields)
    gen.functions += [
        f"struct {name} {{ struct unit is; long seen;{frame.struct()} struct post post; }};",
        f"struct {name}_here {{ struct here in;{struct} }};",
        f"static int {name}(void *frame, void *argument, long worker) {{",
        f"  struct {name} *const f = frame;",
        f"  struct {name}_here *const here = argument;",
        "  struct run *const run = here->in.run;",
        "  struct failure *const failure = run->failure;",
        f"  char *const work = {work}, *const scratch = run->scratch + worker * SCRATCH;",
        "  int moved = 0; (void)work, (void)scratch, (void)moved;",
        *(["  const u64 instances = (u64)here->in.work; (void)instances;"] if dispatched else []),
        *(f"  const {kind} {field} = here->{field};" for kind, field, _ in fields),
        *gen.arrays(node.body, instance=inner.instance),
        *head.lines,
        "  switch (f->is.state) {",
        "    case 0:;",
        *body_text.lines,
        "  }",
        "  return DONE;",
        "}",
        "",
    ]
    _call(gen, scope, node, (name, low, count, count // inside if dispatched else 0, len(frame.keys)), fields)


def _call(
    gen: Generator, scope: Scope, node: n.ScaleRegion, what: tuple[str, int, int, int, int],
    fields: list[tuple[str, str, str]],
) -> None:  # fmt: skip
    """Begin, in the C of the unit around them; ``instances`` of them have memory of their own."""
    name, low, count, instances, keys = what
    site = scope.gen.failure_site("deadlock", "deadlock: {} units wait for each other, and none can go on")
    work = "0" if instances or not scope.instance else "work"
    values = f"{{{{run, {work}, {{0}}}}{''.join(f', {value}' for _, _, value in fields)}}}"
    if instances:
        gen.phases.append(f"{name} line {node.span.line}" if node.span else name)
    phase, pool = (len(gen.phases) - 1, "run->pool") if instances else (-1, "0")
    sizes = f"{name}, sizeof(struct {name}), {count}, {max(keys, 1)}, (u64){instances} * INSTANCE"
    with scope.text.block():
        if scope.frame is not None and low and waits_beyond(gen, node, low):
            here = scope.frame.add(f"struct {name}_here", f"{name}_in")
            scope.text.add(
                f"{here} = (struct {name}_here){values};",
                f"if (!(f->is.inner = begun({sizes}, &{here}.in, {pool}))) fail(failure, {site}, -1);",
            )
            _state(scope, f"ended(&f->is.inner, worker, {phase}, &moved)")
        else:
            scope.text.add(
                f"struct {name}_here here_ = {values};",
                f"together({sizes}, &here_.in, {pool}, {site}, worker, {phase});",
            )
