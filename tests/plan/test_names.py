"""``plan/names.py``: whether every name in a plan is bound before it is used, and still bound where it is
used."""

from __future__ import annotations

from dataclasses import replace

from tests.plan.shared import builder, fails, ring, tile

from megatile.core.errors import Place
from megatile.core.registry import UnknownNameError
from megatile.plan.model import Compute, Region, Stream


def test_names_that_do_not_exist():
    plan = builder().finish()

    def with_statement(statement):
        return replace(plan, streams=(Stream(((0, 4, 1),), (statement,)),))

    place = Place("kernel.py", 9)
    nothing = Compute("addd", Region("x"), source=place)
    fails(
        with_statement(nothing),
        "kernel.py:9: 'addd' is not among the operations.*did you mean 'add'",
        UnknownNameError,
    )
    fails(with_statement(replace(nothing, operation="fill")), "kernel.py:9: there is no tile 'x' here")
    engine = replace(nothing, operation="fill", engine="vctor")
    fails(with_statement(engine), "kernel.py:9: there is no engine 'vctor'.*did you mean 'vector'")
    b = builder()
    channel = ring(b)
    b.send(replace(channel, name="rong"), tile(b), to=0)
    fails(b, "kernel.py:7: there is no channel 'rong'.*did you mean 'ring'")
