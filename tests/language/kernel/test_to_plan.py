"""``language/kernel/to_plan.py``: ``read_kernel``."""

from __future__ import annotations

import numpy as np
import pytest
from tests.language.kernel import kernels
from tests.language.kernel.reader_cases import run

from megatile.language import tl
from megatile.plan.execute import execute
from megatile.sim import simulate


@pytest.mark.parametrize("units", [0, -1])
def test_a_kernel_needs_units(units):
    with pytest.raises(tl.KernelError, match=f"world_size={units} is not a number of 1 or more"):
        run(kernels.hello_send, units=units, extra=(4,))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"world_size": "4"}, "world_size='4' is not a number of 1 or more"),
        ({"grid": 4}, "grid=4 is not a sequence of counts"),
        ({"grid": (2, 0)}, "grid=0 is not a number"),
        ({"scale": 3}, "scale=3 is not a name"),
        ({"memory": 3}, "memory=3 is not a name"),
        ({"n_slots": 0}, "n_slots=0 is not a number"),
        ({"n_slots": 1.5}, "n_slots=1.5 is not a number"),
        ({"slot_size": -1}, "slot_size=-1 is not a number"),
        ({"neighbors": 3}, "neighbors=3 is not a function"),
        ({"kernel": None}, "kernel=None is not a function"),
        ({"arguments": None}, "arguments=None is not a list"),
        (
            {"machine": "ahbm", "memory": "hmb"},
            r"'ahbm' has no memory 'hmb' \(memory=\) .*did you mean 'hbm'",
        ),
        ({"machine": "ahbm", "scale": "block"}, r"'ahbm' has no scale 'block' \(scale=\)"),
    ],
)
def test_errors_name_the_argument(given, words):
    whole = {"kernel": kernels.hello_send, "arguments": [tl.Tensor("t", (4,)), 4], "world_size": 2, **given}
    with pytest.raises(tl.KernelError, match=words):
        tl.read_kernel(whole.pop("kernel"), whole.pop("arguments"), **whole)


@pytest.mark.parametrize(
    ("machine", "names"),
    [
        ("dgx-h100", ("block", "hbm", "shared")),
        ("ahbm", ("pe", "hbm", "tcm")),
        ("cerebras-wse2", ("core", "sram", "sram")),
        ("cpu", ("block", "ram", "scratch")),
    ],
)
def test_a_machine_gives_scale_and_memories(machine, names):
    plan = tl.read_kernel(kernels.hello_send, [tl.Tensor("t", (4,)), 4], world_size=2, machine=machine)
    assert (plan.scale, plan.tile("t").memory, plan.channels[0].memory) == names
    simulate(plan, machine=machine)


def test_a_missing_argument_is_reported_by_the_kernels_own_name():
    with pytest.raises(TypeError, match=r"^hello_send\(\) missing"):
        run(kernels.hello_send)


def test_replicated_tensors():
    def kernel(w_ptr, t_ptr, tl):
        mine = t_ptr + tl.program_id(0) * 8
        tl.store(mine, tl.load(mine, (4,)) * tl.load(w_ptr, (4,)))

    w = tl.Tensor("w", (4,), role="input", replicated=True)
    plan = tl.read_kernel(kernel, [w, tl.Tensor("t", (4,))], world_size=2, topology="none")
    x, weights = np.full((2, 4), 3, "f2"), np.asarray([[1, 2, 3, 4], [5, 6, 7, 8]], "f2")
    np.testing.assert_array_equal(execute(plan, {"t": x, "w": weights})["t"], x * weights)
