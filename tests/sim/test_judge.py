"""The simulator against the SimPy reader: random plans of every kind, and kernels judged wrongly before."""

from __future__ import annotations

import pytest
from tests.sim.judge import disagreement
from tests.sim.random_cases import Case, random_case
from tests.sim.random_kernels import random_kernels
from tests.sim.random_levels import random_levels

from megatile.hda import machine
from megatile.language import tl

pytest.importorskip("megatile.sim.engine", reason="needs the one engine")
ENGINES = ("plain", "compiled")


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_simulator_and_reader_agree_on_random_plans(first: int) -> None:
    """A sample, run as Python and as machine code; ``tests/sim/judge.py`` takes thousands of them."""
    found = {seed: disagreement(random_case(seed), ENGINES) for seed in range(first, first + 10)}
    assert not {seed: text for seed, text in found.items() if text}


def test_simulator_and_reader_agree_on_kernels_that_take_compute_units() -> None:
    """In 26 and 51 a kernel leaves one unit with two slots, to fewer blocks than there are slots."""
    found = {seed: disagreement(random_kernels(seed), ENGINES) for seed in (0, 1, 26, 30, 51)}
    assert not {seed: text for seed, text in found.items() if text}


def test_copies_by_other_engines_beside_a_receive_into_a_tile() -> None:
    """What a receive needs at its instruction is not what a copy between the same memories needs."""
    assert disagreement(random_case(445), ("plain",)) is None


def test_units_behind_different_caches_of_one_memory() -> None:
    """Two blocks of a machine with several caches in front of the same memory."""
    assert disagreement(random_case(84), ("plain",)) is None


@pytest.mark.parametrize("first", [100, 115])
def test_running_less_far_ahead_changes_nothing(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megatile.sim.simulation.RUN_AHEAD", 1)
    found = {seed: disagreement(random_levels(seed), ("plain",)) for seed in range(first, first + 15)}
    found |= {seed: disagreement(random_case(seed), ("plain",)) for seed in range(first, first + 10)}
    assert not {seed: text for seed, text in found.items() if text}


@pytest.mark.parametrize("first", [0, 15, 30])
def test_simulator_and_reader_agree_on_levels_and_slots(first: int) -> None:
    found = {seed: disagreement(random_levels(seed), ENGINES) for seed in range(first, first + 15)}
    assert not {seed: text for seed, text in found.items() if text}


def even_and_odd(t_ptr, n_elem, rounds, tl):
    """Even ranks send east first, odd ones receive from the west first; then all send west."""
    me = tl.program_id(0)
    mine = t_ptr + me * n_elem * 2
    a = tl.load(mine, shape=(n_elem,), dtype="f16")
    if me % 2 == 0:
        tl.send(dir="E", src=a)
        b = tl.recv(dir="E", shape=(n_elem,), dtype="f16")
    else:
        b = tl.recv(dir="W", shape=(n_elem,), dtype="f16")
        tl.send(dir="W", src=a)
    for _ in range(rounds):
        tl.send(dir="W", src=a)
        b = tl.recv(dir="E", shape=(n_elem,), dtype="f16")
    tl.store(mine, b)


def even_and_odd_dropped(t_ptr, n_elem, rounds, tl):
    """The same, and nobody looks at what came."""
    me = tl.program_id(0)
    a = tl.load(t_ptr + me * n_elem * 2, shape=(n_elem,), dtype="f16")
    if me % 2 == 0:
        tl.send(dir="E", src=a)
        tl.recv(dir="E", shape=(n_elem,), dtype="f16")
    else:
        tl.recv(dir="W", shape=(n_elem,), dtype="f16")
        tl.send(dir="W", src=a)
    for _ in range(rounds):
        tl.send(dir="W", src=a)
        tl.recv(dir="E", shape=(n_elem,), dtype="f16")


def even_and_odd_held(t_ptr, n_elem, rounds, tl):
    """The first message is sent on and on and so keeps its slot: with two slots that is stuck."""
    me = tl.program_id(0)
    mine = t_ptr + me * n_elem * 2
    a = tl.load(mine, shape=(n_elem,), dtype="f16")
    if me % 2 == 0:
        tl.send(dir="E", src=a)
        c = tl.recv(dir="E", shape=(n_elem,), dtype="f16")
    else:
        c = tl.recv(dir="W", shape=(n_elem,), dtype="f16")
        tl.send(dir="W", src=a)
    for _ in range(rounds):
        tl.send(dir="W", src=c)
        a = a + tl.recv(dir="E", shape=(n_elem,), dtype="f16")
    tl.store(mine, a + c)


@pytest.mark.parametrize("kernel", [even_and_odd, even_and_odd_dropped, even_and_odd_held])
@pytest.mark.parametrize("n", [2, 4, 6, 64])
@pytest.mark.parametrize("rounds", [1, 3, 4])
def test_even_and_odd_ranks(kernel, n: int, rounds: int) -> None:
    plan = tl.read_kernel(kernel, [tl.Tensor("t", (64,)), 64, rounds], world_size=n, n_slots=2)
    assert disagreement(Case(0, plan, machine("ahbm"), ())) is None
