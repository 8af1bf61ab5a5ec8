"""TileScale's words between devices: ranks, puts and gets, signals and waits on symmetric tensors.

One launch covers every rank. A tensor ``A[M]``, which each rank has for itself, is ``A[ranks, M]`` in the
Program: ``A[i]`` becomes ``A[rank, i]`` when the launch is complete, and a word with a peer names the peer's.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Any

from megatile.compat.tilelang import buffers as b
from megatile.compat.tilelang.atomics import moved
from megatile.compat.tilelang.launch import rank_of_device
from megatile.compat.tilelang.simt import Pointer
from megatile.compat.tilelang.threads import get_thread_binding
from megatile.core.dtypes import itemsize
from megatile.core.expr import Binary, Const, Expr, Symbol as Var, known, simplify
from megatile.ir import nodes as n
from megatile.ir.expr import Load
from megatile.language.tile import synchronise
from megatile.language.tile.builder import current
from megatile.language.tile.errors import ProgramError
from megatile.language.tile.scalars import Value, as_expr, operate
from megatile.language.tile.tiles import Ref

_TURNS = 1 << 16
"""How often a wait looks before it is given up."""


class CmpType(IntEnum):
    EQ, NE, GT, LE, LT, GE = range(6)


class Amo(IntEnum):
    AMO_SET, AMO_ADD, SIGNAL_SET, SIGNAL_ADD = 3, 4, 9, 10
    AMO_SIGNAL_SET, AMO_SIGNAL_ADD = 9, 10


_RELATIONS = ("==", "!=", ">", "<=", "<", ">=")


def get_rank() -> Any:
    """The number of this device among those that run the kernel."""
    return Value(rank_of_device()) if b.state().ranks > 1 else 0


def get_num_ranks() -> int:
    return b.state().ranks


def _peer(pe: Any) -> tuple[Expr, ...]:
    """The leading index of another rank's tensor; nothing for one's own."""
    local = pe is None or (not isinstance(pe, (Value, Ref)) and int(pe) == -1)
    return () if local or b.state().ranks == 1 else (as_expr(pe),)


# --- puts and gets --------------------------------------------------------------------------------------


def _flat(pointer: Any, what: str) -> tuple[b.Buffer, Expr]:
    """The elements of a tile in a row, and the place of the pointer's among them."""
    if not isinstance(pointer, Pointer):
        raise ProgramError(f"{what} needs an address", advice="T.address_of(A[i, j])")
    tile, index = pointer.element.tile, pointer.element.index
    if len(index) == 1:
        return tile, index[0]  # type: ignore[return-value]
    place: Expr = Const(0)
    for i, stride in zip(index, tile.strides, strict=True):  # type: ignore[attr-defined]
        place = Binary("+", place, Binary("*", i, Const(int(stride))))
    return b.view(tile, (math.prod(tile.shape),)), simplify(place)


def _transfer(dst: Any, src: Any, size: Any, to: Any, frm: Any, word: str) -> None:
    """Copy ``size`` elements from one address to another; one of the two may be a peer's."""
    builder = current()
    builder.open_implied()
    (target, at), (source, start) = _flat(dst, word), _flat(src, word)
    extent = simplify(as_expr(size))
    if known(extent) is None:
        name = builder.variable("size")
        builder.emit(n.ReadScalar, name=name, value=extent, bound=math.prod(target.shape))
        extent = Var(name)
    regions = [
        n.Region(tile.name, (*(n.Dim(i) for i in _peer(pe)), n.Dim(where, extent)))
        for tile, where, pe in ((target, at, to), (source, start, frm))
    ]
    builder.emit(n.Copy, to=regions[0], source=regions[1])


def put_block(src: Any, dst: Any, size: Any, dst_pe: Any = -1, **_: Any) -> None:
    """The block's threads put elements to a peer."""
    _transfer(dst, src, size, dst_pe, None, "T.put_block")


def get_block(src: Any, dst: Any, size: Any, src_pe: Any = -1, **_: Any) -> None:
    """The block's threads get elements from a peer."""
    _transfer(dst, src, size, None, src_pe, "T.get_block")


def _warp_transfer(src: Any, dst: Any, size: Any, to: Any, frm: Any) -> None:
    """Each warp moves elements of its own."""
    builder = current()
    builder.open_implied()
    k = builder.fresh("k")
    first = as_expr(operate("==", get_thread_binding(0) % 32, 0))
    loop = {"kind": "serial", "var": k, "start": Const(0), "stop": as_expr(size)}
    with builder.inside(n.If, condition=first), builder.inside(n.Loop, k, **loop):
        target, value = moved(dst.element, Value(Var(k))), moved(src.element, Value(Var(k)))
        loaded = Load(value.tile.name, (*_peer(frm), *value.index), value.dtype)
        builder.store(n.Store, target=target.tile.name, index=(*_peer(to), *target.index), value=loaded)


def put_warp(src: Any, dst: Any, size: Any, dst_pe: Any = -1, *_: Any, **__: Any) -> None:
    _warp_transfer(src, dst, size, dst_pe, None)


def get_warp(src: Any, dst: Any, size: Any, src_pe: Any = -1, *_: Any, **__: Any) -> None:
    _warp_transfer(src, dst, size, None, src_pe)


def _elements(pointer: Any, nbytes: Any) -> Any:
    return operate("//", nbytes, itemsize(pointer.element.tile.dtype))


