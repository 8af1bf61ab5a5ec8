"""Flags as mbarriers: what is found safe is, in every order of threads and copies; the rest stays flags."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import megatile as mt
import megatile.language as T
from megatile.targets.cuda.mbarriers import MAX_EVENTS, Protocol

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


def handed_on(steps: int = 7, slots: int = 2, wait: Any = None, amount: int = 1) -> Any:
    """One warp group fills slots, two multiply rows of them; ``wait`` changes what the first waits for."""
    free = wait or (lambda k: k // slots * 2 * amount)

    @T.program
    def program(
        A: T.Tensor((64, 16 * steps), "f16"),
        B: T.Tensor((16 * steps, 32), "f16"),
        C: T.Tensor((64, 32), "f32"),
    ):
        with T.Kernel(block=1, warpgroup=3):
            a = T.alloc((slots, 64, 16), "f16", level="l1")
            b = T.alloc((slots, 16, 32), "f16", level="l1")
            with T.Scale("warpgroup") as (wg, _):
                full = T.alloc((slots,), "i32", level="l1")
                empty = T.alloc((slots,), "i32", level="l1")
                c = T.alloc((32, 32), "f32")
                if wg == 0:
                    for k in T.serial(steps):
                        if k >= slots:
                            T.wait(empty[k % slots], free(k))
                        T.copy(a[k % slots], A[0, k * 16])
                        T.copy(b[k % slots], B[k * 16, 0])
                        T.signal(full[k % slots], dst=1)
                        T.signal(full[k % slots], dst=2)
                else:
                    T.clear(c)
                    for k in T.serial(steps):
                        T.wait(full[k % slots], k // slots + 1)
                        T.gemm(a[k % slots, (wg - 1) * 32 : wg * 32, :], b[k % slots], c)
                        T.signal(empty[k % slots], dst=0, amount=amount)
                    T.copy(C[(wg - 1) * 32, 0], c)

    return program


def product(program: Any, schedule: int = 0) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((64, 112)).astype("f2"), rng.standard_normal((112, 32)).astype("f2")
    c = np.zeros((64, 32), np.float32)
    mt.compile(program, target="cuda", options=(f"-DSCHEDULE={schedule}",))(a, b, c)
    np.testing.assert_allclose(c, a.astype("f4") @ b.astype("f4"), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("schedule", [0, 7])
def test_copies_that_arrive_in_any_order_give_the_product(schedule: int) -> None:
    product(handed_on(), schedule)


def test_nobody_waits_for_copies_but_those_whom_they_are_for() -> None:
    source = mt.compile(handed_on(), target="cuda").source
    kernel = source[source.index("KERNEL program") :]
    assert "mbarrier_init(&((long *)(shared + 6144))[tid], 128);" in kernel
    assert "[tid], 8);" in kernel  # two units of four warps
    producer, consumer = kernel.split("for (long k")[1:3]
    assert producer.count("mbarrier_arrive_behind(") == 2
    assert not any(word in producer.split("}\n          cp")[0] for word in ("named_sync", "cp_async_wait"))
    assert "named_sync" not in consumer.split("mbarrier_arrive(")[0]


@pytest.mark.parametrize(
    "program",
    [
        handed_on(wait=lambda k: k // 2 * 2 - 1),  # half a phase
        handed_on(wait=lambda k: (k // 2 - 1) * 2),  # two phases ahead, and a race
        handed_on(steps=MAX_EVENTS),
    ],
    ids=["part", "ahead", "long"],
)
def test_other_flags_stay_flags(program: Any) -> None:
    source = mt.compile(program, target="cuda").source
    assert "mbarrier_" not in source[source.index("KERNEL program") :]


def test_the_amount_of_a_signal_is_one_arrival_of_each_warp() -> None:
    program = handed_on(amount=3)
    assert "[tid], 8);" in mt.compile(program, target="cuda").source
    product(program)
