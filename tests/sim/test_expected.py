"""Random plans, sets of launches and sessions: all that a simulation says of them, as it was before."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.expected import chunks, digest, line, of_cases, plain, problem, tried
from tests.sim.random_cases import random_case
from tests.sim.random_kernels import random_kernels
from tests.sim.random_launches import random_blocks, random_launches
from tests.sim.random_levels import random_levels
from tests.sim.shared import doubling, everything
from tests.sim.toys import ring, toy

from megatile.core.errors import MegatileError
from megatile.sim import Session, page as pages, simulate
from megatile.timing import faults
from megatile.trace import Trace

CASES: dict[str, Any] = {
    **{f"plan {seed}": (random_case, seed) for seed in range(50)},
    **{f"levels {seed}": (random_levels, seed) for seed in range(30)},
    **{f"kernels {seed}": (random_kernels, seed) for seed in range(10)},
}
OWN = "cpu"
"""The machine that is this computer, with times of its own."""


def of_trace(trace: Trace) -> str:
    """Digits for every event, flow and counter."""
    columns = sorted((name, values) for name, values in trace.columns.items())
    counters = [(c.name, c.time_ps, c.value) for c in trace.counters]
    names = (trace.units, trace.engines, trace.operations, trace.operands, trace.sources)
    return digest(columns, names, trace.flows, counters)


def answers(result: Any) -> str:
    usage, record = result.usage, result.record
    few = () if result.timed_by.startswith("every unit, because") else (result.timed_by,)
    return line(
        ps=result.time_ps, timed=few, events=len(result.trace), trace=of_trace(result.trace),
        messages=of(result.messages), choices=of(result.choices), busy=result.busy,
        used=digest(result.links, result.memories, usage.exposed, usage.bytes_on, usage.units, usage.covered),
        traffic={name: tuple(t) for name, t in result.traffic.items() if any(t)},
        exposed=result.exposed_ns, begin=result.begin_ps, flops=result.flops, share=result.share_of_machine,
        work=digest(result.work_ps("tensor"), result.work_ps("vector")), memory=record.memory_bytes(),
        text=digest(result.summary(), result.why_slow()), outputs=of(result.outputs),
    )  # fmt: skip


def of(value: Any) -> str:
    return digest(value) if value else ""


def simulated(case: Any, **options: Any) -> Any:
    f = case.faults
    with faults(
        link_down=f.link_down, slow_link=dict(f.slow_link), jitter=f.jitter, straggler=dict(f.straggler)
    ):
        return simulate(case.plan, case.inputs, machine=case.hda, assume=case.assume, **options)


@pytest.mark.parametrize("names", chunks(CASES, 10), ids=lambda names: names[0])
def test_one_plan(names: list[str], expected: Any) -> None:
    expected("plans", of_cases(names, CASES, lambda case: tried(lambda: answers(simulated(case)))))


def test_what_pages_show(expected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def page(_: Any, *, hda: Any, texts: Any, roofline: Any, **shown: Any) -> str:
        used = [(use.network, use.owner, use.link, use.use) for use in shown.pop("links")]
        return line(**shown, links=digest(used), roofline=vars(roofline), texts=digest(*texts[:-1]))

    monkeypatch.setattr("megatile.sim.page.page", page)
    cases = [random_levels(seed) for seed in range(0, 16, 2)] + [random_case(seed) for seed in (1, 5, 11)]
    expected("pages", {case.plan.name: pages.result_page(simulated(case), retime=False) for case in cases})


@pytest.mark.parametrize("seed", [2, 4])
def test_sensitivities(seed: int, expected: Any) -> None:
    result = simulated(random_levels(seed))
    retiming = vars(pages._retiming(result))
    expected("sensitivities", {f"levels {seed}": f"{line(**retiming)} {plain(result.what_helps())}"})


def history(case: Any) -> str:
    """What a session says of launches at their times, and of some of them once more. What is refused for the
    tensors of others is tried again without these."""
    rng, session, found = random.Random(case.seed), Session(case.hda), list[Any]()

    def launch(plan: Any, at: int) -> None:
        for _ in range(2):
            try:
                session.submit(plan, at=max(at, session.time_ps), assume=case.assume)
                break
            except MegatileError as error:
                found.append(problem(error))
                for tile in plan.tiles:
                    tried(lambda tile=tile: session.free(tile.name))

    try:
        for plan, at in sorted(case.plans, key=lambda one: one[1]):
            launch(plan, at)
            if rng.random() < 0.5:
                found += [answers(r) for r in every(session.wait())]
        for plan, at in case.plans[:2]:
            launch(plan, 3 * at)
        found += [answers(r) for r in every(session.wait())]
        error = ""
    except MegatileError as failed:
        error = problem(failed)
    texts = session.summary(), session.pointers().text(), session.why_slow(), repr(session)
    return line(
        ps=session.time_ps, launches=len(session.launches), answers=digest(found), texts=digest(texts),
        trace=of_trace(session.trace), error=error,
    )  # fmt: skip


def every(results: Any) -> list[Any]:
    return results if isinstance(results, list) else [results]


@pytest.mark.parametrize("seeds", chunks(range(16), 4), ids=str)
@pytest.mark.parametrize("make", [random_launches, random_blocks], ids=lambda make: make.__name__)
def test_sessions(make: Any, seeds: list[int], expected: Any) -> None:
    cases = {f"{make.__name__} {seed}": make(seed) for seed in seeds}
    expected("sessions", {name: history(case) for name, case in cases.items() if case.hda.name != OWN})


def test_known_plans(expected: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """With messages printed, on few and many units, with the control path and without it."""
    found = {}
    for name, hda in {
        "ring": toy(4, control=True),
        "switch": toy(5, "switch"),
        "line": toy(4, "line"),
    }.items():
        n = hda.count("core")
        for plan in (ring(n, 8), ring(n, 100, slots=1), doubling(units=n), everything(3, n)):
            result = simulate(plan, machine=hda, assume={"times": 2})
            result.print_communication(7)
            printed = digest(capsys.readouterr().err)
            found[f"{name} {plan.name} {len(found)}"] = f"{answers(result)} printed={printed}"
    expected("known_plans", found)
