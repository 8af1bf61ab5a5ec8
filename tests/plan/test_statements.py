"""``plan/statements.py``: what statements read, write and bind."""

from megatile.core.expr import expr, unit
from megatile.plan import model as pm
from megatile.plan.statements import (
    binds,
    engine_of,
    integers_bound,
    reads_of,
    regions_of,
    rewritten,
    statements,
    tiles_bound,
    write_of,
)

X, Y = pm.Region("x"), pm.Region("y")
COPY = pm.Compute("copy", Y, (X,), (), "dma", pm.Work())
LOOP = pm.Loop("k", expr(0), expr(4), (COPY, pm.If(unit, (COPY,), (pm.Free(("x",)),))))


def test_statements_come_outer_before_inner() -> None:
    assert [type(s).__name__ for s in statements((LOOP,))] == ["Loop", "Compute", "If", "Compute", "Free"]


def test_rewriting_begins_inside_and_may_leave_statements_out() -> None:
    (loop,) = rewritten((LOOP,), lambda s: None if isinstance(s, pm.Free) else s)
    assert [type(s).__name__ for s in statements((loop,))] == ["Loop", "Compute", "If", "Compute"]
    assert rewritten((LOOP,), lambda s: s) == (LOOP,)


def test_regions_and_names_follow_from_the_declaration() -> None:
    assert (reads_of(COPY), write_of(COPY), regions_of(COPY)) == ((X,), Y, (X, Y))
    assert write_of(pm.Free(("x",))) is None
    read = pm.ReadScalar("n", X, 7)
    assert (tiles_bound(read), integers_bound(read), binds(read)) == ((), ("n",), ((), ("n",)))


def test_copies_name_their_engine() -> None:
    assert engine_of(COPY) == "dma"
    assert engine_of(pm.Compute("copy", Y, (X,), (), "dma", pm.Work(), by="lsu")) == "dma.lsu"
