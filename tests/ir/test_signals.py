"""Signals and waits: what is found safe is, in every order of threads and copies."""

import random
from collections.abc import Iterator

import numpy as np
import pytest

import megatile as mt
import megatile.tilelang as tilelang
import megatile.tilelang.language as TL
from megatile.ir import nodes as n
from megatile.ir.signals import Protocol, counted_waits
from megatile.lowering.errors import LoweringError

Key = tuple[str, int, int]
Units = list[list[tuple[bool, Key, int]]]


def protocol(units: Units) -> Protocol:
    signallers: dict[Key, set[int]] = {}
    for unit, events in enumerate(units):
        for signals, key, _ in events:
            if signals:
                signallers.setdefault(key, set()).add(unit)
    return Protocol(units, signallers)


def ring(slots: int, steps: int, consumers: int, ahead: int = 0) -> Units:
    """One unit fills slots, others empty them; ``ahead``: so many uses of a slot are not waited for."""
    full = [[("full", 1 + c, s) for s in range(slots)] for c in range(consumers)]
    empty: list[Key] = [("empty", 0, s) for s in range(slots)]
    units: Units = [[]]
    for k in range(steps):
        units[0].append((False, empty[k % slots], max(k // slots - ahead, 0)))
        units[0] += [(True, one[k % slots], k // slots + 1) for one in full]
    for one in full:
        units.append([])
        for k in range(steps):
            units[-1] += [(False, one[k % slots], k // slots + 1), (True, empty[k % slots], k // slots + 1)]
    return units


def every_order(units: Units, warps: int = 2) -> Iterator[str]:
    """What goes wrong in some order: two warps of each unit go on by themselves, each arrival comes at any
    time after its signal, and a wait knows the parity of a phase only."""
    threads = [unit for unit in range(len(units)) for _ in range(warps)]
    keys = sorted({key for events in units for _, key, _ in events})
    arrivals = {key: warps * len(protocol(units).signallers.get(key, ())) for key in keys}
    start = (0,) * len(threads), (0,) * len(keys), ()
    seen, left = {start}, [start]
    while left:
        at, arrived, under_way = left.pop()
        following = []
        for i, one in enumerate(under_way):
            more = list(arrived)
            more[one] += 1
            following.append((at, tuple(more), under_way[:i] + under_way[i + 1 :]))
        for thread, unit in enumerate(threads):
            if at[thread] == len(units[unit]):
                continue
            signals, key, phase = units[unit][at[thread]]
            number = keys.index(key)
            ended = arrived[number] // arrivals[key] if arrivals[key] else 0
            next_at = (*at[:thread], at[thread] + 1, *at[thread + 1 :])
            if signals:
                following.append((next_at, arrived, tuple(sorted((*under_way, number)))))
            elif ended % 2 == phase % 2:
                if ended < phase:
                    yield f"{key}: passed the end of phase {phase}, and {ended} have ended"
                following.append((next_at, arrived, under_way))
        if not following and any(i < len(units[u]) for i, u in zip(at, threads, strict=True)):
            yield "deadlock"
        for state in following:
            if state not in seen:
                seen.add(state)
                left.append(state)


@pytest.mark.parametrize(("slots", "steps", "consumers"), [(1, 3, 1), (2, 4, 1), (1, 2, 2)])
def test_a_ring_is_safe_in_every_order(slots: int, steps: int, consumers: int) -> None:
    units = ring(slots, steps, consumers)
    assert protocol(units).is_safe()
    assert not list(every_order(units))


@pytest.mark.parametrize(("slots", "steps", "consumers"), [(1, 4, 1), (2, 6, 1), (1, 3, 2)])
def test_a_ring_that_is_ahead_by_more_than_a_phase_is_not(slots: int, steps: int, consumers: int) -> None:
    units = ring(slots, steps, consumers, ahead=1)
    assert not protocol(units).is_safe()
    if consumers == 1:
        assert list(every_order(units))


def test_whatever_is_called_safe_is() -> None:
    rng, safe = random.Random(0), 0
    keys: list[Key] = [("f", 0, 0), ("g", 1, 0)]
    for _ in range(4000):
        units: Units = []
        for _ in range(2):
            given, waited, events = dict.fromkeys(keys, 0), dict.fromkeys(keys, 0), []
            for _ in range(rng.randint(1, 5)):
                key, signals = rng.choice(keys), rng.random() < 0.5
                if signals:
                    given[key] += 1
                else:
                    waited[key] += rng.random() < 0.8
                events.append((signals, key, given[key] if signals else waited[key]))
            units.append(events)
        if protocol(units).is_safe():
            safe += len({k for events in units for s, k, _ in events if not s}) > 1
            assert not list(every_order(units)), units
    assert safe > 50


# --- programs -------------------------------------------------------------------------------------


def specialised(parity, slots=2, steps=6):
    """Two warp groups of TileLang: one fills slots, the other multiplies."""

    @tilelang.jit
    def kernel(A, C):
        A: TL.Tensor((steps, 64), TL.float32)
        C: TL.Tensor((steps, 64), TL.float32)
        with TL.Kernel(1, threads=256):
            a = TL.alloc_shared((slots, 64), TL.float32)
            ready = TL.alloc_barrier([128] * slots)
            done = TL.alloc_barrier([128] * slots)
            for k in range(steps):
                with TL.ws(0):
                    TL.barrier_wait(done[k % slots], (k // slots + 1) % 2)
                    TL.copy(A[k, 0], a[k % slots, :])
                    TL.barrier_arrive(ready[k % slots])
                with TL.ws(1):
                    TL.barrier_wait(ready[k % slots], parity(k))
                    TL.copy(a[k % slots, :], C[k, 0])
                    TL.barrier_arrive(done[k % slots])

    return kernel.compile().program


@pytest.mark.parametrize("slots", [1, 2])
def test_waits_for_parities_of_a_ring_are_waits_for_counts(slots: int) -> None:
    program = specialised(lambda k: k // slots % 2, slots)
    found = counted_waits(program)
    assert set(found) == set(n.each(n.Wait, program.body))
    counts = {wait.flag: [count.evaluate({"k": k}) for k in range(4)] for wait, count in found.items()}
    assert counts["ready"] == [128 * (k // slots + 1) for k in range(4)]
    assert counts["done"] == [128 * (k // slots) for k in range(4)]
    a, c = np.random.default_rng(0).random((6, 64), np.float32), np.zeros((6, 64), np.float32)
    result = mt.simulate(program, a, c, machine="dgx-h100")
    np.testing.assert_array_equal(result.outputs["C"], a)


def test_a_wait_for_the_wrong_parity_is_none() -> None:
    program = specialised(lambda k: (k // 2 + 1) % 2)
    assert counted_waits(program) == {}
    with pytest.raises(LoweringError, match="a phase whose number is not known"):
        mt.simulate(program, machine="dgx-h100")
