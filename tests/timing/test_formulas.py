"""Times of library kernels by formula: against sums by hand, against bounds, inherited, and of bad input."""

import ast
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tests.timing.shared import KERNELS, predict

import megatile as mt
from megatile.core.errors import MegatileError
from megatile.hda import machine
from megatile.timing.measurements import read_measurements


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["dgx-h100", "hgx-a100", "mi300x-8", "cerebras-wse2"]),
    st.sampled_from(["bf16", "fp8", "f16"]),
    *[st.integers(1, 1 << 17)] * 3,
)
def test_no_gemm_beats_the_roofline(name, dtype, m, n, k):
    from megatile.timing.formulas import Device

    device = Device.of(machine(name))
    kind = "f8e4m3" if dtype == "fp8" else dtype
    size = 1 if dtype == "fp8" else 2
    floor = max(2 * m * n * k / (device.rate(kind) * device.units), (m + n) * k * size / device.bandwidth)
    found = predict(machine=name, dtype=dtype, m=m, n=n, k=k)
    assert found.time_us >= floor * 1e6
    assert found.time_us <= predict(machine=name, dtype=dtype, m=m, n=2 * n, k=2 * k).time_us * (1 + 1e-9)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"operation": "gem"}, "did you mean 'gemm'"),
        ({"m": 1, "n": 1}, "gemm needs k"),
        ({"m": 1, "n": 1, "k": 0}, "an integer from 1 to"),
        ({"m": 1, "n": 1, "k": True}, "got True"),
        ({"m": 1, "n": 1, "k": 1.5}, "got 1.5"),
        ({"m": 1, "n": 1, "k": 10**30}, "must be an integer from 1 to"),
        ({"m": 1, "n": 1, "k": 1, "l": 1}, "no extent 'l'"),
        ({"m": 1, "n": 1, "k": 1, "dtype": "f17"}, "dtype 'f17' is unknown"),
        ({"operation": "moe"}, "moe needs tokens"),
        ({"operation": "all_reduce", "ranks": 8}, "all_reduce needs bytes"),
        (
            {"operation": "all_reduce", "ranks": 2, "bytes": 8, "machine": "cerebras-wse2"},
            "no network between",
        ),
        ({"operation": None}, "not among the operations"),
    ],
)
def test_bad_input_is_one_clear_error(asked, message):
    with pytest.raises(MegatileError) as caught:
        predict(**asked)
    assert message in str(caught.value)


def test_collectives_grow_with_bytes_and_are_near_what_was_measured():
    for on, file in (("dgx-h100", "nccl_h100"), ("hgx-a100", "nccl_a100")):
        rows = read_measurements(KERNELS / f"{file}.csv.gz", on)
        times = [predict(operation=r.operation, machine=on, **r.shape).time_us for r in rows]
        errors = [abs(t / r.time_us - 1) for t, r in zip(times, rows, strict=True)]
        assert float(np.median(errors)) < 0.04
    for kind in ("all_reduce", "all_to_all", "broadcast", "send_recv"):
        for name in ("dgx-h100", "h100-cluster", "mi300x-8", "ahbm"):
            each = [
                predict(operation=kind, machine=name, ranks=2, bytes=b).time_us for b in (1, 1 << 20, 1 << 30)
            ]
            assert each == sorted(each)
            alone = [predict(operation=kind, machine=name, ranks=1, bytes=b).time_us for b in (8, 1 << 30)]
            assert 0 < alone[0] == alone[1]


def test_no_hardware_figure_is_written_outside_machine_files() -> None:
    """Parts of machines are made of numbers only where machine files are read."""
    parts = {"KernelFigures", "Protocol", "LibraryFigures", "MemoryLayer", "Network", "Engine"}
    found = []
    package = Path(mt.__file__).parent
    for file in package.rglob("*.py"):
        if file.relative_to(package).parts[0] in ("hda", "compat"):
            continue
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") in parts:
                given = [*call.args, *(k.value for k in call.keywords)]
                if any(isinstance(a, ast.Constant) and type(a.value) in (int, float) for a in given):
                    found.append(f"{file.name}:{call.lineno}")
    assert not found
