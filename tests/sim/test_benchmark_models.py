"""The rivals of the benchmarks simulate the same thing: equal times, to the picosecond, by all three."""

from __future__ import annotations

import pytest
from tests.sim.simpy_reader import read

from bench_sim import STEP, box, loading, loading_and_sending, putting, queueing, ring
from megatile.hda import machine
from megatile.sim import simulate
from sim_plans import meeting, meeting_in_simpy, readme_ring, readme_ring_in_simpy
from simpy_models import (
    LoadTimes,
    chunked_ring,
    contended,
    loads_and_sends,
    producers_and_consumers,
    puts,
)

LOAD = LoadTimes(20, 128, 60, 69)
CASES = {
    "ring": (ring(9), lambda: chunked_ring(9, 2, STEP)),
    "put and get": (queueing(4, 20), lambda: producers_and_consumers(4, 20, 4, STEP)),
    "contended memory": (loading(7, 11), lambda: contended(7, 11, LOAD)),
    "loads before a barrier": (meeting(7, 5, 3), lambda: meeting_in_simpy(7, 5, 3, LOAD, box(8))),
    "loaded, then sent": (loading_and_sending(8, 9), lambda: loads_and_sends(8, 9, 2, LOAD, STEP)),
    "put, signal, wait": (putting(8, 9), lambda: puts(8, 9, 276, 120, 108)),
}


@pytest.mark.parametrize("name", CASES)
def test_the_models_of_the_benchmarks_are_fair(name: str) -> None:
    plan, model = CASES[name]
    hda = box(plan.units if "ring" in name else 8)
    assert simulate(plan, machine=hda).time_ps == model() == read(plan, hda).time_ps


@pytest.mark.parametrize(("units", "rounds"), [(2, 3), (9, 20), (40, 12)])
def test_the_kernel_of_the_readme_in_simpy(units: int, rounds: int) -> None:
    plan, hda = readme_ring(units, rounds), machine("ahbm")
    expected = readme_ring_in_simpy(plan, rounds, hda)
    assert simulate(plan, machine=hda).time_ps == expected == read(plan, hda).time_ps
