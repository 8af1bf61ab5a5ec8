"""Every time in an explanation is the time that asking for that candidate gives."""

from __future__ import annotations

import pytest

from megatile.collectives.libraries import NCCL_NAMES
from megatile.collectives.planner import collective, predict

SIZE = "64M"


def asked(algorithm, machine="h100-cluster", **more):
    return predict("all_reduce", machine=machine, nbytes=SIZE, algorithm=algorithm, in_place=True, **more)


def test_fastest_is_fastest_and_explained_by_times_that_asking_gives():
    _, why = collective(
        "all_reduce", machine="h100-cluster", nbytes=SIZE, algorithm="fastest", in_place=True, explain=True
    )
    fit = [c for c in why.candidates if c.why_not is None]
    best = asked("fastest").time_ps
    assert best == fit[0].time_ps
    for c in [*fit[:6], *(c for c in fit[6:] if c.algorithm == "node_tree" and not c.options)]:
        time = asked(c.algorithm, protocol=c.protocol, settings=dict(c.options) or None).time_ps
        assert time >= best
        if c.time_ps is not None:
            assert time == c.time_ps
        else:
            assert time >= c.price_ps * (1 - 1e-5)
            if c.algorithm == "node_tree":  # the library's rule says its time
                assert time == pytest.approx(c.price_ps, rel=1e-5)


def test_the_library_choice_by_name_takes_the_same_time():
    found = asked("auto")
    assert asked(found.algorithm).time_ps == pytest.approx(found.time_ps, rel=1e-5)
    assert found.explanation is not None
    assert found.explanation.chosen.time_ps == found.time_ps


def test_the_library_choice_shows_what_variables_would_give():
    found = asked("auto").explanation
    assert found is not None
    assert {c.algorithm for c in found.candidates} == {"rail_rings", "node_tree", "in_network_tree"}
    assert all("NCCL estimates " in c.note for c in found.candidates)
    for c in found.candidates[1:3]:
        protocol = "Simple" if c.protocol == "NVLS" else c.protocol
        forced = asked("auto", env={"NCCL_ALGO": NCCL_NAMES[c.algorithm], "NCCL_PROTO": protocol})
        assert forced.time_ps == pytest.approx(c.time_ps, rel=1e-3)
