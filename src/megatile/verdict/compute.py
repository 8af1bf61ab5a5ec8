"""Rules about engines: products on the wrong one, operands wider than they need be."""

from __future__ import annotations

from collections.abc import Iterator

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