def putmem_nbi_block(dest: Any, src: Any, nbytes: Any, pe: Any) -> None:
    """Bytes to a peer, done at once."""
    _transfer(dest, src, _elements(src, nbytes), pe, None, "T.putmem_block")


def getmem_nbi_block(dest: Any, src: Any, nbytes: Any, pe: Any) -> None:
    _transfer(dest, src, _elements(src, nbytes), None, pe, "T.getmem_block")


def putmem_signal_nbi_block(
    dest: Any, src: Any, nbytes: Any, sig_addr: Any, signal: Any, sig_op: Any, pe: Any
) -> None:
    """Bytes to a peer, and then a signal."""
    putmem_nbi_block(dest, src, nbytes, pe)
    signal_op(sig_addr, signal, sig_op, pe)


# --- signals and waits ----------------------------------------------------------------------------------


def _atomic(op: str, element: Ref, value: Any, peer: tuple[Expr, ...], until: Any = None) -> str:
    """An atomic with release semantics: who reads its value also sees all earlier writes. One that waits
    ``until`` the element is that large is ordered after what must have come for it."""
    builder = current()
    seen = builder.variable("seen")
    b.state().ordering.add(seen)
    index = (*peer, *element.index)
    expected = None if until is None else as_expr(until)
    builder.emit(
        n.Atomic, op=op, target=element.tile.name, index=index, value=as_expr(value), expected=expected,
        result=seen,
    )  # fmt: skip
    return seen


def signal_op(sig_addr: Pointer, signal: Any, sig_op: Any, pe: Any) -> None:
    """A peer's word is set, or counted up."""
    op = "exchange" if int(sig_op) in (Amo.SIGNAL_SET, Amo.AMO_SET) else "add"
    _atomic(op, sig_addr.element, signal, _peer(pe))


def _wait(relation: str, element: Ref, value: Any, pe: Any) -> None:
    builder = current()
    builder.open_implied()
    turn = builder.fresh("turn")
    b.state().ordering.add(turn)
    with builder.inside(n.Loop, turn, kind="bounded", var=turn, start=Const(0), stop=Const(_TURNS)):
        until = {"==": value, ">=": value, ">": operate("+", value, 1)}.get(relation)
        seen = Var(_atomic("add", element, 0, _peer(pe), until), element.dtype)
        with builder.inside(n.If, condition=Binary(relation, seen, as_expr(value), "bool")):
            builder.emit(n.Break)


def signal_wait_until(sig_addr: Pointer, cmp: Any, value: Any) -> None:
    """Until this rank's word compares so."""
    _wait(_RELATIONS[int(cmp)], sig_addr.element, value, None)


def _waiting(relation: str) -> Any:
    def wait(value: Any, expected: Any, peer: Any = -1) -> None:
        _wait(relation, value, expected, peer)

    wait.__doc__ = f"Until the element is {relation} a value."
    return wait


wait_eq, wait_ne, wait_gt, wait_le, wait_lt, wait_ge = (_waiting(r) for r in _RELATIONS)


def st(
    dst: Ref, value: Any, scope: str = "gpu", sem: str = "weak", na: bool = False, dst_pe: Any = -1
) -> None:
    """Store an element, here or at a peer; a release orders what was done before."""
    if sem == "release":
        _atomic("exchange", dst, value, _peer(dst_pe))
        return
    index = (*_peer(dst_pe), *dst.index)
    current().store(n.Store, target=dst.tile.name, index=index, value=as_expr(value))


def ld(src: Ref, value: Any, scope: str = "gpu", sem: str = "weak", na: bool = False, nc: bool = False,
       src_pe: Any = -1) -> None:  # fmt: skip
    """Load an element, from here or from a peer; an acquire sees what was done before it was released."""
    if sem == "acquire":
        loaded: Expr = Var(_atomic("add", src, 0, _peer(src_pe)), src.dtype)
    else:
        loaded = Load(src.tile.name, (*_peer(src_pe), *src.index), src.dtype)
    current().store(n.Store, target=value.tile.name, index=value.index, value=loaded)


def atom_add(target: Ref, value: Any, scope: str = "gpu", sem: str = "relaxed") -> Any:
    return synchronise.atomic_add(target, value, return_prev=True)


def barrier_blocks(barrier: b.Buffer) -> None:
    """The blocks of all ranks that come here meet: each counts up for itself and down at every peer."""
    ranks = b.state().ranks
    for peer in range(ranks):
        _atomic("add", barrier[peer], 1, ())
        _atomic("add", barrier[get_rank()], -1, _peer(peer))
    for peer in range(ranks):
        _wait("<=", barrier[peer], 0, None)


WORDS = (
    "get_rank get_num_ranks put_block get_block put_warp get_warp putmem_nbi_block getmem_nbi_block "
    "putmem_signal_nbi_block signal_op signal_wait_until wait_eq wait_ne wait_gt wait_le wait_lt wait_ge "
    "st ld atom_add barrier_blocks CmpType Amo"
)
ALIASES = {
    "get_pe": "get_rank", "get_pe_num": "get_num_ranks", "putmem_block": "putmem_nbi_block",
    "getmem_block": "getmem_nbi_block", "sync_blocks": "barrier_blocks",
    "putmem_signal_block": "putmem_signal_nbi_block",
}  # fmt: skip
