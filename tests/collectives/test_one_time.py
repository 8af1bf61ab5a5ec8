"""A collective's kernels have one time, whoever is asked: predict, simulate, price, trace, session."""

from dataclasses import replace

import numpy as np
import pytest

import megatile as mt
import megatile.language as T
from megatile.collectives.algorithms import find_algorithm
from megatile.collectives.planner import predict
from megatile.collectives.requests import make_job
from megatile.hda.load import FOLDER, machine_names
from megatile.plan.model import Plan, PlanError, Transport
from megatile.sim import Session
from megatile.timing.collective_choice import library_of, rule_of, times_ps
from megatile.timing.transports import head_cost
from toy_machines import chips

MACHINES = [
    name for name in machine_names() if "extends:" not in (FOLDER / f"{name}.yaml").read_text("utf-8")
]
MACHINES += ["h100-cluster", "v100-8"]
"""One of each kind of network."""
KERNELS = [name for name in MACHINES if mt.machine(name).transports]


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


GPUS = [name for name in machine_names() if mt.machine(name).transports]
SIZES = (512, 96 << 10, 1 << 20, 256 << 20)
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")


@pytest.mark.parametrize("name", GPUS)
def test_the_ways_to_ask_give_one_time(name):
    """Of all shipped GPU machines, a sample of operations, ranks and sizes, another one for each: predict,
    simulate, kernel prices and the closed form."""
    hda, number = mt.machine(name), GPUS.index(name)
    devices = hda.count("device")
    ranks = [n for n in (2, 3, 4, 8, 16) if n <= devices]
    for i, operation in enumerate(OPERATIONS):
        for nbytes in SIZES[(number + i) % 2 :: 2]:
            n = ranks[(number + i + nbytes.bit_length()) % len(ranks)]
            nbytes = nbytes // (4 * n) * 4 * n
            asked = {"machine": hda, "nbytes": nbytes, "ranks": n}
            found = predict(operation, **asked)
            assert found.model.startswith(("NCCL ", "RCCL ")), found.model
            again = mt.simulate(Plan.from_json(mt.collective(operation, **asked).to_json()), machine=hda)
            assert (again.time_ps, again.model) == (found.time_ps, found.model), (operation, n, nbytes)
            record = float(times_ps(rule_of(hda), operation, n, nbytes))
            assert found.time_ps == pytest.approx(record, rel=0.02), (operation, n, nbytes, found.model)
            kernel = mt.predict_kernel(operation, ranks=n, bytes=nbytes, machine=hda)
            assert kernel.time_us == pytest.approx(record / 1e6, rel=1e-3)
            own = {"in_place": operation in ("all_reduce", "broadcast"), "launch": False}
            inside = mt.simulate(program(operation, n, nbytes), machine=hda, launch=False)
            alone = predict(operation, **asked, **own)
            assert (inside.time_ps, inside.model) == (alone.time_ps, alone.model), (operation, n, nbytes)


@pytest.mark.parametrize("name", ["h100-cluster", "a100-cluster", "mi300x-cluster"])
@pytest.mark.parametrize("operation", ["broadcast", "reduce", "send_recv"])
def test_chains_over_nodes_have_one_time(name, operation):
    hda, times = mt.machine(name), []
    for nodes in (2, 3, 4):
        asked = {"machine": hda, "nbytes": 256 << 20, "ranks": 8 * nodes}
        found = predict(operation, **asked)
        assert mt.simulate(found.plan, machine=hda).time_ps == found.time_ps
        record = float(times_ps(rule_of(hda), operation, 8 * nodes, 256 << 20))
        assert found.time_ps == pytest.approx(record, rel=0.002)
        if operation != "reduce":
            kernel = mt.predict_kernel(operation, ranks=8 * nodes, bytes=256 << 20, machine=hda)
            assert kernel.time_us == pytest.approx(record / 1e6, rel=1e-3)
        times.append(record)
    # Everything passes each rank once, whatever their number: more nodes fill a longer pipeline.
    assert times[0] <= times[1] <= times[2] < 1.1 * times[0]


