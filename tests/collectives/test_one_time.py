"""A collective's kernels have one time, whoever is asked: predict, simulate, price, trace, session."""

from dataclasses import replace

import pytest

import megatile as mt
from megatile.collectives.algorithms import find_algorithm
from megatile.collectives.planner import make_job, predict
from megatile.hda.load import FOLDER, machine_names
from megatile.plan.model import Plan, PlanError, Transport
from megatile.sim import Session
from megatile.timing import TimingError
from megatile.timing.transports import protocol_of
from toy_machines import chips

MACHINES = [
    name for name in machine_names() if "extends:" not in (FOLDER / f"{name}.yaml").read_text("utf-8")
]
MACHINES += ["h100-cluster", "v100-8"]
"""One of each kind of network."""
KERNELS = [name for name in MACHINES if mt.machine(name).protocol is not None]


@pytest.mark.parametrize("name", MACHINES)
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
    found = predict("all_reduce", **asked)
    timed = mt.simulate(found.plan, machine="h100-cluster")
    assert timed.time_ps == found.time_ps


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
    result = mt.simulate(found.plan, machine=name)
    assert result.model == found.model
    assert result.trace.end_ps == found.time_ps
    steps = result.critical_path
    assert sum(step.adds_ps for step in steps) == found.time_ps
    head = [s.adds_ps for s in steps if s.event.operation in ("start", f"launch {found.plan.name}")]
    assert sum(head) == before(name, found)
    assert max(result.links.values()) <= 1


def before(name, found):
    """What goes before the first message."""
    hda = mt.machine(name, **{"protocol.start": "0 us", "protocol.launch": "0 us"})
    return found.time_ps - mt.simulate(found.plan, machine=hda).time_ps


def test_a_session_counts_the_same_time():
    plan = mt.collective("all_reduce", machine="dgx-h100", nbytes=4096, algorithm="ring")
    time = mt.simulate(plan, machine="dgx-h100").time_ps
    with Session("dgx-h100") as session:
        session.launch(plan)
        session.launch(plan)
    assert session.time_ps == session.trace.end_ps == 2 * time


@pytest.mark.parametrize("form", ["text", "json"])
def test_plan_files_that_name_library_kernels_are_still_read(form):
    job, _ = make_job("all_reduce", machine=mt.machine("dgx-h100"), nbytes=1 << 12)
    plan = find_algorithm("ring").plan(job)
    head, rest = str(plan).split("\n", 1)
    old = {
        "text": f'{head[:-1]}, path="small", kernels=("ring", None, 0.0))\n{rest}',
        "json": plan.to_json().replace(
            "{", '{"path": "small", "kernels": {"is": "Kernels", "algorithm": "ring"},', 1
        ),
    }[form]
    again = Plan.from_text(old) if form == "text" else Plan.from_json(old)
    assert again.transports == (Transport("kernel", algorithm="ring", protocol="LL", name="library"),)
    assert Plan.from_text(str(again)) == Plan.from_json(again.to_json()) == again
    assert mt.simulate(again, machine="dgx-h100").model == "ring, LL"


@pytest.mark.parametrize("library", ["nccl", "rccl"])
@pytest.mark.parametrize("name", KERNELS)
def test_libraries_have_one_time_too(name, library):
    for nbytes in (64, 1 << 15):
        found = predict("all_reduce", machine=name, nbytes=nbytes, algorithm=library, ranks=8)
        for plan in (found.plan, Plan.from_text(str(found.plan)), Plan.from_json(found.plan.to_json())):
            assert mt.simulate(plan, machine=name).time_ps == found.time_ps


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"channels": -1.0}, "-1.0 channels, not above 0"),
        ({"kind": "pigeon"}, "kind 'pigeon'"),
        ({"name": "other"}, "no transport 'nccl' in the plan"),
    ],
)
def test_impossible_transports_are_refused(change, said):
    plan = mt.collective("all_reduce", machine="dgx-h100", nbytes=64, algorithm="ring")
    wrong = replace(plan, transports=(replace(plan.transports[0], **change),))
    with pytest.raises(PlanError, match=said):
        mt.simulate(wrong, machine="dgx-h100")


def test_a_protocol_that_an_algorithm_lacks_is_refused():
    plan = mt.collective("all_reduce", machine="dgx-h100", nbytes=64, algorithm="direct")
    wrong = replace(plan, transports=(replace(plan.transports[0], protocol="LL128"),))
    with pytest.raises(TimingError, match="path 'line' of machine 'dgx-h100' has no algorithm 'direct'"):
        mt.simulate(wrong, machine="dgx-h100")


@pytest.mark.parametrize("name", KERNELS)
def test_without_a_transport_the_machine_is_as_it_is(name):
    """Copy engines and control path: what any other plan gets."""
    job, _ = make_job("all_reduce", machine=mt.machine(name), nbytes=1 << 12)
    plan = find_algorithm("ring").plan(job)
    bare = mt.simulate(plan, machine=name)
    assert bare.model == "copy engines"
    assert bare.time_ps != predict("all_reduce", machine=name, nbytes=1 << 12, algorithm="ring").time_ps
    bounds = mt.price(plan, name)
    assert bounds.lower_ps <= bare.time_ps <= bounds.upper_ps


def test_a_machine_without_protocol_is_as_it_is():
    hda = chips("ring", 8)
    assert protocol_of(hda, "device") is None
    plan = mt.collective("all_reduce", machine=hda, nbytes=1 << 12, algorithm="ring")
    assert plan.transports == ()
    assert mt.simulate(plan, machine=hda).model == "copy engines"
