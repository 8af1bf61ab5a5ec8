"""``targets/cpu/kernel.py``: a tile program as machine code for this computer."""

import ctypes
import os
import time

import pytest

from megatile.targets.cpu.kernel import _pool


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processors cannot be chosen here")
@pytest.mark.parametrize("allowed", [1, 2])
def test_each_thread_of_a_pool_keeps_to_a_processor_but_the_caller_s(allowed: int) -> None:
    every = os.sched_getaffinity(0)
    if len(every) < 2:
        pytest.skip("there is one processor")
    seen: dict[int, set[int]] = {}
    body_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_long, ctypes.c_long)

    @body_type
    def body(here: int, worker: int, index: int) -> None:
        seen[worker] = os.sched_getaffinity(0)
        time.sleep(0.01)

    run_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p, body_type, ctypes.c_void_p, ctypes.c_long)
    os.sched_setaffinity(0, sorted(every)[:allowed])
    try:
        pool = _pool.__wrapped__(2)
        run = run_type(ctypes.cast(pool, ctypes.POINTER(ctypes.c_size_t))[1])
        for _ in range(5):
            run(pool, body, None, 8)
            assert seen[0] == os.sched_getaffinity(0), "the caller may go where it could before"
            assert len(seen[1]) == 1
        if allowed == 2:
            os.sched_setaffinity(0, seen[1])
            run(pool, body, None, 8)
            assert seen[0].isdisjoint(seen[1]), "it left the processor that the caller came to"
    finally:
        os.sched_setaffinity(0, every)
