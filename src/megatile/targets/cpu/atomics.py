"""Elements that several units change: one after the other, whole."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from megatile.core.expr import Expr
from megatile.ir import nodes as n
from megatile.targets.cpu.elements import Value, converted, held, kind, loaded, stored
from megatile.targets.cpu.errors import CompileError
from megatile.targets.cpu.expressions import whole
from megatile.targets.cpu.moving import dense, matched, offset, over, single
from megatile.targets.cpu.scope import Scope
from megatile.targets.cpu.storages import Storage

_COMBINED = {"f": ("f32", "fmax_", "fmin_"), "d": ("f64", "dmax_", "dmin_"), "l": ("int", "lmax", "lmin")}
_BITS = {"float": "u32", "int": "u32", "long": "u64", "double": "u64", "short": "u16", "signed char": "u8"}
_NUMBER = {"f": "float", "d": "double", "l": "long", "b": "long"}


def combined(op: str, dtype: str, old: str, new: str) -> Value:
    """The element that add, max or min make of two."""
    raw, largest, smallest = _COMBINED[kind(dtype)]
    text = f"{old} + {new}" if op == "add" else f"{largest if op == 'max' else smallest}({old}, {new})"
    return converted(Value(f"({text})", raw), dtype)


def atomic(scope: Scope, node: n.Atomic, value: Callable[[Expr], Value]) -> None:
    """One element; ``value`` writes the expressions of the statement."""
    storage, pointer, guard = scope.element(node.target, node.index)
    new = converted(value(node.value), storage.dtype)
    wanted = None if node.expected is None else converted(value(node.expected), storage.dtype)
    with scope.text.block(f"if ({guard})" if guard else ""):
        change(scope, storage, pointer, node.op, new, wanted)
        if node.result is not None:
            lies = held(storage.dtype, storage.wide)
            scope.text.add(f"{scope.vars[node.result].text} = {loaded(lies, False, '&old_', False).text};")


def change(
    scope: Scope, storage: Storage, pointer: str, op: str, new: Value, wanted: Value | None = None
) -> None:
    """The new element from the old one; another unit's change in between makes it begin again."""
    if storage.dtype == "bool":
        raise CompileError("an atomic on bool cannot be compiled yet", advice="use i32")
    ctype, lies = storage.c_type, held(storage.dtype, storage.wide)
    bits, number = _BITS.get(ctype, ctype), _NUMBER[kind(storage.dtype)]
    add = scope.text.add
    add(f"{ctype} *at_ = {pointer}, old_, next_;", f"const {number} new_ = {new.text};")
    if wanted is not None:
        add(f"const {number} wanted_ = {wanted.text};")
    add(f"{bits} seen_ = __atomic_load_n(({bits} *)at_, __ATOMIC_RELAXED), then_;")
    with scope.text.block("for (;;)"):
        add("memcpy(&old_, &seen_, sizeof old_);")
        old = loaded(lies, False, "&old_", False).text
        result = {"exchange": "new_", "cas": f"({old} == wanted_ ? new_ : {old})"}.get(op)
        result = result or combined(op, storage.dtype, old, "new_").text
        add(stored(lies, False, "&next_", Value(result, lies)), "memcpy(&then_, &next_, sizeof then_);")
        add(
            f"if (__atomic_compare_exchange_n(({bits} *)at_, &seen_, then_, 1, __ATOMIC_SEQ_CST, "
            "__ATOMIC_SEQ_CST)) break;"
        )


def atomic_region(scope: Scope, node: n.AtomicRegion) -> None:
    """Every element of a region with its element of another."""
    with scope.text.block():
        source, to = dense(scope, scope.box(node.source)), scope.box(node.to)
        pairs = matched(scope, to, source)
        pointer, conditions = single(to)
        with over(scope, conditions, to) as shift, ExitStack() as stack:
            target, origin = f"{pointer}{shift}", source.pointer
            for a, b in pairs:
                i = scope.gen.fresh("i")
                stack.enter_context(scope.loop(i, a.low or "0", a.high or whole(a.extent, scope)))
                target += offset(a, i)
                origin += offset(b, i)
            value = loaded(source.storage.dtype, source.storage.wide, origin, False)
            change(scope, to.storage, target, node.op, converted(value, to.storage.dtype))
