"""Elements that several units change: one after the other, whole."""

from __future__ import annotations

from megatile.ir import nodes as n
from megatile.targets.common.allocation import Storage
from megatile.targets.common.elements import Value, changed, converted, held, kind, loaded, stored
from megatile.targets.common.errors import CompileError
from megatile.targets.common.peers import peer
from megatile.targets.common.scope import Scope, matched
from megatile.targets.cpu.moving import dense, over

_BITS = {"float": "u32", "int": "u32", "long": "u64", "double": "u64", "short": "u16", "signed char": "u8"}
_NUMBER = {"f": "float", "d": "double", "l": "long", "b": "long"}


def change(
    scope: Scope,
    storage: Storage,
    pointer: str,
    op: str,
    new: Value,
    wanted: Value | None = None,
    result: str | None = None,
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
    old = loaded(lies, False, "&old_", False).text
    with scope.text.block("for (;;)"):
        add("memcpy(&old_, &seen_, sizeof old_);")
        text = {"exchange": "new_", "cas": f"({old} == wanted_ ? new_ : {old})"}.get(op)
        text = text or changed(op, storage.dtype, old, "new_").text
        add(stored(lies, False, "&next_", Value(text, lies)), "memcpy(&then_, &next_, sizeof then_);")
        add(
            f"if (__atomic_compare_exchange_n(({bits} *)at_, &seen_, then_, 1, __ATOMIC_SEQ_CST, "
            "__ATOMIC_SEQ_CST)) break;"
        )
    if result is not None:
        add(f"{result} = {old};")


def atomic_region(scope: Scope, node: n.AtomicRegion) -> None:
    """Every element of a region with its element of another."""
    with scope.text.block():
        at = peer(scope, node.dst, node)
        source, to = dense(scope, scope.box(node.source)), scope.box(node.to, at)
        with over(scope, to, matched(scope, to, source), source.pointer) as (target, origin, _):
            value = loaded(source.storage.dtype, source.storage.wide, origin, False)
            change(scope, to.storage, target, node.op, converted(value, to.storage.dtype))
