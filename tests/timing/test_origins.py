"""``timing/origins.py``: where times come from."""

from tests.timing.rules_cases import H100, adding, slow_core

import megatile as mt
from megatile.collectives.algorithms import find_algorithm
from megatile.collectives.requests import make_job
from megatile.hda import HDA
from megatile.timing import Resources


def test_origins():
    job, _ = make_job("all_reduce", machine=H100, nbytes=1 << 20)
    plan = find_algorithm("ring").plan(job)
    bare = Resources(H100, plan).origins()
    assert bare["add on vector"].kind == bare["messages"].kind == "rule"
    assert "nvlink" in bare["messages"].source
    library = Resources(H100, mt.collective("all_reduce", machine=H100, nbytes=1 << 20)).origins()
    assert library["messages"].kind == library["start"].kind == "measured"
    assert "fit_transports" in library["messages"].source
    data = H100.to_dict()
    for part in (*data["engines"], *data["networks"]):
        part.pop("source")
    silent = Resources(HDA.from_dict(data), plan).origins()
    assert silent["add on vector"].kind == silent["messages"].kind == "assumed"


def test_measured_figures_are_marked_as_measured():
    hda = slow_core(**{"engines.simd.source": "measured: by hand", "engines.fma.source": "from the manual"})
    plan = adding(1000, "scratch", "block")
    assert Resources(hda, plan).origins()["add on vector"].kind == "measured"
