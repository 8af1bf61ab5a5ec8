"""Bounds of random plans and prices of every way to do a primitive, as they were before."""

from __future__ import annotations

from typing import Any

import pytest
from tests.collectives.networks import NETWORKS, network
from tests.cost.shared import blocks
from tests.expected import chunks, digest, line, of_cases, problem, tried
from tests.sim.random_cases import Case, random_case
from tests.sim.random_kernels import random_kernels
from tests.sim.random_levels import random_levels

import megatile as mt
from megatile.collectives import predict
from megatile.core.errors import MegatileError
from megatile.cost.implementations import (
    CANDIDATES,
    Request,
    by_blocks_ps,
    check_implementation,
    choose,
    prices,
)
from megatile.cost.links import link_loads
from megatile.cost.price import lower_bound, price
from megatile.cost.rounds import shortened
from megatile.cost.static_bound import floor
from megatile.cost.value_bounds import extreme
from megatile.plan.model import ReadScalar
from megatile.timing.resources import Resources

CASES: dict[str, Any] = {
    **{f"plan {seed}": (random_case, seed) for seed in range(26)},
    **{f"levels {seed}": (random_levels, seed) for seed in range(30)},
    **{f"kernels {seed}": (random_kernels, seed) for seed in range(10)},
}


def answers(case: Any) -> str:
    plan, hda = case.plan, case.hda

    def bounds() -> str:
        found = price(plan, hda, assume=case.assume)
        before = repr(found)
        shared = digest(sorted(map(str, found.shared)))
        return line(lower=found.lower_ps, upper=found.upper_ps, shared=shared, ns=found.upper_ns, text=before)

    parts = [str(tried(bounds))]
    parts.append(line(chain=tried(lambda: lower_bound(plan, hda)), floor=tried(lambda: floor(plan, hda))))
    parts.append(
        line(apart=tried(lambda: floor(plan, hda, launch=False)), links=tried(lambda: of_links(case)))
    )
    if ReadScalar in plan.kinds:
        ends = (tried(lambda most=most: str(extreme(plan, {}, most=most))) for most in (False, True))
        parts += [line(values=[text if "Error" in text else digest(text) for text in ends])]
    return " ".join(filter(None, parts))


def of_links(case: Any) -> tuple[float, ...]:
    found = link_loads(Resources(case.hda, case.plan))
    return tuple(found)


@pytest.mark.parametrize("names", chunks(CASES, 10), ids=lambda names: names[0])
def test_one_plan(names: list[str], expected: Any) -> None:
    expected("plans", of_cases(names, CASES, answers))


@pytest.mark.parametrize("seeds", chunks(range(8), 2), ids=str)
def test_long_loops(seeds: list[int], expected: Any) -> None:
    found = {}
    for seed in seeds:
        plan = blocks(seed, 1000)
        gaps = [vars(gap) | {"parts": 0} for s in shortened(plan) for one in s.gaps for gap in one]
        case = Case(seed, plan, mt.machine("dgx-h100"), ())
        found[f"blocks {seed}"] = f"{answers(case)} gaps={digest(gaps)}"
    expected("long_loops", found)


@pytest.mark.parametrize("names", chunks(NETWORKS, 5), ids=lambda names: names[0])
def test_links_of_collectives(names: list[str], expected: Any) -> None:
    found = {}
    for name in names:
        hda = network(name, 8)
        for operation in ("all_reduce", "all_to_all"):
            if hda is None:
                continue
            plan = predict(operation, machine=hda, nbytes=8 * 40, algorithm="direct").plan
            found[f"{name} {operation}"] = answers(Case(0, plan, hda, ()))
    expected("collectives", found)


def requests(name: str) -> list[tuple[str, Request]]:
    """Every primitive at every scale of a machine, near and far."""
    hda, found = mt.machine(name), []
    for scale in [s.name for s in hda.scales]:
        for primitive in CANDIDATES:
            for memories in (("l0",), ("l1",), ("l1", "l2"), ("l0", "l2"), ("l2",)):
                for reach in (None, "block", "device", "node"):
                    number = len(found)
                    more: dict[str, Any] = {
                        "dtype": ("f32", "f16", "bf16", "f8e4m3")[number % 4], "reach": reach,
                        "inside": number % 7 == 3, "spread": number % 5 == 2, "width": (0, 0, 4)[number % 3],
                        "row": (0, 16, 24, 7)[number % 4], "ahead": number % 3 == 1,
                        "paired": number % 2 == 0,
                    }  # fmt: skip
                    size = 1000 + 37 * number
                    one = Request(
                        primitive, hda, scale, elements=size, operations=64 * size, extents=(40, 24, 33),
                        memories=memories, **more,
                    )  # fmt: skip
                    words = scale, primitive, ",".join(memories), reach, number
                    found.append((" ".join(map(str, (name, *words))), one))
    return found


def priced(request: Request) -> str:
    try:
        every = prices(request)
    except MegatileError as error:
        return problem(error)
    by_blocks = tried(lambda: by_blocks_ps(request)) if request.primitive == "Gemm" else ""
    return line(chosen=choose(request)[0], **dict(every), blocks=by_blocks, far=request.far)


MACHINES = ("dgx-h100", "mi300x-8", "ahbm", "cerebras-wse2", "a100-cluster", "tpu-v5p")


@pytest.mark.parametrize("name", MACHINES)
def test_prices(name: str, expected: Any) -> None:
    every = requests(name)
    expected("prices", {what: priced(request) for what, request in every[:: 1 + len(every) // 60]})


def test_what_cannot_be_priced(expected: Any) -> None:
    plan, h100 = random_case(1).plan, mt.machine("dgx-h100")
    gemm = Request("Gemm", h100, "block", operations=100, extents=(8, 8, 8))
    calls: dict[str, Any] = {
        "no plan": lambda: price(5, "ahbm"),
        "no machine": lambda: price(plan, 5),
        "another name": lambda: price(plan, "dgx"),
        "primitive": lambda: mt.language.implementation("gem", "x"),
        "taken": lambda: mt.language.implementation("gemm", "tensor"),
        "implementation": lambda: check_implementation("Gemm", "tensr"),
        "forced": lambda: choose(Request("Copy", h100, "block", memories=("l1",)), "nic"),
        "unknown": lambda: choose(gemm, "tma"),
    }
    expected("errors", {name: tried(call) for name, call in calls.items()})
