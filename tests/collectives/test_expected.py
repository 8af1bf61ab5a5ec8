"""Plans, choices, times and decompositions of collectives, as they were before."""

from __future__ import annotations

import itertools
import warnings
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.collectives import networks, shared
from tests.expected import chunks, digest, line, plain, tried
from tests.hda.shared import DIRECT, SWITCHED, label

import megatile as mt
from megatile.collectives import decompositions as parts
from megatile.collectives.algorithms import algorithms
from megatile.collectives.choice_table import choice_key
from megatile.collectives.decompositions.rainbow import rainbow_path
from megatile.collectives.geometry import buffer_memory, near_memory, survey
from megatile.collectives.job import OPERATIONS, Job
from megatile.collectives.kernels import hello_send
from megatile.collectives.libraries import group_of, protocols
from megatile.collectives.pace import rule_ps
from megatile.collectives.planner import collective, predict
from megatile.collectives.ranking import effort, variants
from megatile.collectives.reference import expected as meant, make_inputs, reduced
from megatile.collectives.sweeps import sizes, small_twin, sweep
from megatile.compat.ccl.config import load_ccl_config, resolve_algorithm_config
from megatile.compat.ccl.kernel_plans import kernel_plan, plan_of_module
from megatile.plan.execute import execute
from megatile.plan.model import Plan

CASES = [*shared.cases()]


def of_plan(plan: Plan) -> str:
    return line(text=digest(str(plan)), effort=effort(plan), kernel=plan.kernel, pace=plan.pace_lines())


def of_prediction(found: Any) -> str:
    answer = line(
        ps=found.time_ps, by=found.candidate, rate=found.busbw, model=found.model, plan=found.plan.name,
        why=found.explanation,
    )  # fmt: skip
    return f"{answer} {of_plan(found.plan)}"


