"""Sixteen programs: interpreted, compiled, exported to TileLang and read back, simulated on four machines;
some of one device as CUDA."""

from pathlib import Path

import numpy as np
import pytest
from tests.targets.round_trip import round_trip
from tests.targets.sixteen import (
    PROGRAMS,
    fp8_block_scaled,
    hierarchical_allreduce,
    paged_decode,
    warp_specialisation,
)

import megatile as mt

MACHINES = ("dgx-h100", "hgx-a100", "mi300x-8", "b200-8")
CLUSTERS = ("h100-cluster", "a100-cluster", "mi300x-cluster", "h100-cluster-roce")


def check(arrays, wanted) -> None:
    for number, array in wanted.items():
        np.testing.assert_allclose(arrays[number].astype(np.float32), array, rtol=2e-3, atol=2e-3)


@pytest.fixture(params=PROGRAMS, ids=lambda make: make.__name__)
def case(request):
    program, arrays, wanted = request.param()
    machines = CLUSTERS if request.param is hierarchical_allreduce else MACHINES
    return program, arrays, wanted(), machines


@pytest.fixture(scope="module")
def own():
    return mt.machine(str(Path(__file__).with_name("mine.yaml")))


def test_run_and_round_trip(case, own, tmp_path: Path) -> None:
    program, arrays, wanted, _ = case
    mine = [np.array(a) for a in arrays]
    mt.run(program, *mine, machine=own)
    check(mine, wanted)
    check(round_trip(program, *arrays, folder=tmp_path, machine=own), wanted)


def test_simulate_on_four_machines_and_a_users(case, own) -> None:
    program, arrays, _, machines = case
    times = [
        mt.simulate(program, *[np.array(a) for a in arrays], machine=m).time_ns for m in (*machines, own)
    ]
    assert min(times) > 1000
    assert len(set(times)) > 1


@pytest.mark.parametrize("make", [paged_decode, fp8_block_scaled, warp_specialisation])
def test_as_cuda(make) -> None:
    program, arrays, wanted = make()
    mine = [np.array(a) for a in arrays]
    mt.compile(program, target="cuda")(*mine)
    check(mine, wanted())


def test_compiled(case) -> None:
    program, arrays, wanted, machines = case
    mine = [np.array(a) for a in arrays]
    mt.compile(program, target="cpu", machine=machines[0])(*mine)
    check(mine, wanted)