def program(operation, n, nbytes):
    """A program of devices that does nothing but a collective on a buffer of so many bytes."""
    parts = {"all_gather": (1, n), "reduce_scatter": (n, 1), "all_to_all": (n, n)}.get(operation, (n, n))
    first, second = (part * nbytes // 4 for part in parts)
    do = {
        "all_reduce": lambda y, x: T.allreduce(x),
        "broadcast": lambda y, x: T.broadcast(x, root=0),
        "all_gather": T.allgather,
        "reduce_scatter": T.reduce_scatter,
        "all_to_all": T.all_to_all,
    }[operation]

    @T.program
    def only(X: T.Tensor((first,), "f32"), Y: T.Tensor((second,), "f32")):
        with T.Kernel(device=n), T.Scale("device"):
            do(T.view(Y, layout=T.FullRow), T.view(X, layout=T.FullRow))

    return only


@pytest.mark.parametrize("operation", OPERATIONS)
def test_one_rank_does_not_communicate(operation):
    own, given = program(operation, 1, 4096), np.arange(1024, dtype=np.float32)
    found = mt.simulate(own, machine="dgx-h100", launch=False)
    assert found.model == "no communication"
    x, y = given.copy(), np.zeros_like(given)
    mt.run(own, x, y, machine="dgx-h100")
    in_place = operation in ("all_reduce", "broadcast")
    assert (x if in_place else y).tolist() == given.tolist()
    assert len(found.trace) == (0 if in_place else 1)  # it copies, or does nothing


@pytest.mark.parametrize("operation", ["all_gather", "all_to_all", "broadcast", "send_recv"])
def test_engines_of_another_type_move_what_nothing_computes(operation):
    """A machine without vector engine and without f32."""
    described = chips("ring", 4).to_dict()
    level = described["engines"][0]["level"]
    only = {"name": "mma", "kind": "tensor", "level": level, "throughput": {"f16": "256 GFLOP/s"}}
    hda = mt.HDA.from_dict({**described, "engines": [only]})
    found = predict(operation, machine=hda, nbytes=4096)
    assert mt.simulate(found.plan, machine=hda).time_ps == found.time_ps > 0
    with pytest.raises(mt.MegatileError, match="no throughput for f32"):
        predict("all_reduce", machine=hda, nbytes=4096, algorithm="ring")


@pytest.mark.parametrize("operation", ["gather", "scatter", "broadcast", "all_to_all"])
def test_messages_without_bytes_have_a_time(operation):
    for nbytes in (0, 4):
        found = predict(operation, machine="v100-8", nbytes=nbytes, ranks=5)
        assert mt.simulate(found.plan, machine="v100-8").time_ps == found.time_ps > 0


def test_another_transport_says_its_own_name():
    asked = {"machine": "dgx-h100", "nbytes": 1 << 16, "ranks": 4}
    library, copied = (predict("all_reduce", transport=t, **asked) for t in (None, "copy_engine"))
    assert (library.model, copied.model) == ("NCCL ring, LL", "copy engines")
    assert copied.time_ps != library.time_ps
    with pytest.raises(mt.MegatileError, match="no transport 'pigeon'"):
        predict("all_reduce", transport="pigeon", **asked)


def test_the_fastest_is_not_slower_than_what_the_library_does():
    for nbytes in (1 << 10, 1 << 16, 1 << 26):
        asked = {"machine": "dgx-h100", "nbytes": nbytes, "ranks": 8}
        fastest, own = (predict("all_reduce", algorithm=a, **asked) for a in ("fastest", "auto"))
        assert fastest.time_ps <= own.time_ps


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
    replayed = mt.collective("all_reduce", **asked, launch=False)
    assert mt.simulate(Plan.from_json(replayed.to_json()), machine=name).time_ps == captured
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
    (transport,) = found.plan.transports
    started = head_cost(mt.machine(name), transport, "all_reduce", found.job.ranks, nbytes)
    assert sum(head) == max(started, found.time_ps - sum(s.adds_ps for s in steps if s.adds_ps not in head))
    assert max(result.links.values()) <= 1


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


@pytest.mark.parametrize("name", KERNELS)
def test_libraries_have_one_time_too(name):
    library = library_of(mt.machine(name))
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
    assert library_of(hda) is None
    plan = mt.collective("all_reduce", machine=hda, nbytes=1 << 12, algorithm="ring")
    assert plan.transports == ()
    assert mt.simulate(plan, machine=hda).model == "copy engines"