def told(call: Callable[[], Any]) -> str:
    """An answer, with the warnings that come with it."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = tried(call)
    return " ".join([found, *(plain(f"({one.message})") for one in said)])


@pytest.mark.parametrize("cases", chunks(CASES, 40), ids=lambda cases: cases[0].id)
def test_algorithms_on_networks(cases: list[Any], expected: Any) -> None:
    """Every algorithm on every network that it is for, with its own settings now and then; some timed."""
    found = {}
    for case in cases:
        hda, operation, name, fields = case.values
        known, pick = algorithms()[name], zlib.crc32(str(case.id).encode())
        if pick % 5 > 1:
            continue
        fields = {**fields, "nbytes": fields["nbytes"] + 4 * (pick % 3) * (operation != "all_to_all")}
        root = (
            {"root": pick % 3}
            if operation in ("broadcast", "reduce", "gather", "scatter", "send_recv")
            else {}
        )

        def plan(known: Any = case.values, given: Any = fields | root, timed: bool = pick % 4 == 0) -> str:
            hda, operation, name, _ = known
            one = collective(operation, machine=hda, algorithm=name, **given)
            time = mt.simulate(one, machine=hda, record=False).time_ps if timed else 0
            return line(ps=time) + " " + of_plan(one)

        found[str(case.id)] = told(plan)
        job = predict(operation, machine=hda, algorithm=name, timed=False, **fields).job
        for number, options in enumerate(itertools.islice(variants(known, job), 1, 2 + pick % 2)):
            found[f"{case.id} {number}"] = told(lambda k=known, j=job, o=options: of_plan(k.plan(j, **o)))
    expected("algorithms", found)


LIBRARIES = {
    "dgx-h100": 8,
    "mi300x-8": 8,
    "l20-8": 8,
    "h100-cluster": 16,
    "a100-cluster": 16,
    "mi300x-cluster": 16,
}
"""Machines, and how many ranks take part."""


@pytest.mark.parametrize("name", LIBRARIES)
def test_what_libraries_choose(name: str, expected: Any) -> None:
    hda, found = mt.machine(name), {}
    asked_for = itertools.product(OPERATIONS, (8, 3 << 12, 5 << 18, 1 << 27))
    for number, (operation, nbytes) in enumerate(asked_for):
        if (number + len(name)) % (3 if LIBRARIES[name] == 8 else 7):
            continue
        asked: dict[str, Any] = {
            "ranks": LIBRARIES[name],
            "launch": number % 3 != 1,
            "in_place": number % 2 == 0 and operation != "all_to_all",
        }
        if number % 7 == 4:
            asked |= {"ranks": 4, "dtype": "bf16"}
        if number % 6 == 3:
            asked |= {"registered": True}
        if number % 11 == 5:
            asked |= {"protocol": "LL"}
        size = nbytes if operation != "barrier" else None
        found[f"{name} {operation} {nbytes}"] = told(
            lambda o=operation, s=size, a=asked: of_prediction(predict(o, machine=hda, nbytes=s, **a))
        )
    expected("libraries", found)


WAYS: list[tuple[str, str, dict[str, Any]]] = [
    ("mi300x-8", "all_gather", {"algorithm": "fastest", "ranks": 4}),
    ("dgx-h100", "all_reduce", {"env": {"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL"}}),
    ("dgx-h100", "all_reduce", {"env": {"NCCL_ALGO": "Ring"}}),
    ("dgx-h100", "all_reduce", {"env": {"NCCL_ALG": "x"}}),
    ("dgx-h100", "all_reduce", {"algorithm": "custom"}),
    ("dgx-h100", "all_reduce", {"algorithm": "trtllm"}),
    ("mi300x-8", "all_reduce", {"algorithm": "custom"}),
    ("dgx-h100", "all_reduce", {"algorithm": "nccl", "ranks": 5}),
    ("dgx-h100", "all_reduce", {"transport": "copy_engine"}),
    ("dgx-h100", "all_gather", {"transport": "nic"}),
    ("dgx-h100", "all_reduce", {"algorithm": "ring", "settings": {"chunks": 3}, "protocol": "Simple"}),
    ("dgx-h100", "all_reduce", {"algorithm": "tree", "settings": {"arity": 3}}),
    ("dgx-h100", "all_reduce", {"among": ["ring", "direct"]}),
    ("mi300x-8", "all_reduce", {"among": ["hamilton"]}),
    ("h100-cluster", "all_reduce", {"algorithm": "hierarchical", "settings": {"inner": "direct"}}),
    ("h100-cluster", "all_reduce", {"algorithm": "rail_rings", "settings": {"lag": 2}}),
    ("h100-cluster", "all_to_all", {"algorithm": "deepep", "settings": {"token": 7168, "experts": 64}}),
    ("dgx-h100", "all_to_all", {"algorithm": "deepep", "settings": {"token": 7168, "low_latency": True}}),
    ("dgx-h100", "all_to_all", {"algorithm": "deepep", "settings": {"tokens": 1}}),
    ("dgx-h100", "all_reduce", {"scale": "block", "ranks": 6}),
    ("dgx-h100", "broadcast", {"scale": "warp", "ranks": 4}),
    ("ahbm", "all_reduce", {"scale": "cube"}),
    ("ahbm", "all_to_all", {"scale": "pe", "ranks": 8}),
    ("ahbm", "reduce_scatter", {"scale": "sip"}),
    ("cerebras-wse2", "all_reduce", {"scale": "core", "ranks": 6}),
    ("h100-cluster", "all_gather", {"ranks": [0, 1, 8, 9]}),
    ("h100-cluster", "broadcast", {"ranks": [3, 11, 19], "root": 1}),
    ("h100-cluster", "send_recv", {"ranks": 4, "root": 1, "peer": 3}),
    ("tpu-v5p", "all_reduce", {}),
    ("dgx-h100", "all_to_all", {"splits": [[1, 2], [3, 4]], "ranks": 2, "nbytes": None}),
    ("dgx-h100", "all_to_all", {"splits": [[1, 2], [3]], "ranks": 2, "nbytes": None}),
    ("dgx-h100", "all_reduce", {"memory": "shared"}),
    ("dgx-h100", "all_reduce", {"slot_memory": "hbm", "dtype": "f64"}),
    ("dgx-h100", "all_reduce", {"algorithm": "one_shot"}),
    ("mi300x-8", "all_reduce", {"algorithm": "one_shot"}),
]


@pytest.mark.parametrize("ways", chunks(enumerate(WAYS), 12), ids=lambda ways: str(ways[0][0]))
def test_ways_to_ask(ways: list[Any], expected: Any) -> None:
    found = {}
    for number, (name, operation, asked) in ways:
        call = {"machine": name, "nbytes": 8 * 24 * 4, **asked}
        found[f"{number} {name} {operation} {' '.join(asked)}"] = told(
            lambda o=operation, c=call: of_prediction(predict(o, **c))
        )
    expected("ways", found)


def test_sweeps(expected: Any) -> None:
    found = {}
    for name, asked in (("mi300x-8", ("auto", "ring")), ("l20-8", ("tree",))):
        for row, one in sweep("all_reduce", mt.machine(name), [64, 5 << 12, 1 << 20], asked, verify=False):
            found[f"{name} {row.asked} {row.size}"] = f"{line(**vars(row))} {of_prediction(one)}"
    found |= {f"{asked}": list(sizes(*asked)) for asked in ((8, 64, 2.0), (1, 9, 1.3), (3, 30, 2.0, 7))}
    expected("sweeps", found)


def test_jobs(expected: Any) -> None:
    """What is known of ranks, what they hold and what they should have."""
    found = {}
    cluster = mt.machine("h100-cluster", nodes=4)
    for ranks in (None, 1, 5, 16, [0, 8, 16, 24], [0, 1, 8], [5, 3, 9, 1], range(0, 32, 2)):
        found[f"ranks {ranks}"] = tried(lambda r=ranks: line(**vars(survey(cluster, "device", r))))
    for name, scale in (("ahbm", "pe"), ("ahbm", "cube"), ("tpu-v5p", "device"), ("cerebras-wse2", "core"),
                        ("dgx-h100", "block"), ("dgx-h100", "warp"), ("mi300x-8", "device")):  # fmt: skip
        hda = mt.machine(name)
        found[f"{name} {scale}"] = tried(lambda h=hda, s=scale: line(**vars(survey(h, s, 4))))
        for nbytes in (64, 1 << 20, 1 << 33, 1 << 50):
            memory = tried(lambda h=hda, s=scale, b=nbytes: buffer_memory(h, s, b))
            near = (
                tried(lambda h=hda, s=scale, m=memory: near_memory(h, s, m)) if "Error" not in memory else ""
            )
            found[f"{name} {scale} {nbytes}"] = line(memory=memory, near=near and near.name)
    for operation, count, in_place in itertools.product(OPERATIONS, (1, 7, 12), (False, True)):
        if operation == "all_to_all" and in_place and count % 3:
            continue
        job = Job(operation, 3, count, "f32", ("sum", "max", "avg")[count % 3], root=1, in_place=in_place)
        inputs = make_inputs(job, 5)
        found[f"{operation} {count} {in_place}"] = line(
            shapes=job.shapes, nesting=job.nesting, grid=job.grid, block=job.block, library=job.library_call,
            twin=small_twin(job), inputs=digest(inputs), meant=digest(meant(job, inputs)),
            sum=digest(reduced(job, inputs)) if operation == "all_reduce" else "",
        )  # fmt: skip
    expected("jobs", found)


def test_library_groups(expected: Any) -> None:
    found = {}
    for name, ranks in itertools.product(("dgx-h100", "h100-cluster", "gb200-nvl72"), (8, [0, 1, 8])):
        for operation in ("all_reduce", "all_to_all", "broadcast"):
            hda = mt.machine(name)

            def group(hda: Any = hda, operation: str = operation, ranks: Any = ranks) -> str:
                one = predict(operation, machine=hda, ranks=ranks, nbytes=1 << 14, timed=False)
                known = {
                    n: protocols(hda, a, one.job)
                    for n, a in algorithms().items()
                    if operation in a.operations
                }
                key = choice_key(hda, one.job, "auto", among=None, launch=True, protocol=None)
                return line(
                    group=group_of(hda, one.job),
                    known=known,
                    key=digest(key),
                    rule=rule_ps(one.plan, one.job, hda),
                )

            found[f"{name} {operation} {ranks}"] = told(group)
    expected("groups", found)


def test_kernels(expected: Any) -> None:
    """The shipped kernels of processing elements, as KernBench's configuration asks for them."""
    ahbm = mt.machine("ahbm", sips=4)

    def plan(one: Plan, elements: int) -> str:
        x = (np.arange(one.units * elements) % 7).astype("f2").reshape(one.units, elements)
        out = execute(one, {t.name: x for t in one.tiles if t.role in ("input", "inout")})
        return f"{of_plan(one)} {line(out=digest(out))}"

    def config(name: str) -> Any:
        return resolve_algorithm_config(load_ccl_config(), name)

    found = {"hello": plan(plan_of_module(hello_send, 4, n_elem=3), 3)}
    for name in load_ccl_config()["algorithms"]:
        for elements in (8,):
            found[f"{name} {elements}"] = tried(
                lambda n=name, e=elements: plan(kernel_plan(config(n), ahbm, n_elem=e), e)
            )
    expected("kernels", found)


