"""Rules about engines: products on the wrong one, operands wider than they need be."""

from __future__ import annotations

from collections.abc import Iterator

from megatile.ir import nodes as n
from megatile.ir.program import bindings
from megatile.verdict import changes
from megatile.verdict.model import Finding
from megatile.verdict.study import IDEAL, Study, rule


@rule("wrong engine")
def products(study: Study) -> Iterator[Finding]:
    """A matrix product is done element by element."""
    if study.lowered is None or not any(e.kind == "tensor" for e in study.hda.engines):
        return
    found = list(changes.products_by_hand(study.lowered.source))
    if found:
        yield from study.finding(
            "wrong engine", study.program_ps(changes.with_products), "program timed again with T.gemm",
            bottleneck="wrong engine: a matrix product on the vector engines",
            reason=f"vector engines are busy {study.result.use('vector'):.0%}, tensor engines idle",
            step=f"T.gemm({found[0][1].a.source}, {found[0][1].b.source}, {found[0][1].c.source})",
            source=changes.source_line(found[0][1]),
        )  # fmt: skip


@rule("wide operands")
def wide(study: Study) -> Iterator[Finding]:
    """A product has f32 operands where f16 would do."""
    if study.lowered is None:
        return
    program, gemm = changes.wide_products(study.lowered.source)
    if gemm is not None:
        yield from study.finding(
            "wide operands", study.program_ps(lambda _: program), "program timed again with f16 operands",
            bottleneck="wide operands: a product of f32 where tensor engines are faster in f16",
            reason="f32 operands are slower in the engines, and twice as many bytes to load",
            step='operands in "f16" or "bf16", accumulated in "f32", if the accuracy allows',
            source=changes.source_line(gemm),
        )  # fmt: skip


@rule("widened operands")
def widened(study: Study) -> Iterator[Finding]:
    """Operands of a product are converted though tensor engines take them as they are."""
    if study.lowered is None:
        return
    names, table = changes.widened(study.lowered.source), bindings(study.lowered.source)
    tensor = [e for e in study.hda.engines if e.kind == "tensor"]
    if names and all(any(e.rate(table[name].dtype) for e in tensor) for name in names.values()):
        one, other = next(iter(names.items()))
        yield from study.finding(
            "widened operands", study.program_ps(changes.narrow_products),
            f"program timed again with products of {table[other].dtype} tiles",
            bottleneck=f"widened operands: '{one}' is '{other}' converted to {table[one].dtype}",
            reason=f"tensor engines multiply {table[other].dtype} themselves, faster, and without the copies",
            step=f"T.gemm of '{other}' itself: {table[other].dtype} operands",
            source=next((changes.source_line(c) for c in n.each(n.Copy, study.lowered.source.body)
                         if c.to.source == one), ""),
        )  # fmt: skip


@rule("special functions")
def special(study: Study) -> Iterator[Finding]:
    """Vector work, not products, fills the time."""
    if "vector" not in study.result.busy or study.result.use("vector") < 0.5 or study.share("vector") < 0.3:
        return
    if study.lowered is not None and next(changes.products_by_hand(study.lowered.source), None) is not None:
        return
    names = [f"engines.{e.name}.throughput" for e in study.hda.engines if e.kind in ("vector", "scalar")]
    yield from study.finding(
        "vector work", study.figures_ps(dict.fromkeys(names, IDEAL)), "timed again with free vector engines",
        bound=True,
        bottleneck="vector work limits the time",
        reason=f"vector engines are busy {study.result.use('vector'):.0%}",
        step="fewer elementwise operations: fewer special functions, fewer conversions, reuse of values",
        source=study.line("vector"),
    )  # fmt: skip
