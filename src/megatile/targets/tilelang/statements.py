"""How each statement is written in TileLang."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatile.core.expr import constant, simplify
from megatile.ir import nodes as n
from megatile.ir.program import base_name
from megatile.targets.common.errors import CompileError
from megatile.targets.tilelang.exchange import barrier, put, signal, wait
from megatile.targets.tilelang.products import global_product, is_global
from megatile.targets.tilelang.roles import written_roles
from megatile.targets.tilelang.units import dtype

if TYPE_CHECKING:
    from megatile.targets.tilelang.writer import TileLangWriter

RULES: dict[type[n.Node], Callable[[TileLangWriter, Any], None]] = {}
rule = n.registrar(RULES)


@rule(n.Alloc)
def _alloc(out: TileLangWriter, node: n.Alloc) -> None:
    if node.scale in ("device", "node") or (node.flag and node.level == "hbm"):
        out.workspace[node.name] = node
        return
    if out.roles.allocated(out, node):
        return
    if node.flag or node.scale not in ("block", "warpgroup", "thread"):
        out.refuse(node, f"of scale '{node.scale}' {'as a flag ' * node.flag}has no counterpart")
    if node.scale == "thread":
        out.add(f'{out.name(node.name)} = T.alloc_local({out.shape(node.shape)}, "{dtype(node.dtype)}")')
        return
    fragment = node.level == "registers" and (node.name in out.sums or node.name not in out.factors)
    size = f'({out.shape(node.shape)}, "{dtype(node.dtype)}")'
    for name in out.roles.names(node.name):
        out.add(f"{out.name(name)} = T.alloc_{'fragment' if fragment else 'shared'}{size}")
        if fragment and node.name in out.factors:
            out.fragments.add(node.name)
            out.add(f"{out.name(f'{name}_shared')} = T.alloc_shared{size}")
    if fragment:
        out.registers.add(node.name)


@rule(n.Copy)
def _copy(out: TileLangWriter, node: n.Copy) -> None:
    if node.dst is not None or node.src is not None:
        put(out, node)
        return
    out.add(f"T.copy({out.part(node.source, node.to)}, {out.part(node.to, node.source)})")


@rule(n.Gemm)
def _gemm(out: TileLangWriter, node: n.Gemm) -> None:
    flags = [
        f"{word}=True"
        for word, set_ in (
            ("transpose_A", node.transpose_a), ("transpose_B", node.transpose_b), ("clear_accum", node.clear),
        )
        if set_
    ]  # fmt: skip
    if node.policy != "Square":
        flags.append(f"policy=T.GemmWarpPolicy.{node.policy}")
    if all(is_global(out, region) for region in (node.a, node.b, node.c)):
        if global_product(out, node):
            return
        out.add("# TileLang multiplies tiles: this product of tensors needs tiles of its own")
    factors = []
    for region in (node.a, node.b):
        base = base_name(region.source)
        shared = base in out.fragments
        if shared and not out.whole(region):
            out.refuse(node, "of a part of a fragment has no counterpart")
        factors.append(out.name(f"{out.roles.copy(base)}_shared") if shared else out.part(region))
        if shared:
            out.add(f"T.copy({out.part(region)}, {factors[-1]})")
    out.add(f"T.gemm({', '.join([*factors, out.part(node.c), *flags])})")


@rule(n.Fill)
def _fill(out: TileLangWriter, node: n.Fill) -> None:
    zero = constant(node.value) == 0
    out.add(
        f"T.clear({out.part(node.to)})" if zero else f"T.fill({out.part(node.to)}, {out.value(node.value)})"
    )


@rule(n.Reduce)
def _reduce(out: TileLangWriter, node: n.Reduce) -> None:
    if node.op == "prod":
        raise CompileError(
            "TileLang has no T.reduce_prod",
            place=node.place,
            advice="multiply in a loop: for i in T.serial(n)",
        )
    kept = "" if node.clear else ", clear=False"
    out.add(f"T.reduce_{node.op}({out.part(node.source)}, {out.part(node.to)}, dim={node.dim}{kept})")


@rule(n.Cumsum)
def _cumsum(out: TileLangWriter, node: n.Cumsum) -> None:
    turned = ", reverse=True" if node.reverse else ""
    out.add(f"T.cumsum({out.part(node.source)}, {out.part(node.to)}, dim={node.dim}{turned})")


@rule(n.Store)
def _store(out: TileLangWriter, node: n.Store) -> None:
    place = out.element(node.target, node.index)
    out.add(f"{place} = {out.value(node.value)}")


@rule(n.Let, n.ReadScalar)
def _let(out: TileLangWriter, node: Any) -> None:
    out.add(f"{out.name(node.name)} = {out.value(node.value)}")


@rule(n.Atomic)
def _atomic(out: TileLangWriter, node: n.Atomic) -> None:
    if node.op not in ("add", "max", "min") or node.dst is not None:
        out.refuse(node, f"'{node.op}' has no counterpart")
    place = out.element(node.target, node.index)
    call = f"T.atomic_{node.op}({place}, {out.value(node.value)}"
    if node.result is None:
        out.add(f"{call})")
    else:
        out.add(f"{out.name(node.result)} = {call}, return_prev=True)")


@rule(n.AtomicRegion)
def _atomic_region(out: TileLangWriter, node: n.AtomicRegion) -> None:
    if node.op != "add" or node.dst is not None:
        out.refuse(node, f"'{node.op}' has no counterpart")
    out.add(f"T.atomic_add({out.part(node.to, node.source)}, {out.part(node.source, node.to)})")


@rule(n.Parallel)
def _parallel(out: TileLangWriter, node: n.Parallel) -> None:
    if node.in_step:
        out.refuse(node, "of threads in step has no counterpart")
    names, extents = ", ".join(map(out.name, node.vars)), ", ".join(map(out.value, node.extents))
    out.block(f"for {names} in T.Parallel({extents}):", lambda: out.body(node.body))


@rule(n.If)
def _if(out: TileLangWriter, node: n.If) -> None:
    out.block(f"if {out.value(node.condition)}:", lambda: out.body(node.body))
    if node.orelse:
        out.block("else:", lambda: out.body(node.orelse))


@rule(n.Loop)
def _loop(out: TileLangWriter, node: n.Loop) -> None:
    if node.kind == "bounded":
        out.refuse(node, "without a known number of steps has no counterpart")
    word = {"pipelined": "Pipelined", "persistent": "serial"}.get(node.kind, node.kind)
    if out.roles.role is not None and word == "Pipelined":
        word = "serial"  # the other roles are its stages
    start, step = (constant(simplify(e)) for e in (node.start, node.step))
    bounds = [out.value(node.start), out.value(node.stop)] if start != 0 else [out.value(node.stop)]
    if step != 1:
        if word != "serial":
            out.refuse(node, f"in steps of {out.value(node.step)} has no counterpart")
        bounds = [out.value(e) for e in (node.start, node.stop, node.step)]
    if word == "Pipelined":
        known = start is not None and constant(simplify(node.stop)) is not None
        if not known and node.stages > 1:  # which TileLang 0.1 does not lower for sm_80
            out.add(f"# num_stages={node.stages} in the program; its number of steps is known only here")
        bounds.append(f"num_stages={node.stages if known else 1}")
    out.block(f"for {out.name(node.var)} in T.{word}({', '.join(bounds)}):", lambda: out.body(node.body))


@rule(n.ScaleRegion)
def _region(out: TileLangWriter, node: n.ScaleRegion) -> None:
    if node.scale == "warpgroup":
        written_roles(out, node)
        return
    if node.scale not in ("thread", "warp") or out.roles.role is not None:
        out.refuse(node, "has no counterpart")
    lanes = (n.Alloc, n.Store, n.Atomic, n.Let, n.ReadScalar, n.If, n.Loop, n.Check, n.Print, n.Hint)
    if any(not isinstance(one, lanes) for one in n.walk(node.body)):
        out.refuse(node, "with tile operations has no counterpart")
    outer, out.scales = out.scales, (*out.scales, node.scale)
    if node.scale == "warp":
        out.block(f"if {out.name('@thread')} % 32 == 0:", lambda: out.region(node.body))
    else:
        out.region(node.body)
    out.add("T.sync_threads()")
    out.scales = outer


@rule(n.Barrier)
def _barrier(out: TileLangWriter, node: n.Barrier) -> None:
    barrier(out, node)


@rule(n.Signal)
def _signal(out: TileLangWriter, node: n.Signal) -> None:
    signal(out, node)


@rule(n.Wait)
def _wait(out: TileLangWriter, node: n.Wait) -> None:
    wait(out, node)


@rule(n.Fence)
def _fence(out: TileLangWriter, node: n.Fence) -> None:
    out.add("T.fence_sys()" if out.units.ranks > 1 else "T.fence_gpu()")


@rule(n.Check)
def _check(out: TileLangWriter, node: n.Check) -> None:
    out.add(f"T.device_assert({out.value(node.condition)}, {node.text!r})")


@rule(n.Hint)
def _hint(out: TileLangWriter, node: n.Hint) -> None:
    if node.word == "use_swizzle":
        out.add(f"T.use_swizzle({node.text})")
    else:
        _comment(out, node)


@rule(n.Print, n.Breakpoint)
def _comment(out: TileLangWriter, node: n.Node) -> None:
    """What data does not depend on."""
    where = f" of {Path(node.span.file).name}:{node.span.line}" if node.span else ""
    out.add(f"# {type(node).__name__}{where} is left out")