def rings(found: Any) -> str:
    return line(rings=found.rings, bound=found.bound, optimal=found.optimal, reason=found.reason)


def test_decompositions(expected: Any) -> None:
    calls: dict[str, Callable[[], Any]] = {}
    for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16):
        calls[f"circle {n}"] = lambda n=n: parts.gen_hamilton_circle(n)
        calls[f"doubled {n}"] = lambda n=n: parts.doubled_cycles(n)
        calls[f"most {n}"] = lambda n=n: parts.most_rings(n)
        calls[f"partial {n}"] = lambda n=n: parts.partial_rings(n, 3)
        calls[f"path {n}"] = lambda n=n: parts.gen_hamilton_path_local(n)
        calls[f"mesh of {n}"] = lambda n=n: rings(parts.full_mesh_rings(n))
        calls[f"two nodes {n}"] = lambda n=n: parts.gen_hamilton_circle_two_nodes(2 * n, 2)
        calls[f"three nodes {n}"] = lambda n=n: parts.gen_hamilton_circle_two_nodes(3 * n, 3)
        calls[f"between {n}"] = lambda n=n: parts.calculate_inter_node_mapping(
            parts.gen_hamilton_circle_two_nodes(2 * n, 2)
        )
        calls[f"out {n}"] = lambda n=n: parts.calculate_out_mapping_circle(parts.gen_hamilton_circle(n))
        calls[f"sources {n}"] = lambda n=n: parts.source_ranks(parts.gen_hamilton_circle(n))
    for n in (*range(3, 40), 55, 64, 101, 128):
        calls[f"rainbow {n}"] = lambda n=n: rainbow_path(n)
    for dims in (
        (2, 2),
        (3, 3),
        (3, 4),
        (5, 4),
        (2, 5),
        (4, 4, 2),
        (3, 3, 3),
        (2, 2, 2, 2),
        (7,),
        (1, 6),
        (6, 6),
    ):
        calls[f"torus {dims}"] = lambda d=dims: rings(parts.torus_rings(d))
        if np.prod(dims) < 20:
            calls[f"mesh {dims}"] = lambda d=dims: rings(parts.mesh_rings(d, budget=2000))
    graphs = {
        "wheel": [(0, k) for k in range(1, 7)] + [(k, k % 6 + 1) for k in range(1, 7)],
        "prism": [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3), (0, 3), (1, 4), (2, 5)],
        "star": [(0, 1), (0, 2), (0, 3)], "cut": [(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (4, 2)],
        "two": [(0, 1), (2, 3)], "k5": list(itertools.combinations(range(5), 2)),
    }  # fmt: skip
    for name, edges in graphs.items():
        calls[f"graph {name}"] = lambda e=edges: rings(parts.network_rings(e))
        calls[f"directed {name}"] = lambda e=edges: rings(
            parts.network_rings([*e, *((b, a) for a, b in e)], directed=True)
        )
    for one in (*DIRECT, *SWITCHED):
        if one.size < 17:
            calls[f"topology {label(one)} {one.size}"] = lambda one=one: rings(
                parts.topology_rings(one, budget=2000)
            )
    expected("decompositions", {name: line(found=tried(call)) for name, call in calls.items()})


@pytest.mark.parametrize("names", chunks(networks.NETWORKS, 7), ids=lambda names: names[0])
def test_the_fastest_of_a_network(names: list[str], expected: Any) -> None:
    found = {}
    for name in names:
        operation = ("all_reduce", "all_gather", "all_to_all")[len(name) % 3]
        for n in (6, 8, 4):
            hda = networks.network(name, n)
            if hda is not None and not any(key.startswith(f"{name} ") for key in found):
                found[f"{name} {n} {operation}"] = told(
                    lambda h=hda, o=operation, n=n: of_prediction(predict(o, machine=h, nbytes=4 * 36 * n))
                )
    expected("networks", found)
