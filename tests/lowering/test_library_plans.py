"""``lowering/library_plans.py``: which algorithm and transport of the collectives library does a collective
of a Program, and its Plan."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.lowering.machines import user_machine
from tests.lowering.shared import arrays, checked, program, wanted

import megatile as mt


@pytest.mark.parametrize("kind", ["allreduce", "allgather", "reduce_scatter", "all_to_all", "broadcast"])
@pytest.mark.parametrize("machine", ["h100-cluster", "mi300x-8", "four-cards"])
def test_the_planners_choice_elsewhere(kind: str, machine: str, tmp_path: Path) -> None:
    x, y = arrays(kind, 4)
    where = user_machine(tmp_path) if machine == "four-cards" else machine
    checked(program(kind), x, y, wanted(kind, x, 4), where)


def test_algorithms_differ_in_plan_and_time() -> None:
    names = ("ring", "tree", "direct", "halving_doubling", "in_network")
    for impl in ("kernel", "copy_engine"):
        names = names if impl == "kernel" else names[:-1]
        progs = {name: program("allreduce", name, impl=impl) for name in names}
        lowered = {name: mt.lower(prog, machine="dgx-h100") for name, prog in progs.items()}
        assert len({str(low.plan) for low in lowered.values()}) == len(names)
        times = {name: mt.simulate(low).time_ps for name, low in lowered.items()}
        assert len(set(times.values())) == len(names)
    with pytest.raises(mt.MegatileError, match="'in_network' is done by the network"):
        mt.lower(program("allreduce", "in_network", impl="copy_engine"), machine="dgx-h100")
    best = mt.simulate(program("allreduce", impl="copy_engine"), machine="dgx-h100").time_ps
    assert best <= min(times.values())
    # What engines' own kernels do is for these: copy engines take it only if it is named.
    mt.lower(program("allreduce", "one_shot", impl="copy_engine"), machine="dgx-h100")
    assert "one_shot" not in str(
        mt.lower(program("allreduce", impl="copy_engine"), machine="dgx-h100").steps[-1]
    )


def test_a_library_does_it_unless_other_engines_are_asked_for() -> None:
    found = {}
    for impl in (None, "kernel", "copy_engine", "lsu"):
        lowered = mt.lower(program("allreduce", "ring", impl=impl), machine="dgx-h100")
        result = mt.simulate(lowered)
        found[impl] = result.model, result.time_ps
    assert [model for model, _ in found.values()] == [
        "NCCL ring, LL", "NCCL ring, LL", "copy engines", "peer stores by SMs",
    ]  # fmt: skip
    assert len({time for _, time in found.values()}) == 3
    with pytest.raises(mt.MegatileError, match="no implementation 'pigeon' of collective"):
        mt.lower(program("allreduce", impl="pigeon"), machine="dgx-h100")
    with pytest.raises(mt.MegatileError, match="no transport 'nccl'"):
        mt.lower(program("allreduce", impl="nccl"), machine="mi300x-8")
    with pytest.raises(mt.MegatileError, match="describes no library for collectives of a device"):
        mt.lower(program("allreduce", impl="kernel"), machine="tpu-v5p")
