"""Times of library kernels by formula: against sums by hand, against bounds, inherited, and of bad input."""

import ast
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import megatile as mt
from megatile import hda
from megatile.core.errors import MegatileError
from megatile.hda import HDA, machine
from megatile.hda.catalog import assumed_kernel
from megatile.timing.fit import fit
from megatile.timing.formulas import OPERATIONS, Device
from megatile.timing.measurements import read_measurements

H100 = {"peak": 132 * 4 * 1024 * 1.83e9, "bandwidth": 3350e9}
FIGURES = {
    "kernels": [
        {"name": "gemm", "share": "50 %", "rows": 64, "columns": 64, "bandwidth": "50 %", "exposed": "25 %",
         "start": "2 us", "split": "1 us"},
        {"name": "gemm_f8", "share": "50 %", "rows": 64, "columns": 64, "bandwidth": "100 %",
         "exposed": "0 %", "start": "1 us"},
        {"name": "quantise", "share": "100 %", "rows": 1, "bandwidth": "100 %", "exposed": "100 %",
         "start": "4 us", "wave": "3 us"},
    ]
}  # fmt: skip


def predict(operation="gemm", machine="dgx-h100", **extents):
    return mt.predict_kernel(operation, machine=machine, **extents)


def plain(tmp_path):
    """dgx-h100 with round figures, as a file of one's own."""
    import yaml

    file = tmp_path / "plain.yaml"
    file.write_text(yaml.safe_dump({"name": "plain", "extends": "dgx-h100", **FIGURES}), encoding="utf-8")
    return HDA.from_yaml(file)


def test_a_gemm_by_hand(tmp_path):
    m, n, k = 1000, 4096, 512
    waves = math.ceil(math.ceil(m / 64) * n // 64 / 132)
    work = waves * 2 * 64 * 64 * k / (H100["peak"] / 132 / 2) * 1e6
    traffic = 2 * ((m + n) * k + m * n) / (H100["bandwidth"] / 2) * 1e6
    expected = 2 + max(work, traffic) + 0.25 * min(work, traffic)
    assert predict(machine=plain(tmp_path), m=m, n=n, k=k).time_us == pytest.approx(expected)


def test_a_long_narrow_gemm_is_divided(tmp_path):
    k = 1 << 20
    whole = 2 * 64 * 64 * k / (H100["peak"] / 132 / 2) * 1e6
    traffic = 2 * (128 * k + 64 * 64) / (H100["bandwidth"] / 2) * 1e6
    expected = 2 + max(whole / 32 + 1, traffic) + 0.25 * min(whole / 32 + 1, traffic)
    assert predict(machine=plain(tmp_path), m=64, n=64, k=k).time_us == pytest.approx(expected)


def test_eight_bits_are_quantised_first_and_not_divided(tmp_path):
    hda, shape = plain(tmp_path), {"m": 133, "n": 64, "k": 4096, "dtype": "fp8"}
    work = 2 * 64 * 64 * 4096 / (H100["peak"] / 132) * 1e6
    assert predict(machine=hda, **shape, quantised=1).time_us == pytest.approx(1 + work)
    quantise = 4 + 2 * 3 + 133 * 4096 * 3 / H100["bandwidth"] * 1e6
    assert predict(machine=hda, **shape).time_us == pytest.approx(1 + work + quantise)


def test_decoding_reads_the_cache_once(tmp_path):
    found = predict("attention", batch=64, queries=1, context=65535, heads=32, kv_heads=8).time_us
    least = 2 * 2 * 64 * 65536 * 8 * 128 / H100["bandwidth"] * 1e6
    assert least < found < 1.15 * least


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


def test_attention_grows_with_keys_and_shrinks_with_a_window():
    shape = {"batch": 4, "heads": 32, "kv_heads": 8, "queries": 4096}
    whole, half = (predict("attention", **shape, context=c).time_us for c in (8192, 0))
    assert half < whole
    assert predict("attention", **shape, context=8192, window=256).time_us < half


def test_figures_are_inherited_and_say_where_they_come_from(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("name: mine\nextends: dgx-h100\n", encoding="utf-8")
    shape = {"m": 512, "n": 512, "k": 512}
    mine, theirs = predict(machine=HDA.from_yaml(file), **shape), predict(**shape)
    assert mine == theirs
    assert theirs.origin.kind == "rule"
    assert "gemm_h100" in theirs.origin.source
    assert predict(machine="mi300x-8", **shape).origin.kind == "assumed"


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


def test_a_machine_without_a_tensor_engine_is_named(tmp_path):
    file = tmp_path / "bare.yaml"
    file.write_text(
        "{name: bare, extends: dgx-h100, engines: [{name: tensor_core, remove: true}]}", encoding="utf-8"
    )
    with pytest.raises(MegatileError, match="no tensor engine"):
        predict(machine=HDA.from_yaml(file), m=1, n=1, k=1)


KERNELS = Path(__file__).parents[2] / "benchmarks" / "data" / "kernels"


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


def test_experts_that_no_token_meets_cost_nothing():
    layer = {"hidden": 4096, "inner": 2048, "topk": 8, "tensor_parallel": 1, "expert_parallel": 1}
    few = predict(operation="moe", tokens=1, experts=256, **layer)
    all_of_them = predict(operation="moe", tokens=4096, experts=256, **layer)
    weights = 8 * 3 * 4096 * 2048 * 2 / 3.35e12 * 1e6
    assert weights < few.time_us < 4 * weights
    assert all_of_them.time_us > 256 * 3 * 4096 * 2048 * 2 / 3.35e12 * 1e6
    halves = predict(operation="moe", tokens=4096, experts=256, **layer | {"expert_parallel": 2})
    assert halves.time_us < 0.6 * all_of_them.time_us
    blocks, whole = (
        predict(operation="moe", dtype=d, tokens=64, experts=256, **layer) for d in ("fp8_block", "fp8")
    )
    assert whole.time_us > 2 * blocks.time_us  # weights with one scale come at a quarter of the rate


def test_figures_of_experts_are_fitted():
    rows = read_measurements(KERNELS / "deepep_h100.csv.gz", "dgx-h100")
    hda = mt.machine("hgx-a100")  # has no figures for them
    for found in fit(hda, rows, held_out=0.3):
        assert found.after.median < min(0.15, found.before.median)
        assert found.after.rows > 40


def test_figures_are_assumed_for_every_kernel_without_any_and_say_so() -> None:
    described = HDA.from_yaml(Path(hda.__file__).with_name("assumed.yaml"))
    assert all(kernel.source for kernel in described.spec.kernels)
    device = Device.of(described)
    shape = {name: 1 for operation in OPERATIONS.values() for name in operation.extents}
    for operation in OPERATIONS.values():
        for dtype in ("bf16", "f8e4m3"):
            for name in operation.kernels(device, shape, dtype):
                assert device.kernel(name) is not None
    assert (assumed_kernel("attention").share, assumed_kernel("gemm").share) == (0.5, 0.8)


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
