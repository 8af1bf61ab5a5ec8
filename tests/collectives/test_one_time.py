"""A collective has one time, whoever is asked: predict, simulate, price, trace, session, saved plans."""

from dataclasses import replace

import pytest

import megatile as mt
from megatile.collectives.planner import predict
from megatile.collectives.toy import chips
from megatile.hda.catalog import machine_names
from megatile.hda.protocol import protocol_of
from megatile.plan.model import Plan, PlanError
from megatile.sim import Session

KERNELS = [name for name in machine_names() if mt.machine(name).protocol is not None]


@pytest.mark.parametrize("name", machine_names())
@pytest.mark.parametrize(
    ("operation", "algorithm"),
    [
        ("all_reduce", "auto"),
        ("all_reduce", "ring"),
        ("all_gather", "direct"),
        ("reduce_scatter", "auto"),
        ("broadcast", "binomial"),
        ("barrier", "auto"),
    ],
)
def test_simulated_is_predicted(name, operation, algorithm):
    hda = mt.machine(name)
    for nbytes in (52, 1 << 20) if algorithm == "auto" else (52, 1 << 16, 1 << 22):
        asked = {
            "machine": hda,
            "nbytes": nbytes,
            "algorithm": algorithm,
            "ranks": min(8, hda.count("device")),
        }
        plan = mt.collective(operation, **asked)
        found = predict(operation, **asked)
        assert mt.simulate(plan, machine=hda).time_ps == found.time_ps
        assert mt.simulate(found.plan, machine=name).time_ps == found.time_ps
        bounds = mt.price(plan, hda)
        assert bounds.lower_ps <= found.time_ps <= bounds.upper_ps


@pytest.mark.parametrize("scale", ["warpgroup", "block", "device", "node"])
def test_at_every_scale(scale):
    asked = {"machine": "h100-cluster", "nbytes": 4096, "scale": scale, "ranks": 4, "algorithm": "ring"}
    plan = mt.collective("all_reduce", **asked)
    assert mt.simulate(plan, machine="h100-cluster").time_ps == predict("all_reduce", **asked).time_ps


@pytest.mark.parametrize("name", KERNELS)
def test_captured_graphs_leave_the_launch_out(name):
    asked = {"machine": name, "nbytes": 64, "algorithm": "ring"}
    plan = mt.collective("all_reduce", **asked)
    captured = predict("all_reduce", **asked, launch=False).time_ps
    assert mt.simulate(plan, machine=name, launch=False).time_ps == captured
    assert captured <= mt.simulate(plan, machine=name).time_ps
    assert mt.price(plan, name, launch=False).lower_ps <= captured


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("nbytes", [64, 1 << 20])
def test_trace_and_reports_end_when_predicted(name, nbytes):
    found = predict("all_reduce", machine=name, nbytes=nbytes, algorithm="ring")
    result = mt.simulate(
        mt.collective("all_reduce", machine=name, nbytes=nbytes, algorithm="ring"), machine=name
    )
    assert result.plan.path == found.candidate.path
    assert result.trace.end_ps == found.time_ps
    steps = result.critical_path
    assert sum(step.adds_ps for step in steps) == found.time_ps
    assert (steps[0].event.operation, steps[0].adds_ps) == ("launch", before(name, found))
    assert max(result.links.values()) <= 1


def before(name, found):
    """What goes before the first message."""
    bare = mt.simulate(
        found.plan, machine=mt.machine(name, **{"protocol.start": "0 us", "protocol.launch": "0 us"})
    )
    return found.time_ps - bare.time_ps


def test_a_session_counts_the_same_time():
    plan = mt.collective("all_reduce", machine="dgx-h100", nbytes=4096, algorithm="ring")
    time = mt.simulate(plan, machine="dgx-h100").time_ps
    with Session("dgx-h100") as session:
        session.launch(plan)
        session.launch(plan)
    assert session.time_ps == session.trace.end_ps == 2 * time


@pytest.mark.parametrize("algorithm", ["ring", "in_network", "auto"])
def test_a_saved_plan_keeps_its_path(algorithm):
    plan = mt.collective("all_reduce", machine="dgx-h100", nbytes=1 << 12, algorithm=algorithm)
    assert plan.path is not None
    for again in (Plan.from_text(str(plan)), Plan.from_json(plan.to_json())):
        assert again.path == plan.path
        assert mt.simulate(again, machine="dgx-h100").time_ps == mt.simulate(plan, machine="dgx-h100").time_ps
    assert plan.digest != replace(plan, path=None).digest


@pytest.mark.parametrize("path", ["quick", 7])
def test_an_unknown_path_is_named(path):
    plan = mt.collective("all_reduce", machine="dgx-h100", nbytes=64, algorithm="ring")
    with pytest.raises(PlanError, match=f"path '{path}'"):
        mt.simulate(replace(plan, path=path), machine="dgx-h100")
    with pytest.raises(PlanError, match="path"):
        mt.check(Plan.from_text(str(plan).replace('path="auto"', f"path={path!r}")))


@pytest.mark.parametrize("library", ["nccl", "rccl"])
@pytest.mark.parametrize("name", KERNELS)
def test_libraries_have_one_time_too(name, library):
    for nbytes in (64, 1 << 15):
        found = predict("all_reduce", machine=name, nbytes=nbytes, algorithm=library, ranks=8)
        for plan in (found.plan, Plan.from_text(str(found.plan)), Plan.from_json(found.plan.to_json())):
            assert mt.simulate(plan, machine=name).time_ps == found.time_ps


@pytest.mark.parametrize("told", ['("", -1.0, 0.0)', '("", 0, 0.0)', '("", "x", 0.0)', '("", None, -1.0)'])
def test_impossible_kernels_are_refused(told):
    plan = mt.collective("all_reduce", machine="dgx-h100", nbytes=64, algorithm="ring")
    text = str(plan).replace('kernels=("ring", None, 0.0)', f"kernels={told}")
    with pytest.raises(PlanError, match="kernels"):
        mt.simulate(Plan.from_text(text), machine="dgx-h100")
    with pytest.raises(PlanError, match="no algorithm that has it"):
        mt.simulate(replace(plan, path="line", kernels=None), machine="dgx-h100")


@pytest.mark.parametrize("name", KERNELS)
def test_the_bare_machine_can_be_asked_for(name):
    """Copy engines and control path: what a plan that is no collective's gets."""
    plan = mt.collective("all_reduce", machine=name, nbytes=1 << 12, algorithm="ring")
    bare = mt.simulate(plan, machine=name, bare=True)
    assert bare.time_ps == mt.simulate(replace(plan, path=None), machine=name).time_ps
    assert bare.time_ps != mt.simulate(plan, machine=name).time_ps
    bounds = mt.price(plan, name, bare=True)
    assert bounds.lower_ps <= bare.time_ps <= bounds.upper_ps


def test_a_machine_without_protocol_is_as_it_is():
    hda = chips("ring", 8)
    assert protocol_of(hda, "device") is None
    plan = mt.collective("all_reduce", machine=hda, nbytes=1 << 12, algorithm="ring")
    assert mt.simulate(plan, machine=hda).time_ps == mt.simulate(plan, machine=hda, bare=True).time_ps
