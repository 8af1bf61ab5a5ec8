"""What several files of tests/timing share."""

from pathlib import Path

import megatile as mt
from megatile.hda import machine
from megatile.timing.database import Measurement
from megatile.timing.formulas import Device, gemm


def put(tmp_path, text, name="t.csv"):
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    return file


def grid(factor=1.0, step=1):
    """Times of the formula on dgx-h100, times a factor, for shapes of powers of two."""
    sizes = [2**i for i in range(5, 14, step)]
    shapes = [{"m": m, "n": n, "k": k} for m in sizes for n in sizes for k in sizes]
    device = Device.of(machine("dgx-h100"))
    times = [factor * float(gemm(device, {**s, "quantised": 0}, "bf16")) for s in shapes]
    return [
        Measurement("dgx-h100", "gemm", "bf16", "", s, t, "grid") for s, t in zip(shapes, times, strict=True)
    ]


RATES = {"peak": 132 * 4 * 1024 * 1.83e9, "bandwidth": 3350e9}


def predict(operation="gemm", machine="dgx-h100", **extents):
    return mt.predict_kernel(operation, machine=machine, **extents)


KERNELS = Path(__file__).parents[2] / "benchmarks" / "data" / "kernels"
