"""Flags as mbarriers: copies arrive at them when done; what is not proven safe stays flags."""

from typing import Any

import numpy as np
import pytest

import megatile as mt
import megatile.language as T
from megatile.ir.signals import MAX_EVENTS


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
